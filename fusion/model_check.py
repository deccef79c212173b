"""What is wrong with a model, in one line, before anything works on it.

Only structure is looked at: names, order, opsets, attribute types, sizes of weights. Weight bytes are never read; an
external weight file is looked at with ``stat`` alone. Faults raise `BadModel`; oddities that do no harm become notes.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import onnx
from onnx import AttributeProto

from fusion.weight_check import Context, Findings, Kind, check_tensor, unique

_DOMAIN_ALIAS = {"ai.onnx": ""}
_VALUE_FIELDS = {
    AttributeProto.TENSOR: "t",
    AttributeProto.GRAPH: "g",
    AttributeProto.SPARSE_TENSOR: "sparse_tensor",
    AttributeProto.TYPE_PROTO: "tp",
}

_COUNTS_OUTPUTS = {"Split": "num_outputs"}
"""Attributes that say how many outputs a node has; runtimes end the process where that is not so."""


def check_proto(model: onnx.ModelProto, where: str, folder: Path | None) -> Findings:
    """Looks for faults in ``model``.

    Args:
        model: the model, without its external weights.
        where: how messages call it, usually its path.
        folder: where relative external weights lie; None skips looking for their files.

    Raises:
        BadModel: with the first fault found, one line.
    """
    context = Context(where, {}, {(function.domain, function.name) for function in model.functions}, folder, Findings())
    if not model.HasField("graph"):
        raise context.fault("not an ONNX model: no graph in it")
    if not model.ir_version:
        raise context.fault("not an ONNX model: no IR version in it")
    if not model.graph.node:
        raise context.fault("the graph is empty", found="no nodes", wanted="a decoder graph")
    if not model.graph.output:
        raise context.fault("the graph has no outputs")
    context.imports = _opset_imports(model.opset_import, context)
    _check_graph(model.graph, frozenset(), context)
    _check_functions(model, context)
    if context.missing:
        path, names = next(iter(context.missing.items()))
        raise context.fault(
            "external weights are missing",
            found=f"no file {path}",
            wanted=f"the data of {sum(map(len, context.missing.values()))} tensor(s), the first is {names[0]!r}",
            hint="keep the weight files beside the model",
        )
    for op, count in context.unknown.items():
        context.findings.notes.append(f"{op} ({count}x) is not an operator of this onnx version; left as it is")
    if model.training_info:
        context.findings.notes.append("training information in the model is not kept")
    return context.findings


def _opset_imports(imports: Iterable[onnx.OperatorSetIdProto], context: Context) -> dict[str, int]:
    found: dict[str, int] = {}
    for item in imports:
        domain = _DOMAIN_ALIAS.get(item.domain, item.domain)
        if found.get(domain, item.version) != item.version:
            raise context.fault(
                f"two versions of opset {domain or 'ai.onnx'!r} are imported",
                found=f"{found[domain]} and {item.version}",
                wanted="one",
            )
        found[domain] = item.version
    known = onnx.defs.onnx_opset_version()
    version = found.get("")
    if version is not None and not 1 <= version <= known:
        raise context.fault(
            "unknown opset version of ai.onnx",
            found=str(version),
            wanted=f"1 to {known}, what the installed onnx {onnx.__version__} knows",
            hint="upgrade onnx or export at a lower opset" if version > known else "",
        )
    return found


def _check_graph(graph: onnx.GraphProto, outer: frozenset[str], context: Context) -> None:
    if graph.sparse_initializer:
        raise context.fault(
            "sparse initializers are not supported",
            found=repr(graph.sparse_initializer[0].values.name),
            wanted="dense initializers",
        )
    unique((item.name for item in graph.input), "graph input", context)
    unique((item.name for item in graph.initializer), "initializer", context)
    for item in graph.input:
        if not outer and not item.HasField("type"):
            raise context.fault("a graph input has no type", found=repr(item.name), wanted="element type and shape")
    for tensor in graph.initializer:
        if not tensor.name:
            raise context.fault("an initializer has no name")
        check_tensor(tensor, partial(_initializer, tensor), context)
    available = {item.name for item in graph.input} | {item.name for item in graph.initializer}
    outputs = _check_nodes(graph.node, available, outer, context)
    for item in graph.output:
        if item.name not in outputs and item.name not in outer:
            raise context.fault(
                "a graph output is produced by nothing", found=repr(item.name), wanted="the output of a node"
            )


def _initializer(tensor: onnx.TensorProto) -> str:
    return f"initializer {tensor.name!r}"


def _check_nodes(
    nodes: Iterable[onnx.NodeProto], available: set[str], outer: frozenset[str], context: Context
) -> set[str]:
    """Checks nodes of one graph or function; gives all names defined in it."""
    nodes = list(nodes)
    names = [(node.input[:], node.output[:]) for node in nodes]  # a slice is made at once, a list item by item
    if not context.findings.names:
        context.findings.names = names
    producer = {name: index for index, (_, given) in enumerate(names) for name in given if name}
    if len(producer) < sum(len(given) for _, given in names) or not producer.keys().isdisjoint(available):
        _refuse_double(nodes, available, context)
    defined = available | producer.keys()
    inner = frozenset(defined | outer)
    seen = {*available, ""}
    unsorted = False
    kinds, issuperset = context.kinds, seen.issuperset
    for index, (node, (read, given)) in enumerate(zip(nodes, names, strict=True)):
        if not issuperset(read) and not outer.issuperset(set(read) - seen):
            for name in read:
                if name not in seen and name not in outer and name not in producer:
                    raise context.fault(
                        "a node reads a value that nothing produces", found=f"{name!r} in {describe(node, index)}"
                    )
            unsorted = True
        kind = kinds.get((node.domain, node.op_type)) or _kind(node, index, context)
        if not kind.low <= len(read) <= kind.high or "" in read or kind.unknown or node.attribute:
            _check_node(node, index, read, kind, inner, context)
        seen.update(given)
    if unsorted:
        _refuse_cycle(nodes, producer, context)
        context.findings.unsorted = True
    return defined


def _refuse_double(nodes: list[onnx.NodeProto], available: set[str], context: Context) -> None:
    """Raises BadModel with the first value that has two sources, if there is one."""
    producer: dict[str, int] = {}
    for index, node in enumerate(nodes):
        for name in node.output:
            if name in producer:
                both = f"{describe(nodes[producer[name]], producer[name])} and {describe(node, index)}"
                raise context.fault("two nodes write one value", found=f"{name!r} from {both}", wanted="unique names")
            if name and name in available:
                raise context.fault(
                    "a node writes a graph input or initializer",
                    found=f"{name!r} from {describe(node, index)}",
                    wanted="unique names",
                )
            if name:
                producer[name] = index


def describe(node: onnx.NodeProto, index: int) -> str:
    """How messages call a node: its type and its name, or its number where it has none."""
    return f"{node.op_type} node {node.name!r}" if node.name else f"{node.op_type} node number {index}"


def _refuse_cycle(nodes: list[onnx.NodeProto], producer: dict[str, int], context: Context) -> None:
    needs = [{producer[name] for name in _all_inputs(node) if name in producer} for node in nodes]
    users: list[list[int]] = [[] for _ in nodes]
    waiting = [len(need) for need in needs]
    for index, need in enumerate(needs):
        for source in need:
            users[source].append(index)
    ready = [index for index, count in enumerate(waiting) if not count]
    for index in ready:
        for user in users[index]:
            waiting[user] -= 1
            if not waiting[user]:
                ready.append(user)
    if len(ready) == len(nodes):
        return
    stuck = set(range(len(nodes))) - set(ready)
    at, path = min(stuck), []
    while at not in path:
        path.append(at)
        at = min(needs[at] & stuck)
    loop = path[path.index(at) :]
    raise context.fault(
        "the graph has a cycle", found=" <- ".join(describe(nodes[index], index) for index in [*loop, at])
    )


def _all_inputs(node: onnx.NodeProto) -> Iterator[str]:
    yield from node.input
    for attribute in node.attribute:
        for graph in (*([attribute.g] if attribute.HasField("g") else []), *attribute.graphs):
            for inner in graph.node:
                yield from _all_inputs(inner)


def _check_node(
    node: onnx.NodeProto, index: int, read: list[str], kind: Kind, names: frozenset[str], context: Context
) -> None:
    """Checks a node that reads these values, "" for an input that is not given."""
    count = len(read)
    if not kind.low <= count <= kind.high:
        wanted = str(kind.low) if kind.low == kind.high else f"{kind.low} to {kind.high}"
        raise context.fault(f"{describe(node, index)} has a wrong number of inputs", found=str(count), wanted=wanted)
    if "" in read:
        _refuse_missing(node, index, kind, context)
    if kind.unknown:
        context.unknown[node.op_type] += 1
    attributes = node.attribute
    if len(attributes) > 1:
        unique((item.name for item in attributes), f"attribute of {describe(node, index)}", context)
    for attribute in attributes:
        _check_attribute(attribute, kind.schema, (node, index), context)
        if attribute.name == _COUNTS_OUTPUTS.get(node.op_type) and attribute.i != len(node.output):
            raise context.fault(
                f"{describe(node, index)} has a wrong number of outputs", found=str(len(node.output)),
                wanted=f"{attribute.i}, its {attribute.name}",
            )  # fmt: skip
        for graph in (*([attribute.g] if attribute.type == AttributeProto.GRAPH else []), *attribute.graphs):
            _check_graph(graph, names, context)


def _refuse_missing(node: onnx.NodeProto, index: int, kind: Kind, context: Context) -> None:
    """Raises BadModel for an input that the operator requires and the node does not name."""
    single = onnx.defs.OpSchema.FormalParameterOption.Single
    for declared, name in zip(kind.schema.inputs if kind.schema is not None else (), node.input, strict=False):
        if not name and declared.option == single:
            raise context.fault(
                f"{describe(node, index)} lacks a required input", found="an empty name", wanted=declared.name
            )


def _kind(node: onnx.NodeProto, index: int, context: Context) -> Kind:
    """Looks up the node's operator at the imported opset."""
    domain, op_type = node.domain, node.op_type
    plain = _DOMAIN_ALIAS.get(domain, domain)
    if plain not in context.imports:
        raise context.fault(
            f"no opset of {plain or 'ai.onnx'!r} is imported",
            found=f"used by {describe(node, index)}",
            wanted="an opset import",
        )
    try:
        schema = onnx.defs.get_schema(op_type, context.imports[plain], plain)
        kind = Kind(schema, schema.min_input, schema.max_input)
    except onnx.defs.SchemaError:
        kind = Kind(unknown=plain == "" and ("", op_type) not in context.functions)
    context.kinds[domain, op_type] = kind
    return kind


def _check_attribute(
    attribute: AttributeProto, schema: Any, owner: tuple[onnx.NodeProto, int], context: Context
) -> None:
    if attribute.ref_attr_name:
        return

    def where() -> str:
        return f"{describe(*owner)}, attribute {attribute.name!r}"

    names = AttributeProto.AttributeType
    if attribute.type == AttributeProto.UNDEFINED:
        raise context.fault(f"{where()} has no type")
    declared = schema.attributes.get(attribute.name) if schema is not None else None
    if declared is not None and int(declared.type.value) != attribute.type:
        raise context.fault(f"{where()} has a wrong type", found=names.Name(attribute.type), wanted=declared.type.name)
    holder = _VALUE_FIELDS.get(attribute.type)
    if holder is not None and not attribute.HasField(holder):
        raise context.fault(f"{where()} has no value", wanted=names.Name(attribute.type))
    if attribute.type == AttributeProto.TENSOR:
        check_tensor(attribute.t, where, context)
    for tensor in attribute.tensors:
        check_tensor(tensor, where, context)


def _check_functions(model: onnx.ModelProto, context: Context) -> None:
    calls: dict[tuple[str, str], set[tuple[str, str]]] = {}
    for function in model.functions:
        key = (function.domain, function.name)
        inside = Context(
            f"{context.where}: function {function.domain}::{function.name}",
            {},
            context.functions,
            context.folder,
            context.findings,
        )
        inside.imports = _opset_imports(function.opset_import, inside)
        inside.unknown, inside.file_sizes, inside.missing = context.unknown, context.file_sizes, context.missing
        unique(function.input, "function input", inside)
        names = _check_nodes(function.node, set(function.input), frozenset(), inside)
        for name in function.output:
            if name not in names:
                raise inside.fault("a function output is produced by nothing", found=repr(name))
        calls[key] = {(node.domain, node.op_type) for node in function.node} & context.functions
    for key in calls:
        pending, seen = list(calls[key]), set()
        while pending:
            callee = pending.pop()
            if callee == key:
                raise context.fault("a function calls itself", found="::".join(key))
            if callee not in seen:
                seen.add(callee)
                pending += calls.get(callee, ())
