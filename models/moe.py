"""Mixtures of experts, every expert spelled out: the routing of DeepSeek and Qwen, results weighted and summed.

``torch.stack([expert(x) for expert in experts], 2)`` under the export becomes one Unsqueeze an expert and a Concat.
"""

from __future__ import annotations

from models.architecture import Experts
from models.blocks import lowest, mlp
from models.graph import Graph, Tensor


def mixture(g: Graph, x: Tensor, experts: Experts, prefix: str) -> Tensor:
    """The MLP of a layer with experts, for x ``[B, S, H]``."""
    hidden, tokens = x.dims[-1], f"{x.dims[0]}*{x.dims[1]}"
    assert isinstance(hidden, int)
    flat = g.reshape(x, (tokens, hidden))
    weights = _routing(g, flat, experts, prefix)
    spread = g.reshape(g.cast(weights, x.dtype), (*x.dims[:2], 1, experts.count))
    results = [g.unsqueeze(mlp(g, x, experts.width), 2) for _ in range(experts.count)]
    stacked = g.op("Concat", results, (*x.dims[:2], experts.count, hidden), axis=2, name=g.fresh("stack"))
    total = g.reshape(g.matmul(spread, stacked), x.dims)
    if experts.shared:
        total = g.binary("Add", total, mlp(g, x, experts.shared * experts.width))
    return total


def _routing(g: Graph, flat: Tensor, experts: Experts, prefix: str) -> Tensor:
    """Weights ``[T, E]`` in float32, zero for experts that were not chosen."""
    wide = g.cast(flat, "float32")
    hidden, tokens = flat.dims[1], flat.dims[0]
    assert isinstance(hidden, int)
    gate = g.weight("float32", (experts.count, hidden), f"{prefix}.gate.weight")
    logits = g.op("Gemm", [wide, gate], (tokens, experts.count), beta=1.0, transB=1, alpha=1.0, transA=0)
    if experts.sigmoid:
        scores = g.op("Sigmoid", [logits], logits.dims)
        bias = g.weight("float32", (experts.count,), f"{prefix}.gate.e_score_correction_bias")
        ranked = g.binary("Add", scores, bias)
    else:
        scores = ranked = g.op("Softmax", [logits], logits.dims, name=g.fresh("softmax"), axis=-1)
    if experts.groups:
        ranked = _in_best_groups(g, ranked, experts)
    chosen = _top_k(g, ranked, experts.top_k)[1]
    weights = g.op("GatherElements", [scores, chosen], chosen.dims, name=g.fresh("gather"), axis=1)
    if experts.normalised:
        total = g.op("ReduceSum", [weights, g.constant([-1])], (tokens, 1), noop_with_empty_axes=0, keepdims=1)
        weights = g.binary("Div", weights, total)
    if experts.scale != 1.0:
        weights = g.binary("Mul", weights, g.constant(experts.scale, "float32"))
    return _scatter(g, scores, chosen, weights)


def _in_best_groups(g: Graph, scores: Tensor, experts: Experts) -> Tensor:
    """Scores outside the best groups masked. DeepSeek-V3 ranks groups by their two best, V2 by the best."""
    tokens, each = scores.dims[0], experts.count // experts.groups
    grouped = g.reshape(scores, (tokens, experts.groups, each))
    if experts.sigmoid:
        best = _top_k(g, grouped, 2)[0]
        rank = g.op("ReduceSum", [best, g.constant([-1])], (tokens, experts.groups), noop_with_empty_axes=0, keepdims=0)
    else:
        rank = g.op(
            "ReduceMax", [grouped, g.constant([-1])], (tokens, experts.groups), name=g.fresh("amax"), keepdims=0
        )
    groups = _top_k(g, rank, experts.top_groups)[1]
    shape = g.op("Shape", [groups], (2,), "int64", start=0)
    ones = g.op("Expand", [g.constant(1.0, "float32"), shape], groups.dims, "float32")
    mask = g.unsqueeze(_scatter(g, rank, groups, ones), -1)
    wide = g.op("Expand", [mask, g.constant([1, 1, each])], grouped.dims)
    kept = g.cast(g.reshape(wide, scores.dims), "bool")
    out = g.op("Not", [kept], kept.dims, name=g.fresh("bitwise_not"))
    worst = g.constant(0.0 if experts.sigmoid else lowest("float32"), "float32")
    return g.op("Where", [out, worst, scores], scores.dims, "float32", name=g.fresh("masked_fill"))


def _scatter(g: Graph, like: Tensor, index: Tensor, updates: Tensor) -> Tensor:
    """``zeros_like(like).scatter(1, index, updates)``."""
    shape = g.op("Shape", [like], (len(like.dims),), "int64", start=0)
    zeros = g.op("Expand", [g.constant(0.0, "float32"), shape], like.dims, name=g.fresh("zeros_like"))
    inputs = [zeros, index, updates]
    return g.op("ScatterElements", inputs, like.dims, name=g.fresh("scatter"), axis=1, reduction="none")


def _top_k(g: Graph, x: Tensor, count: int) -> list[Tensor]:
    dims = (*x.dims[:-1], count)
    base = g.fresh("topk")
    results = [(x.dtype, dims), ("int64", dims)]
    names = [f"{base}__0", f"{base}__1"]
    return g.ops("TopK", [x, g.constant([count])], results, names, sorted=1, largest=1, axis=-1)
