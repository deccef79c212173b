"""ScatterPaKvCache: two paged caches written at the same slots, whatever their rows are."""

from __future__ import annotations

from fusion.candidate import Candidate, EmitterFactory, Refused
from fusion.facts.analysis import Facts
from fusion.facts.caches.cache_write import CacheWrite
from fusion.facts.caches.same_slots import same_slots
from fusion.facts.graph import dims_of, dtype_name
from fusion.result import Refusal
from fusion.rules import _block as block
from fusion.rules import _cache_op as common
from fusion.rules import _scatter as scatter
from fusion.rules._scatter import Leftover
from ir_ops.layout import nz_block

OP = "ScatterPaKvCache"
MODES = {"pages": "Norm", "nz": "PA_NZ"}


class ScatterPaKvCacheRule:
    """A write without a partner is left to the scatters of one cache, which also say why they refuse it."""

    op = OP
    size = 4

    def match(self, facts: Facts, new_emitter: EmitterFactory) -> tuple[list[Candidate], list[Refusal]]:
        candidates, refusals = [], []
        waiting = [item for write in scatter.leftovers(facts, *MODES) if (item := _read(facts, write)) is not None]
        while waiting:
            key = waiting.pop(0)
            layer = facts.layer(key.write)
            value = _partner(facts, key, waiting)
            if value is None:
                continue
            waiting.remove(value)
            try:
                candidates.append(_build(facts, new_emitter, key, value))
            except Refused as refused:
                refusals.append(refused.refusal(facts.view, OP, key.write.out, layer))
        return candidates, refusals


RULE = ScatterPaKvCacheRule()


def _read(facts: Facts, write: CacheWrite) -> Leftover | None:
    """The write in a shape that the operator knows; None where it cannot be it."""
    try:
        item = scatter.read_leftover(facts.view, write)
    except Refused:
        return None
    shape = write.probes[0].probe.shape(write.cache) or ()
    if scatter.form_of(write) == "pages":
        return item if len(shape) == 4 else None
    return (
        item if shape[-1] == nz_block(dtype_name(write.cache)) and common.rows_axis(write) == len(shape) - 2 else None
    )


def _partner(facts: Facts, key: Leftover, waiting: list[Leftover]) -> Leftover | None:
    """A cache of the same layer; of another layer only where one value numbers the slots of both."""
    layer, number = facts.layer(key.write), facts.view.number(key.write.slots.value)
    here = [item for item in waiting if facts.layer(item.write) == layer]
    there = [item for item in waiting if item not in here and facts.view.number(item.write.slots.value) == number]
    return next((item for item in (*here, *there) if _belongs(facts, key, item)), None)


def _belongs(facts: Facts, key: Leftover, value: Leftover) -> bool:
    """Whether two caches have the same pages, heads and slots."""
    if scatter.form_of(key.write) != scatter.form_of(value.write) or key.heads != value.heads:
        return False
    plain = scatter.form_of(key.write) == "pages"
    if plain and dtype_name(key.write.cache) != dtype_name(value.write.cache):
        return False
    dims = [dims_of(item.write.cache) or () for item in (key, value)]
    axes = [common.rows_axis(item.write) for item in (key, value)]
    if dims[0][:1] != dims[1][:1] or dims[0][axes[0]] != dims[1][axes[1]]:
        return False
    return same_slots(facts.view, key.write, value.write) and bool(scatter.probes_of(facts.view, [key, value]))


def _build(facts: Facts, new_emitter: EmitterFactory, key: Leftover, value: Leftover) -> Candidate:
    layer = facts.layer(key.write)
    emit = new_emitter(f"{OP}_{'x' if layer is None else layer}")
    operands = [
        scatter.token_rows(emit, key, "key"), key.write.cache, common.flat_index(emit, key.write),
        scatter.token_rows(emit, value, "value"), value.write.cache,
    ]  # fmt: skip
    attrs = {"cache_mode": MODES[scatter.form_of(key.write)], "scatter_mode": "None"}
    node, outputs = block.fused_node(OP, emit, operands, attrs)
    made = block.Block(OP, key.write.out, layer, emit, node, outputs, attrs)
    replaced = [(key.write.out, outputs["key_cache"]), (value.write.out, outputs["value_cache"])]
    found = scatter.candidate(facts, made, [key, value], replaced, RULE.size)
    if (key.write.negative, value.write.negative) == ("skips", "skips"):
        found.assumptions.append("no slot is -1 on a device: only here the operator is known to skip it")
    else:
        found.assumptions.append("slots >= 0: the graph does not skip a slot of -1, the operator does")
    return found
