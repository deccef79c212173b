"""Slot numbers: how a graph may give them, how a cache's shape may be read, and which addresses that predicts."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import onnx_ir as ir

from ir_ops.dtypes import Array
from ir_ops.layout import address


@dataclass(frozen=True)
class Slots:
    """How slot numbers are given.

    Attributes:
        value: the integer value that holds them.
        form: ``row`` (position in the batch's own cache), ``slot`` (flat slot), ``block`` (first slot of a page).
        shared: the value has one entry a token and the batch shares it.
        start: the value is where a run of tokens starts.
    """

    value: ir.Value
    form: str
    shared: bool = False
    start: bool = False


@dataclass(frozen=True)
class Geometry:
    """A reading of the cache's shape: memory order, and which axes are pages, rows, heads and columns."""

    order: str
    pages: int
    rows: int
    heads: int
    columns: int
    d0: int = 1

    def places(self, page: Array, line: Array) -> Array:
        """Flat cache position of every (token, head, column), from each token's page and row in it."""
        head, column = np.arange(self.heads)[None, :, None], np.arange(self.columns)[None, None, :]
        sizes = {"rows": self.rows, "heads": self.heads, "columns": self.columns, "d0": self.d0}
        place: Array = address(self.order, page[:, None, None], line[:, None, None], head, column, **sizes)
        return place


@dataclass(frozen=True)
class Reading:
    """One meaning of slot numbers: page and row of each token, and how many batch entries the tokens form."""

    slots: Slots
    page: Array
    line: Array
    batch: int


def geometries(shape: tuple[int, ...], itemsize: int) -> Iterator[Geometry]:
    """Readings of a cache shape that the layouts know."""
    d0 = 32 // itemsize
    if len(shape) == 4:
        a, b, c, d = shape
        yield Geometry("BNSD", a, c, b, d)
        yield Geometry("BSND", a, b, c, d)
        if d == d0:
            yield Geometry("NZ", a, c, 1, b * d0, d0)
        if d % d0 == 0:
            yield Geometry("NZ", a, b, c, d, d0)
    elif len(shape) == 3:
        a, b, c = shape
        yield Geometry("BNSD", a, b, 1, c)
        yield Geometry("BSND", a, b, 1, c)
        yield Geometry("BSND", 1, a, b, c)
    elif len(shape) == 5 and shape[4] == d0:
        yield Geometry("NZ", shape[0], shape[3], shape[1], shape[2] * d0, d0)


def readings(value: ir.Value, numbers: Array, geometry: Geometry, total: int) -> Iterator[Reading]:
    """Meanings that the numbers of a value may have for ``total`` tokens."""
    if geometry.order != "NZ":
        yield from _as_rows(value, numbers, geometry, total)
    if geometry.order != "BNSD":
        yield from _as_slots(value, numbers, geometry.rows, total)


def _as_rows(value: ir.Value, numbers: Array, geometry: Geometry, total: int) -> Iterator[Reading]:
    """The page is the batch, the numbers are rows in it."""
    flat = numbers.reshape(-1)
    for batch in range(geometry.pages, 0, -1):
        if total % batch:
            continue
        tokens = total // batch
        page = np.repeat(np.arange(batch), tokens)
        if len(flat) == tokens and batch > 1:
            yield Reading(Slots(value, "row", shared=True), page, np.tile(flat, batch), batch)
        elif len(flat) == total and (numbers.ndim < 2 or numbers.shape[0] == batch):
            yield Reading(Slots(value, "row"), page, flat, batch)
        run = np.tile(np.arange(tokens), batch)
        if len(flat) == batch:
            yield Reading(Slots(value, "row", start=True), page, np.repeat(flat, tokens) + run, batch)
        elif len(flat) == 1:
            yield Reading(Slots(value, "row", shared=True, start=True), page, flat[0] + run, batch)


def _as_slots(value: ir.Value, numbers: Array, rows: int, total: int) -> Iterator[Reading]:
    """The numbers are flat slots, or first slots of pages."""
    flat = numbers.reshape(-1)
    if len(flat) == total:
        batch = numbers.shape[0] if numbers.ndim == 2 else total
        yield Reading(Slots(value, "slot"), flat // rows, flat % rows, batch)
    for batch in range(1, total):
        tokens = total // batch
        pages = -(-tokens // rows)
        if batch * tokens == total and len(flat) == batch * pages:
            token = np.tile(np.arange(tokens), batch)
            start = flat[np.repeat(np.arange(batch), tokens) * pages + token // rows]
            yield Reading(Slots(value, "block"), start // rows, token % rows, batch)
