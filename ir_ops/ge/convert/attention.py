"""Attention as plain operators.

ONNX's Attention is spelled out (two products, a softmax, a mask), so that its meaning needs no attention operator's
conventions (mask polarity, layouts, limits). GE fuses the plain spelling where it can.
"""

from __future__ import annotations

import math

import numpy as np

from ir_ops.ge.convert.call import FLOATS, NodeCall
from ir_ops.ge.convert.matmul import product
from ir_ops.ge.convert.registry import MICROSOFT, Result, converts, refuses
from ir_ops.ge.convert.unsupported import Unsupported
from ir_ops.ge.tensor import Tensor

refuses(
    "GroupQueryAttention",
    domain=MICROSOFT,
    reason="packed attention with a cache of its own has no plain spelling here",
    nearest="export the model with Attention (opset 23) or eager attention",
)
refuses(
    "MatMulNBits",
    domain=MICROSOFT,
    reason="blockwise quantised weights have no operator here",
    nearest="DequantizeLinear weights with MatMul",
)
refuses("If", "Loop", "Scan", reason="control flow", nearest="an export without control flow (fixed shapes, unrolled)")


@converts(
    "Attention",
    since=23,
    dtypes="float32, float16, bfloat16",
    ge="BatchMatMulV2, Muls, Add, SelectV2, SoftmaxV2, ConcatD, Reshape",
    note="spelled out; 4-D q/k/v; mask bool (true: keep) or float; causal only with static lengths; no softcap, "
    "no past, one output; a fully masked row gives a mean of v, as in ONNX Runtime",
)
def attention(n: NodeCall) -> Result:
    n.require(*FLOATS)
    _refuse_extras(n)
    q, k, v = (n.x(i) for i in range(3))
    heads, kv_heads = n.shape(0)[1], n.shape(1)[1]
    if heads != kv_heads:
        k, v = (_repeated(n, x, heads, kv_heads, part) for x, part in ((k, "key"), (v, "value")))
    width = n.shape(0)[3]
    if width < 0 and n.attr("scale") is None:
        raise Unsupported("Attention with a head size that is not known", "the attribute scale")
    scale = float(n.attr("scale") or 1.0 / math.sqrt(width))
    scores = n.scaled(product(n, q, k, "scores", right=True), scale, "scaled")
    weights = n.emit("SoftmaxV2", {"x": _masked(n, scores)}, {"axes": [-1]}, "weights")
    return product(n, weights, v)


def _refuse_extras(n: NodeCall) -> None:
    if any(n.used[1:]) or any(n.has(i) for i in range(4, 7)):
        raise Unsupported("Attention with a cache of its own or further outputs", "Concat in front of Attention")
    if n.attr("softcap", 0.0):
        raise Unsupported("Attention with softcap", "Tanh spelled out")
    if any(n.rank(i) != 4 for i in range(3)):
        raise Unsupported("Attention on 3-D inputs", "[batch, heads, length, size] inputs")


def _repeated(n: NodeCall, x: Tensor, heads: int, kv_heads: int, part: str) -> Tensor:
    """``[B, Nkv, S, D]`` with every head repeated for its group: ``[B, N, S, D]``."""
    if heads < 0 or kv_heads < 1 or heads % kv_heads:
        raise Unsupported(f"{kv_heads} key heads for {heads} query heads", "a multiple")
    group = n.emit("Unsqueeze", {"x": x}, {"axes": [2]}, f"{part}_group")
    copies = [group] * (heads // kv_heads)
    wide = n.emit("ConcatD", {"x": copies}, {"concat_dim": 2}, f"{part}_groups")
    return n.reshape(wide, [(x, 0), heads, (x, 2), (x, 3)], part)


def _masked(n: NodeCall, scores: Tensor) -> Tensor:
    lowest = n.scalar(_lowest(scores.dtype.name), scores.dtype)
    if n.attr("is_causal", 0):
        scores = _causal(n, scores, lowest)
    if not n.has(3):
        return scores
    if n.dtype(3).name == "bool":
        return n.emit("SelectV2", {"condition": n.x(3), "then": scores, "else": lowest}, part="masked")
    return n.emit("Add", {"x1": scores, "x2": n.cast(n.x(3), scores.dtype, "mask_cast")}, part="masked")


def _lowest(dtype: str) -> float:
    """What a masked score becomes: the lowest finite value, so that a fully masked row stays finite as in ONNX."""
    return -65504.0 if dtype == "float16" else -3.3895313892515355e38


def _causal(n: NodeCall, scores: Tensor, lowest: object) -> Tensor:
    length, total = (scores.shape or (-1, -1))[-2:]
    if length < 0 or total < 0:
        raise Unsupported("causal Attention with unknown lengths", "an explicit mask, or input_shapes")
    keep = np.tril(np.ones((length, total), np.bool_))
    return n.emit("SelectV2", {"condition": keep, "then": scores, "else": lowest}, part="causal")
