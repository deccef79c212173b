"""What is behind operators that change a value's type or sign and nothing else."""

from __future__ import annotations

import onnx_ir as ir

from fusion.facts.graph import GraphView, dtype_name


def stripped(view: GraphView, value: ir.Value) -> ir.Value:
    """The value behind Identity and Casts between float types."""
    while True:
        value = view.root(value)
        node = value.producer()
        if node is None or node.op_type != "Cast" or node.inputs[0] is None:
            return value
        source = dtype_name(node.inputs[0])
        if "float" not in view.cast_target(node) or (source and "float" not in source):
            return value
        value = node.inputs[0]


def signless(view: GraphView, value: ir.Value) -> tuple[float, ir.Value]:
    """The value behind casts and changes of sign, and 1 or -1: what it has to be multiplied by."""
    sign, value = 1.0, stripped(view, value)
    while (before := _unsigned(view, value)) is not None:
        sign, value = -sign, stripped(view, before)
    return sign, value


def _unsigned(view: GraphView, value: ir.Value) -> ir.Value | None:
    """What Neg, or a factor or divisor of -1, is applied to; None for other values."""
    node = value.producer()
    if node is None or node.domain not in ("", "ai.onnx"):
        return None
    if node.op_type == "Neg":
        return node.inputs[0]
    for place, other in ((0, 1), (1, 0)):
        if (node.op_type == "Mul" or (node.op_type == "Div" and place == 0)) and view.scalar(node.inputs[other]) == -1:
            return node.inputs[place]
    return None
