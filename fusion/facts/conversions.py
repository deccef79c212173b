"""Changes of a cache's element type on its way: pairs of Casts, pairs of DequantizeLinear and QuantizeLinear.

A pair keeps what the cache holds where the type in between holds all of its numbers: a wider float type, or float32 for
8-bit numbers that are scaled up and down by one number. What is written meanwhile is rounded by the way back.
"""

from __future__ import annotations

from collections.abc import Sequence

import onnx_ir as ir

from fusion.facts.graph import GraphView, dtype_name

_WIDER = {"float16": ("float32", "float64"), "bfloat16": ("float32", "float64"), "float32": ("float64",)}
_FLOATS = ("float16", "bfloat16", "float32", "float64")
_LINEAR = ("QuantizeLinear", "DequantizeLinear")


def converts(node: ir.Node) -> bool:
    """Whether a node only changes the element type of its first operand."""
    if node.domain not in ("", "ai.onnx"):
        return False
    if node.op_type == "Cast":
        return dtype_name(node.inputs[0]) in _FLOATS and dtype_name(node.outputs[0]) in _FLOATS
    return node.op_type in _LINEAR


def not_kept(view: GraphView, cache: ir.Value, out: ir.Value, nodes: Sequence[ir.Node]) -> str:
    """Why the conversions among ``nodes`` change what the cache holds; empty when they keep it."""
    found = [node for node in nodes if converts(node)]
    kind, last = dtype_name(cache), dtype_name(out)
    if not found:
        return ""
    if last != kind:
        return f"{kind} becomes {last}"
    linear = [node for node in found if node.op_type in _LINEAR]
    if not linear:
        narrow = [name for node in found if (name := dtype_name(node.outputs[0])) not in (kind, *_WIDER.get(kind, ()))]
        return f"its {kind} is rounded to {narrow[0]} on the way" if narrow else ""
    if kind not in ("int8", "uint8") or len(linear) < len(found):
        return f"its {kind} is quantised on the way: old rows are rounded again"
    scales = [node.inputs[1] for node in linear]
    if any(scale is None or dtype_name(scale) != "float32" or view.scalar(scale) is None for scale in scales):
        return "it is dequantised by something else than one float32 number"
    if len({view.scalar(scale) for scale in scales}) > 1 or len({_zero(view, node) for node in linear}) > 1:
        return "it is dequantised and quantised by different numbers"
    return ""


def _zero(view: GraphView, node: ir.Node) -> float | None:
    value = node.inputs[2] if len(node.inputs) > 2 else None
    return 0.0 if value is None else view.scalar(value)
