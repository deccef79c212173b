"""A write under one probe: the reading of slots and cache shape that predicts exactly the written addresses."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import onnx_ir as ir

from fusion.facts.caches.slots import Geometry, Slots, geometries, readings
from fusion.facts.caches.write_map import WriteMap
from fusion.facts.graph import GraphView, dtype_name
from fusion.facts.trial.probe import Probe
from ir_ops.dtypes import Array, by_name


@dataclass
class WrittenView:
    """A write under one probe: sizes and, per token, head and column, the written element of the updates.

    Attributes:
        source: ``[T, N, D]`` flat position in the concatenated updates.
    """

    probe: Probe
    geometry: Geometry
    batch: int
    tokens: int
    source: Array

    @property
    def is_long(self) -> bool:
        """Whether a batch entry has more tokens than a page has rows: only then do page starts show."""
        return self.tokens > self.geometry.rows


def predictions(view: GraphView, written: WriteMap) -> Iterator[tuple[Slots, WrittenView]]:
    """Every (slots, geometry) that predicts exactly the written addresses."""
    flat = written.tags.reshape(-1)
    count = flat.size
    is_written = flat >= count
    total = int(is_written.sum())
    itemsize = by_name(dtype_name(written.spine.cache)).itemsize
    for candidate, numbers in _slot_candidates(view, written):
        for geometry in geometries(written.tags.shape, itemsize):
            row = geometry.heads * geometry.columns
            if total % row:
                continue
            for reading in readings(candidate, numbers, geometry, total // row):
                if reading.slots.start and not written.probe.known(candidate).taint:
                    continue
                if reading.line.min() < 0 or reading.line.max() >= geometry.rows:
                    continue
                place = geometry.places(reading.page, reading.line)
                if place.min() < 0 or place.max() >= count or not is_written[place].all():
                    continue
                if len(np.unique(place)) == total:
                    tokens = len(reading.page) // reading.batch
                    source = flat[place] - count
                    yield reading.slots, WrittenView(written.probe, geometry, reading.batch, tokens, source)


def _slot_candidates(view: GraphView, written: WriteMap) -> list[tuple[ir.Value, Array]]:
    """Integer values behind the index operands that carry data of graph inputs: inputs first, then by graph order.

    Where none carries any, rows always go to the same places, the first S say: one number for each token tells these.
    """
    probe = written.probe
    told = any(probe.known(value).taint for value in written.spine.index_operands)
    pending = written.spine.index_operands
    seen: dict[int, ir.Value] = {}
    while pending:
        value = view.root(pending.pop())
        if id(value) in seen or (told and not probe.known(value).taint):
            continue
        seen[id(value)] = value
        node = value.producer()
        if node is not None:
            pending.extend(item for item in node.inputs if item is not None)
    found = [
        (value, array.astype(np.int64))
        for value in seen.values()
        if (array := probe.array(value)) is not None and array.dtype.kind == "i" and array.size > (not told)
        and (not told or _tells_all(view, written, value))
    ]  # fmt: skip
    return sorted(found, key=lambda item: -1 if (node := item[0].producer()) is None else view.order(node))


def _tells_all(view: GraphView, written: WriteMap, slots: ir.Value) -> bool:
    """Whether the addresses depend on no other data of graph inputs: numbers that are tried may not show that."""
    pending, seen = list(written.spine.index_operands), {id(slots)}
    while pending:
        value = view.root(pending.pop())
        if id(value) in seen or not written.probe.known(value).taint:
            continue
        seen.add(id(value))
        node = value.producer()
        if node is None:
            return False
        pending.extend(item for item in node.inputs if item is not None)
    return True
