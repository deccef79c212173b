"""Operators that are a norm or a rotation by themselves."""

from __future__ import annotations

from typing import Any

import numpy as np

from fusion.facts.semantics.table import Attrs, Conflict, Operands, Unsupported, computing
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


@computing("LayerNormalization", _first_shape)
def layer_normalization(attrs: Attrs, x: Array, gamma: Array, beta: Array | None = None) -> Any:
    axes = tuple(range(int(attrs.get("axis", -1)) % x.ndim, x.ndim))
    centred = x - x.mean(axis=axes, keepdims=True)
    result = _normalised(centred, gamma, attrs.get("epsilon", 1e-5), axes[0], bool(attrs.get("@wide")))
    return result if beta is None else result + beta


@computing("QuickGelu", _first_shape, domain="com.microsoft")
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
    x, cos = operands[0], operands[1]
    assert x is not None and cos is not None
    if len(operands) < 4 and cos.ndim == 3:
        for left, right in ((cos.shape[0], x.shape[0]), (cos.shape[1], x.shape[1] if x.ndim == 3 else x.shape[2])):
            if left != right:
                raise Conflict(left, right)
    return [x.shape]


@computing("RotaryEmbedding", _rotary_shape)
def rotary_embedding(attrs: Attrs, x: Array, cos: Array, sin: Array, positions: Array | None = None) -> Array:
    return _rotary(attrs, x, cos, sin, positions)


@computing("RotaryEmbedding", _first_shape, domain="com.microsoft")
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
    turned = _rotate(inner, parts[0], parts[1], bool(attrs.get("interleaved", 0)))
    return turned if x.ndim == 4 else turned.transpose(0, 2, 1, 3).reshape(x.shape)
