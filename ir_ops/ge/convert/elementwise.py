"""Element by element: arithmetic, comparison, logic, Cast, Where."""

from __future__ import annotations

import numpy as np

from ir_ops.dtypes import by_onnx
from ir_ops.ge.convert.call import NodeCall
from ir_ops.ge.convert.registry import Result, converts
from ir_ops.ge.convert.unsupported import Unsupported
from ir_ops.ge.tensor import Tensor

_SAME = {"Add": "Add", "Sub": "Sub", "Mul": "Mul"}
_UNARY = {
    "Sqrt": "Sqrt", "Reciprocal": "Reciprocal", "Neg": "Neg", "Abs": "Abs", "Exp": "Exp", "Log": "Log", "Tanh": "Tanh",
    "Sigmoid": "Sigmoid", "Erf": "Erf", "Cos": "Cos", "Sin": "Sin", "Relu": "Relu", "Floor": "Floor", "Ceil": "Ceil",
    "Sign": "Sign", "Softplus": "Softplus",
}  # fmt: skip
_COMPARE = {
    "Equal": "Equal", "Less": "Less", "LessOrEqual": "LessEqual", "Greater": "Greater",
    "GreaterOrEqual": "GreaterEqual",
}  # fmt: skip


@converts(*_SAME, dtypes="any number", ge="Add, Sub, Mul", note="numpy broadcasting")
def same_name(n: NodeCall) -> Result:
    return n.emit(_SAME[n.op_type], {"x1": n.x(0), "x2": n.x(1)})


@converts(*_UNARY, dtypes="float32, float16, bfloat16 (Neg, Abs, Sign: integers too)", ge="the same operator")
def unary(n: NodeCall) -> Result:
    emit = n.emit_wide if n.op_type in ("Relu", "Sign") else n.emit
    return emit(_UNARY[n.op_type], {"x": n.x(0)})


@converts("Div", dtypes="any number", ge="RealDiv; integers: FloorDiv, Div",
          note="integers truncate: FloorDiv where both sides are known not to be negative, Div otherwise")  # fmt: skip
def div(n: NodeCall) -> Result:
    if n.dtype(0).is_float:
        return n.emit("RealDiv", {"x1": n.x(0), "x2": n.x(1)})
    both = n.arg(0).nonneg and n.arg(1).nonneg
    return n.emit("FloorDiv" if both else "Div", {"x1": n.x(0), "x2": n.x(1)})


@converts("Pow", dtypes="float32, float16, bfloat16, int32", ge="Square, Rsqrt, Pow",
          note="an exponent of 2 becomes Square, -0.5 Rsqrt; an exponent of another type is cast")  # fmt: skip
def pow_(n: NodeCall) -> Result:
    exponent = n.arg(1).constant() if n.arg(1).type.numel == 1 else None
    keeps_shape = exponent is not None and len(n.arg(1).shape or ()) <= len(n.arg(0).shape or ())
    if exponent is not None and keeps_shape and n.dtype(0).is_float:
        value = float(np.asarray(exponent, dtype=np.float64).reshape(-1)[0])
        if value in (2.0, -0.5):
            return n.emit("Square" if value == 2.0 else "Rsqrt", {"x": n.x(0)})
    return n.emit("Pow", {"x1": n.x(0), "x2": n.cast(n.x(1), n.dtype(0))})


@converts("Round", dtypes="float32, float16, bfloat16", ge="Round",
          note="half to even; bfloat16 passes through float32, which old prototypes of Round need")  # fmt: skip
def round_(n: NodeCall) -> Result:
    return n.emit_wide("Round", {"x": n.x(0)})


@converts("Gelu", dtypes="float32, float16, bfloat16", ge="GeluV2", note="approximate: none or tanh")
def gelu(n: NodeCall) -> Result:
    return n.emit("GeluV2", {"x": n.x(0)}, {"approximate": n.attr("approximate", "none")})


@converts("Swish", dtypes="float32, float16, bfloat16", ge="Swish", note="alpha becomes scale")
def swish(n: NodeCall) -> Result:
    return n.emit("Swish", {"x": n.x(0)}, {"scale": float(n.attr("alpha", 1.0))})


@converts("Clip", dtypes="float32, float16, bfloat16, int32, int64", ge="ClipByValue, Maximum, Minimum",
          note="with one bound: Maximum or Minimum")  # fmt: skip
def clip(n: NodeCall) -> Result:
    low, high = _bound(n, 1, "min"), _bound(n, 2, "max")
    if low is not None and high is not None:
        return n.emit("ClipByValue", {"x": n.x(0), "clip_value_min": low, "clip_value_max": high})
    if low is not None:
        return n.emit_wide("Maximum", {"x1": n.x(0), "x2": low})
    return n.x(0) if high is None else n.emit_wide("Minimum", {"x1": n.x(0), "x2": high})


def _bound(n: NodeCall, index: int, attr: str) -> Tensor | None:
    if n.has(index):
        return n.x(index)
    value = n.attr(attr)
    return None if value is None else n.builder.const(n.scalar(value, n.dtype(0)))


@converts("Min", "Max", dtypes="any number", ge="Minimum, Maximum", note="more than two operands become a chain")
def min_max(n: NodeCall) -> Result:
    ge = "Minimum" if n.op_type == "Min" else "Maximum"
    result = n.x(0)
    for i in range(1, len(n.inputs)):
        last = i == len(n.inputs) - 1
        result = n.emit_wide(ge, {"x1": result, "x2": n.x(i)}, part="" if last else f"step{i}")
    return result


@converts("Mod", dtypes="any number", ge="FloorMod, Mod", note="fmod=0 has the divisor's sign: FloorMod; fmod=1: Mod")
def mod(n: NodeCall) -> Result:
    if n.attr("fmod", 0):
        return n.emit_wide("Mod", {"x1": n.x(0), "x2": n.x(1)})
    return n.emit("FloorMod", {"x1": n.x(0), "x2": n.x(1)})


@converts("Cast", dtypes="any to any GE has", ge="Cast",
          note="float8: out-of-range values saturate or not as GE's Cast does; refused with saturate=0")  # fmt: skip
def cast(n: NodeCall) -> Result:
    return _cast_to(n, int(n.attr("to")))


@converts("CastLike", dtypes="any to any GE has", ge="Cast", note="the type is resolved at export")
def cast_like(n: NodeCall) -> Result:
    return _cast_to(n, n.dtype(1).onnx or 0)


def _cast_to(n: NodeCall, number: int) -> Result:
    try:
        target = by_onnx(number)
    except KeyError:
        raise Unsupported(f"Cast to ONNX element type {number}", "a numeric type") from None
    if target.is_8bit_float and n.attr("saturate", 1) == 0:
        raise Unsupported("Cast to float8 without saturation", "saturate=1")
    if target == n.dtype(0):
        return n.x(0)
    return n.emit("Cast", {"x": n.x(0)}, {"dst_type": target})


@converts("Where", dtypes="any", ge="SelectV2", note="inputs are called then and else in GE")
def where(n: NodeCall) -> Result:
    return n.emit("SelectV2", {"condition": n.x(0), "then": n.x(1), "else": n.x(2)})


@converts(*_COMPARE, dtypes="any (Less family: numbers)", ge="Equal, Less, LessEqual, Greater, GreaterEqual")
def compare(n: NodeCall) -> Result:
    return n.emit(_COMPARE[n.op_type], {"x1": n.x(0), "x2": n.x(1)})


@converts("And", "Or", dtypes="bool", ge="LogicalAnd, LogicalOr")
def logical(n: NodeCall) -> Result:
    return n.emit("LogicalAnd" if n.op_type == "And" else "LogicalOr", {"x1": n.x(0), "x2": n.x(1)})


@converts("Xor", dtypes="bool", ge="NotEqual", note="compared as int8")
def xor(n: NodeCall) -> Result:
    sides = {f"x{i + 1}": n.cast(n.x(i), "int8", f"cast{i}") for i in range(2)}
    return n.emit("NotEqual", sides)


@converts("Not", dtypes="bool", ge="LogicalNot")
def not_(n: NodeCall) -> Result:
    return n.emit("LogicalNot", {"x": n.x(0)})


@converts("IsNaN", dtypes="float32, float16, bfloat16", ge="IsNan", note="bfloat16 is cast to float32")
def is_nan(n: NodeCall) -> Result:
    x = n.cast(n.x(0), "float32", "widen") if n.dtype(0).name == "bfloat16" else n.x(0)
    return n.emit("IsNan", {"x": x})


@converts("IsInf", dtypes="float32, float16, bfloat16", ge="IsInf", note="both signs only")
def is_inf(n: NodeCall) -> Result:
    if not n.attr("detect_positive", 1) or not n.attr("detect_negative", 1):
        raise Unsupported("IsInf of one sign", "Equal to a constant infinity")
    x = n.cast(n.x(0), "float32", "widen") if n.dtype(0).name == "bfloat16" else n.x(0)
    return n.emit("IsInf", {"x": x})


@converts("Identity", dtypes="any", ge="-", note="leaves no node")
def identity(n: NodeCall) -> Result:
    return n.x(0)
