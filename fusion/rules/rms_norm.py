"""RmsNorm: a root mean square norm over the last axis, whatever spells it."""

from __future__ import annotations

from fusion.candidate import Candidate, EmitterFactory, Refused, evaluated
from fusion.facts.analysis import Facts
from fusion.facts.graph import dtype_name
from fusion.facts.norms.near_norm import is_centred, near_norms
from fusion.facts.norms.norm import NormFact
from fusion.result import Refusal
from fusion.rules import _block as block
from fusion.rules import _norm_block as norms

OP = "RmsNorm"


class RmsNormRule:
    """See the module's text."""

    op = OP
    size = 5

    def match(self, facts: Facts, new_emitter: EmitterFactory) -> tuple[list[Candidate], list[Refusal]]:
        candidates, refusals = [], []
        for norm in facts.norms.values():
            layer = facts.view.layer_of(norm.y, norm.gamma)
            try:
                candidates.append(_build(facts, new_emitter, norm, layer))
            except Refused as refused:
                refusals.append(refused.refusal(facts.view, OP, norm.y, layer))
        for reason in near_norms(facts.view, facts.norms.values()):
            if reason.value is not None and facts.standing.stands(reason.value):
                layer = facts.view.layer_of(reason.value)
                place = facts.view.place(reason.value, layer)
                refusals.append(Refusal(reason.code, place, layer, OP, reason.fact, reason.found, reason.wanted, ""))
        return candidates, refusals


RULE = RmsNormRule()


@evaluated
def _build(facts: Facts, new_emitter: EmitterFactory, norm: NormFact, layer: int | None) -> Candidate:
    if is_centred(facts.view, norm.x):
        raise Refused(
            "norm-centred", "the mean of the row is not taken off first", "a layer norm", "a root mean square norm", "",
            norm.y,
        )  # fmt: skip
    site = norms.read_site(facts, norm)
    feeds = [norm.x] if norm.gamma is None else [norm.x, norm.gamma]
    region = block.region_of(site.results, feeds)
    probes = norms.trials(facts, site, [norm.x], region, feeds)
    asked = norms.same_shaped(region, probes[0], norm.x)
    block.refuse_kept(facts, region, norms.heart(region), site.results, [value for value, _ in asked])
    emit = new_emitter(f"{OP}_{'x' if layer is None else layer}")
    x = emit.cast(norm.x, site.kind, "x")
    attrs = norms.attributes(site)
    node, outputs = block.fused_node(OP, emit, [x, norms.gamma_operand(emit, facts, site, exact=False)], attrs)
    made = block.Block(OP, site.results[0], layer, emit, node, outputs, attrs)
    if dtype_name(norm.x) != site.kind:
        made.notes.append(f"x is widened to {site.kind}: the graph does not round the result")
    found = block.candidate(
        facts, made, norms.delivered(emit, site, outputs["y"]), feeds, region, probes, RULE.size, asked
    )
    found.slack = norm.slack(site.width)
    return found
