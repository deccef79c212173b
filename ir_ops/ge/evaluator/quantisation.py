"""Quantisation operators."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from ir_ops.dtypes import Array
from ir_ops.ge.evaluator.elementwise import converted
from ir_ops.ge.evaluator.registry import EvalCall, evaluates, wide
from ir_ops.ops import OPS

_ROUND: dict[str, Callable[[Array], Any]] = {
    "round": np.rint, "rint": np.rint, "floor": np.floor, "ceil": np.ceil, "trunc": np.trunc,
}  # fmt: skip


def ascend_quant(call: EvalCall) -> Array:
    """clamp(round(x * scale + offset)): the scale multiplies, the offset is added before rounding."""
    x, scale, offset = wide(call.x("x")), wide(call.x("scale")), call.get("offset")
    target = call.dtype_attr("dst_type")
    if call.attr("axis") not in (-1, x.ndim - 1):
        raise call.error("axis", str(call.attr("axis")), "the last")
    y = x * scale * (scale if call.attr("sqrt_mode") else 1)
    y = y if offset is None else y + wide(offset)
    if target == np.int8:
        return np.asarray(np.clip(_ROUND[call.attr("round_mode")](y), -128, 127), dtype=np.int8)
    return converted(y, target)


def dynamic_quant(call: EvalCall) -> dict[str, Array]:
    """Each row of the last axis: scale = max|x * smooth| / 127, y = round(x * smooth / scale); zero rows stay zero."""
    if call.get("group_index") is not None or call.dtype_attr("dst_type") != np.int8:
        raise call.error("group_index or a target other than int8")
    x, smooth = wide(call.x("x")), call.get("smooth_scales")
    x = x if smooth is None else x * wide(smooth)
    scale = np.max(np.abs(x), axis=-1, keepdims=True) / np.float32(127)
    y = np.rint(np.divide(x, scale, out=np.zeros_like(x), where=scale != 0))
    return {"y": y.astype(np.int8), "scale": scale[..., 0].astype(np.float32)}


for _name, _function in (("AscendQuantV2", ascend_quant), ("DynamicQuant", dynamic_quant)):
    # a declared operator's own reference is used instead
    if _name not in OPS:
        evaluates(_name)(_function)
