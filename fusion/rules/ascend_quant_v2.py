"""AscendQuantV2: static quantisation to int8 by a scale and an offset, of the tensor or of each column."""

from __future__ import annotations

import onnx_ir as ir

from fusion.candidate import Candidate, EmitterFactory, Refused, evaluated
from fusion.emit import Emitter
from fusion.facts.analysis import Facts
from fusion.facts.graph import dtype_name
from fusion.facts.quantised.static_quant import StaticQuant, is_quantising, read_static
from fusion.facts.symbols.parameters import Reason, Scale
from fusion.result import Refusal
from fusion.rules import _block as block
from fusion.rules import _cache_op as common

OP = "AscendQuantV2"
INT8 = 2
"""The operators' code of the type."""


class AscendQuantV2Rule:
    """See the module's text."""

    op = OP
    size = 3

    def match(self, facts: Facts, new_emitter: EmitterFactory) -> tuple[list[Candidate], list[Refusal]]:
        candidates, refusals = [], []
        for node in facts.view.graph:
            if not is_quantising(facts.view, node) or not facts.standing.stands(node.outputs[0]):
                continue
            layer = facts.view.layer_of(node.outputs[0])
            found = read_static(facts.view, facts.trials, node)
            if isinstance(found, Reason):
                place = facts.view.place(node.outputs[0], layer)
                refusals.append(Refusal(found.code, place, layer, OP, found.fact, found.found, found.wanted, ""))
                continue
            try:
                candidates.append(_build(facts, new_emitter, found, layer))
            except Refused as refused:
                refusals.append(refused.refusal(facts.view, OP, node.outputs[0], layer))
        return candidates, refusals


RULE = AscendQuantV2Rule()


@evaluated
def _build(facts: Facts, new_emitter: EmitterFactory, fact: StaticQuant, layer: int | None) -> Candidate:
    x = block.narrow(fact.x)
    scales = [scale for scale in (fact.scale, fact.offset) if scale is not None]
    feeds = [x, *(part.value for scale in scales for part, _ in scale.parts)]
    region = block.region_of([fact.y], feeds)
    block.refuse_kept(facts, region, fact.peeled.nodes[-1:], [fact.y], [])
    emit = new_emitter(f"{OP}_{'x' if layer is None else layer}")
    scale = common.parameter(emit, facts.view, fact.scale or Scale(), "scale")
    offset = common.parameter(emit, facts.view, fact.offset, "offset")
    assert scale is not None
    if offset is not None:
        scale, offset = _equal_widths(emit, fact, scale, offset)
    kind, scale, offset = _in_one_type(emit, facts, dtype_name(x), scale, offset)
    attrs = {"sqrt_mode": 0, "round_mode": "round", "dst_type": INT8, "axis": -1}
    operands = [emit.cast(x, kind, "x"), scale, offset]
    node, outputs = block.fused_node(OP, emit, operands, attrs, y="int8")
    made = block.Block(OP, fact.y, layer, emit, node, outputs, attrs)
    if any(scale.divides for scale in scales) or fact.peeled.linear is not None:
        made.notes.append("scale is the reciprocal of the graph's divisor (int8 within one step)")
    probes = (fact.probes, facts.trials.fresh([fact.y, *feeds]))
    return block.candidate(facts, made, [(fact.y, outputs["y"])], feeds, region, probes, RULE.size)


def _equal_widths(emit: Emitter, fact: StaticQuant, scale: ir.Value, offset: ir.Value) -> tuple[ir.Value, ir.Value]:
    """Both of one shape: a single number beside columns is repeated."""
    width = (fact.probes[0].shape(fact.x) or (1,))[-1]
    wide = [_elements(value, width) for value in (scale, offset)]
    if wide[0] == wide[1]:
        return scale, offset
    target = emit.ints([width], "columns")
    if wide[0] < wide[1]:
        return emit.node("Expand", [scale, target], "scale_wide"), offset
    return scale, emit.node("Expand", [offset, target], "offset_wide")


def _elements(value: ir.Value, width: int) -> int:
    """Elements of a parameter that was just made: one, or the columns."""
    if value.const_value is not None:
        return int(value.const_value.size)
    node = value.producer()
    while node is not None and node.op_type in ("Reciprocal", "Mul", "Div"):
        sizes = [_elements(item, width) for item in node.inputs if item is not None]
        return max(sizes)
    picked = None if node is None else node.inputs[1]
    return int(picked.const_value.size) if picked is not None and picked.const_value is not None else width


def _in_one_type(
    emit: Emitter, facts: Facts, own: str, scale: ir.Value, offset: ir.Value | None
) -> tuple[str, ir.Value, ir.Value | None]:
    """The rows' type where it holds the parameters without loss, float32 otherwise."""
    if own in ("float16", "bfloat16"):
        try:
            narrow = [
                None if value is None else common.constant_in_type(emit, facts.view, value, own, name)
                for value, name in ((scale, "scale_narrow"), (offset, "offset_narrow"))
            ]
        except Refused:
            return "float32", scale, offset
        assert narrow[0] is not None
        return own, narrow[0], narrow[1]
    if own != "float32":
        raise Refused("mixed-types", "rows are float16, bfloat16 or float32", own or "unknown", "one of them")
    return own, scale, offset
