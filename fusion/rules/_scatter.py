"""Cache writes that larger operators leave: whose rows go where, as the scatters take them."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import onnx_ir as ir

from fusion.candidate import Candidate, Refused
from fusion.emit import Emitter
from fusion.facts.analysis import Facts
from fusion.facts.caches.cache_write import CacheWrite
from fusion.facts.graph import GraphView, dtype_name
from fusion.facts.semantics import Conflict, OutOfRange, Unsupported, lookup
from fusion.facts.symbols.operand import Columns, columns_of
from fusion.facts.symbols.parameters import Part
from fusion.facts.symbols.symbolic import Source
from fusion.facts.trial.probe import Probe
from fusion.facts.trial.settle import settle, start_sizes
from fusion.facts.trial.trials import FRESH_SEED
from fusion.rules import _block as block
from fusion.rules import _cache_op as common
from ir_ops.dtypes import Array
from ir_ops.ops import DOMAIN

LONGEST_CONSTANT = 128
"""Rows of a page up to which they are a number in the graph; trial evaluations may stand for more by fewer."""


@dataclass
class Leftover:
    """A write, and the columns of the value whose rows it writes."""

    write: CacheWrite
    rows: Columns

    @property
    def heads(self) -> int:
        return int(self.rows.columns.shape[0])

    @property
    def width(self) -> int:
        return int(self.rows.columns.shape[1])

    @property
    def rank(self) -> int:
        return len(self.write.probes[0].probe.shape(self.write.cache) or ())

    @property
    def feeds(self) -> list[ir.Value]:
        return [self.write.cache, self.rows.value, self.write.slots.value]


def form_of(write: CacheWrite) -> str:
    """``pages`` (by slot), ``flat`` (by slot, no pages declared), ``nz``, ``rows`` (of a batch entry) or ``starts``."""
    geometry, shape = write.probes[0].geometry, write.probes[0].probe.shape(write.cache) or ()
    if write.slots.form != "slot":
        return {"row": "rows"}.get(write.slots.form, "starts")
    if geometry.order == "NZ":
        return "nz"
    return "flat" if len(shape) == 3 and geometry.pages == 1 and geometry.rows == shape[0] else "pages"


def leftovers(facts: Facts, *forms: str) -> list[CacheWrite]:
    """The writes of these forms that no operator of ours does yet."""
    own = (write for write in facts.writes if not any(node.domain == DOMAIN for node in write.spine.nodes))
    return [write for write in own if form_of(write) in forms]


def read_leftover(view: GraphView, write: CacheWrite) -> Leftover:
    """The write as a scatter does it.

    Raises:
        Refused: an operator that writes in place would be seen, or cannot say what the graph says.
    """
    common.refuse_aliases(write)
    standard = next((node for node in write.spine.nodes if node.op_type == "TensorScatter"), None)
    if standard is not None:
        raise Refused(
            "write-in-operator", f"rows of {write.cache.name} are scattered by index",
            "TensorScatter, which itself writes runs of rows in place", "indices", "keep it: GE has Scatter for it",
            write.out,
        )  # fmt: skip
    if len(write.updates) != 1:
        raise Refused(
            "row-order", f"rows written to {write.cache.name} are of one value",
            ", ".join(value.name or "" for value in write.updates), "one value", "", write.out,
        )  # fmt: skip
    value = write.updates[0]
    if dtype_name(value) != dtype_name(write.cache):
        raise Refused(
            "mixed-types", f"rows written to {write.cache.name} have its type", dtype_name(value),
            dtype_name(write.cache), "", value,
        )  # fmt: skip
    return Leftover(write, _columns(view, write))


def _columns(view: GraphView, write: CacheWrite) -> Columns:
    """The nearest value whose rows, in token order, are written: what is written, or what that was moved from."""
    value = write.updates[0]
    places = [item.source for item in write.probes]
    while True:
        parts = [
            Part(Source(value, 0, item.probe.shape(value) or ()), place)
            for item, place in zip(write.probes, places, strict=True)
        ]
        read = [_in_order(part) or columns_of(part) for part in parts]
        if read[0] is not None and all(item is not None and item.same_as(read[0]) for item in read[1:]):
            return read[0]
        maps = [_moved(view, item.probe, value) for item in write.probes]
        if any(entry is None for entry in maps):
            raise Refused(
                "row-order", f"what is written to {write.cache.name} are rows in token and head order",
                f"rows of {value.name} in another order", "token t of the value goes to slot t", "", value,
            )  # fmt: skip
        places = [entry[place] for entry, place in zip(maps, places, strict=True) if entry is not None]
        value = value.producer().inputs[0]  # type: ignore[union-attr, assignment]


def _in_order(part: Part) -> Columns | None:
    """All elements of a source in its own order, however its dims cut them up."""
    count, heads, width = part.position.shape
    if (
        part.position.size != math.prod(part.source.shape)
        or (np.diff(part.position.reshape(-1), prepend=-1) != 1).any()
    ):
        return None
    return Columns(part.value, False, (count, heads * width), np.arange(heads * width).reshape(heads, width))


def _moved(view: GraphView, probe: Probe, value: ir.Value) -> Array | None:
    """Per element of a value its flat position in the one value that it is moved from; None where there is none."""
    node = value.producer()
    definition = None if node is None else lookup(node.domain, node.op_type)
    if node is None or definition is None or definition.moves != (0,) or node.inputs[0] is None:
        return None
    shape = probe.shape(node.inputs[0])
    told = [None if item is None else probe.array(item) for item in node.inputs[1:]]
    if shape is None or any(
        item is not None and array is None for item, array in zip(node.inputs[1:], told, strict=True)
    ):
        return None
    try:
        tags = np.arange(math.prod(shape)).reshape(shape)
        return definition.run(view.attrs(node), [tags, *told])[value.index() or 0].reshape(-1)
    except (Conflict, OutOfRange, Unsupported):
        return None


def token_rows(emit: Emitter, item: Leftover, what: str) -> ir.Value:
    """The written rows as ``[T, N, D]``."""
    rows, value = item.rows, item.rows.value
    if rows.by_head:
        value = emit.pick_columns(value, rows.columns[0], rows.width, what + "_columns")
        value = emit.node("Transpose", [value], what + "_by_token", {"perm": [0, 2, 1, 3]})
        return emit.reshape(value, [-1, item.heads, item.width], what)
    picked = rows.columns.reshape(-1)
    if len(picked) == rows.width and (picked == np.arange(rows.width)).all():
        declared = common.static_dims(value)
        known = len(declared) == 3 and declared[1:] == (item.heads, item.width)
        return value if known else emit.reshape(value, [-1, item.heads, item.width], what)
    if len(rows.shape) != len(item.write.probes[0].probe.shape(value) or ()):
        value = emit.reshape(value, [*([0] * (len(rows.shape) - 1)), rows.width], what + "_joined")
    value = emit.pick_columns(value, picked, rows.width, what + "_columns")
    return emit.reshape(value, [-1, item.heads, item.width], what)


def probes_of(view: GraphView, items: Sequence[Leftover]) -> list[Probe]:
    """Trial sizes under which all writes can be evaluated, their slots distinct; none where there are not two."""
    targets = [value for item in items for value in (item.write.out, *item.feeds)]
    found: list[Probe] = []
    for entry in items[0].write.probes:
        try:
            probe = settle(view, entry.probe.seed, entry.probe.numbers, targets, entry.probe.sizes)
            shapes = [probe.shape(value) for value in targets]
        except (Conflict, OutOfRange, Unsupported):
            return []
        if None in shapes or not all(common.slots_are_distinct(probe, item.write) for item in items):
            return []
        found.append(probe)
    return found


def fresh_probe(view: GraphView, items: Sequence[Leftover]) -> Probe | None:
    """A trial size that no fact was read under; None when none fits."""
    write = items[0].write
    targets = [value for item in items for value in (item.write.out, *item.feeds)]
    try:
        sizes = start_sizes(view, FRESH_SEED, write.out)
        probe = settle(view, FRESH_SEED, write.probes[0].probe.numbers, targets, sizes)
        return probe if all(common.slots_are_distinct(probe, item.write) for item in items) else None
    except (Conflict, OutOfRange, Unsupported):
        return None


def candidate(
    facts: Facts, made: block.Block, items: Sequence[Leftover], replaced: list[tuple[ir.Value, ir.Value]], size: int
) -> Candidate:
    """The candidate of a scatter whose node is made."""
    probes = probes_of(facts.view, items)
    if not probes:
        raise Refused(
            "write-unreadable", "the write can be tried with distinct slots", "no trial sizes fit", "sizes that fit",
            "", items[0].write.out,
        )  # fmt: skip
    feeds = list({id(value): value for item in items for value in item.feeds}.values())
    region = block.region_of([old for old, _ in replaced], feeds)
    _refuse_others(facts.view, items[0].write, region, feeds)
    found = block.candidate(facts, made, replaced, feeds, region, (probes, fresh_probe(facts.view, items)), size)
    found.assumptions.append("slots are distinct")
    return found


def _refuse_others(view: GraphView, write: CacheWrite, region: Sequence[ir.Node], feeds: Sequence[ir.Value]) -> None:
    """Refuses a write that reads more than its operator does: trial sizes may not show what that changes."""
    known = {id(value) for value in feeds}
    for node in region:
        for value in node.inputs:
            own = value is None or value.producer() is not None or id(value) in known or view.is_constant(value)
            if not own and node.op_type not in ("Shape", "Size"):
                raise Refused(
                    "write-reads-more", f"the rows of {write.cache.name} that are written are told by "
                    f"{write.slots.value.name} alone", f"{value.name} is read too", "one value that holds the slots",  # type: ignore[union-attr]
                    "compute the whole slot in one value, or leave the write as it is", value,
                )  # fmt: skip
