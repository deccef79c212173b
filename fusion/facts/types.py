"""Element types of values that the file does not tell: many exporters write none for inner values."""

from __future__ import annotations

import onnx_ir as ir

_INT64 = ("Shape", "Size", "ArgMax", "ArgMin", "NonZero")
_BOOL = ("Equal", "Less", "LessOrEqual", "Greater", "GreaterOrEqual", "And", "Or", "Not", "Xor", "IsNaN", "IsInf")
_SECOND = ("Where",)
_TYPED_BY = {"QLinearMatMul": 7, "QLinearAdd": 7, "QLinearMul": 7, "MatMulIntegerToFloat": 2,
             "GatherBlockQuantized": 2, "CastLike": 1}  # fmt: skip
"""Operators whose result has the type of another operand than the first."""


def fill_types(graph: ir.Graph) -> list[ir.Value]:
    """Gives every value of the main graph a type where it follows from its operands.

    Returns:
        The values that had none, so that :func:`clear_types` can leave the model as it was.
    """
    filled: list[ir.Value] = []
    for node in graph:
        for output in node.outputs:
            if output.type is None:
                kind = _kind(node, output.index() or 0)
                if kind is not None:
                    output.type = ir.TensorType(kind)
                    filled.append(output)
    return filled


def clear_types(values: list[ir.Value]) -> None:
    """Takes types back that :func:`fill_types` gave."""
    for value in values:
        if value.shape is None:
            value.type = None


def _kind(node: ir.Node, place: int) -> ir.DataType | None:
    op, attrs = node.op_type, node.attributes
    if op == "Cast":
        return _known_kind(attrs["to"].as_int())
    if op in _INT64 or (op == "TopK" and place == 1):
        return ir.DataType.INT64
    if op in _BOOL:
        return ir.DataType.BOOL
    if op == "Constant":
        return _constant_kind(node)
    if op == "ConstantOfShape":
        return attrs["value"].as_tensor().dtype if "value" in attrs else ir.DataType.FLOAT
    if op == "QuantizeLinear":
        told = attrs["output_dtype"].as_int() if "output_dtype" in attrs else 0
        return _operand_kind(node, 2) or ir.DataType(told or int(ir.DataType.UINT8))
    if op == "DynamicQuantizeLinear":
        return ir.DataType.FLOAT if place == 1 else ir.DataType.UINT8
    if op in ("DequantizeLinear", "CastLike"):
        return _operand_kind(node, 1)
    if op in ("MatMulInteger", "ConvInteger"):
        return ir.DataType.INT32
    if op in _TYPED_BY:
        return _operand_kind(node, _TYPED_BY[op])
    if op == "OneHot":
        return _operand_kind(node, 2)
    return _operand_kind(node, 1 if op in _SECOND else 0)


def _known_kind(number: int) -> ir.DataType | None:
    try:
        return ir.DataType(number)
    except ValueError:
        return None


def _operand_kind(node: ir.Node, place: int) -> ir.DataType | None:
    if place >= len(node.inputs):
        return None
    value = node.inputs[place]
    return None if value is None else value.dtype


def _constant_kind(node: ir.Node) -> ir.DataType | None:
    for name, attr in node.attributes.items():
        if name == "value":
            return attr.as_tensor().dtype
        if name in ("value_int", "value_ints"):
            return ir.DataType.INT64
        if name in ("value_float", "value_floats"):
            return ir.DataType.FLOAT
    return None
