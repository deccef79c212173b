"""Products of 8-bit numbers and what stands around them: the forms that quantised exports have."""

from __future__ import annotations

from typing import Any

import numpy as np

from fusion.facts.semantics.arithmetic import matmul_shape
from fusion.facts.semantics.table import MICROSOFT, Attrs, Operands, Unsupported, computing
from ir_ops.dtypes import Array


def _product(left: int, right: int) -> Any:
    """A shape rule: the product of two operands, one result."""

    def shapes(attrs: Attrs, operands: Operands) -> list[tuple[int, ...]]:
        a, b = operands[left], operands[right]
        assert a is not None and b is not None
        return [matmul_shape(a.shape, b.shape)]

    return shapes


def _shifted(x: Array, zero: Array | None, axis: int) -> Array:
    """x minus its zero point (one number, or one for each row of A or column of B), in int32."""
    wide = x.astype(np.int32)
    if zero is None:
        return wide
    shift = zero.astype(np.int32)
    if shift.ndim == 1 and shift.size > 1:
        shift = shift.reshape(-1, 1) if axis == -2 else shift
    return wide - (shift.reshape(()) if shift.size == 1 else shift)


@computing("MatMulInteger", _product(0, 1))
def matmul_integer(attrs: Attrs, a: Array, b: Array, a_zero: Array | None = None, b_zero: Array | None = None) -> Any:
    matmul_shape(a.shape, b.shape)
    return np.matmul(_shifted(a, a_zero, -2), _shifted(b, b_zero, -1))


@computing("QLinearMatMul", _product(0, 3))
def qlinear_matmul(
    attrs: Attrs, a: Array, a_scale: Array, a_zero: Array, b: Array, b_scale: Array, b_zero: Array,
    y_scale: Array, y_zero: Array,
) -> Any:  # fmt: skip
    total = np.matmul(_shifted(a, a_zero, -2), _shifted(b, b_zero, -1)).astype(np.float64)
    rows = a_scale.reshape(-1, 1) if a_scale.size > 1 else a_scale.reshape(())
    steps = np.rint(total * (rows.astype(np.float64) * b_scale.astype(np.float64)) / y_scale.astype(np.float64))
    limits = np.iinfo(y_zero.dtype)
    return np.clip(steps + y_zero.astype(np.float64), limits.min, limits.max).astype(y_zero.dtype)


def _with_parameters(attrs: Attrs, operands: Operands) -> list[tuple[int, ...]]:
    assert operands[0] is not None
    return [operands[0].shape, (), ()]


@computing("DynamicQuantizeLinear", _with_parameters)
def dynamic_quantize_linear(attrs: Attrs, x: Array) -> tuple[Array, Array, Array]:
    low, high = np.minimum(x.min(initial=0), 0), np.maximum(x.max(initial=0), 0)
    scale = np.asarray((high - low) / 255, x.dtype)
    if scale == 0:
        scale = np.asarray(1, x.dtype)
    zero = np.asarray(np.clip(np.rint(0 - low / scale), 0, 255), np.uint8)
    return np.clip(np.rint(x / scale) + zero, 0, 255).astype(np.uint8), scale, zero


def _first_shape(attrs: Attrs, operands: Operands) -> list[tuple[int, ...]]:
    assert operands[0] is not None
    return [operands[0].shape]


def _opaque(name: str) -> Any:
    def run(attrs: Attrs, *operands: Array) -> Any:
        raise Unsupported(f"{name} is a source: only its shape is told")

    return run


def _packed_shape(attrs: Attrs, operands: Operands) -> list[tuple[int, ...]]:
    assert operands[0] is not None
    return [(*operands[0].shape[:-1], int(attrs["N"]))]


def _picked_rows(attrs: Attrs, operands: Operands) -> list[tuple[int, ...]]:
    """Rows of a table of blocks. Its bytes hold one number or several: the scales tell, one for each block."""
    table, indices, scales = operands[:3]
    assert table is not None and indices is not None and scales is not None
    axes = int(attrs.get("gather_axis", 0)), int(attrs.get("quantize_axis", 1))
    if (table.ndim, scales.ndim, *axes) != (2, 2, 0, 1):
        raise Unsupported("GatherBlockQuantized along other axes")
    block, stored = int(attrs.get("block_size", 128)), table.shape[1]
    widths = {stored, stored * 8 // int(attrs.get("bits", 4))}
    fitting = [width for width in widths if -(-width // block) == scales.shape[1]]
    if len(fitting) != 1:
        raise Unsupported("GatherBlockQuantized whose rows have no certain length")
    return [(*indices.shape, fitting[0])]


for _name, _shape in (
    ("GatherBlockQuantized", _picked_rows),
    ("DynamicQuantizeMatMul", _product(0, 1)), ("MatMulIntegerToFloat", _product(0, 1)),
    ("MatMulNBits", _packed_shape), ("QuantizeLinear", _first_shape), ("DequantizeLinear", _first_shape),
):  # fmt: skip
    computing(_name, _shape, domain=MICROSOFT)(_opaque(_name))
