"""Operators that are a norm or a rotation by themselves."""

from __future__ import annotations

from typing import Any

import numpy as np

from fusion.facts.semantics.table import MICROSOFT, Attrs, Conflict, Operands, Unsupported, computing
from ir_ops.dtypes import Array


def _first_shape(attrs: Attrs, operands: Operands) -> list[tuple[int, ...]]:
    assert operands[0] is not None
    return [operands[0].shape]


def _normalised(x: Array, gamma: Array, epsilon: float, axis: int, wide: bool) -> Array:
    inner: Array = x.astype(np.float64 if wide else np.float32)
    axes = tuple(range(axis % x.ndim, x.ndim))
    inner = inner / np.sqrt((inner * inner).mean(axis=axes, keepdims=True) + inner.dtype.type(epsilon))
    return np.asarray(inner.astype(x.dtype) * gamma)


@computing("RMSNormalization SimplifiedLayerNormalization", _first_shape)
def rms_normalization(attrs: Attrs, x: Array, gamma: Array) -> Array:
    return _normalised(x, gamma, attrs.get("epsilon", 1e-5), int(attrs.get("axis", -1)), bool(attrs.get("@wide")))


def _skip_shapes(attrs: Attrs, operands: Operands) -> list[tuple[int, ...]]:
    (shape,) = _first_shape(attrs, operands)
    return [shape, (*shape[:-1], 1), (*shape[:-1], 1), shape]


@computing("SkipSimplifiedLayerNormalization", _skip_shapes, domain=MICROSOFT)
def skip_normalization(attrs: Attrs, x: Array, skip: Array, gamma: Array, bias: Array | None = None) -> Any:
    total = x + skip if bias is None else x + skip + bias
    y = _normalised(total, gamma, attrs.get("epsilon", 1e-5), -1, bool(attrs.get("@wide")))
    square = (total * total).mean(axis=-1, keepdims=True)
    return y, np.zeros_like(square), 1 / np.sqrt(square + attrs.get("epsilon", 1e-5)), total


@computing("LayerNormalization", _first_shape)
def layer_normalization(attrs: Attrs, x: Array, gamma: Array, beta: Array | None = None) -> Any:
    axes = tuple(range(int(attrs.get("axis", -1)) % x.ndim, x.ndim))
    centred = x - x.mean(axis=axes, keepdims=True)
    result = _normalised(centred, gamma, attrs.get("epsilon", 1e-5), axes[0], bool(attrs.get("@wide")))
    return result if beta is None else result + beta


@computing("SkipLayerNormalization", _skip_shapes, domain=MICROSOFT)
def skip_layer_normalization(
    attrs: Attrs, x: Array, skip: Array, gamma: Array, beta: Array | None = None, bias: Array | None = None
) -> Any:
    total = x + skip if bias is None else x + skip + bias
    y = layer_normalization({"epsilon": attrs.get("epsilon", 1e-12), **attrs}, total, gamma, beta)
    centred = total - total.mean(axis=-1, keepdims=True)
    square = (centred * centred).mean(axis=-1, keepdims=True)
    return y, total.mean(axis=-1, keepdims=True), 1 / np.sqrt(square + attrs.get("epsilon", 1e-12)), total


@computing("QuickGelu", _first_shape, domain=MICROSOFT)
def quick_gelu(attrs: Attrs, x: Array) -> Any:
    return x / (x.dtype.type(1) + np.exp(-x * x.dtype.type(attrs.get("alpha", 1.702))))


def _rotate(x: Array, cos: Array, sin: Array, interleaved: bool) -> Array:
    """x ``[..., D]`` with cos and sin ``[..., R/2]``; columns beyond R pass."""
    half = cos.shape[-1]
    if interleaved:
        first, second = x[..., 0 : 2 * half : 2], x[..., 1 : 2 * half : 2]
    else:
        first, second = x[..., :half], x[..., half : 2 * half]
    low, high = first * cos - second * sin, second * cos + first * sin
    turned = np.stack([low, high], -1).reshape(*low.shape[:-1], -1) if interleaved else np.concatenate([low, high], -1)
    return np.concatenate([turned, x[..., 2 * half :]], -1)


def is_interleaved(attrs: Attrs) -> bool:
    """Whether a RotaryEmbedding turns neighbours. Raises Unsupported for numbers that its definition does not know."""
    number = int(attrs.get("interleaved", 0))
    if number not in (0, 1):
        raise Unsupported(f"RotaryEmbedding with interleaved={number}")
    return number == 1


def _heads_last(x: Array, heads: int) -> Array:
    """``[B, S, N*D]`` as ``[B, N, S, D]``; rank 4 stays."""
    if x.ndim == 4:
        return x
    if heads <= 0:
        raise Unsupported("a rank 3 RotaryEmbedding without num_heads")
    return np.transpose(x.reshape(x.shape[0], x.shape[1], heads, -1), (0, 2, 1, 3))


def _per_token(table: Array, positions: Array | None) -> Array:
    return (table if positions is None else table[positions])[:, None]


def _rotary_shape(attrs: Attrs, operands: Operands) -> list[tuple[int, ...]]:
    """x's shape; the cos and sin rows have to be its tokens."""
    x = operands[0]
    assert x is not None
    for table in operands[1:3] if len(operands) < 4 else ():
        assert table is not None
        wanted = (x.shape[0], x.shape[1 if x.ndim == 3 else 2])
        for left, right in zip(table.shape, wanted, strict=False) if table.ndim == 3 else ():
            if left != right:
                raise Conflict(left, right)
    return [x.shape]


@computing("RotaryEmbedding", _rotary_shape)
def rotary_embedding(attrs: Attrs, x: Array, cos: Array, sin: Array, positions: Array | None = None) -> Array:
    return _rotary(attrs, x, cos, sin, positions)


@computing("RotaryEmbedding", _first_shape, domain=MICROSOFT)
def microsoft_rotary_embedding(attrs: Attrs, x: Array, positions: Array, cos: Array, sin: Array) -> Array:
    if positions.size == 1:
        batch, tokens = x.shape[0], x.shape[1] if x.ndim == 3 else x.shape[2]
        positions = np.broadcast_to(positions.reshape(-1)[0] + np.arange(tokens), (batch, tokens))
    heads = int(attrs.get("num_heads", 0)) or (x.shape[-1] // (2 * cos.shape[-1]) if x.ndim == 3 else 0)
    return _rotary({**attrs, "num_heads": heads}, x, cos, sin, positions)


def _rotary(attrs: Attrs, x: Array, cos: Array, sin: Array, positions: Array | None) -> Array:
    inner = _heads_last(x, int(attrs.get("num_heads", 0)))
    width = int(attrs.get("rotary_embedding_dim", 0)) or inner.shape[-1]
    parts = [_per_token(table, positions)[..., : width // 2].astype(inner.dtype) for table in (cos, sin)]
    turned = _rotate(inner, parts[0], parts[1], is_interleaved(attrs))
    return turned if x.ndim == 4 else turned.transpose(0, 2, 1, 3).reshape(x.shape)


def _attention_shape(attrs: Attrs, operands: Operands) -> list[tuple[int, ...]]:
    """The queries' shape with the values' columns; keys and values have the same tokens."""
    query, key, value = operands[:3]
    assert query is not None and key is not None and value is not None
    if query.ndim != 4 or key.ndim != 4 or value.ndim != 4:
        raise Unsupported("attention on joined heads")
    for left, right in ((query.shape[0], key.shape[0]), (key.shape[0], value.shape[0]), (key.shape[2], value.shape[2])):
        if left != right:
            raise Conflict(left, right)
    return [(*query.shape[:3], value.shape[3])]


@computing("Attention", _attention_shape)
def attention(
    attrs: Attrs, query: Array, key: Array, value: Array, mask: Array | None = None, *others: Array | None
) -> Array:
    """ai.onnx Attention without a past, for queries ``[B, N, S, D]`` over ``[B, Nkv, T, D]``."""
    _attention_shape(attrs, (query, key, value))
    if any(item is not None for item in others) or attrs.get("softcap", 0.0):
        raise Unsupported("attention with a past, lengths or a softcap")
    inner: type[np.floating[Any]] = np.float64 if attrs.get("@wide") else np.float32
    key, value = (item.repeat(query.shape[1] // item.shape[1], axis=1).astype(inner) for item in (key, value))
    scale = float(attrs.get("scale", 1.0 / np.sqrt(query.shape[-1])))
    scores = query.astype(inner) @ key.swapaxes(-1, -2) * inner(scale)
    if attrs.get("is_causal", 0):
        scores = np.where(np.tri(*scores.shape[-2:]) > 0, scores, -np.inf)
    if mask is not None:
        scores = np.where(mask, scores, -np.inf) if mask.dtype == bool else scores + mask.astype(inner)
    weights = np.exp(scores - scores.max(axis=-1, keepdims=True))
    return np.asarray((weights / weights.sum(axis=-1, keepdims=True) @ value).astype(query.dtype))


def _cached_shapes(attrs: Attrs, operands: Operands) -> list[tuple[int, ...]]:
    """Attention in the form of the queries, and the caches with the new tokens behind."""
    query, key = operands[:2]
    assert query is not None
    heads, kv_heads = int(attrs["num_heads"]), int(attrs["kv_num_heads"])
    width = query.shape[2] // (heads if key is not None else heads + 2 * kv_heads)
    batch, tokens = query.shape[:2]
    past = operands[3] if len(operands) > 3 else None
    length = tokens + (0 if past is None else past.shape[2])
    return [(batch, tokens, heads * width), *[(batch, kv_heads, length, width)] * 2]


@computing("GroupQueryAttention", _cached_shapes, domain=MICROSOFT)
def group_query_attention(attrs: Attrs, *operands: Array | None) -> Array:
    raise Unsupported("GroupQueryAttention is opened to be understood: only its shapes are told")
