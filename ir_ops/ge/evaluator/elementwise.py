"""Element by element. Half-precision floats are computed in float32 and rounded once, as the devices do."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import ml_dtypes
import numpy as np

from ir_ops.dtypes import Array, by_numpy
from ir_ops.ge.evaluator.registry import EvalCall, evaluates, narrow, wide

_finfo: Callable[[Any], Any] = ml_dtypes.finfo
_erf: Callable[[Array], Any] = np.vectorize(math.erf, otypes=[np.float64])


def _sigmoid(x: Array) -> Array:
    return np.asarray(1 / (1 + np.exp(-x)), dtype=x.dtype)


def erf(x: Array) -> Array:
    """The error function, an empty array included."""
    return np.asarray(_erf(x) if x.size else x, dtype=x.dtype)


_UNARY: dict[str, Callable[[Array], Any]] = {
    "Abs": np.abs, "Ceil": np.ceil, "Cos": np.cos, "Erf": erf, "Floor": np.floor, "Neg": np.negative,
    "Reciprocal": np.reciprocal, "Relu": lambda x: np.maximum(x, 0), "Rint": np.rint, "Round": np.rint,
    "Rsqrt": lambda x: 1 / np.sqrt(x), "Sigmoid": _sigmoid, "Sign": np.sign, "Sin": np.sin,
    "HardSwish": lambda x: x * np.clip(x + 3, 0, 6) / 6,
    "Softplus": lambda x: np.logaddexp(x, 0), "Sqrt": np.sqrt, "Square": np.square, "Tanh": np.tanh,
}  # fmt: skip


@evaluates(*_UNARY)
def unary(call: EvalCall) -> Array:
    x = call.x("x")
    return narrow(_UNARY[call.node.type](wide(x)), x.dtype)


@evaluates("Exp", "Log")
def exp_log(call: EvalCall) -> Array:
    """With the default base -1 (e), scale 1 and shift 0."""
    if (call.attr("base"), call.attr("scale"), call.attr("shift")) != (-1.0, 1.0, 0.0):
        raise call.error("base, scale or shift other than the default")
    x = call.x("x")
    return narrow((np.exp if call.node.type == "Exp" else np.log)(wide(x)), x.dtype)


@evaluates("Swish")
def swish(call: EvalCall) -> Array:
    """x * sigmoid(scale * x)."""
    x = wide(call.x("x"))
    return narrow(x * _sigmoid(x * x.dtype.type(call.attr("scale"))), call.x("x").dtype)


@evaluates("Gelu", "GeluV2")
def gelu(call: EvalCall) -> Array:
    x = wide(call.x("x"))
    if call.node.type == "Gelu" or call.attr("approximate") == "tanh":
        inner = np.tanh(math.sqrt(2 / math.pi) * (x + 0.044715 * x**3))
    else:
        inner = erf(x / math.sqrt(2))
    return narrow(0.5 * x * (1 + inner), call.x("x").dtype)


@evaluates("Identity")
def copy(call: EvalCall) -> Array:
    return np.array(call.x("x"))


@evaluates("Muls", "Adds")
def with_scalar(call: EvalCall) -> Array:
    x = wide(call.x("x"))
    value = x.dtype.type(call.attr("value"))
    return narrow(x * value if call.node.type == "Muls" else x + value, call.x("x").dtype)


def _truncated(a: Array, b: Array) -> Array:
    """C division: integers towards zero."""
    if by_numpy(a.dtype).is_float:
        return np.asarray(a / b)
    quotient = np.abs(a) // np.abs(b)
    return np.where((a < 0) != (b < 0), -quotient, quotient)


_BINARY: dict[str, Callable[[Array, Array], Any]] = {
    "Add": np.add, "Sub": np.subtract, "Mul": np.multiply, "RealDiv": np.divide, "Div": _truncated,
    "FloorDiv": np.floor_divide, "Pow": np.power, "Maximum": np.maximum, "Minimum": np.minimum, "FloorMod": np.mod,
    "Mod": np.fmod, "BitwiseAnd": np.bitwise_and, "BitwiseXor": np.bitwise_xor,
    "LeftShift": np.left_shift, "RightShift": np.right_shift,
}  # fmt: skip
_COMPARE: dict[str, Callable[[Array, Array], Any]] = {
    "Equal": np.equal, "NotEqual": np.not_equal, "Less": np.less, "LessEqual": np.less_equal, "Greater": np.greater,
    "GreaterEqual": np.greater_equal, "LogicalAnd": np.logical_and, "LogicalOr": np.logical_or,
}  # fmt: skip


@evaluates(*_BINARY)
def binary(call: EvalCall) -> Array:
    a, b = call.x("x1"), call.x("x2")
    return narrow(_BINARY[call.node.type](wide(a), wide(b)), a.dtype)


@evaluates(*_COMPARE)
def compare(call: EvalCall) -> Array:
    return np.asarray(_COMPARE[call.node.type](wide(call.x("x1")), wide(call.x("x2"))), dtype=np.bool_)


@evaluates("LogicalNot")
def logical_not(call: EvalCall) -> Array:
    return np.logical_not(call.x("x"))


@evaluates("IsNan", "IsInf", "IsFinite")
def classify(call: EvalCall) -> Array:
    x = wide(call.x("x"))
    return np.asarray({"IsNan": np.isnan, "IsInf": np.isinf, "IsFinite": np.isfinite}[call.node.type](x))


@evaluates("ClipByValue", "ClipByValueV2")
def clip(call: EvalCall) -> Array:
    low, high = wide(call.x("clip_value_min")), wide(call.x("clip_value_max"))
    return narrow(np.minimum(np.maximum(wide(call.x("x")), low), high), call.x("x").dtype)


@evaluates("SelectV2")
def select(call: EvalCall) -> Array:
    return np.where(call.x("condition"), call.x("then"), call.x("else"))


@evaluates("Cast")
def cast(call: EvalCall) -> Array:
    """Floats to integers truncate; to float8 they saturate; to bool everything but zero is true."""
    return converted(call.x("x"), call.dtype_attr("dst_type"))


def converted(x: Array, target: np.dtype[Any]) -> Array:
    """``x`` as another element type."""
    source, row = by_numpy(x.dtype), by_numpy(target)
    if target == np.bool_:
        return np.asarray(wide(x) != 0)
    if source.is_float and not row.is_float:
        whole = np.nan_to_num(np.trunc(wide(x)).astype(np.float64))
        return whole.astype(np.int64).astype(target)
    if row.is_8bit_float:
        limit = float(_finfo(target).max)
        return np.clip(wide(x).astype(np.float32), -limit, limit).astype(target)
    return x.astype(target)
