"""An ONNX model in the opset that ATC's parser knows.

The parser maps an operator by domain, opset and type, and knows ai.onnx up to opset 18: of a model that imports a later
one it takes no operator, not even Add. Operators that mean the same in opset 18 stay; those that came later are
replaced by the function body that the standard gives them.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from typing import Any

import onnx
import onnx_ir as ir
from onnx_ir.passes import common as passes

from ir_ops.errors import BadModel, ExportError
from ir_ops.ge.convert.load import Source, load, opset, plain_domain
from ir_ops.ge.onnx_route.ports import complete, declared
from ir_ops.ops import DOMAIN, DOMAIN_VERSION

NEWEST = 18
"""The last opset of ATC's built-in ONNX plugins."""

_OTHER_MEANING = frozenset({"GroupNormalization"})
"""Operators that kept their name and changed what they compute after opset 18."""

_NO_PLUGIN = frozenset(
    {"MatMulInteger", "QuantizeLinear", "DequantizeLinear", "DynamicQuantizeLinear", "Loop", "Scan", "CastLike",
     "SimplifiedLayerNormalization"}
)  # fmt: skip
"""Operators of opset 18 and earlier that the toolkit has no built-in plugin for."""

_BODIES = "kvfuse.bodies"
_ROUNDS = 4


@dataclass
class Lowered:
    """A model for ``atc --framework=5``.

    Attributes:
        model: the ONNX model.
        opset: its version of ai.onnx.
        notes: what ATC may still refuse.
    """

    model: ir.Model
    opset: int
    notes: list[str] = field(default_factory=list)


def lower(source: Source) -> Lowered:
    """The model without local functions, in opset 18 at most.

    Raises:
        BadModel: the model cannot be read.
        ExportError: operators that opset 18 cannot express (all are listed with counts).
    """
    taken: list[str] = []
    model = load(source, taken)
    if opset(model, "") > NEWEST:
        model = _in_opset_18(model)
        _drop_defaults(model)
    found = min(opset(model, ""), NEWEST)
    model.opset_imports.pop("ai.onnx", None)
    model.opset_imports.update({"": found, DOMAIN: DOMAIN_VERSION})
    notes = complete(model.graph)
    return Lowered(model, found, taken + _notes(model) + notes)


def _in_opset_18(model: ir.Model) -> ir.Model:
    """The model with operators of opset 18 only: the others' bodies may again contain later ones."""
    for _ in range(_ROUNDS):
        model = passes.ShapeInferencePass()(model).model  # bodies depend on their inputs' types
        bodies = {node: _body(node, opset(model, "")) for node in _late(model)}
        ready = {node: body for node, body in bodies.items() if body is not None}
        if not ready:
            break
        model = _expanded(model, ready)
    _settle_casts(model)
    _refuse(_late(model), model)
    return model


def _nodes(model: ir.Model) -> list[ir.Node]:
    return list(ir.traversal.RecursiveGraphIterator(model.graph))


def _schema(op_type: str, version: int) -> Any:
    try:
        return onnx.defs.get_schema(op_type, version, "")
    except onnx.defs.SchemaError:
        return None


def _default_value(node: ir.Node, name: str, newer: Any) -> bool:
    """Whether an attribute has the default that leaving it out means."""
    attr = newer.attributes.get(name)
    if attr is None or attr.default_value.type == onnx.AttributeProto.UNDEFINED:
        return False
    default: Any = onnx.helper.get_attribute_value(attr.default_value)
    value = node.attributes[name].value
    return bool(value == (default.decode() if isinstance(default, bytes) else default))


def _late_attributes(node: ir.Node) -> list[str]:
    old = _schema(node.op_type, NEWEST)
    return [name for name in node.attributes if name not in old.attributes]


def _why_not(node: ir.Node) -> str:
    """Why a node of ai.onnx means something else, or nothing, in opset 18; "" when it means the same."""
    old = _schema(node.op_type, NEWEST)
    newer = _schema(node.op_type, onnx.defs.onnx_opset_version())
    if old is None or node.op_type in _OTHER_MEANING:
        return "came after opset 18"
    if newer is None or old.since_version == newer.since_version:
        return ""
    for name in _late_attributes(node):
        if not _default_value(node, name, newer):
            return f"attribute {name}"
    if len(node.inputs) > old.max_input or len(node.outputs) > old.max_output:
        return "another number of inputs or outputs"
    allowed = {entry.type_param_str: set(entry.allowed_type_strs) for entry in old.type_constraints}
    for i, value in enumerate(node.inputs):
        port = old.inputs[min(i, len(old.inputs) - 1)]
        if value is not None and value.dtype is not None:
            text = f"tensor({_TYPE_WORDS.get(value.dtype.name, value.dtype.name.lower())})"
            if text not in allowed.get(port.type_str, {text}):
                return f"element type {value.dtype.name}"
    return ""


_TYPE_WORDS = {"FLOAT": "float", "DOUBLE": "double", "BOOL": "bool", "STRING": "string", "BFLOAT16": "bfloat16"}


def _late(model: ir.Model) -> list[ir.Node]:
    return [node for node in _nodes(model) if not plain_domain(node.domain) and _why_not(node)]


def _refuse(late: list[ir.Node], model: ir.Model) -> None:
    if late:
        counts = Counter((node.op_type, _why_not(node)) for node in late)
        found = "; ".join(f"{count} x {op}: {why}" for (op, why), count in counts.items())
        raise ExportError(f"the model cannot be brought to opset {NEWEST}", where=model.graph.name or "", found=found,
                          hint="the .air route takes it")  # fmt: skip


# ------------------------------------------------------------------------------------------------------ bodies


def _body(node: ir.Node, version: int) -> onnx.FunctionProto | None:
    """The standard's own definition of a node, None when it has none or needs types that are not known."""
    schema = _schema(node.op_type, version)
    if schema is None or not (schema.has_function or schema.has_context_dependent_function):
        return None
    if schema.has_function:
        made = schema.function_body
        return onnx.FunctionProto.FromString(made if isinstance(made, bytes) else made.SerializeToString())
    types = [_type_bytes(value) for value in node.inputs]
    if any(value is not None and not text for value, text in zip(node.inputs, types, strict=True)):
        return None
    proto = ir.serde.serialize_node(node).SerializeToString()
    made = schema.get_context_dependent_function(proto, types)
    return onnx.FunctionProto.FromString(made) if made else None


def _type_bytes(value: ir.Value | None) -> bytes:
    if value is None or value.type is None:
        return b""
    proto = onnx.TypeProto()
    ir.serde.serialize_type_into(proto, value.type)
    if value.shape is not None:
        ir.serde.serialize_shape_into(proto, value.shape)
    return proto.SerializeToString()


def _expanded(model: ir.Model, bodies: dict[ir.Node, onnx.FunctionProto]) -> ir.Model:
    """Every node of ``bodies`` replaced by its body."""
    version = opset(model, "")
    for i, (node, proto) in enumerate(bodies.items()):
        proto.domain, proto.name = _BODIES, f"{node.op_type}_{i}"
        del proto.output[len(node.outputs) :]  # a body may declare optional outputs that it does not make
        del proto.opset_import[:]
        proto.opset_import.add(domain="", version=version)
        function = ir.serde.deserialize_function(proto)
        model.functions[function.identifier()] = function
        # a body's attributes are filled in already; the call carries those it refers to
        node.domain, node.op_type, node.version = _BODIES, proto.name, None
    model.opset_imports[_BODIES] = 1
    try:
        for step in (
            passes.InlinePass(),
            passes.LiftConstantsToInitializersPass(lift_all_constants=True, size_limit=0),
        ):
            model = step(model).model
    except (ir.passes.PassError, ValueError, TypeError) as error:
        raise BadModel("a function body cannot be inlined", where=model.graph.name or "", found=str(error)) from None
    model.opset_imports.pop(_BODIES, None)
    return model


def _settle_casts(model: ir.Model) -> None:
    """CastLike as Cast where the type is known: function bodies are full of it, and the parser does not take it."""
    for node in _nodes(passes.ShapeInferencePass()(model).model):
        like = node.inputs[1] if node.op_type == "CastLike" and not plain_domain(node.domain) else None
        if like is not None and like.dtype is not None:
            node.op_type = "Cast"
            node.resize_inputs(1)
            node.attributes.clear()
            node.attributes["to"] = ir.AttrInt64("to", int(like.dtype))


def _drop_defaults(model: ir.Model) -> None:
    """Takes away attributes that opset 18 does not have; they are at their default."""
    for node in _nodes(model):
        if not plain_domain(node.domain) and _schema(node.op_type, NEWEST) is not None:
            for name in _late_attributes(node):
                del node.attributes[name]
            node.version = None


def _notes(model: ir.Model) -> list[str]:
    nodes = _nodes(model)
    missing = Counter(node.op_type for node in nodes if not plain_domain(node.domain) and node.op_type in _NO_PLUGIN)
    missing.update(
        f"{node.domain}.{node.op_type}" for node in nodes if plain_domain(node.domain) and declared(node) is None
    )
    return [f"{count} x {op}: the toolkit has no built-in parser plugin for it" for op, count in missing.items()]
