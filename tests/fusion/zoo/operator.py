"""KvRmsNormRopeCache for onnx's reference evaluator, written from its contract and independent of the project's own.

Used where ONNX Runtime cannot run the graph around the operator (bfloat16), and to judge a fused graph's wiring by a
second opinion. Norm, PA, PA_BNSD, PA_NZ and the two PA_BLK modes; no quantisation, int8; forms V1 and V2.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from onnx.reference.op_run import OpRun

from tests.fusion.zoo.expected import quantise, rms_norm, rotate
from tests.fusion.zoo.graph import Array


def offsets(mode: str, cache: Array, index: Array, B: int, N: int, S: int, D: int) -> Array:
    """Flat element offsets ``[B, N, S, D]`` of all rows; -1 where the token is skipped."""
    b, n, s, d = np.ogrid[:B, :N, :S, :D]
    if mode == "Norm":
        row = index.reshape(B, S)[b, s]
        flat = ((b * N + n) * cache.shape[2] + row) * D + d
        return np.where(row < 0, -1, flat)
    block = cache.shape[1]
    if mode.startswith("PA_BLK"):
        p = index.reshape(B, -1)[b, s // block]
        page, row = p // block, s % block
    else:
        p = index.reshape(B, S)[b, s]
        page, row = p // block, p % block
    d0 = 32 // cache.dtype.itemsize
    if mode.endswith("NZ"):
        flat = (((page * N + n) * (D // d0) + d // d0) * block + row) * d0 + d % d0
    else:
        flat = ((page * block + row) * N + n) * D + d
    return np.where(p < 0, -1, flat)


def put(mode: str, cache: Array, rows: Array, index: Array, scale: Array | None, offset: Array | None) -> Array:
    B, N, S, D = rows.shape
    if scale is not None:
        shape = (1, scale.shape[0], 1, -1) if scale.ndim == 2 else (1, 1, 1, -1)
        rows = quantise(rows, scale.reshape(shape), None if offset is None else offset.reshape(shape))
    out: Array = cache.copy()
    where = np.broadcast_to(offsets(mode, cache, index, B, N, S, D), rows.shape)
    out.reshape(-1)[where[where >= 0]] = rows.astype(cache.dtype)[where >= 0]
    return out


class KvRmsNormRopeCache(OpRun):
    op_domain = "ai.ascend"

    def _run(
        self,
        kv: Array,
        gamma: Array,
        cos: Array,
        sin: Array,
        index: Array,
        k_cache: Array,
        ckv_cache: Array,
        k_rope_scale: Array | None = None,
        c_kv_scale: Array | None = None,
        k_rope_offset: Array | None = None,
        c_kv_offset: Array | None = None,
        v: Array | None = None,
        epsilon: float | None = None,
        cache_mode: Any = None,
        is_output_kv: int | None = None,
        **_: Any,
    ) -> tuple[Array, Array, Array, Array]:
        x, g, c, s = (value.astype(np.float64) for value in (kv, gamma, cos, sin))
        eps = 1e-5 if epsilon is None else epsilon
        if v is None:
            normalised, turned = x[..., : g.size], x[..., g.size :]
            value, key = rms_norm(normalised, g, eps), rotate(turned, c, s, "deinterleave")
        else:
            y = rms_norm(x, g, eps)
            width = c.shape[-1]
            value = v.astype(np.float64)
            key = np.concatenate([rotate(y[..., :width], c, s, "deinterleave"), y[..., width:]], -1)
        mode = cache_mode or "Norm"
        caches = (
            put(mode, k_cache, key, index, k_rope_scale, k_rope_offset),
            put(mode, ckv_cache, value, index, c_kv_scale, c_kv_offset),
        )
        delivered = [rows.astype(kv.dtype) for rows in (key, value)]
        if not is_output_kv:
            delivered = [np.zeros_like(rows) for rows in delivered]
        return caches[0], caches[1], delivered[0], delivered[1]
