"""Matrix products: float32 (int32 for int8) accumulation, one rounding."""

from __future__ import annotations

import numpy as np

from ir_ops.dtypes import Array
from ir_ops.ge.evaluator.registry import EvalCall, evaluates, narrow, wide


def _product(call: EvalCall, left: str, right: str) -> Array:
    a, b = call.x("x1"), call.x("x2")
    integer = a.dtype in (np.int8, np.int32)
    x, y = (a.astype(np.int64), b.astype(np.int64)) if integer else (wide(a), wide(b))
    x = np.swapaxes(x, -1, -2) if call.attr(left) else x
    y = np.swapaxes(y, -1, -2) if call.attr(right) else y
    result = np.matmul(x, y)
    bias = call.get("bias")
    if bias is not None:
        result = result + wide(bias)
    return narrow(result, np.dtype(np.int32) if integer else a.dtype)


@evaluates("MatMul", "MatMulV2")
def matmul(call: EvalCall) -> Array:
    if call.x("x1").ndim != 2 or call.x("x2").ndim != 2:
        raise call.error("a factor is not a matrix", f"ranks {call.x('x1').ndim} and {call.x('x2').ndim}")
    return _product(call, "transpose_x1", "transpose_x2")


@evaluates("BatchMatMul", "BatchMatMulV2")
def batch_matmul(call: EvalCall) -> Array:
    return _product(call, "adj_x1", "adj_x2")


@evaluates("Einsum")
def einsum(call: EvalCall) -> Array:
    operands = call.dynamic["x"]
    return narrow(np.einsum(call.attr("equation"), *(wide(x) for x in operands)), operands[0].dtype)
