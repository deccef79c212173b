"""Function bodies: an operator spelled in standard ONNX operators, as a local function of its own name.

A model that carries them runs in any ONNX Runtime; where our library is registered its kernel takes precedence over
the function. The body is recorded from the same ``compute`` that is the reference.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from onnx import FunctionProto, NodeProto, helper

from ir_ops.declaration import Attr, Input, Operator, TensorSpec
from ir_ops.dtypes import by_name
from ir_ops.errors import BadInput
from ir_ops.onnx_numeric import OnnxNumeric, Value
from ir_ops.onnx_schema import attr_proto
from ir_ops.ops import DOMAIN

OPSETS = range(11, 25)
"""Opsets of the ONNX domain that bodies are tested in."""


def function_body(
    op: Operator,
    inputs: Mapping[str, TensorSpec],
    attrs: Mapping[str, Any],
    *,
    opset: int,
    overload: str = "",
    guarded: bool = False,
) -> FunctionProto:
    """The operator in standard operators for one configuration.

    Sizes and float attributes are read when the function runs. Which inputs are given, the other attributes, ranks,
    and below opset 15 the element types are part of the configuration.

    Args:
        op: the operator.
        inputs: the given inputs; element types and the ranks of caches matter, sizes do not.
        attrs: attributes of the node; missing ones take their default.
        opset: version of the ONNX domain that the model imports.
        overload: the function's overload name.
        guarded: fail where the function is applied to a node of another configuration.

    Raises:
        BadInput: there is no body for this configuration; :func:`no_body_reason` says why.
    """
    reason = no_body_reason(op, inputs, attrs, opset)
    if reason:
        raise BadInput("no function body", where=op.name, found=reason)
    recorder = OnnxNumeric(opset)
    tensors = {
        name: Value(recorder, name, spec.dtype, None if spec.shape is None else len(spec.shape))
        for name, spec in inputs.items()
    }
    full: dict[str, Any] = dict(op.with_defaults(attrs))
    for attr in _referenced(op, opset):
        full[attr.name] = recorder.attribute(attr.name, "float32")
    results = op.compute(recorder, tensors, full)
    keep: list[Value] = []
    if guarded:
        keep += [_absence_guard(recorder, op, entry) for entry in op.inputs if entry.name not in inputs]
        keep += [_type_guard(recorder, value) for value in _first_of_types(op, tensors)]
        keep += _attribute_guard(recorder, op, full)
    made = FunctionProto(name=op.name, domain=DOMAIN, overload=overload, doc_string=f"{op.name} in standard operators")
    made.input.extend(entry.name for entry in op.inputs)
    made.output.extend(entry.onnx_name for entry in op.outputs)
    made.attribute.extend(attr.name for attr in op.attrs if attr.default is None)
    made.attribute_proto.extend(attr_proto(attr) for attr in op.attrs if attr.default is not None)
    made.opset_import.append(helper.make_opsetid("", opset))
    made.node.extend(_finished(recorder.nodes, {entry.onnx_name: results[entry.name] for entry in op.outputs}, keep))
    return made


def no_body_reason(op: Operator, inputs: Mapping[str, TensorSpec], attrs: Mapping[str, Any], opset: int) -> str:
    """Why a configuration has no function body, "" if it has one."""
    if opset not in OPSETS:
        return f"opset {opset}, bodies exist for {OPSETS[0]} to {OPSETS[-1]}"
    for name, spec in inputs.items():
        if not spec.dtype:
            return f"the element type of {name} is not known"
        if (op.input(name).ref or name in op.needs_rank) and spec.shape is None:
            return f"the rank of {name} is not known"
    if opset < 13 and any(spec.dtype == "bfloat16" for spec in inputs.values()):
        return f"opset {opset} casts no bfloat16, 13 does"
    errors = [found for found in op.check(inputs, attrs) if found.severity == "error"]
    if errors:
        return str(errors[0])
    if reason := op.body_attrs(op.with_defaults(attrs)):
        return reason
    results = op.infer(inputs, attrs)
    choice = {op.input(name).type: spec.dtype for name, spec in inputs.items()}
    choice |= {entry.type: results[entry.name].dtype for entry in op.outputs}
    if not op.body_types(choice):
        tensors = {**inputs, **results}
        odd = [
            f"{name} {spec.dtype}"
            for name, spec in tensors.items()
            if by_name(spec.dtype).bits < 8 or by_name(spec.dtype).is_8bit_float
        ]
        return f"ONNX has no arithmetic on {', '.join(odd) or 'these element types'}"
    return ""


def _referenced(op: Operator, opset: int) -> list[Attr]:
    """Attributes that the body reads from its node when it runs."""
    return [attr for attr in op.attrs if attr.type == "Float" and opset >= 12]


def _absence_guard(recorder: OnnxNumeric, op: Operator, absent: Input) -> Value:
    """A Pad whose optional fill value is the absent input. A node that gives it has another type there than the
    padded tensor, which no runtime accepts.
    """
    kind = next(kind for kind in ("int64", "float32", "bool") if kind not in op.types[absent.type])
    padded = recorder.constant([0], kind)
    return recorder.node(
        "Pad", [padded, recorder.constant([0, 0], "int64"), Value(recorder, absent.name, kind)], kind, 1
    )


def _first_of_types(op: Operator, tensors: Mapping[str, Value]) -> list[Value]:
    """One input for each type variable with a choice."""
    firsts: dict[str, Value] = {}
    for name, value in tensors.items():
        if len(op.onnx_types(op.input(name).type)) > 1:
            firsts.setdefault(op.input(name).type, value)
    return list(firsts.values())


def _type_guard(recorder: OnnxNumeric, x: Value) -> Value:
    """A Concat of no elements of the expected type and none of the input, which must be of one type."""
    none = recorder.reshape(recorder.slice(x, 0, 0, 0), [0])
    return recorder.node("Concat", [recorder.constant([], x.dtype), none], x.dtype, 1, axis=0)


def _attribute_guard(recorder: OnnxNumeric, op: Operator, attrs: Mapping[str, Any]) -> list[Value]:
    """A Gather that is out of range unless the node has the attributes that the body was made for."""
    if recorder.opset < 12:
        return []
    wrong: Any = recorder.constant([0], "int64")
    for attr in op.attrs:
        if attr.type == "String":
            both = [
                recorder.reshape(recorder.attribute(attr.name, "string"), [1]),
                recorder.strings([attrs[attr.name]]),
            ]
            distinct = recorder.node("Unique", [recorder.node("Concat", both, "string", 1, axis=0)], "string", 1)
            wrong = wrong + (recorder.dim(distinct, 0) - 1)
        elif attr.type in ("Int", "Bool"):
            off = recorder.reshape(recorder.attribute(attr.name, "int64"), [1]) - int(attrs[attr.name])
            wrong = wrong + off * off
        elif attr.type == "ListInt":
            off = recorder.attribute(attr.name, "int64s") - recorder.constant(attrs[attr.name], "int64")
            wrong = wrong + recorder.sum_columns(off * off)
    return [recorder.take(recorder.constant([0], "int64"), wrong)]


def _finished(nodes: list[NodeProto], outputs: Mapping[str, Value], keep: Sequence[Value]) -> list[NodeProto]:
    """The nodes that the outputs and the kept values need, with the outputs under their formal names."""
    made = {name for node in nodes for name in node.output}
    renamed: dict[str, str] = {}
    copies: list[NodeProto] = []
    for formal, value in outputs.items():
        if value.name in made and value.name not in renamed:
            renamed[value.name] = formal
        else:
            copies.append(helper.make_node("Identity", [value.name], [formal]))
    needed = {*renamed, *(value.name for value in keep), *(name for node in copies for name in node.input)}
    kept: list[NodeProto] = []
    for node in reversed(nodes):
        if needed.intersection(node.output):
            needed.update(node.input)
            kept.insert(0, node)
    for node in (*kept, *copies):
        for names in (node.input, node.output):
            names[:] = [renamed.get(name, name) for name in names]
    return [*kept, *copies]
