"""Rows quantised by their own largest value: ``scale = max|x| / 127``, ``y = round(x / scale)``."""

from __future__ import annotations

from dataclasses import dataclass

import onnx_ir as ir

from fusion.facts.graph import GraphView
from fusion.facts.quantised.static_quant import is_quantising
from fusion.facts.strip import stripped
from fusion.facts.symbols.parameters import Reason

LARGEST = 127.0
_VIEWS = ("Unsqueeze", "Squeeze", "Reshape", "Identity", "Cast")
_DEPTH = 8


@dataclass(frozen=True)
class DynamicFact:
    """``y`` is ``x`` quantised by row.

    Attributes:
        scales: values that hold the scale, with or without a last dim of 1.
        largest: the reduction.
        rounding: the node that gives y.
    """

    y: ir.Value
    x: ir.Value
    scales: tuple[ir.Value, ...]
    largest: ir.Node
    rounding: ir.Node


@dataclass(frozen=True)
class _Form:
    """``number * x^x * m^m`` with m the largest value of the row."""

    number: float
    x: int
    m: int


def find_dynamic(view: GraphView) -> list[DynamicFact | Reason]:
    """A fact, or a reason, for each 8-bit value that is rounded from rows divided by their largest value."""
    found = []
    for node in view.graph:
        if node.op_type == "Cast" and is_quantising(view, node):
            read = _read(view, node)
            if read is not None:
                found.append(read)
    return found


def _read(view: GraphView, cast: ir.Node) -> DynamicFact | Reason | None:
    rounded, rounds, low, high = _unrounded(view, cast)
    largest = _behind(view, rounded)
    if largest is None:
        return None
    y = cast.outputs[0]
    x = _measured(view, largest)
    if x is None:
        return None
    fact = "rows are divided by their largest value and rounded to int8"
    if not rounds:
        return Reason("quant-form", fact, "a cast that truncates", "Round before the Cast", y)
    if low > -LARGEST or high < LARGEST:
        return Reason("quant-form", fact, f"a clip to [{low:g}, {high:g}]", "none, or [-128, 127]", y)
    form = _form(view, rounded, x, largest)
    if form is None or (form.x, form.m) != (1, -1):
        return Reason("quant-form", fact, "another factor (a floor under the scale, an offset)", "127 / max|x|", y)
    if abs(form.number - LARGEST) > 1e-4:
        return Reason("quant-form", fact, f"a largest value of {form.number:g}", "127", y)
    scales = tuple(_scales(view, x, largest))
    return DynamicFact(y, x, scales, largest, cast)


def _unrounded(view: GraphView, cast: ir.Node) -> tuple[ir.Value, bool, float, float]:
    """What is rounded, whether it is, and the limits."""
    value = cast.inputs[0]
    assert value is not None
    low, high, rounds = -128.0, 127.0, False
    for _ in range(_DEPTH):
        value = stripped(view, value)
        node = value.producer()
        if node is None or node.op_type not in ("Round", "Clip", "Min", "Max") or node.inputs[0] is None:
            break
        if node.op_type == "Round":
            rounds = True
        else:
            low, high = _limits(view, node, low, high)
        value = node.inputs[0]
    return value, rounds, low, high


def _limits(view: GraphView, node: ir.Node, low: float, high: float) -> tuple[float, float]:
    attrs = view.attrs(node)
    numbers = [None if item is None else view.scalar(item) for item in node.inputs[1:3]]
    if node.op_type == "Clip":
        least = numbers[0] if numbers else attrs.get("min")
        most = numbers[1] if len(numbers) > 1 else attrs.get("max")
    elif not numbers:  # of one value
        return low, high
    else:
        least = numbers[0] if node.op_type == "Max" else None
        most = numbers[0] if node.op_type == "Min" else None
        if numbers[0] is None or len(node.inputs) > 2:
            return 0.0, 0.0
    return max(low, -128.0 if least is None else float(least)), min(high, 127.0 if most is None else float(most))


def _behind(view: GraphView, value: ir.Value) -> ir.Node | None:
    """The ReduceMax that a value depends on through products."""
    pending, seen = [value], {id(value)}
    while pending and len(seen) < 40:
        node = stripped(view, pending.pop()).producer()
        if node is None:
            continue
        if node.op_type == "ReduceMax":
            return node
        if node.op_type in ("Mul", "Div", "Reciprocal", "Max", "Clip", "Add", "Where", *_VIEWS):
            for item in node.inputs:
                if item is not None and id(item) not in seen:
                    seen.add(id(item))
                    pending.append(item)
    return None


def _measured(view: GraphView, largest: ir.Node) -> ir.Value | None:
    """x of ``ReduceMax(Abs(x))`` over one axis; that it is the last one is for the proof to say."""
    node = None if largest.inputs[0] is None else stripped(view, largest.inputs[0]).producer()
    axes = view.attrs(largest).get("axes")
    if axes is None and len(largest.inputs) > 1:
        constant = None if largest.inputs[1] is None else view.constant(largest.inputs[1])
        axes = None if constant is None else constant.reshape(-1).tolist()
    if node is None or node.op_type != "Abs" or node.inputs[0] is None or axes is None or len(axes) != 1:
        return None
    return stripped(view, node.inputs[0])


def _form(view: GraphView, value: ir.Value, x: ir.Value, largest: ir.Node, depth: int = _DEPTH) -> _Form | None:
    number = view.scalar(value)
    if number is not None:
        return _Form(number, 0, 0)
    value = stripped(view, value)
    node = value.producer()
    if view.number(value) == view.number(x):
        return _Form(1.0, 1, 0)
    if node is largest:
        return _Form(1.0, 0, 1)
    if node is None or not depth:
        return None
    parts = [None if item is None else _form(view, item, x, largest, depth - 1) for item in node.inputs[:2]]
    if node.op_type in _VIEWS:
        return parts[0] if parts[0] is not None and parts[0].x == 0 else None
    if node.op_type == "Reciprocal":
        return None if parts[0] is None or not parts[0].number else _Form(1 / parts[0].number, -parts[0].x, -parts[0].m)
    one, other = parts[0], parts[-1]
    if node.op_type not in ("Mul", "Div") or one is None or other is None:
        return None
    if node.op_type == "Mul":
        return _Form(one.number * other.number, one.x + other.x, one.m + other.m)
    return None if not other.number else _Form(one.number / other.number, one.x - other.x, one.m - other.m)


def _scales(view: GraphView, x: ir.Value, largest: ir.Node) -> list[ir.Value]:
    """Values of the form ``max|x| / 127``, nearest first."""
    found, level, seen = [], [largest.outputs[0]], {id(largest.outputs[0])}
    for _ in range(_DEPTH):
        following = []
        for item in level:
            for node, _ in view.following(item):
                if node.op_type not in ("Mul", "Div", "Cast", "Identity"):
                    continue
                value = node.outputs[0]
                form = _form(view, value, x, largest)
                if id(value) in seen or form is None or (form.x, form.m) != (0, 1):
                    continue
                seen.add(id(value))
                following.append(value)
                if abs(form.number - 1 / LARGEST) < 1e-7 and node.op_type in ("Mul", "Div"):
                    found.append(value)
        level = following
    return found
