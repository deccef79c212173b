"""Elementwise operators and matrix products."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np

from fusion.facts.semantics.table import Attrs, Conflict, Operands, Unsupported, broadcast_shape, computing, elementwise
from ir_ops.dtypes import Array, by_onnx


def _is_int(x: Array) -> bool:
    return np.issubdtype(x.dtype, np.integer)


def _binary(name: str, function: Callable[[Array, Array], Any]) -> None:
    @elementwise(name)
    def run(attrs: Attrs, x: Array, y: Array) -> Any:
        return function(x, y)


def _unary(name: str, function: Callable[[Array], Any]) -> None:
    @elementwise(name)
    def run(attrs: Attrs, x: Array) -> Any:
        return function(x)


def _divide(x: Array, y: Array) -> Array:
    if not _is_int(x):
        return np.asarray(np.divide(x, y))
    if (y == 0).any():
        raise Unsupported("an integer division by zero")
    quotient: Array = np.sign(x) * np.sign(y) * (np.abs(x) // np.abs(y))
    return quotient.astype(x.dtype)


_BINARY: dict[str, Callable[[Array, Array], Any]] = {
    "Add": np.add, "Sub": np.subtract, "Mul": np.multiply, "Div": _divide, "Equal": np.equal, "Less": np.less,
    "LessOrEqual": np.less_equal, "Greater": np.greater, "GreaterOrEqual": np.greater_equal,
    "And": np.logical_and, "Or": np.logical_or, "Xor": np.logical_xor,
    "BitwiseAnd": np.bitwise_and, "BitwiseOr": np.bitwise_or, "BitwiseXor": np.bitwise_xor,
}  # fmt: skip


def _erf(x: Array) -> Array:
    return np.asarray(np.vectorize(math.erf, otypes=[np.float64])(x).astype(x.dtype))


_UNARY: dict[str, Callable[[Array], Any]] = {
    "Neg": np.negative, "Abs": np.abs, "Sqrt": np.sqrt, "Exp": np.exp, "Log": np.log, "Cos": np.cos, "Sin": np.sin,
    "Tanh": np.tanh, "Floor": np.floor, "Ceil": np.ceil, "Round": np.rint, "Sign": np.sign, "Not": np.logical_not,
    "IsNaN": np.isnan, "IsInf": np.isinf,
    "Reciprocal": lambda x: x.dtype.type(1) / x,
    "Sigmoid": lambda x: x.dtype.type(1) / (x.dtype.type(1) + np.exp(-x)),
    "Relu": lambda x: np.maximum(x, x.dtype.type(0)),
    "Erf": _erf,
    "Softplus": lambda x: np.log1p(np.exp(x)),
}  # fmt: skip

for _name, _pair in _BINARY.items():
    _binary(_name, _pair)
for _name, _single in _UNARY.items():
    _unary(_name, _single)


@elementwise("Pow")
def pow_(attrs: Attrs, x: Array, y: Array) -> Array:
    if _is_int(x):
        return np.power(x.astype(np.float64), y.astype(np.float64)).astype(x.dtype)
    return np.asarray(np.power(x, y.astype(x.dtype)))


@elementwise("Gelu")
def gelu(attrs: Attrs, x: Array) -> Any:
    """``x * P(normal < x)``, or what its attribute puts in place of it."""
    half = x.dtype.type(0.5)
    if attrs.get("approximate", "none") == "tanh":
        inner = x.dtype.type(math.sqrt(2 / math.pi)) * (x + x.dtype.type(0.044715) * x * x * x)
        return half * x * (1 + np.tanh(inner))
    return half * x * (1 + _erf(x / x.dtype.type(math.sqrt(2))))


@elementwise("Swish")
def swish(attrs: Attrs, x: Array) -> Any:
    return x / (x.dtype.type(1) + np.exp(-x * x.dtype.type(attrs.get("alpha", 1.0))))


@elementwise("Mod")
def mod(attrs: Attrs, x: Array, y: Array) -> Any:
    if (y == 0).any():
        raise Unsupported("a modulo by zero")
    return np.fmod(x, y) if attrs.get("fmod", 0) else np.mod(x, y)


@elementwise("Min")
def minimum(attrs: Attrs, *parts: Array) -> Array:
    return _fold(np.minimum, parts)


@elementwise("Max")
def maximum(attrs: Attrs, *parts: Array) -> Array:
    return _fold(np.maximum, parts)


@elementwise("Sum")
def sum_(attrs: Attrs, *parts: Array) -> Array:
    return _fold(np.add, parts)


def _fold(function: Any, parts: tuple[Array, ...]) -> Array:
    result = parts[0]
    for part in parts[1:]:
        result = function(result, part)
    return result


@elementwise("Clip")
def clip(attrs: Attrs, x: Array, low: Array | None = None, high: Array | None = None) -> Array:
    least = attrs.get("min") if low is None else low
    most = attrs.get("max") if high is None else high
    if least is not None:
        x = np.maximum(x, np.asarray(least).astype(x.dtype))
    if most is not None:
        x = np.minimum(x, np.asarray(most).astype(x.dtype))
    return x


def matmul_shape(left: tuple[int, ...], right: tuple[int, ...]) -> tuple[int, ...]:
    """The shape of a MatMul. Raises Conflict where the inner or batch sizes differ."""
    if not left or not right:
        raise Unsupported("MatMul of a scalar")
    inner = right[0] if len(right) == 1 else right[-2]
    if left[-1] != inner:
        raise Conflict(left[-1], inner)
    batch = broadcast_shape(left[:-2], right[:-2])
    return batch + (() if len(left) == 1 else left[-2:-1]) + (() if len(right) == 1 else right[-1:])


@computing("MatMul", lambda attrs, x: [matmul_shape(x[0].shape, x[1].shape)])  # type: ignore[union-attr]
def matmul(attrs: Attrs, x: Array, y: Array) -> Any:
    matmul_shape(x.shape, y.shape)
    if x.dtype.itemsize == 2:
        return np.matmul(x.astype(np.float32), y.astype(np.float32)).astype(x.dtype)
    return np.matmul(x, y)


def _gemm_shape(attrs: Attrs, operands: Operands) -> list[tuple[int, ...]]:
    x, y = operands[0], operands[1]
    assert x is not None and y is not None
    left = x.shape[::-1] if attrs.get("transA") else x.shape
    right = y.shape[::-1] if attrs.get("transB") else y.shape
    return [matmul_shape(left, right)]


@computing("Gemm", _gemm_shape)
def gemm(attrs: Attrs, x: Array, y: Array, c: Array | None = None) -> Any:
    product = matmul({}, x.T if attrs.get("transA") else x, y.T if attrs.get("transB") else y)
    product = product * product.dtype.type(attrs.get("alpha", 1.0))
    return product if c is None else product + c * c.dtype.type(attrs.get("beta", 1.0))


def _einsum_shape(attrs: Attrs, operands: Operands) -> list[tuple[int, ...]]:
    shapes = [operand.shape for operand in operands if operand is not None]
    inputs, arrow, out = str(attrs["equation"]).replace(" ", "").partition("->")
    terms = inputs.split(",")
    if arrow and "." not in inputs and [len(term) for term in terms] == [len(shape) for shape in shapes]:
        sizes: dict[str, int] = {}
        for term, shape in zip(terms, shapes, strict=True):
            for letter, size in zip(term, shape, strict=True):
                if sizes.setdefault(letter, size) not in (size, 1) and size != 1:
                    raise Conflict(sizes[letter], size)
                sizes[letter] = max(sizes[letter], size)
        if set(out) <= set(sizes):
            return [tuple(sizes[letter] for letter in out)]
    dummies = [np.broadcast_to(np.int8(0), shape) for shape in shapes]
    try:
        return [np.einsum(attrs["equation"], *dummies).shape]
    except ValueError as error:
        raise Unsupported(str(error)) from None


@computing("Einsum", _einsum_shape)
def einsum(attrs: Attrs, *parts: Array) -> Any:
    equation = attrs["equation"].replace(" ", "")
    wide = [part.astype(np.float32) if part.dtype.itemsize == 2 else part for part in parts]
    batched = _as_matmul(equation, wide) if len(wide) == 2 else None
    return (np.einsum(equation, *wide) if batched is None else batched).astype(parts[0].dtype)


def _as_matmul(equation: str, parts: list[Array]) -> Array | None:
    """An Einsum of two operands as a batched matrix product, which is many times faster; None where it is none."""
    inputs, _, out = equation.partition("->")
    left, right = inputs.split(",")
    if not out or "." in equation or any(len(set(part)) != len(part) for part in (left, right, out)):
        return None
    batch = [letter for letter in left if letter in right and letter in out]
    summed = [letter for letter in left if letter in right and letter not in out]
    rows = [letter for letter in left if letter not in right]
    columns = [letter for letter in right if letter not in left]
    if set(rows + columns) - set(out):
        return None
    sizes = dict(zip(left, parts[0].shape, strict=True)) | dict(zip(right, parts[1].shape, strict=True))

    def shaped(axes: str, part: Array, *groups: list[str]) -> Array:
        order = [axes.index(letter) for group in groups for letter in group]
        lead = [sizes[letter] for letter in batch]
        joined = (math.prod(sizes[letter] for letter in group) for group in groups[1:])
        result: Array = part.transpose(order).reshape(*lead, *joined)
        return result

    product = np.matmul(shaped(left, parts[0], batch, rows, summed), shaped(right, parts[1], batch, summed, columns))
    made = batch + rows + columns
    shape, order = [sizes[letter] for letter in made], [made.index(letter) for letter in out]
    result: Array = product.reshape(shape).transpose(order)
    return result


@computing("Softmax", lambda attrs, x: [x[0].shape])  # type: ignore[union-attr]
def softmax(attrs: Attrs, x: Array) -> Any:
    axis = int(attrs.get("axis", -1))
    shifted = np.exp(x - x.max(axis=axis, keepdims=True))
    return shifted / shifted.sum(axis=axis, keepdims=True)


def quantised_like(attrs: Attrs, zero: Array | None) -> np.dtype[Any]:
    """The type of a quantised result: the zero point's, else what ``output_dtype`` says, else uint8."""
    if attrs.get("block_size", 0):
        raise Unsupported("quantisation in blocks")
    if zero is not None:
        return zero.dtype
    number = int(attrs.get("output_dtype", 0))
    return np.dtype(by_onnx(number).np) if number else np.dtype(np.uint8)


def _along_axis(attrs: Attrs, x: Array, parameter: Array | None) -> Array | None:
    if parameter is None or parameter.ndim != 1 or parameter.size == 1:
        return parameter if parameter is None or parameter.size > 1 else parameter.reshape(())
    axis = int(attrs.get("axis", 1)) % x.ndim
    return parameter.reshape([-1 if position == axis else 1 for position in range(x.ndim)])


@computing("QuantizeLinear", lambda attrs, x: [x[0].shape])  # type: ignore[union-attr]
def quantize_linear(attrs: Attrs, x: Array, scale: Array, zero: Array | None = None) -> Array:
    target = quantised_like(attrs, zero)
    if not np.issubdtype(target, np.integer):
        raise Unsupported(f"QuantizeLinear to {target}")
    steps = np.rint(x / _along_axis(attrs, x, scale))
    shift = _along_axis(attrs, x, zero)
    limits = np.iinfo(target)
    return np.clip(steps + (0 if shift is None else shift.astype(np.float64)), limits.min, limits.max).astype(target)


@computing("DequantizeLinear", lambda attrs, x: [x[0].shape])  # type: ignore[union-attr]
def dequantize_linear(attrs: Attrs, x: Array, scale: Array, zero: Array | None = None) -> Any:
    if attrs.get("block_size", 0):
        raise Unsupported("quantisation in blocks")
    shift = _along_axis(attrs, x, zero)
    steps = x.astype(np.float64) - (0 if shift is None else shift.astype(np.float64))
    wide = steps * _along_axis(attrs, x, scale).astype(np.float64)  # type: ignore[union-attr]
    return wide if attrs.get("@wide") else wide.astype(scale.dtype)
