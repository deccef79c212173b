"""RotaryEmbedding of ai.onnx without position ids: the definition, written in terms."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import numpy as np

from fusion.facts.semantics.fused import is_interleaved
from fusion.facts.symbols.terms import Sym, add, joined, multiply
from ir_ops.dtypes import Array


def rotary_terms(attrs: Mapping[str, Any], x: Sym, cos: Sym, sin: Sym) -> Sym | None:
    """The rotated x, None where the attributes do not tell the heads of a rank 3 x.

    Raises:
        Unsupported: numbers in attributes that the definition does not know.
    """
    heads = int(attrs.get("num_heads", 0))
    rank = len(x.shape)
    if rank == 3 and (heads <= 0 or x.shape[-1] % heads):
        return None
    flat: Array = np.arange(math.prod(x.shape)).reshape(x.shape)
    if rank == 3:
        flat = flat.reshape(x.shape[0], x.shape[1], heads, -1).transpose(0, 2, 1, 3)
    width = int(attrs.get("rotary_embedding_dim", 0)) or flat.shape[-1]
    half, woven = width // 2, is_interleaved(attrs)
    first, second = (x.take(part) for part in _pairs(flat[..., :width], half, woven))
    table = np.arange(math.prod(cos.shape)).reshape(cos.shape)[:, None, :, :half]
    c, s = cos.take(table), sin.take(table)
    low = add(multiply(first, c), multiply(second, s), -1.0)
    high = add(multiply(second, c), multiply(first, s), 1.0)
    rest = x.take(flat[..., width:])
    order = _output_order(low.shape, rest.shape, woven)
    if rank == 3:
        order = order.transpose(0, 2, 1, 3).reshape(x.shape)
    return joined([low, high, rest]).take(order)


def _pairs(columns: Array, half: int, woven: bool) -> tuple[Array, Array]:
    """First and second element of each pair."""
    return (columns[..., 0::2], columns[..., 1::2]) if woven else (columns[..., :half], columns[..., half:])


def _output_order(half: tuple[int, ...], rest: tuple[int, ...], woven: bool) -> Array:
    """Positions in (low half, high half, rest), joined flat, of each element of the result."""
    count = math.prod(half)
    low = np.arange(count).reshape(half)
    high = count + low
    turned = np.stack([low, high], -1).reshape(*half[:-1], -1) if woven else np.concatenate([low, high], -1)
    return np.concatenate([turned, 2 * count + np.arange(math.prod(rest)).reshape(rest)], -1)
