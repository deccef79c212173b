"""Matrix products."""

from __future__ import annotations

from typing import Any

import numpy as np

from ir_ops.ge.convert.call import NodeCall
from ir_ops.ge.convert.registry import Result, converts
from ir_ops.ge.convert.unsupported import Unsupported
from ir_ops.ge.tensor import Tensor


def product(n: NodeCall, a: Tensor, b: Tensor, part: str = "", **flags: bool) -> Tensor:
    """``a @ b``: MatMulV2 for two matrices, BatchMatMulV2 otherwise; ``left``/``right`` transpose a factor."""
    left, right = flags.get("left", False), flags.get("right", False)
    if len(a.shape or ()) == 2 and len(b.shape or ()) == 2:
        return n.emit("MatMulV2", {"x1": a, "x2": b}, {"transpose_x1": left, "transpose_x2": right}, part)
    return n.emit("BatchMatMulV2", {"x1": a, "x2": b}, {"adj_x1": left, "adj_x2": right}, part)


@converts(
    "MatMul",
    dtypes="float32, float16, bfloat16",
    ge="MatMulV2, BatchMatMulV2; FusedInferAttentionScore",
    note="vectors are unsqueezed; the second product of an attention is GE's operator where that is provably the same",
)
def matmul(n: NodeCall) -> Result:
    n.require("float32", "float16", "bfloat16", "int32")
    ranks = (n.rank(0), n.rank(1))
    if min(ranks) >= 2:
        return product(n, n.x(0), n.x(1))
    a = n.emit("Unsqueeze", {"x": n.x(0)}, {"axes": [0]}, "row") if ranks[0] == 1 else n.x(0)
    b = n.emit("Unsqueeze", {"x": n.x(1)}, {"axes": [1]}, "column") if ranks[1] == 1 else n.x(1)
    squeezed = ([-2] if ranks[0] == 1 else []) + ([-1] if ranks[1] == 1 else [])
    return n.emit("Squeeze", {"x": product(n, a, b, "product")}, {"axis": squeezed})


@converts(
    "Gemm",
    dtypes="float32, float16, bfloat16",
    ge="MatMulV2, Muls, Add",
    note="a 1-D C is the bias of MatMulV2 (added before the one rounding); alpha and beta become Muls",
)
def gemm(n: NodeCall) -> Result:
    alpha, beta = float(n.attr("alpha", 1.0)), float(n.attr("beta", 1.0))
    attrs = {"transpose_x1": bool(n.attr("transA", 0)), "transpose_x2": bool(n.attr("transB", 0))}
    inputs: dict[str, Any] = {"x1": n.x(0), "x2": n.x(1)}
    if not n.has(2) or beta == 0.0:
        return _scaled(n, n.emit("MatMulV2", inputs, attrs, "" if alpha == 1.0 else "product"), alpha, "")
    width = n.shape(1)[0 if n.attr("transB", 0) else 1]
    if alpha == beta == 1.0 and n.rank(2) == 1 and n.shape(2)[0] == width >= 0:
        return n.emit("MatMulV2", {**inputs, "bias": n.x(2)}, attrs)
    x = _scaled(n, n.emit("MatMulV2", inputs, attrs, "product"), alpha, "alpha")
    return n.emit("Add", {"x1": x, "x2": _scaled(n, n.x(2), beta, "beta")})


def _scaled(n: NodeCall, x: Tensor, factor: float, part: str) -> Tensor:
    return x if factor == 1.0 else n.scaled(x, factor, part)


@converts("Einsum", dtypes="float32, float16, bfloat16, int32", ge="Transpose, BatchMatMulV2; Einsum",
          note="a product of two tensors over one label becomes BatchMatMulV2; others stay (not bfloat16)")  # fmt: skip
def einsum(n: NodeCall) -> Result:
    text = str(n.attr("equation")).replace(" ", "")
    if "." in text:
        raise Unsupported("Einsum with an ellipsis", "explicit labels")
    plan = batch_product(text) if len(n.inputs) == 2 else None
    if plan is not None:
        return _as_product(n, *plan)
    n.require("float32", "float16", "int32")
    return n.emit("Einsum", {"x": [n.x(i) for i in range(len(n.inputs))]}, {"equation": text})


def batch_product(text: str) -> tuple[list[int], list[int], list[int]] | None:
    """The transpositions that make a two-operand equation a batched product: of a, of b, of the result.

    None when it is no such product: repeated labels in a term, more or fewer than one summed label, or not exactly one
    free label on each side.
    """
    left, _, result = text.partition("->")
    terms = left.split(",")
    if not result or len(terms) != 2 or any(len(set(term)) != len(term) for term in [*terms, result]):
        return None
    a, b = terms
    batch = [label for label in result if label in a and label in b]
    summed = [label for label in a if label in b and label not in result]
    rows = [label for label in a if label not in b]
    columns = [label for label in b if label not in a]
    if len(summed) != 1 or len(rows) != 1 or len(columns) != 1 or set(result) != {*batch, *rows, *columns}:
        return None
    made = [*batch, *rows, *columns]
    return (
        [a.index(label) for label in [*batch, *rows, *summed]],
        [b.index(label) for label in [*batch, *summed, *columns]],
        [made.index(label) for label in result],
    )


def _as_product(n: NodeCall, perm_a: list[int], perm_b: list[int], perm_y: list[int]) -> Tensor:
    a, b = _transposed(n, n.x(0), perm_a, "a"), _transposed(n, n.x(1), perm_b, "b")
    straight = perm_y == sorted(perm_y)
    y = product(n, a, b, "" if straight else "product")
    return y if straight else _transposed(n, y, perm_y, "")


def _transposed(n: NodeCall, x: Tensor, perm: list[int], part: str) -> Tensor:
    return x if perm == sorted(perm) else n.emit("Transpose", {"x": x, "perm": n.vector(perm)}, part=part)


@converts(
    "MatMulInteger",
    dtypes="int8, uint8",
    ge="MatMulV2 / BatchMatMulV2 on int8, Cast, ReduceSum, Sub, Add",
    note="uint8 moves to int8 by 128; zero points (of a, of b, of each column of b) become exact int32 corrections",
)
def matmul_integer(n: NodeCall) -> Result:
    if min(n.rank(0), n.rank(1)) < 2:
        raise Unsupported("MatMulInteger with a vector", "a matrix")
    a, zero_a = _signed(n, 0, 2)
    b, zero_b = _signed(n, 1, 3)
    result = product(n, a, b, "product" if zero_a is not None or zero_b is not None else "")
    if zero_a is not None:
        columns = _summed(n, b, -2, "b")
        result = n.emit(
            "Sub", {"x1": result, "x2": n.emit("Mul", {"x1": columns, "x2": zero_a}, part="za_b")}, part="less_za"
        )
    if zero_b is not None:
        rows = _summed(n, a, -1, "a")
        result = n.emit(
            "Sub", {"x1": result, "x2": n.emit("Mul", {"x1": rows, "x2": zero_b}, part="zb_a")}, part="less_zb"
        )
    if zero_a is not None and zero_b is not None:
        depth = n.shape(0)[-1]
        if depth < 0:
            raise Unsupported("MatMulInteger with two zero points over an unknown dim", "a static inner dim")
        both = n.emit(
            "Mul",
            {"x1": n.emit("Mul", {"x1": zero_a, "x2": zero_b}, part="za_zb"), "x2": n.scalar(depth, "int32")},
            part="zz",
        )
        result = n.emit("Add", {"x1": result, "x2": both})
    return result


def _summed(n: NodeCall, x: Tensor, axis: int, part: str) -> Tensor:
    wide = n.cast(x, "int32", f"{part}_int32")
    place = axis % len(x.shape or (0, 0))
    return n.emit("ReduceSum", {"x": wide, "axes": n.vector([place])}, {"keep_dims": True}, f"{part}_sum")


def _signed(n: NodeCall, index: int, zero_index: int) -> tuple[Tensor, Tensor | None]:
    """A factor as int8, and its zero point as int32 (None for zero). uint8 values move down by 128, exactly."""
    n.require("int8", "uint8", index=index)
    shift = 128 if n.dtype(index).name == "uint8" else 0
    x = n.x(index)
    if shift:
        wide = n.cast(x, "int32", f"wide{index}")
        moved = n.emit("Sub", {"x1": wide, "x2": n.scalar(shift, "int32")}, part=f"shifted{index}")
        x = n.emit("Cast", {"x": moved}, {"dst_type": 2}, f"int8_{index}")
    if not n.has(zero_index):
        return x, n.builder.const(n.scalar(-shift, "int32")) if shift else None
    # one zero point for each column of b broadcasts as it is; for each row of a it would not
    if n.arg(zero_index).type.numel != 1 and (index == 0 or n.rank(zero_index) != 1):
        raise Unsupported("MatMulInteger with a zero point for each row", "one zero point, or one for each column of b")
    known = n.arg(zero_index).constant()
    if known is not None:
        zero = np.asarray(known).astype(np.int32) - np.int32(shift)
        return x, n.builder.const(zero.reshape(()) if zero.size == 1 else zero) if zero.any() else None
    zero_point = n.cast(n.x(zero_index), "int32", f"zero{index}")
    one = n.arg(zero_index).type.numel == 1
    target = n.vector([] if one else [-1])
    flat = n.emit("Reshape", {"x": zero_point, "shape": target}, part=f"zero_flat{index}")
    return x, n.emit(
        "Sub", {"x1": flat, "x2": n.scalar(shift, "int32")}, part=f"zero_shifted{index}"
    ) if shift else flat
