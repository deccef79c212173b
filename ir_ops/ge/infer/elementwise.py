"""Output types of operators that work element by element."""

from __future__ import annotations

from ir_ops.ge.infer.call import BOOL, OpCall, attr_dtype, broadcast, infers
from ir_ops.ge.model import TensorType


@infers(
    "Abs", "Ceil", "Cos", "Erf", "Exp", "Floor", "Gelu", "GeluV2", "HardSwish", "Identity", "Log", "Neg", "OnesLike",
    "Reciprocal", "Relu", "Rint", "Round", "Rsqrt", "Sigmoid", "Sign", "Sin", "Softplus", "Sqrt", "Square", "Swish",
    "Tanh", "ZerosLike", "Muls", "Adds", "Tril", "Triu", "Trilu", "Cumsum", "LogicalNot",
)  # fmt: skip
def same_as_x(call: OpCall) -> TensorType:
    x = call.inputs["x"]
    return TensorType(x.dtype, x.shape)


@infers(
    "Add", "Sub", "Mul", "RealDiv", "Div", "FloorDiv", "Pow", "Maximum", "Minimum", "FloorMod", "Mod", "BitwiseAnd",
    "BitwiseXor", "LeftShift", "RightShift",
)  # fmt: skip
def binary(call: OpCall) -> TensorType:
    if call.dtype("x1") != call.dtype("x2") and call.op_type not in ("Mul", "Pow"):
        raise call.error("operands of different element types", f"{call.dtype('x1').name} and {call.dtype('x2').name}")
    return TensorType(call.dtype("x1"), broadcast(call, call.shape("x1"), call.shape("x2")))


@infers("Equal", "NotEqual", "Less", "LessEqual", "Greater", "GreaterEqual", "LogicalAnd", "LogicalOr")
def comparison(call: OpCall) -> TensorType:
    if call.dtype("x1") != call.dtype("x2"):
        raise call.error("operands of different element types", f"{call.dtype('x1').name} and {call.dtype('x2').name}")
    return TensorType(BOOL, broadcast(call, call.shape("x1"), call.shape("x2")))


@infers("IsNan", "IsInf", "IsFinite")
def predicate(call: OpCall) -> TensorType:
    return TensorType(BOOL, call.shape("x"))


@infers("Cast")
def cast(call: OpCall) -> TensorType:
    return TensorType(attr_dtype(call, "dst_type"), call.shape("x"))


@infers("SelectV2")
def select(call: OpCall) -> TensorType:
    if call.dtype("condition") != BOOL:
        raise call.error("the condition is not bool", call.dtype("condition").name, "bool")
    if call.dtype("then") != call.dtype("else"):
        raise call.error("branches of different element types", f"{call.dtype('then').name}, {call.dtype('else').name}")
    return TensorType(
        call.dtype("then"), broadcast(call, *(call.shape(name) for name in ("condition", "then", "else")))
    )


@infers("ClipByValue", "ClipByValueV2")
def clip(call: OpCall) -> TensorType:
    return TensorType(call.dtype("x"), call.shape("x"))
