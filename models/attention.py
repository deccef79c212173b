"""The attention of a layer: grouped-query (Qwen) and multi-head latent (DeepSeek), expanded or absorbed."""

from __future__ import annotations

import math
from dataclasses import dataclass

from models.architecture import Architecture, Latent
from models.blocks import lowest, rms_norm, rotate_complex, rotate_half, rotate_interleaved
from models.caches import Cache
from models.graph import Dims, Graph, Tensor, zero_tensor


@dataclass
class Step:
    """What all layers of one call share.

    Attributes:
        cos, sin: ``[b, S, D]``.
        absorbed: ``""``, ``einsum`` or ``matmul``: how queries of latent attention are taken into the latent.
        interleaved: DeepSeek-V3's rotation of neighbouring columns, else of halves.
        expanded: whether the caches hold keys and values of every head, as transformers 4 writes latent attention.
    """

    g: Graph
    model: Architecture
    cache: Cache
    cos: Tensor
    sin: Tensor
    absorbed: str = ""
    interleaved: bool = True
    expanded: bool = False


def grouped(step: Step, x: Tensor, layer: int) -> Tensor:
    """Grouped-query attention for x ``[B, S, H]``: norm of q and k (Qwen3) or biases (Qwen2), rotation of halves."""
    g, model = step.g, step.model
    q = g.transpose(_heads(step, x, model.heads, layer, "q"), 0, 2, 1, 3)
    k = g.transpose(_heads(step, x, model.kv_heads, layer, "k"), 0, 2, 1, 3)
    v = _heads(step, x, model.kv_heads, layer, "v")
    q, k = rotate_half(g, q, step.cos, step.sin), rotate_half(g, k, step.cos, step.sin)
    keys, values = step.cache.write(layer, 0, k), step.cache.write(layer, 1, v, by_token=True)
    repeated = [_repeated(step, item) for item in (keys, values)]
    dims = (*values.dims[:1], model.heads, *values.dims[2:])
    scale = math.sqrt(model.head_dim**-0.5)
    return _merged(step, _attend(step, q, (repeated[0], dims), _joined(g, repeated[1], dims), scale))


def _heads(step: Step, x: Tensor, heads: int, layer: int, part: str) -> Tensor:
    """``[B, S, N, D]``."""
    g, model = step.g, step.model
    made = g.linear(x, heads * model.head_dim)
    if model.family == "qwen2":
        bias = g.weight(x.dtype, (heads * model.head_dim,), f"m.model.layers.{layer}.self_attn.{part}_proj.bias")
        made = g.binary("Add", made, bias)
    view = g.reshape(made, (*x.dims[:2], heads, model.head_dim))
    if model.family != "qwen2" and part != "v":
        view = rms_norm(g, view, model.epsilon, f"m.model.layers.{layer}.self_attn.{part}_norm.weight")
    return view


def _repeated(step: Step, content: Tensor) -> Tensor:
    """Key or value heads repeated for the query heads that share them: ``[B, KV, N / KV, L, D]``."""
    g, batch, heads, length, width = step.g, *content.dims
    assert isinstance(heads, int)
    times = step.model.heads // heads
    if times == 1:
        return content
    dims: Dims = (batch, heads, times, length, width)
    return g.op("Expand", [g.unsqueeze(content, 2), g.shape(dims, exact=True)], dims)


def _joined(g: Graph, x: Tensor, dims: Dims) -> Tensor:
    """x with these dims, itself when it has them."""
    return x if x.dims == dims else g.reshape(x, dims)


def latent(step: Step, x: Tensor, layer: int) -> Tensor:
    """Multi-head latent attention for x ``[B, S, H]``.

    The caches hold the normalised latent and the rotated key; ``expanded``: keys and values of every head.
    """
    g, model, sizes = step.g, step.model, step.model.latent
    assert sizes is not None
    prefix = f"m.model.layers.{layer}.self_attn"
    low = x
    if sizes.q_rank:
        low = rms_norm(g, g.linear(x, sizes.q_rank), model.epsilon, f"{prefix}.q_a_layernorm.weight")
    width = sizes.nope + sizes.rope
    q = g.transpose(g.reshape(g.linear(low, model.heads * width), (*x.dims[:2], model.heads, width)), 0, 2, 1, 3)
    q_nope, q_rope = g.split(q, [sizes.nope, sizes.rope], 3)
    compressed, key = g.split(g.linear(x, sizes.kv_rank + sizes.rope), [sizes.kv_rank, sizes.rope], 2)
    normed = rms_norm(g, compressed, model.epsilon, f"{prefix}.kv_a_layernorm.weight")
    rows = g.reshape(normed, (x.dims[0], 1, x.dims[1], sizes.kv_rank))
    key = g.reshape(key, (x.dims[0], 1, x.dims[1], sizes.rope))
    rotate = rotate_complex if model.family == "deepseek_v2" else rotate_half
    if step.interleaved and model.family != "deepseek_v2":
        rotate = rotate_interleaved
    q_rope, key = rotate(g, q_rope, step.cos, step.sin), rotate(g, key, step.cos, step.sin)
    scale = width**-0.5 * (model.yarn.gain(model.yarn.mscale_all_dim) ** 2 if model.yarn else 1.0)
    if not step.expanded:
        rows, key = step.cache.write(layer, 0, rows), step.cache.write(layer, 1, key)
    if step.absorbed:
        return _merged(step, _absorbed(step, sizes, (q_nope, q_rope), (rows, key), scale))
    q = g.op("Concat", [q_nope, q_rope], q.dims, axis=-1)
    k, v = _expanded(step, sizes, rows, key)
    if step.expanded:
        k, v = step.cache.write(layer, 0, k), step.cache.write(layer, 1, v)
    read = _attend(step, q, (k, k.dims), v, math.sqrt(scale))
    return _merged(step, g.reshape(read, read.dims))


def _expanded(step: Step, sizes: Latent, content: Tensor, keys: Tensor) -> tuple[Tensor, Tensor]:
    """Keys ``[B, N, L, nope + rope]`` and values ``[B, N, L, value]`` of every head, from latents and rotated keys."""
    g, heads = step.g, step.model.heads
    batch, _, length, _ = content.dims
    both, width = sizes.nope + sizes.value, sizes.nope + sizes.rope
    wide = g.linear(content, heads * both)
    view = g.transpose(g.reshape(wide, (batch, length, heads, both)), 0, 2, 1, 3)
    k_nope, v = g.split(view, [sizes.nope, sizes.value], 3)
    dims: Dims = (batch, heads, length, width)
    spread = g.op("Expand", [keys, g.constant([1, heads, 1, 1])], (batch, heads, length, sizes.rope))
    if step.expanded:
        return g.op("Concat", [k_nope, spread], dims, axis=-1), v

    def empty() -> Tensor:
        zero = zero_tensor(k_nope.dtype)
        made = g.op("ConstantOfShape", [g.shape(dims, exact=True)], dims, k_nope.dtype, "new_empty", value=zero)
        return g.transpose(made, 3, 1, 2, 0)

    base = g.once("new_empty", empty)
    index = [g.constant([[row] for row in rows]) for rows in (range(sizes.nope), range(sizes.nope, width))]
    first = g.op("ScatterND", [base, index[0], g.transpose(k_nope, 3, 1, 2, 0)], base.dims, reduction="none")
    second = [g.op("Identity", [first], first.dims), index[1], g.transpose(spread, 3, 1, 2, 0)]
    done = g.op("ScatterND", second, base.dims, reduction="none")
    return g.transpose(done, 3, 1, 2, 0, name=g.fresh("slice_scatter")), v


def _absorbed(
    step: Step, sizes: Latent, q: tuple[Tensor, Tensor], cached: tuple[Tensor, Tensor], scale: float
) -> Tensor:
    """Attention inside the latent: ``[B, N, S, value]``."""
    g, heads = step.g, step.model.heads
    (q_nope, q_rope), (content, keys) = q, cached
    w_uk = g.weight(q_nope.dtype, (heads, sizes.nope, sizes.kv_rank))
    w_uv = g.weight(q_nope.dtype, (heads, sizes.kv_rank, sizes.value))
    query = _product(step, q_nope, w_uk, "bnsd,ndl->bnsl")
    scores = [g.matmul(a, g.transpose(b, 0, 1, 3, 2), name=g.fresh("matmul"))
              for a, b in ((query, content), (q_rope, keys))]  # fmt: skip
    scaled = g.binary("Mul", g.binary("Add", scores[0], scores[1]), g.constant(scale, q_nope.dtype))
    shares = _softmax(step, scaled)
    return _product(step, g.matmul(shares, content, name=g.fresh("matmul")), w_uv, "bnsl,nld->bnsd")


def _product(step: Step, x: Tensor, weight: Tensor, equation: str) -> Tensor:
    if step.absorbed == "matmul":
        return step.g.matmul(x, weight, name=step.g.fresh("matmul"))
    return step.g.op("Einsum", [x, weight], (*x.dims[:3], weight.dims[2]), equation=equation)


def _attend(step: Step, q: Tensor, keys: tuple[Tensor, Dims], v: Tensor, root: float) -> Tensor:
    """Scaled dot product attention as it is decomposed: the root of the scale on both factors.

    ``keys`` are a tensor and the ``[B, N, L, D]`` it stands for: two Reshapes with constant shapes become one.
    """
    g, (k, dims) = step.g, keys
    batch, heads, length, width = dims
    assert isinstance(heads, int)
    if any(isinstance(dim, str) for dim in dims):
        k = _joined(g, k, dims)
    merged = f"{batch}*{heads}" if isinstance(batch, str) else batch * heads
    flat = g.op("Transpose", [g.reshape(k, (merged, length, width), 0)], (merged, width, length), perm=[0, 2, 1])
    turned = g.reshape(flat, (batch, heads, width, length), 0)
    factor = g.constant(root, q.dtype)
    scores = g.matmul(g.binary("Mul", q, factor), g.binary("Mul", turned, factor), name=g.fresh("val"))
    shares = _softmax(step, scores)
    shares = g.op("Where", [g.op("IsNaN", [shares], shares.dims, "bool"), g.constant(0.0, q.dtype), shares],
                  shares.dims, q.dtype)  # fmt: skip
    return g.matmul(shares, v, name=g.fresh("scaled_dot_product_attention"))


def _softmax(step: Step, scores: Tensor) -> Tensor:
    g = step.g

    def bias() -> Tensor:
        mask = g.once("mask", step.cache.mask)
        parts = [mask, g.constant(0.0, scores.dtype), g.constant(lowest(scores.dtype), scores.dtype)]
        return g.op("Where", parts, mask.dims, scores.dtype)

    return g.op("Softmax", [g.binary("Add", scores, g.once("bias", bias))], scores.dims, axis=-1)


def _merged(step: Step, read: Tensor) -> Tensor:
    """Heads joined and projected: ``[B, S, H]``."""
    g = step.g
    batch, heads, tokens, width = read.dims
    assert isinstance(heads, int) and isinstance(width, int)
    return g.linear(g.reshape(g.transpose(read, 0, 2, 1, 3), (batch, tokens, heads * width)), step.model.hidden)
