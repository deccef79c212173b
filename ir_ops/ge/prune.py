"""Removing nodes that lead nowhere."""

from __future__ import annotations

from ir_ops.ge.model import Graph, Model
from ir_ops.ge.prototypes import find

_INTERFACE = ("Data", "RefData", "NetOutput")


def _writes_in_place(node_type: str) -> bool:
    prototype = find(node_type)
    return prototype is not None and bool(prototype.refs)


def prune(model: Model) -> Model:
    """The model without nodes that neither reach NetOutput nor write in place. Graph inputs stay."""
    model.graphs[0] = _pruned(model.root)
    return model


def _pruned(graph: Graph) -> Graph:
    by_name = {node.name: node for node in graph.nodes}
    stack = [node.name for node in graph.nodes if node.type in _INTERFACE or _writes_in_place(node.type)]
    live = set(stack)
    while stack:
        node = by_name[stack.pop()]
        sources = [slot.source.node for slot in node.inputs if slot.source is not None]
        for name in [*sources, *node.controls]:
            if name not in live:
                live.add(name)
                stack.append(name)
    return Graph(graph.name, [node for node in graph.nodes if node.name in live])
