"""What a preamble means, in plain numpy, and random inputs for it. Nothing of the project is used here."""

from __future__ import annotations

from typing import Any

import numpy as np

from tests.fusion.zoo.graph import Array


def rms_norm(x: Array, gamma: Array, eps: float) -> Array:
    y: Array = x / np.sqrt(np.mean(x * x, axis=-1, keepdims=True) + eps) * gamma
    return y


def rotate(x: Array, cos: Array, sin: Array, kind: str) -> Array:
    """``deinterleave`` sorts pairs into halves first; ``half`` takes the halves as they are; cos and sin full width."""
    d = x.shape[-1]
    if kind == "deinterleave":
        e, o = x[..., 0::2], x[..., 1::2]
    else:
        e, o = x[..., : d // 2], x[..., d // 2 :]
    c, s = np.split(cos, 2, -1), np.split(sin, 2, -1)
    return np.concatenate([e * c[0] - o * s[0], o * c[1] + e * s[1]], axis=-1)


def quantise(x: Array, scale: Array, offset: Array | None) -> Array:
    t = x * scale + (0 if offset is None else offset)
    q: Array = np.clip(np.round(t), -128, 127).astype(np.int8)
    return q


def places(slots: Array, kind: str, B: int, S: int, block: int) -> tuple[Array, Array]:
    """Page (or batch) and row of every token, ``[B, S]`` each."""
    b = np.broadcast_to(np.arange(B)[:, None], (B, S))
    s = np.broadcast_to(np.arange(S)[None], (B, S))
    if kind == "tokens":
        flat = slots.reshape(B, S)
        return flat // block, flat % block
    if kind == "pages":
        return slots.reshape(B, -1)[b, s // block] // block, s % block
    if kind == "start":
        return b, slots[:, None] + s
    return b, np.broadcast_to(slots, (B, S))


def write(cache: Array, rows: Array, page: Array, row: Array, shape: str, block: int, fractal: int) -> Array:
    """Rows ``[B, N, S, D]`` put into a copy of ``cache``; ``shape`` is its declared one, as in ``writes.Write``."""
    out: Array = cache.copy()
    B, N, S, D = rows.shape
    view: Any = out
    if shape == "flat":
        view = out.reshape(-1, block, N, D)
    if shape == "nz5":
        view = out.reshape(out.shape[0], N * D // fractal, block, fractal)
    for b in range(B):
        for s in range(S):
            p, r, x = page[b, s], row[b, s], rows[b, :, s]
            if shape in ("page", "flat"):
                view[p, r] = x
            elif shape == "batch":
                view[p, :, r] = x
            elif shape == "bmd":
                view[p, r] = x[0]
            else:
                view[p, :, r] = x.reshape(N * D // fractal, fractal)
    return out


def slot_values(rng: np.random.Generator, kind: str, B: int, S: int, pages: int, block: int, length: int) -> Array:
    """Distinct legal slots for a slot input of the given kind."""
    if kind == "tokens":
        return rng.permutation(pages * block)[: B * S].astype(np.int64)
    if kind == "pages":
        return (rng.permutation(pages)[: B * -(-S // block)] * block).astype(np.int64)
    if kind == "start":
        return rng.integers(0, length - S + 1, B)
    if kind == "shared":
        return rng.permutation(length)[:S].astype(np.int64)
    return np.stack([rng.permutation(length)[:S] for _ in range(B)]).astype(np.int64)
