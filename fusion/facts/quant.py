"""Quantisation: the elementwise chain that ends in an 8-bit value, and the scale and offset in front of it.

Handled: ``Cast(Clip(Round(v)))`` with Clip and Round in either order and Clip as Min/Max, QuantizeLinear, and casts to
float8. What is read is the value before rounding; scale and offset are then factors and terms of its symbolic form.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import onnx_ir as ir

from fusion.facts.graph import GraphView, dtype_name
from fusion.facts.strip import stripped


@dataclass(frozen=True)
class Peeled:
    """A value of 8-bit type and the float value it was rounded from.

    Attributes:
        value: what is rounded (before scale and offset are taken apart).
        dtype: the 8-bit type.
        nodes: the chain from ``value`` to the 8-bit value.
        linear: QuantizeLinear's (scale, zero point) operands, which apply to ``value`` first.
        float8_cast: how a float8 value is cast, "" for int8.
    """

    value: ir.Value
    dtype: str
    nodes: tuple[ir.Node, ...]
    linear: tuple[ir.Value, ir.Value | None] | None = None
    float8_cast: str = ""


@dataclass(frozen=True)
class NotQuantised:
    """Why a chain to an 8-bit type is not the operators' quantisation."""

    value: ir.Value
    fact: str
    found: str
    wanted: str


def peel(view: GraphView, value: ir.Value) -> Peeled | NotQuantised:
    """Takes the rounding chain off an 8-bit value."""
    node = value.producer()
    name = dtype_name(value)
    if node is None:
        return NotQuantised(value, "quantised row", "an 8-bit graph input", "rounding in the graph")
    if node.op_type == "QuantizeLinear" and node.domain in ("", "ai.onnx"):
        return _linear(view, node, value)
    if node.op_type != "Cast":
        return NotQuantised(value, "quantised row", node.op_type, "Cast or QuantizeLinear")
    target = view.cast_target(node)
    source = node.inputs[0]
    assert source is not None
    if target.startswith("float8"):
        mode = "saturate" if view.attrs(node).get("saturate", 1) else "nonsaturate"
        return Peeled(source, target, (node,), None, mode)
    return _rounded(view, source, node, name or target)


def requantised(update: ir.Value, nodes: Sequence[ir.Node]) -> Peeled | None:
    """How float rows become 8-bit ones on the way of a cache, None where they do not."""
    back = [node for node in nodes if node.op_type == "QuantizeLinear"]
    scale = back[-1].inputs[1] if back else None
    if scale is None:
        return None
    zero = back[-1].inputs[2] if len(back[-1].inputs) > 2 else None
    return Peeled(update, dtype_name(back[-1].outputs[0]), (back[-1],), (scale, zero))


def _linear(view: GraphView, node: ir.Node, value: ir.Value) -> Peeled | NotQuantised:
    x, scale = node.inputs[0], node.inputs[1]
    zero = node.inputs[2] if len(node.inputs) > 2 else None
    name = dtype_name(value) or dtype_name(zero)
    if view.attrs(node).get("block_size", 0):
        return NotQuantised(value, "QuantizeLinear", "a scale for each block", "one for each column, or one number")
    if name != "int8" or x is None or scale is None:
        return NotQuantised(value, "QuantizeLinear type", name or "uint8", "int8")
    return Peeled(x, "int8", (node,), (scale, zero))


def _rounded(view: GraphView, value: ir.Value, cast: ir.Node, name: str) -> Peeled | NotQuantised:
    """The value before Round, Clip, Min and Max; demands one Round and the limits of int8."""
    if name != "int8":
        return NotQuantised(value, "quantised type", name, "int8 or float8")
    low, high, rounds = -np.inf, np.inf, 0
    nodes = [cast]
    while True:
        value = stripped(view, value)
        node = value.producer()
        if node is not None and node.op_type == "Cast" and node.inputs[0] is not None and _to_wide_int(view, node):
            # rounded values pass through an integer type unchanged, if they were rounded before it
            before = _rounds_before(view, node.inputs[0])
            if before:
                nodes.append(node)
                value = node.inputs[0]
                continue
        if node is None or node.op_type not in ("Round", "Clip", "Min", "Max") or node.inputs[0] is None:
            break
        inner = node.inputs[0]
        if node.op_type == "Round":
            rounds += 1
        elif node.op_type == "Clip":
            least, most = _clip_bounds(view, node)
            low, high = max(low, least), min(high, most)
        else:
            found = _bound(view, node)
            if found is None:
                break
            inner, bound = found
            low, high = (max(low, bound), high) if node.op_type == "Max" else (low, min(high, bound))
        nodes.append(node)
        value = inner
    if not rounds:
        return NotQuantised(value, "rounding", "a cast that truncates", "Round before the Cast")
    if (low, high) != (-128.0, 127.0):
        return NotQuantised(value, "clip bounds", f"[{low:g}, {high:g}]", "[-128, 127]")
    return Peeled(value, "int8", tuple(nodes))


def _to_wide_int(view: GraphView, node: ir.Node) -> bool:
    return view.cast_target(node) in ("int32", "int64")


def _rounds_before(view: GraphView, value: ir.Value) -> bool:
    """Whether a value is Round's result, clipped or not."""
    node = stripped(view, value).producer()
    while node is not None and node.op_type in ("Clip", "Min", "Max") and node.inputs[0] is not None:
        node = stripped(view, node.inputs[0]).producer()
    return node is not None and node.op_type == "Round"


def _clip_bounds(view: GraphView, node: ir.Node) -> tuple[float, float]:
    attrs = view.attrs(node)
    operands = [view.scalar(item) for item in node.inputs[1:3]] + [None, None]
    given = len(node.inputs)
    low = operands[0] if given > 1 and node.inputs[1] is not None else attrs.get("min", -np.inf)
    high = operands[1] if given > 2 and node.inputs[2] is not None else attrs.get("max", np.inf)
    return (np.nan if low is None else float(low)), (np.nan if high is None else float(high))


def _bound(view: GraphView, node: ir.Node) -> tuple[ir.Value, float] | None:
    """The other operand and the constant of a Min or Max of two."""
    if len(node.inputs) != 2:
        return None
    for inner, other in ((0, 1), (1, 0)):
        number, value = view.scalar(node.inputs[other]), node.inputs[inner]
        if number is not None and value is not None:
            return value, number
    return None
