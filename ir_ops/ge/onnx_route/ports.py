"""What ATC's parser needs of a model beside an opset that it knows: names for all outputs, and GE's own operands.

The parser links a node's input to every node that has an output of that name, the empty name included: an output that
is left out beside an input that is left out would be connected.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator

import onnx_ir as ir

from ir_ops.declaration import Operator, TensorSpec, Undecided
from ir_ops.dtypes import by_onnx
from ir_ops.errors import ExportError
from ir_ops.ge.convert.load import attributes, plain_domain
from ir_ops.ge.onnx_route.lists import list_slots
from ir_ops.ops import DOMAIN, OPS


def complete(graph: ir.Graph) -> list[str]:
    """Names outputs that have no name, and gives our nodes what GE requires and ONNX may leave out.

    Returns:
        What is still missing, with counts.

    Raises:
        ExportError: a node breaks its operator's contract.
    """
    nodes = list(ir.traversal.RecursiveGraphIterator(graph))
    _name_outputs(graph, nodes)
    made: dict[str, ir.Value] = {}
    notes: Counter[str] = Counter()
    for node in nodes:
        operator = declared(node)
        if operator is not None:
            _check(node, operator)
            _add_constants(graph, node, operator, made)
            notes.update(f"{operator.name}: {text}" for text in _lacks(graph, node, operator))
    return [f"{count} x {text}" for text, count in notes.items()]


def declared(node: ir.Node) -> Operator | None:
    """The declaration of one of our nodes."""
    return OPS.get(node.op_type) if plain_domain(node.domain) == DOMAIN else None


def _name_outputs(graph: ir.Graph, nodes: list[ir.Node]) -> None:
    outputs = [value for node in nodes for value in node.outputs]
    taken = {value.name for value in (*outputs, *graph.inputs, *graph.initializers.values())}
    number = 0
    for value in outputs:
        if not value.name:
            while f"unused_{number}" in taken:
                number += 1
            value.name = f"unused_{number}"
            number += 1


def _given(node: ir.Node, index: int) -> bool:
    return index < len(node.inputs) and node.inputs[index] is not None


def _specs(node: ir.Node, operator: Operator) -> dict[str, TensorSpec]:
    given = zip(operator.inputs, node.inputs, strict=False)
    return {entry.name: _spec(value) for entry, value in given if value is not None}


def _check(node: ir.Node, operator: Operator) -> None:
    for found in operator.check(_specs(node, operator), attributes(node)):
        if found.severity == "error":
            raise ExportError(
                "a node breaks its operator's contract", where=f"{operator.name} {node.name or ''}", found=str(found)
            )


def _add_constants(graph: ir.Graph, node: ir.Node, operator: Operator, made: dict[str, ir.Value]) -> None:
    """The operands that only GE wants: one initializer for all nodes."""
    full = operator.with_defaults(attributes(node))
    for i, entry in enumerate(operator.inputs):
        array = None if entry.constant is None or _given(node, i) else entry.constant(full)
        if array is None:
            continue
        name = f"{DOMAIN}.{operator.name}.{entry.name}"
        if name not in made:
            made[name] = ir.Value(name=name, const_value=ir.Tensor(array, name=name))
            made[name].shape, made[name].dtype = ir.Shape(array.shape), ir.DataType.from_numpy(array.dtype)
            graph.register_initializer(made[name])
        node.resize_inputs(max(i + 1, len(node.inputs)))
        node.replace_input_with(i, made[name])


def _lacks(graph: ir.Graph, node: ir.Node, operator: Operator) -> Iterator[str]:
    """What GE wants otherwise than the node has it."""
    for i, entry in enumerate(operator.inputs):
        if entry.supplied and not _given(node, i):
            yield "GE requires a buffer that the node leaves out; give it as a graph input"
        maker = node.inputs[i] if entry.host and _given(node, i) else None
        if maker is not None and maker.producer() is not None:
            yield f"{entry.name} is computed; GE wants a graph input or a constant"
    if list_slots(operator):
        yield f"{' and '.join(list_slots(operator))} are lists in GE; the C++ plugin maps it, the Python one not"
    yield from _settle_attrs(node, operator)


def _settle_attrs(node: ir.Node, operator: Operator) -> Iterator[str]:
    """Attributes that ONNX may leave to the inputs, as GE wants them."""
    given = attributes(node)
    full = operator.with_defaults(given)
    try:
        settled = operator.ge_attrs(_specs(node, operator), full)
    except Undecided as unknown:
        yield f"{unknown} depends on sizes that vary, which GE does not take; fix the model's dims"
        return
    for name in given:
        if settled[name] != full[name]:
            node.attributes[name] = ir.AttrInt64s(name, settled[name])  # type: ignore[arg-type]


def _spec(value: ir.Value) -> TensorSpec:
    dtype = "undefined" if value.dtype is None else by_onnx(int(value.dtype)).name
    if value.shape is None:
        return TensorSpec(dtype, None)
    return TensorSpec(dtype, tuple(dim if isinstance(dim, int) else None for dim in value.shape))
