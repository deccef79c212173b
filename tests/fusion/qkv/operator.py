"""QkvRmsNormRopeCache for onnx's reference evaluator, written from its contract, independent of the project's own."""

from __future__ import annotations

from typing import Any

import numpy as np
from onnx.reference.op_run import OpRun

from tests.fusion.zoo.expected import rms_norm, rotate
from tests.fusion.zoo.graph import Array


def put(cache: Array, rows: Array, index: Array, scale: Array | None, offset: Array | None) -> Array:
    """Rows ``[T, N, D]`` written into a copy of ``[P, N*D/d0, block, d0]``."""
    if scale is not None:
        rows = np.clip(np.round(rows / scale + (0 if offset is None else offset)), -128, 127)
    out: Array = cache.copy()
    block, d0 = cache.shape[2:]
    for token, slot in enumerate(index.tolist()):
        if slot >= 0:
            out[slot // block, :, slot % block] = rows[token].reshape(-1, d0).astype(cache.dtype)
    return out


class QkvRmsNormRopeCache(OpRun):
    op_domain = "ai.ascend"

    def _run(
        self,
        qkv: Array,
        q_gamma: Array,
        k_gamma: Array,
        cos: Array,
        sin: Array,
        index: Array,
        q_out: Array | None,
        k_cache: Array,
        v_cache: Array,
        k_scale: Array | None = None,
        v_scale: Array | None = None,
        k_offset: Array | None = None,
        v_offset: Array | None = None,
        qkv_size: Any = None,
        head_nums: Any = None,
        epsilon: float | None = None,
        is_output_qkv: int | None = None,
        **_: Any,
    ) -> tuple[Array, ...]:
        nq, nk, _nv = head_nums
        eps = 1e-6 if epsilon is None else epsilon
        heads = qkv.astype(np.float64).reshape(len(qkv), sum(head_nums), qkv_size[3])
        c, s = (table.astype(np.float64)[:, None] for table in (cos, sin))
        q = rotate(rms_norm(heads[:, :nq], q_gamma.astype(np.float64), eps), c, s, "half")
        k = rotate(rms_norm(heads[:, nq : nq + nk], k_gamma.astype(np.float64), eps), c, s, "half")
        v = heads[:, nq + nk :]
        caches = put(k_cache, k, index, k_scale, k_offset), put(v_cache, v, index, v_scale, v_offset)
        flat = [rows.reshape(len(rows), -1).astype(qkv.dtype) for rows in (q, k, v)]
        raw = flat if is_output_qkv else [np.zeros(0, qkv.dtype)] * 3
        return (flat[0], *caches, *raw)
