"""What is behind operators that change a value's type or sign and nothing else."""

from __future__ import annotations

import onnx_ir as ir

from fusion.facts.graph import GraphView, dtype_name

_IN_A_ROW = 4
"""Products with numbers that may make up a sign."""


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
    while (found := _signed(view, value)) is not None:
        sign, value = sign * found[0], stripped(view, found[1])
    return sign, value


def _signed(view: GraphView, value: ir.Value) -> tuple[float, ir.Value] | None:
    """1 or -1 and what it is multiplied by: Neg, or numbers in a row whose product it is; None for other values."""
    number = 1.0
    for _ in range(_IN_A_ROW):
        node = value.producer()
        step = None if node is None or node.domain not in ("", "ai.onnx") else _number(view, node)
        if step is None or not step[0]:
            return None
        number, value = number * step[0], step[1]
        if abs(number) == 1:
            return number, value
        value = stripped(view, value)
    return None


def _number(view: GraphView, node: ir.Node) -> tuple[float, ir.Value] | None:
    """The number that a node multiplies by, and what."""
    first = node.inputs[0] if node.inputs else None
    if node.op_type == "Neg":
        return None if first is None else (-1.0, first)
    for place, other in ((0, 1), (1, 0)) if node.op_type in ("Mul", "Div") else ():
        number, value = view.scalar(node.inputs[other]), node.inputs[place]
        if number and value is not None and (node.op_type == "Mul" or place == 0):
            return (number if node.op_type == "Mul" else 1 / number), value
    return None
