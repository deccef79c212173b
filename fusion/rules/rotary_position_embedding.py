"""RotaryPositionEmbedding: one value's rows rotated, by halves, by neighbours, or put apart and then by halves."""

from __future__ import annotations

from fusion.candidate import Candidate, EmitterFactory, Refused, evaluated
from fusion.facts.analysis import Facts
from fusion.facts.graph import dtype_name
from fusion.facts.rotary.rotations import Rotated
from fusion.facts.rotary.turned import Turned
from fusion.result import Refusal
from fusion.rules import _block as block
from fusion.rules import _turn_block as turns

OP = "RotaryPositionEmbedding"
MODES = {"half": 0, "interleave": 1, "interleave-half": 3}


class RotaryPositionEmbeddingRule:
    """See the module's text."""

    op = OP
    size = 7

    def match(self, facts: Facts, new_emitter: EmitterFactory) -> tuple[list[Candidate], list[Refusal]]:
        candidates, refusals = [], []
        for rotated in facts.rotations.found():
            whole = rotated.turned
            if not facts.standing.stands(whole.out):
                continue
            layer = facts.view.layer_of(whole.out, whole.x)
            # where a product does not know the mode, halves may still be turned behind the graph's own reordering
            for turned in (whole, whole.nearer):
                if turned is None:
                    continue
                try:
                    candidates.append(_build(facts, new_emitter, rotated, turned, layer))
                except Refused as refused:
                    refusals.append(refused.refusal(facts.view, OP, turned.out, layer))
        for reason in facts.rotations.reasons():
            if reason.value is not None and facts.standing.stands(reason.value):
                layer = facts.view.layer_of(reason.value)
                place = facts.view.place(reason.value, layer)
                refusals.append(Refusal(reason.code, place, layer, OP, reason.fact, reason.found, reason.wanted, ""))
        return candidates, refusals


RULE = RotaryPositionEmbeddingRule()


@evaluated
def _build(facts: Facts, new_emitter: EmitterFactory, rotated: Rotated, turned: Turned, layer: int | None) -> Candidate:
    site = turns.read_site(facts, rotated, turned)
    asked = turns.same_shaped(site)
    turns.refuse_kept(facts, site, asked)
    emit = new_emitter(f"{OP}_{'x' if layer is None else layer}")
    rows = turns.Rows(facts, emit, site)
    (x, cos, sin), columns = rows.operands(), site.shapes[0][-1]
    start, end = turned.start, turned.start + turned.width
    front = x if turned.width == columns else rows.part(x, start, end, "turned")
    attrs = {"mode": MODES[turned.mode]}
    node, outputs = block.fused_node(OP, emit, [front, cos, sin], attrs)
    y = outputs["y"]
    if turned.width != columns:
        parts = [rows.part(x, 0, start, "left")] if start else []
        parts += [y, *([rows.part(x, end, columns, "right")] if end < columns else [])]
        y = emit.concat(parts, "whole")
    made = block.Block(OP, site.results[0], layer, emit, node, outputs, attrs)
    if site.kind != dtype_name(site.x):
        made.notes.append(f"computed in {site.kind}, the type of cos and sin")
    probes = (site.probes, site.fresh)
    return block.candidate(facts, made, rows.restored(y), site.feeds, site.region, probes, RULE.size, asked)
