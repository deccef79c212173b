"""DynamicQuant: rows quantised to int8 by their own largest value; the scales are delivered too."""

from __future__ import annotations

import onnx_ir as ir

from fusion.candidate import Candidate, EmitterFactory, Refused, evaluated
from fusion.emit import Emitter
from fusion.facts.analysis import Facts
from fusion.facts.graph import dtype_name
from fusion.facts.quantised.dynamic_quant import DynamicFact, find_dynamic
from fusion.facts.symbols.parameters import Reason
from fusion.facts.trial.probe import Probe
from fusion.result import Refusal
from fusion.rules import _block as block

OP = "DynamicQuant"
INT8 = 2
"""The operators' code of the type."""
ROUNDED = 1e-7
"""Relative error of 1 / 127 as a float32 constant."""


class DynamicQuantRule:
    """See the module's text."""

    op = OP
    size = 4

    def match(self, facts: Facts, new_emitter: EmitterFactory) -> tuple[list[Candidate], list[Refusal]]:
        candidates, refusals = [], []
        for found in find_dynamic(facts.view):
            y = found.y if isinstance(found, DynamicFact) else found.value
            if y is None or not facts.standing.stands(y):
                continue
            layer = facts.view.layer_of(y)
            try:
                if isinstance(found, Reason):
                    raise Refused(found.code, found.fact, found.found, found.wanted, "", y)
                candidates.append(_build(facts, new_emitter, found, layer))
            except Refused as refused:
                refusals.append(refused.refusal(facts.view, OP, y, layer))
        return candidates, refusals


RULE = DynamicQuantRule()


@evaluated
def _build(facts: Facts, new_emitter: EmitterFactory, fact: DynamicFact, layer: int | None) -> Candidate:
    x = block.narrow(fact.x)
    kind = dtype_name(x)
    if kind not in ("float16", "bfloat16", "float32"):
        raise Refused("mixed-types", "rows are float16, bfloat16 or float32", kind or "unknown", "one of them", "", x)
    scales = [scale for scale in fact.scales if facts.standing.is_read(scale)]
    targets = [fact.y, *scales]
    region = block.region_of(targets, [x])
    probes = facts.trials.probes([x, *targets])
    if not probes:
        raise Refused("quant-form", "the rows can be evaluated", "an unknown shape", "shapes", "", fact.y)
    shape, made = probes[0].shape(x) or (), probes[0].shape(fact.largest.outputs[0]) or ()
    if made not in ((*shape[:-1], 1), shape[:-1]):
        raise Refused("quant-axis", "the largest value is that of a row", f"{list(made)} of {list(shape)}",
                      "the last axis", "", fact.y)  # fmt: skip
    block.refuse_kept(facts, region, [fact.largest, fact.rounding], targets, [])
    emit = new_emitter(f"{OP}_{'x' if layer is None else layer}")
    attrs = {"dst_type": INT8}
    node, outputs = block.fused_node(OP, emit, [x], attrs, y="int8")
    inside = {id(item) for item in region}
    replaced = [(fact.y, outputs["y"])]
    replaced += [
        (scale, _scale(emit, probes, scale, outputs["scale"], shape))
        for scale in scales
        if scale.is_graph_output() or any(id(reader) not in inside for reader in facts.standing.readers(scale))
    ]
    made_block = block.Block(OP, fact.y, layer, emit, node, outputs, attrs)
    found = block.candidate(
        facts, made_block, replaced, [x], region, (probes, facts.trials.fresh([x, *targets])), RULE.size
    )
    found.zero_rows, found.slack = False, ROUNDED
    found.assumptions.append("no row is all zeros: the graph divides by its largest value, the operator gives 0")
    return found


def _scale(emit: Emitter, probes: list[Probe], old: ir.Value, new: ir.Value, rows: tuple[int, ...]) -> ir.Value:
    """The operator's scale in the shape and type of the graph's."""
    if len(probes[0].shape(old) or ()) == len(rows):
        dims = emit.shape_vector([*([0] * (len(rows) - 1)), 1], "scale_shape")
        new = emit.reshape(new, dims, "scale_rows")
    return emit.cast(new, dtype_name(old), "scale_cast")
