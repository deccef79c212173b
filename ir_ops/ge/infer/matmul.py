"""Output types of matrix products."""

from __future__ import annotations

from ir_ops.dtypes import DType
from ir_ops.ge.infer.call import INT32, OpCall, broadcast, infers
from ir_ops.ge.infer.movement import merge_equal
from ir_ops.ge.model import Shape, TensorType


def _product(call: OpCall, left: bool, right: bool) -> TensorType:
    dtype: DType = call.dtype("x1")
    if dtype != call.dtype("x2"):
        raise call.error("factors of different element types", f"{dtype.name} and {call.dtype('x2').name}")
    out = INT32 if dtype.name in ("int8", "int4") else dtype
    a, b = call.shape("x1"), call.shape("x2")
    if a is None or b is None:
        return TensorType(out)
    if len(a) < 2 or len(b) < 2:
        raise call.error("a factor of rank below 2", f"{list(a)} and {list(b)}")
    m, k = (a[-1], a[-2]) if left else (a[-2], a[-1])
    k2, n = (b[-1], b[-2]) if right else (b[-2], b[-1])
    merge_equal(call, k, k2)
    batch: Shape | None = broadcast(call, a[:-2], b[:-2])
    return TensorType(out, (*(batch or ()), m, n))


@infers("BatchMatMul", "BatchMatMulV2")
def batch_matmul(call: OpCall) -> TensorType:
    return _product(call, bool(call.attr("adj_x1")), bool(call.attr("adj_x2")))


@infers("MatMul", "MatMulV2")
def matmul(call: OpCall) -> TensorType:
    for name in ("x1", "x2"):
        if call.inputs[name].rank not in (None, 2):
            raise call.error(f"{name} is not a matrix", str(call.inputs[name]), "rank 2")
    return _product(call, bool(call.attr("transpose_x1")), bool(call.attr("transpose_x2")))


def equation(call: OpCall) -> tuple[list[str], str]:
    """The terms of an Einsum equation without ellipsis, the implicit output made explicit."""
    text = str(call.attr("equation")).replace(" ", "")
    if "." in text:
        raise call.error("an ellipsis is not supported", text, "explicit labels")
    left, mark, right = text.partition("->")
    terms = left.split(",")
    if not mark:
        right = "".join(sorted(label for label in set(left) - {","} if left.count(label) == 1))
    return terms, right


@infers("Einsum")
def einsum(call: OpCall) -> TensorType:
    terms, result = equation(call)
    sizes: dict[str, int] = {}
    for term, operand in zip(terms, call.dynamic["x"], strict=True):
        shape = operand.shape if operand.shape is not None else (-1,) * len(term)
        for label, dim in zip(term, shape, strict=True):
            sizes[label] = merge_equal(call, sizes.get(label, -1), dim)
    return TensorType(call.dynamic["x"][0].dtype, tuple(sizes[label] for label in result))
