"""Where the elements of rows lie in a source: rows by token or by head, and which columns."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
import onnx_ir as ir

from fusion.facts.symbols.parameters import Part
from ir_ops.dtypes import Array


@dataclass(frozen=True)
class Columns:
    """Columns of a source's rows.

    Attributes:
        value: the source.
        by_head: rows are ``[batch, head, token]``; otherwise ``[batch, token]`` with the heads side by side.
        shape: the source's shape under one probe, as ``by_head`` reads it: the last axis holds the columns.
        columns: ``[N, C]`` column numbers, the same for every token.
    """

    value: ir.Value
    by_head: bool
    shape: tuple[int, ...]
    columns: Array

    @property
    def width(self) -> int:
        return self.shape[-1]

    def same_as(self, other: Columns) -> bool:
        """Whether two probes read the same columns of the same source."""
        return (
            self.value is other.value
            and self.by_head == other.by_head
            and self.width == other.width
            and len(self.shape) == len(other.shape)
            and np.array_equal(self.columns, other.columns)
        )


def columns_of(part: Part) -> Columns | None:
    """Reads ``part.position[T, N, C]`` as columns of rows in token order; None when rows are out of order."""
    count, heads, _ = part.position.shape
    shape = part.source.shape
    if not shape:
        return None
    token, head = np.arange(count), np.arange(heads)
    for shape_read in _side_by_side(shape, heads):
        width = shape_read[-1]
        row, column = part.position // width, part.position % width
        if (column != column[:1]).any():
            continue
        if np.prod(shape_read[:-1]) == count and (row == token[:, None, None]).all():
            return Columns(part.value, False, shape_read, column[0])
        if len(shape_read) == 4 and 1 < heads == shape_read[1] and shape_read[0] * shape_read[2] == count:
            tokens = shape_read[2]
            by_head = ((token // tokens)[:, None] * heads + head) * tokens + (token % tokens)[:, None]
            if (row == by_head[:, :, None]).all() and (column == column[:, :1]).all():
                return Columns(part.value, True, shape_read, column[0])
    return None


def _side_by_side(shape: tuple[int, ...], heads: int) -> list[tuple[int, ...]]:
    """The shape, and the one with the heads axis joined to the columns: ``[.., N, W]`` as ``[.., N*W]``."""
    readings = [shape]
    if len(shape) >= 2 and shape[-2] == heads and heads > 1:
        readings.append((*shape[:-2], shape[-2] * shape[-1]))
    return readings


@dataclass(frozen=True)
class Table:
    """cos or sin of each token.

    Attributes:
        value: the source.
        width: columns of its rows: its last dim, or the product of its last ``joined`` dims.
        columns: ``[R]`` column of each output column.
        per_batch, per_token: whether rows depend on the batch and on the token's number in it.
        joined: how many of its last axes together are the columns; 2 for pairs of a cosine and a sine.
    """

    value: ir.Value
    width: int
    columns: Array
    per_batch: bool
    per_token: bool
    joined: int = 1

    def same_as(self, other: Table) -> bool:
        return (
            self.value is other.value
            and (self.width, self.joined) == (other.width, other.joined)
            and (self.per_batch, self.per_token) == (other.per_batch, other.per_token)
            and np.array_equal(self.columns, other.columns)
        )


def table_of(part: Part, batch: int, tokens: int) -> Table | None:
    """Reads positions ``[T, N, R]`` of cos or sin; None when rows are out of order or differ by head."""
    return table_in(part.value, np.arange(math.prod(part.source.shape)).reshape(part.source.shape), part.position,
                    batch, tokens)  # fmt: skip


def table_in(value: ir.Value, held: Array, wanted: Array, batch: int, tokens: int) -> Table | None:
    """The same of a value that holds elements of the source: ``held`` are their positions, in the value's shape."""
    if (wanted != wanted[:, :1]).any():
        return None
    token = np.arange(len(wanted))
    forms = (
        (True, True, token, len(wanted)),
        (False, True, token % tokens, tokens),
        (True, False, token // tokens, batch),
        (False, False, token * 0, 1),
    )
    for joined in range(1, min(2, held.ndim) + 1):
        rows = held.reshape(-1, math.prod(held.shape[-joined:]))
        for per_batch, per_token, row, count in forms:
            columns = _columns_in(rows[row], wanted[:, 0]) if count == len(rows) else None
            if columns is not None:
                return Table(value, rows.shape[1], columns, per_batch, per_token, joined)
    return None


def _columns_in(rows: Array, wanted: Array) -> Array | None:
    """Which column of ``rows`` each column of ``wanted`` is, all in order where that fits; None for other contents."""
    if np.array_equal(rows, wanted):
        return np.arange(wanted.shape[1])
    first = {element: column for column, element in reversed([*enumerate(rows[0].tolist())])}
    columns = np.array([first.get(element, -1) for element in wanted[0].tolist()])
    return columns if (columns >= 0).all() and np.array_equal(rows[:, columns], wanted) else None
