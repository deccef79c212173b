"""Operators that are a rotation by themselves: RotaryEmbedding of ai.onnx (23) and of com.microsoft."""

from __future__ import annotations

import onnx_ir as ir

from fusion.facts.graph import GraphView
from fusion.facts.rotary.turned import Tabled, Turned
from fusion.facts.semantics import Unsupported
from fusion.facts.semantics.fused import is_interleaved
from fusion.facts.symbols.parameters import Reason
from fusion.facts.trial.probe import Probe

_OPERANDS = {"": (0, 1, 2, 3), "ai.onnx": (0, 1, 2, 3), "com.microsoft": (0, 2, 3, 1)}
"""Domain -> places of x, cos, sin and positions."""


def is_rotary(node: ir.Node) -> bool:
    return node.op_type == "RotaryEmbedding" and node.domain in _OPERANDS


def read_rotary(view: GraphView, probe: Probe, node: ir.Node) -> Turned | Reason:
    """What a RotaryEmbedding node computes, told under one trial size."""
    out = node.outputs[0]
    given = [node.inputs[place] if place < len(node.inputs) else None for place in _OPERANDS[node.domain]]
    x, cos, sin, positions = given
    if x is None or cos is None or sin is None:
        return Reason("row-form", "RotaryEmbedding", "an operand is absent", "x, cos and sin", out)
    shape, table = probe.shape(x), probe.shape(cos)
    attrs = view.attrs(node)
    if shape is None or table is None or len(shape) not in (3, 4):
        return Reason("row-form", "RotaryEmbedding", "an unknown shape", "x of rank 3 or 4", out)
    if not table or probe.shape(sin) != table:
        return Reason("rope-tables", "cos and sin", f"shapes {table} and {probe.shape(sin)}", "one shape", out)
    if float(attrs.get("scale", 1.0)) != 1.0 or int(attrs.get("is_packed_batching", 0)):
        return Reason("rope-scaled", "RotaryEmbedding", "scale or packed batches", "neither", out)
    half, width = table[-1], int(attrs.get("rotary_embedding_dim", 0)) or 0
    heads = 0
    if len(shape) == 3:
        heads = int(attrs.get("num_heads", 0)) or (0 if width else shape[-1] // (2 * half))
        if not heads or shape[-1] % heads:
            return Reason("row-form", "RotaryEmbedding", "heads that cannot be told", "num_heads", out)
    columns = shape[-1] // (heads or 1)
    width = width or min(columns, 2 * half)
    try:
        woven = is_interleaved(attrs)
    except Unsupported as error:
        return Reason("rope-interleaved", "interleaved is 0 or 1", str(error), "0 or 1", out)
    if width != 2 * half or (woven and width != columns):
        return Reason("rope-columns", "rotated columns", f"{width} of {columns}, tables of {half}", "whole rows", out)
    if positions is not None:
        spread = probe.shape(positions)
        if spread is None or len(spread) != 2:
            return Reason("rope-tables", "positions", str(spread), "one for each token, [B, S]", out)
    elif len(table) != 3:
        return Reason("rope-tables", "cos without positions", str(table), "[B, S, D / 2]", out)
    axes = (0, 1) if heads else (0, 2)
    order = [place // 2 for place in range(width)] if woven else [place % half for place in range(width)]
    one, other = (Tabled(value, tuple(order), axes, positions=positions) for value in (cos, sin))
    return Turned(out, x, "interleave" if woven else "half", one, other, 0, width, reshaped=False, heads=heads)
