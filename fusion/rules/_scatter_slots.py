"""The scatters of one cache, and what they are told of its slots: index tuples, and that none is negative."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
import onnx_ir as ir

from fusion.candidate import Candidate, EmitterFactory, Refused
from fusion.emit import Emitter
from fusion.facts.analysis import Facts
from fusion.facts.caches.cache_write import CacheWrite
from fusion.result import Refusal
from fusion.rules import _block as block
from fusion.rules import _cache_op as common
from fusion.rules._dims import dim_like
from fusion.rules._scatter import LONGEST_CONSTANT, Leftover, candidate, leftovers, read_leftover

Operands = Callable[[Emitter, Leftover], Sequence[ir.Value | None]]
"""Makes the operands of a scatter: the cache, its indices and the rows."""


def match_each(
    facts: Facts, new_emitter: EmitterFactory, op: str, size: int, forms: Sequence[str], operands: Operands
) -> tuple[list[Candidate], list[Refusal]]:
    """The leftover writes of some forms, each as a scatter of its own cache."""
    candidates, refusals = [], []
    for write in leftovers(facts, *forms):
        layer = facts.layer(write)
        try:
            item = read_leftover(facts.view, write)
            emit = new_emitter(f"{op}_{'x' if layer is None else layer}")
            node, outputs = block.fused_node(op, emit, operands(emit, item), {})
            made = block.Block(op, write.out, layer, emit, node, outputs, {})
            found = candidate(facts, made, [item], [(write.out, outputs["var"])], size)
            assume_slots(found, write)
        except Refused as refused:
            refusals.append(refused.refusal(facts.view, op, write.out, layer))
        else:
            candidates.append(found)
    return candidates, refusals


def assume_slots(found: Candidate, write: CacheWrite) -> None:
    """States that slots are not negative.

    Raises:
        Refused: the graph skips a slot of -1, so that there may be one; these operators know no skipping.
    """
    if write.negative == "skips":
        raise Refused(
            "slots-skipped", "no slot is -1", "a graph that skips a slot of -1", "slots >= 0",
            "ScatterPaKvCache skips: write key and value with one slot mapping", write.out,
        )  # fmt: skip
    found.assumptions.append("slots >= 0: the operator refuses a negative slot")


def page_tuples(emit: Emitter, write: CacheWrite) -> ir.Value:
    """Page and row of each slot, ``[T, 2]``."""
    slots, axis = common.flat_index(emit, write), common.rows_axis(write)
    size = common.static_dims(write.cache)[axis]
    if size is None or size > LONGEST_CONSTANT:
        rows = emit.dim(write.cache, axis, "block_size")
    else:
        rows = emit.ints([size], "block_size")
    page = emit.node("Div", [slots, rows], "page")
    row = emit.node("Sub", [slots, emit.node("Mul", [page, rows], "first_slot")], "row")
    return emit.concat(
        [emit.reshape(part, [-1, 1], f"{name}s") for part, name in ((page, "page"), (row, "row"))], "tuples"
    )


def row_tuples(emit: Emitter, item: Leftover, inputs: list[ir.Value]) -> ir.Value:
    """Batch entry and row of each token, ``[T, 2]``; with heads in between ``[T, N, 3]``.

    Raises:
        Refused: nothing tells how many batch entries or tokens there are.
    """
    write = item.write
    batch = _batch(emit, item, inputs)
    rows = common.row_index(emit, write, batch, _tokens(item))
    column = _numbers(emit, batch)
    shape = emit.node("Shape", [rows], "by_batch", dtype=ir.DataType.INT64)
    entries = emit.node("Expand", [column, shape], "entry_of_token")
    if item.rank == 3 or write.order == "BSND":
        parts = [emit.reshape(part, [-1, 1], name) for part, name in ((entries, "entry"), (rows, "row"))]
        return emit.concat(parts, "tuples")
    heads = emit.constant(np.arange(item.heads, dtype=np.int64).reshape(1, -1, 1), "heads")
    entry, row = (emit.reshape(part, [-1, 1, 1], name) for part, name in ((entries, "entry"), (rows, "row")))
    head = emit.node("Expand", [heads, emit.node("Shape", [row], "tokens", dtype=ir.DataType.INT64)], "head")
    every = emit.ints([1, item.heads, 1], "every_head")
    wide = [emit.node("Expand", [part, every], name) for part, name in ((entry, "entry_wide"), (row, "row_wide"))]
    return emit.concat([wide[0], head, wide[1]], "tuples")


def _numbers(emit: Emitter, count: int | ir.Value) -> ir.Value:
    """``0 .. count - 1`` as a column."""
    if isinstance(count, int):
        return emit.constant(np.arange(count, dtype=np.int64).reshape(-1, 1), "entries")
    zero, one = (emit.constant(np.array(number, np.int64), part) for number, part in ((0, "zero"), (1, "one")))
    limit = emit.reshape(count, emit.ints([], "scalar"), "batch_scalar")
    numbers = emit.node("Range", [zero, limit, one], "entries", dtype=ir.DataType.INT64)
    return emit.reshape(numbers, [-1, 1], "entry_column")


def _batch(emit: Emitter, item: Leftover, inputs: list[ir.Value]) -> int | ir.Value:
    sizes = [probe.batch for probe in item.write.probes]
    # what all caches of a model have in common comes first: a runtime computes it once
    values = [item.write.slots.value, *inputs, item.rows.value]
    found = dim_like(emit, [entry.probe for entry in item.write.probes], sizes, values, "batch_size")
    if found is None:
        raise Refused("row-order", "the batch size can be told", "no value has such a dim", "rows by batch", "")
    return found


def _tokens(item: Leftover) -> tuple[ir.Value, int]:
    """A value and the axis of it that counts the tokens of a batch entry; only runs of rows need one."""
    value = item.rows.value
    shapes = [(entry.probe.shape(value) or (), entry.tokens) for entry in item.write.probes]
    for axis in range(len(shapes[0][0]) - 1, -1, -1):
        if all(shape[axis] == tokens for shape, tokens in shapes):
            return value, axis
    if item.write.slots.start:
        raise Refused("row-order", "the number of tokens can be told", "no value has such a dim", "rows by batch", "")
    return value, 0
