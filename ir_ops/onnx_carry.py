"""Models that carry function bodies for our operators, and models turned back into standard operators.

ONNX Runtime prefers a registered kernel to a local function of the same name, so one model serves both. Nodes of an
operator that differ in more than sizes need one function each, told apart by the overload name. Runtimes before
1.27 ignore overload names: there a guard in each function makes the model fail to load instead of being wrong
(see docs/decisions.md).
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import onnx_ir as ir
from onnx import FunctionProto, ModelProto
from onnx_ir.passes.common import InlinePass

from ir_ops.declaration import Operator, TensorSpec
from ir_ops.dtypes import by_onnx
from ir_ops.onnx_function import function_body, no_body_reason
from ir_ops.onnx_schema import attr_proto, shared_types
from ir_ops.ops import DOMAIN, OPS

_FUNCTION_IR, _OVERLOAD_IR = 9, 10
"""First IR versions with attribute defaults of functions and with overloads."""


@dataclass(frozen=True)
class Call:
    """A node of one of our operators: the given inputs (dims may be unknown) and the attributes."""

    op: Operator
    inputs: Mapping[str, TensorSpec]
    attrs: Mapping[str, Any]


@dataclass
class Carried:
    """Functions for a model; for each call its overload name, and the reason if it has no function (else "")."""

    functions: list[FunctionProto] = field(default_factory=list)
    overloads: list[str] = field(default_factory=list)
    reasons: list[str] = field(default_factory=list)


def functions_for(calls: Sequence[Call], opset: int) -> Carried:
    """The functions that a model with these nodes should carry.

    Calls of an operator that get the same body share it. If there are several bodies, the first keeps the empty
    overload name, the others are numbered from 2, and all are guarded.
    """
    bodies: dict[str, dict[bytes, Call]] = defaultdict(dict)
    keys: list[bytes] = []
    reasons = [no_body_reason(call.op, call.inputs, call.attrs, opset) for call in calls]
    for call, reason in zip(calls, reasons, strict=True):
        key = b"" if reason else _body(call, opset).SerializeToString(deterministic=True)
        keys.append(key)
        if key:
            bodies[call.op.name].setdefault(key, call)
    for place, call in enumerate(calls):
        if keys[place] and not _told_apart(bodies[call.op.name].values(), opset):
            reasons[place] = (
                "the model has other nodes of the operator that only differ in element types, or an opset before 12"
            )
            keys[place] = b""
    carried = Carried(reasons=reasons)
    for call, key in zip(calls, keys, strict=True):
        number = list(bodies[call.op.name]).index(key) if key else 0
        carried.overloads.append(str(number + 1) if number else "")
    for found in bodies.values():
        if _told_apart(found.values(), opset):
            for number, call in enumerate(found.values()):
                carried.functions.append(_body(call, opset, str(number + 1) if number else "", len(found) > 1))
    return carried


def _body(call: Call, opset: int, overload: str = "", guarded: bool = False) -> FunctionProto:
    return function_body(call.op, call.inputs, call.attrs, opset=opset, overload=overload, guarded=guarded)


def _told_apart(calls: Iterable[Call], opset: int) -> bool:
    """Whether guards can tell these configurations apart: by their given inputs and attributes."""
    seen = [(frozenset(call.inputs), _fixed(call)) for call in calls]
    return len(seen) <= 1 or (opset >= 12 and len(set(seen)) == len(seen))


def _fixed(call: Call) -> tuple[tuple[str, str], ...]:
    full = call.op.with_defaults(call.attrs)
    return tuple((attr.name, repr(full[attr.name])) for attr in call.op.attrs if attr.type in ("Int", "Bool", "String"))


def calls_of(model: ir.Model) -> list[tuple[ir.Node, Call]]:
    """The nodes of our operators in a model, subgraphs included."""
    return [(node, _call(node)) for node in model.graph.all_nodes() if node.domain == DOMAIN and node.op_type in OPS]


def _call(node: ir.Node) -> Call:
    op = OPS[node.op_type]
    given = {entry.name: value for entry, value in zip(op.inputs, node.inputs, strict=False) if value is not None}
    known = {name: by_onnx(int(value.dtype)).name for name, value in given.items() if value.dtype is not None}
    dtypes = shared_types(op, given, known)
    specs = {name: TensorSpec(dtypes[name], _shape(value)) for name, value in given.items()}
    return Call(op, specs, {name: attr.value for name, attr in node.attributes.items()})


def _shape(value: ir.Value) -> tuple[int | None, ...] | None:
    if value.shape is None:
        return None
    return tuple(dim if isinstance(dim, int) else None for dim in value.shape)


def carry_functions(model: ir.Model) -> dict[str, str]:
    """Gives a model the function bodies of its fused operators, in place of any it had.

    Element types and ranks are taken from the values; a model from outside should have had shape inference.

    Returns:
        Name of a node that has no function -> the reason.
    """
    found = calls_of(model)
    for key in [key for key in model.functions if key[0] == DOMAIN]:
        del model.functions[key]
    carried = functions_for([call for _, call in found], model.opset_imports.get("", 1))
    for proto in carried.functions:
        function = ir.serde.deserialize_function(proto)
        model.functions[function.identifier()] = function
    for (node, call), overload in zip(found, carried.overloads, strict=True):
        node.overload = overload
        # defaults of function attributes are lost on onnx's own inliner, so the node spells them out
        for attr in call.op.attrs:
            if attr.default is not None and attr.name not in node.attributes:
                node.attributes.add(ir.serde.deserialize_attribute(attr_proto(attr)))
    if carried.functions:
        needed = _OVERLOAD_IR if any(carried.overloads) else _FUNCTION_IR
        model.ir_version = max(model.ir_version, needed)
    return {
        node.name or node.op_type: reason for (node, _), reason in zip(found, carried.reasons, strict=True) if reason
    }


def inline_functions(model: ir.Model) -> dict[str, str]:
    """Replaces the fused operators of a model by standard operators; what has no function body stays.

    Returns:
        Name of a node that stayed -> the reason.
    """
    others = {key: function for key, function in model.functions.items() if key[0] != DOMAIN}
    reasons = carry_functions(model)
    for key in others:
        del model.functions[key]
    InlinePass()(model)
    model.functions.update(others)
    if not reasons:
        model.opset_imports.pop(DOMAIN, None)
    return reasons


def inline(model: ModelProto) -> ModelProto:
    """The model with the fused operators replaced by standard ones; see :func:`inline_functions`."""
    made = ir.serde.deserialize_model(model)
    inline_functions(made)
    return ir.serde.serialize_model(made)
