"""Models that carry function bodies for our operators, and models turned back into standard operators.

ONNX Runtime prefers a registered kernel to a local function of the same name, so one model serves both. Nodes of an
operator that differ in more than sizes need one function each, told apart by the overload name. Runtimes before
1.27 ignore overload names: there a guard in each function makes the model fail to load instead of being wrong
(see docs/decisions.md).
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
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
_FIRST_GUARDED = 12
"""First opset in which a body can read its node's attributes."""


@dataclass(frozen=True)
class Call:
    """A node of one of our operators: the given inputs (dims may be unknown) and the attributes."""

    op: Operator
    inputs: Mapping[str, TensorSpec]
    attrs: Mapping[str, Any]


@dataclass
class Carried:
    """Functions for a model; for each call its overload name, and the reason if it has no function (else "")."""

    functions: list[FunctionProto]
    overloads: list[str]
    reasons: list[str]


def functions_for(calls: Sequence[Call], opset: int, *, guards: bool = True) -> Carried:
    """The functions that a model with these nodes should carry.

    Calls of an operator that get the same body share it. If there are several bodies, the first keeps the empty
    overload name, the others are numbered from 2, and all are guarded.

    Args:
        calls: the nodes.
        opset: version of the ONNX domain that the model imports.
        guards: False where no runtime will see the functions, because they are inlined.
    """
    carried = Carried(
        [], [""] * len(calls), [no_body_reason(call.op, call.inputs, call.attrs, opset) for call in calls]
    )
    by_operator: dict[str, list[int]] = defaultdict(list)
    for place, call in enumerate(calls):
        if not carried.reasons[place]:
            by_operator[call.op.name].append(place)
    for places in by_operator.values():
        bodies = _grouped(calls, places, opset, False)
        guarded = guards and len(bodies) > 1
        if guarded and opset >= _FIRST_GUARDED:
            bodies = _grouped(calls, places, opset, True)  # a guard is for one choice of element types
        elif guarded:
            for place in places:
                carried.reasons[place] = f"several configurations of the operator need opset {_FIRST_GUARDED}"
            continue
        for number, users in enumerate(bodies, 1):
            overload = str(number) if number > 1 else ""
            carried.functions.append(_body(calls[users[0]], opset, overload, guarded))
            for place in users:
                carried.overloads[place] = overload
    return carried


def _body(call: Call, opset: int, overload: str = "", guarded: bool = False) -> FunctionProto:
    return function_body(call.op, call.inputs, call.attrs, opset=opset, overload=overload, guarded=guarded)


def _grouped(calls: Sequence[Call], places: Sequence[int], opset: int, guarded: bool) -> list[list[int]]:
    """The places of calls that share a body, in the order of their first."""
    alike: dict[Any, list[int]] = defaultdict(list)
    for place in places:
        alike[_configuration(calls[place])].append(place)
    groups: dict[bytes, list[int]] = defaultdict(list)
    for users in alike.values():
        groups[_body(calls[users[0]], opset, guarded=guarded).SerializeToString(deterministic=True)] += users
    return list(groups.values())


def _configuration(call: Call) -> Any:
    """What a body may depend on; layers are alike, and recording is the costly part."""
    ranks = [(name, spec.dtype, spec.shape and len(spec.shape)) for name, spec in call.inputs.items()]
    return tuple(ranks), tuple(sorted((name, repr(value)) for name, value in call.attrs.items()))


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
    return _carry(model, guards=True)


def _carry(model: ir.Model, *, guards: bool) -> dict[str, str]:
    found = calls_of(model)
    for key in [key for key in model.functions if key[0] == DOMAIN]:
        del model.functions[key]
    carried = functions_for([call for _, call in found], model.opset_imports.get("", 1), guards=guards)
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
    reasons = _carry(model, guards=False)
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
