"""The operators as ONNX schemas: ``onnx.checker`` and strict shape inference know them, names and rules included.

Everything is read from the declaration: formal parameters, type constraints, attribute defaults, and an inference
function that checks the call and then applies the operator's shape rule. Symbolic dims survive: an output dim that is
an input dim keeps its name. Needs onnx >= 1.19, the first with inference functions written in Python.
"""

from __future__ import annotations

import atexit
from collections.abc import Iterable, Mapping
from typing import Any

import onnx
from onnx import AttributeProto, TypeProto, helper
from onnx.shape_inference import InferenceContext, InferenceError

from ir_ops.declaration import Attr, Operator, Shape, TensorSpec
from ir_ops.dtypes import by_name, by_onnx
from ir_ops.ops import DOMAIN, DOMAIN_VERSION, OPS

OpSchema = onnx.defs.OpSchema
Probe = tuple[int, int]
_ATTR_TYPES = {"Float": "FLOAT", "Int": "INT", "Bool": "INT", "String": "STRING", "ListInt": "INTS"}
_PROBES = ((1_000_003, 101), (2_000_029, 37))
"""First size and step: symbol k is ``first + k * step``. A dim that is symbol k's size in both is that symbol."""


def register_onnx_schemas() -> None:
    """Makes the operators known to onnx in this process; calling it again changes nothing.

    Shape inference then raises ``InferenceError`` with the violation's text for a node whose known element types,
    dims or attributes break the contract under ``generic``.
    """
    for operator in OPS.values():
        if not onnx.defs.has(operator.name, domain=DOMAIN):
            onnx.defs.register_schema(schema(operator))
            # onnx frees its schemas after the interpreter has gone, and with them our Python function: a crash
            atexit.register(onnx.defs.deregister_schema, operator.name, DOMAIN_VERSION, DOMAIN)


def schema(op: Operator) -> OpSchema:
    """The ONNX schema of an operator, not registered."""
    options = OpSchema.FormalParameterOption
    inputs = [
        OpSchema.FormalParameter(
            entry.name, entry.type, _described(entry.doc, entry.shape),
            param_option=options.Optional if entry.optional else options.Single,
        )
        for entry in op.inputs
    ]  # fmt: skip
    outputs = [
        OpSchema.FormalParameter(entry.onnx_name, entry.type, _described(entry.doc, entry.shape))
        for entry in op.outputs
    ]
    constraints = [
        (variable, [onnx_type_text(name) for name in op.onnx_types(variable)], f"element types of {variable}")
        for variable in op.types
    ]
    made = OpSchema(
        op.name, DOMAIN, op.since, op.doc, inputs=inputs, outputs=outputs, type_constraints=constraints,
        attributes=[_attribute(attr) for attr in op.attrs],
    )  # fmt: skip
    made.set_type_and_shape_inference_function(lambda context: _infer(op, context))
    return made


def onnx_type_text(dtype: str) -> str:
    """``float32`` as ONNX type strings spell it, ``tensor(float)``."""
    number = by_name(dtype).onnx
    if number is None:
        raise ValueError(f"ONNX has no element type {dtype}")
    return f"tensor({onnx.TensorProto.DataType.Name(number).lower()})"


def _described(doc: str, shape: str) -> str:
    return f"{shape}. {doc}" if doc else shape


def _attribute(attr: Attr) -> OpSchema.Attribute:
    doc = attr.doc + (f": {' | '.join(attr.allowed)}" if attr.allowed else "")
    kind = getattr(OpSchema.AttrType, _ATTR_TYPES[attr.type])
    if attr.default is None:
        return OpSchema.Attribute(attr.name, kind, doc, required=True)
    return OpSchema.Attribute(attr.name, attr_proto(attr), doc)


def attr_proto(attr: Attr, value: Any = None) -> AttributeProto:
    """An attribute with a value, or else with its default, as ONNX spells it (Bool as an int)."""
    value = attr.default if value is None else value
    kind = AttributeProto.AttributeType.Value(_ATTR_TYPES[attr.type])
    return helper.make_attribute(attr.name, int(value) if attr.type == "Bool" else value, attr_type=kind)


class _Symbols:
    """The dims of one node's inputs that are not known, numbered; named ones share their number."""

    def __init__(self) -> None:
        self.names: list[str] = []

    def number(self, name: str) -> int:
        if not name or name not in self.names:
            self.names.append(name)
            return len(self.names) - 1
        return self.names.index(name)


def _infer(op: Operator, context: InferenceContext) -> None:
    attrs = node_attrs(op, {attr.name: context.get_attribute(attr.name) for attr in op.attrs})
    types = {
        entry.name: context.get_input_type(place)
        for place, entry in enumerate(op.inputs)
        if place < context.get_num_inputs() and context.has_input(place)
    }
    dtypes = _element_types(op, types)
    if "" in dtypes.values():
        return
    symbols = _Symbols()
    dims = {name: _dims(proto, symbols) for name, proto in types.items()}

    def specs(probe: Probe | None) -> dict[str, TensorSpec]:
        return {name: TensorSpec(dtypes[name], _sized(dims[name], probe)) for name in types}

    known = specs(None)
    for violation in op.check(known, attrs):
        if violation.severity == "error":
            raise InferenceError(f"{_place(op, context)}: {violation}")
    results = op.infer(known, attrs)
    probes = [op.infer(specs(probe), attrs) for probe in _PROBES]
    for place, output in enumerate(op.outputs[: context.get_num_outputs()]):
        spec = results[output.name]
        proto = TypeProto()
        proto.tensor_type.elem_type = by_name(spec.dtype).onnx or 0
        if spec.shape is not None:
            proto.tensor_type.shape.SetInParent()
            for axis, size in enumerate(spec.shape):
                dim = proto.tensor_type.shape.dim.add()
                if size is not None:
                    dim.dim_value = size
                elif name := _symbol([_at(probe[output.name], axis) for probe in probes], symbols):
                    dim.dim_param = name
        context.set_output_type(place, proto)


def _place(op: Operator, context: InferenceContext) -> str:
    """The node as a message names it; onnx before 1.21 has no display name."""
    shown = context.get_display_name() if hasattr(context, "get_display_name") else ""
    return shown or op.name


def node_attrs(op: Operator, protos: Mapping[str, AttributeProto | None]) -> dict[str, Any]:
    """Attribute protos as the values that the declaration takes; missing ones are left out.

    A reference to an attribute of an enclosing function has no value yet and counts as missing.
    """
    given = {name: proto for name, proto in protos.items() if proto is not None and not proto.ref_attr_name}
    values = {name: helper.get_attribute_value(proto) for name, proto in given.items()}
    return {name: value.decode() if isinstance(value, bytes) else value for name, value in values.items()}


def _element_types(op: Operator, types: Mapping[str, TypeProto | None]) -> dict[str, str]:
    known: dict[str, str] = {}
    for name, proto in types.items():
        if proto is not None and proto.tensor_type.elem_type:
            try:
                known[name] = by_onnx(proto.tensor_type.elem_type).name
            except KeyError:
                raise InferenceError(f"{op.name}: the element type of {name} is none the operator takes") from None
    return shared_types(op, types, known)


def shared_types(op: Operator, names: Iterable[str], known: Mapping[str, str]) -> dict[str, str]:
    """Element types of the named inputs; an unknown one is that of an input of the same type variable, else ""."""
    variables: dict[str, str] = {}
    for name, dtype in known.items():
        variables.setdefault(op.input(name).type, dtype)
    return {name: known.get(name) or variables.get(op.input(name).type, "") for name in names}


def _dims(proto: TypeProto | None, symbols: _Symbols) -> list[tuple[int, int]] | None:
    """(size, 0) or (-1, symbol number) for each dim; None for an unknown rank."""
    if proto is None or not proto.tensor_type.HasField("shape"):
        return None
    return [
        (dim.dim_value, 0) if dim.HasField("dim_value") else (-1, symbols.number(dim.dim_param))
        for dim in proto.tensor_type.shape.dim
    ]


def _sized(dims: list[tuple[int, int]] | None, probe: Probe | None) -> Shape | None:
    """The shape with the symbols at the probe's sizes, or unknown where no probe is given."""
    if dims is None:
        return None
    return tuple(
        size if size >= 0 else None if probe is None else probe[0] + symbol * probe[1] for size, symbol in dims
    )


def _symbol(sizes: list[int | None], symbols: _Symbols) -> str:
    """The name of the symbol whose size a dim has in every probe, "" where there is none."""
    for number, name in enumerate(symbols.names):
        if all(size == first + number * step for size, (first, step) in zip(sizes, _PROBES, strict=True)):
            return name
    return ""


def _at(spec: TensorSpec, axis: int) -> int | None:
    return spec.shape[axis] if spec.shape is not None else None
