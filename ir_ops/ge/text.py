"""Readable, diffable text of a GE graph: one line a node, values by name, types after the arrow."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np

from ir_ops.dtypes import DType
from ir_ops.errors import BadInput, BadUsage
from ir_ops.ge.codec import encode_root
from ir_ops.ge.model import OUTPUT_NAME_ATTR, Attr, AttrKind, ConstTensor, Edge, Graph, Model, Node

FORMS = ("text", "pbtxt")
_SHOWN = 8


def show(model: Model, form: str = "text") -> str:
    """The model as text.

    Args:
        form: "text", or "pbtxt": the protobuf text of the root graph with weights left out, as other tools dump it.

    Raises:
        BadUsage: an unknown form.
    """
    if form == "pbtxt":
        return _pbtxt(model)
    if form != "text":
        raise BadUsage("unknown text form", found=form, wanted=" | ".join(FORMS))
    lines = [f"model {model.name} version {model.version}"]
    for graph in model.graphs:
        lines += ["", *_graph(graph)]
    return "\n".join(lines) + "\n"


def _graph(graph: Graph) -> Iterator[str]:
    yield f"graph {graph.name} ({len(graph.nodes)} nodes)"
    outputs = {node.name: [port.name for port in node.outputs] for node in graph.nodes}
    for node in graph.nodes:
        yield from (_net_output(node, outputs) if node.type == "NetOutput" else [_node(node, outputs)])


def _value(edge: Edge, outputs: dict[str, list[str]]) -> str:
    names = outputs.get(edge.node, [])
    return f"%{edge.node}" if len(names) <= 1 else f"%{edge.node}.{names[edge.index]}"


def _node(node: Node, outputs: dict[str, list[str]]) -> str:
    inputs = [f"{slot.name}={_value(slot.source, outputs)}" for slot in node.inputs if slot.source is not None]
    attrs = [f"{name}={_attr(attr)}" for name, attr in sorted(node.attrs.items())]
    types = ", ".join(str(port.type) if len(node.outputs) == 1 else f"{port.name} {port.type}" for port in node.outputs)
    line = f"  %{node.name} = {node.type}({', '.join(inputs)})"
    if attrs:
        line += " {" + ", ".join(attrs) + "}"
    if node.controls:
        line += f" after {', '.join('%' + name for name in node.controls)}"
    return f"{line} -> {types}" if types else line


def _net_output(node: Node, outputs: dict[str, list[str]]) -> Iterator[str]:
    names = node.attrs[OUTPUT_NAME_ATTR].value if OUTPUT_NAME_ATTR in node.attrs else ()
    for i, slot in enumerate(node.inputs):
        if slot.source is not None:
            label = names[i] if i < len(names) else f"output{i}"
            yield f"  output {i} {label} = {_value(slot.source, outputs)} -> {slot.type}"


def _attr(attr: Attr) -> str:
    if attr.kind is AttrKind.TENSOR:
        return _const(attr.value)
    if attr.kind is AttrKind.RAW:
        return f"<{len(attr.value)} bytes>"
    return _plain(attr.value)


def _plain(value: Any) -> str:
    if isinstance(value, DType):
        return value.name
    if isinstance(value, tuple):
        return "[" + ", ".join(_plain(item) for item in value) + "]"
    if isinstance(value, float):
        return repr(float(np.format_float_positional(np.float32(value), unique=True, trim="0")))
    return repr(value)


def _const(const: ConstTensor) -> str:
    if not const.data:
        return str(const.type)
    try:
        values = const.array().reshape(-1)
    except BadInput:
        return f"<{len(const.data)} bytes>"
    shown = ", ".join(str(item) for item in values[:_SHOWN])
    return f"({shown}{', ...' if values.size > _SHOWN else ''})"


def _pbtxt(model: Model) -> str:
    from google.protobuf import text_format

    message = encode_root(model)
    for op in message.op:
        if "value" in op.attr and op.attr["value"].WhichOneof("value") == "t":
            op.attr["value"].t.data = b""
    return str(text_format.MessageToString(message))
