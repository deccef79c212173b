"""AddRmsNorm: a residual addition and the norm of the sum; the sum is delivered too."""

from __future__ import annotations

import numpy as np
import onnx_ir as ir

from fusion.candidate import Candidate, EmitterFactory, Refused, evaluated
from fusion.facts.analysis import Facts
from fusion.facts.graph import dims_of, dtype_name
from fusion.facts.norms.norm import NormFact
from fusion.result import Refusal
from fusion.rules import _block as block
from fusion.rules import _norm_block as norms

OP = "AddRmsNorm"
SKIP = "SkipSimplifiedLayerNormalization"
"""ONNX Runtime's own operator for the same; its sum is output 3."""


class AddRmsNormRule:
    """See the module's text."""

    op = OP
    size = 6  # behind the rotations: where a rotated row is normalised, the sum is theirs

    def match(self, facts: Facts, new_emitter: EmitterFactory) -> tuple[list[Candidate], list[Refusal]]:
        candidates, refusals = [], []
        for norm in facts.norms.values():
            total = _residual(facts, norm)
            if total is None:
                continue
            layer = facts.view.layer_of(norm.y, norm.gamma)
            try:
                candidates.append(_build(facts, new_emitter, norm, total, layer))
            except Refused as refused:
                # what keeps a norm from fusing at all is RmsNorm's to say
                if refused.code == "mixed-types":
                    refusals.append(refused.refusal(facts.view, OP, norm.y, layer))
        for node in facts.view.graph:
            if node.op_type == SKIP and node.domain == "com.microsoft" and facts.standing.stands(node.outputs[0]):
                layer = facts.view.layer_of(node.outputs[0], node.inputs[2])
                try:
                    candidates.append(_build_skip(facts, new_emitter, node, layer))
                except Refused as refused:
                    refusals.append(refused.refusal(facts.view, OP, node.outputs[0], layer))
        return candidates, refusals


RULE = AddRmsNormRule()


def _residual(facts: Facts, norm: NormFact) -> ir.Node | None:
    """The addition of two values of one shape that a norm reads, None where there is none or it is fused already."""
    total = facts.view.root(norm.x)
    node = total.producer()
    if node is None or node.op_type not in ("Add", "Sum") or len(node.inputs) != 2 or not facts.standing.stands(total):
        return None
    left, right = node.inputs
    if left is None or right is None or facts.view.is_constant(left) or facts.view.is_constant(right):
        return None
    return node if _same_shape(facts, left, right) else None


def _same_shape(facts: Facts, left: ir.Value, right: ir.Value) -> bool:
    one, other = dims_of(left), dims_of(right)
    if one and one == other and all(one):
        return True
    if one is not None and other is not None and len(one) != len(other):
        return False
    return facts.trials.same_shape(left, right)


@evaluated
def _build(
    facts: Facts, new_emitter: EmitterFactory, norm: NormFact, addition: ir.Node, layer: int | None
) -> Candidate:
    site = norms.read_site(facts, norm)
    total, (left, right) = addition.outputs[0], addition.inputs
    assert left is not None and right is not None
    if not dtype_name(left) == dtype_name(right) == dtype_name(total) == site.kind:
        raise Refused("sum-type", "sum and norm have one type", dtype_name(total), site.kind, "", norm.y)
    feeds = [left, right] if norm.gamma is None else [left, right, norm.gamma]
    region = block.region_of([*site.results, total], feeds)
    probes = norms.trials(facts, site, [left, right], region, feeds)
    asked = norms.same_shaped(region, probes[0], left)
    block.refuse_kept(facts, region, norms.heart(region), [*site.results, total], [value for value, _ in asked])
    emit = new_emitter(f"{OP}_{'x' if layer is None else layer}")
    attrs = norms.attributes(site)
    gamma = norms.gamma_operand(emit, facts, site, exact=True)
    node, outputs = block.fused_node(OP, emit, [left, right, gamma], attrs)
    made = block.Block(OP, site.results[0], layer, emit, node, outputs, attrs)
    replaced = norms.delivered(emit, site, outputs["y"])
    inside = {id(entry) for entry in region}
    if total.is_graph_output() or any(id(reader) not in inside for reader in facts.standing.readers(total)):
        replaced.append((total, outputs["x"]))
    found = block.candidate(facts, made, replaced, feeds, region, probes, RULE.size, asked)
    found.slack = norm.slack(site.width)
    return found


@evaluated
def _build_skip(facts: Facts, new_emitter: EmitterFactory, skip: ir.Node, layer: int | None) -> Candidate:
    """Of ONNX Runtime's operator, which may have a bias and may broadcast: these are refused."""
    y, (left, right, gamma) = skip.outputs[0], (*skip.inputs, None, None, None)[:3]
    if left is None or right is None or gamma is None:
        raise Refused("norm-form", f"{SKIP} has two values and gamma", "an input that is not given", "all three", "", y)
    if len(skip.inputs) > 3 and skip.inputs[3] is not None:
        raise Refused("norm-form", f"{SKIP} adds two values", "a bias as well", "no bias", "", y)
    if any(facts.standing.is_read(item) for item in skip.outputs[1:3]):
        raise Refused("inner-value-read", "only result and sum are read", "the statistics are", "neither", "", y)
    if not _same_shape(facts, left, right):
        raise Refused("sum-shape", "both summands have one shape", "other shapes", "one shape", "", y)
    width = dims_of(gamma) or ()
    rank = len(dims_of(left) or (facts.trials.shapes(left) or [()])[0])
    dims = (*([None] * (rank - 1)), *width)
    if len(width) != 1 or not isinstance(width[0], int) or len(dims) != rank:
        raise Refused("norm-gamma", "gamma is a vector of a known width", str(list(width)), "[D]", "", gamma)
    feeds = [left, right, gamma]
    local = block.local_probes(facts, {id(left): dims, id(right): dims}, [y])  # type: ignore[dict-item]
    if local is None:
        raise Refused("norm-shape", "the norm can be evaluated", "an unknown shape", "shapes", "", y)
    emit = new_emitter(f"{OP}_{'x' if layer is None else layer}")
    attrs = {"epsilon": float(np.float32(facts.view.attrs(skip).get("epsilon", 1e-5)))}
    node, outputs = block.fused_node(OP, emit, [left, right, gamma], attrs)
    made = block.Block(OP, y, layer, emit, node, outputs, attrs)
    replaced = [(y, outputs["y"])]
    if len(skip.outputs) > 3 and facts.standing.is_read(skip.outputs[3]):
        replaced.append((skip.outputs[3], outputs["x"]))
    return block.candidate(facts, made, replaced, feeds, [skip], local, RULE.size)
