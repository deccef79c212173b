"""InterleaveRope: DeepSeek's rotation, even and odd columns put apart and then turned by halves."""

from __future__ import annotations

from fusion.candidate import Candidate, EmitterFactory, Refused, evaluated
from fusion.facts.analysis import Facts
from fusion.facts.rotary.rotations import Rotated
from fusion.result import Refusal
from fusion.rules import _block as block
from fusion.rules import _turn_block as turns

OP = "InterleaveRope"


class InterleaveRopeRule:
    """See the module's text."""

    op = OP
    size = 8

    def match(self, facts: Facts, new_emitter: EmitterFactory) -> tuple[list[Candidate], list[Refusal]]:
        candidates = []
        for rotated in facts.rotations.found():
            turned = rotated.turned
            if turned.mode == "interleave-half" and facts.standing.stands(turned.out):
                layer = facts.view.layer_of(turned.out, turned.x)
                try:
                    made = _build(facts, new_emitter, rotated, layer)
                except Refused:
                    continue  # RotaryPositionEmbedding, which takes more, says why
                if made is not None:
                    candidates.append(made)
        return candidates, []


RULE = InterleaveRopeRule()


@evaluated
def _build(facts: Facts, new_emitter: EmitterFactory, rotated: Rotated, layer: int | None) -> Candidate | None:
    site = turns.read_site(facts, rotated, rotated.turned)
    shapes, tables = site.shapes, site.table_shapes
    if len(shapes[0]) != 4 or rotated.turned.width != shapes[0][-1]:
        return None
    if any(shape[1] != 1 for table in tables for shape in table):
        return None
    asked = turns.same_shaped(site)
    turns.refuse_kept(facts, site, asked)
    emit = new_emitter(f"{OP}_{'x' if layer is None else layer}")
    rows = turns.Rows(facts, emit, site)
    node, outputs = block.fused_node(OP, emit, rows.operands(batch_axis=0), {})
    made = block.Block(OP, site.results[0], layer, emit, node, outputs, {})
    probes = (site.probes, site.fresh)
    replaced = rows.restored(outputs["y"])
    return block.candidate(facts, made, replaced, site.feeds, site.region, probes, RULE.size, asked)
