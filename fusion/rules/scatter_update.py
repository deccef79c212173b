"""ScatterUpdate: rows of a cache without pages, ``[slots, N, D]``, written by slot."""

from __future__ import annotations

from fusion.candidate import Candidate, EmitterFactory, Refused
from fusion.facts.analysis import Facts
from fusion.facts.cache_write import CacheWrite
from fusion.result import Refusal
from fusion.rules import _block as block
from fusion.rules import _cache_op as common
from fusion.rules import _scatter as scatter
from fusion.rules._scatter_slots import assume_slots

OP = "ScatterUpdate"


class ScatterUpdateRule:
    """See the module's text."""

    op = OP
    size = 2

    def match(self, facts: Facts, new_emitter: EmitterFactory) -> tuple[list[Candidate], list[Refusal]]:
        candidates, refusals = [], []
        for write in scatter.leftovers(facts, "flat"):
            try:
                candidates.append(_build(facts, new_emitter, write))
            except Refused as refused:
                refusals.append(refused.refusal(facts.view, OP, write.out, facts.layer(write)))
        return candidates, refusals


RULE = ScatterUpdateRule()


def _build(facts: Facts, new_emitter: EmitterFactory, write: CacheWrite) -> Candidate:
    item, layer = scatter.read_leftover(facts.view, write), facts.layer(write)
    emit = new_emitter(f"{OP}_{'x' if layer is None else layer}")
    operands = [write.cache, common.flat_index(emit, write), scatter.token_rows(emit, item, "updates")]
    node, outputs = block.fused_node(OP, emit, operands, {})
    made = block.Block(OP, write.out, layer, emit, node, outputs, {})
    found = scatter.candidate(facts, made, [item], [(write.out, outputs["var"])], RULE.size)
    assume_slots(found, write)
    return found
