"""Branches of equal meaning: an ``If`` whose condition chooses the faster of two ways to one result.

A node that is marked so may be replaced by either of its branches. Who cannot branch at run time, as the export to GE
cannot, takes :func:`settled`: the ``else_branch``, which has to serve every call.
"""

from __future__ import annotations

import onnx_ir as ir

KEY = "kvfuse.alternatives"
"""The metadata property of such a node; it says what the condition asks for."""


def mark(node: ir.Node, why: str) -> None:
    """Says of an ``If`` that both branches give the same, and when which is taken."""
    node.metadata_props[KEY] = why


def alternatives(graph: ir.Graph) -> list[ir.Node]:
    """The marked nodes of a graph; a mark on anything but an ``If`` with a whole ``else_branch`` means nothing."""
    return [node for node in graph if node.op_type == "If" and KEY in node.metadata_props and _serves(node)]


def _serves(node: ir.Node) -> bool:
    branch = node.attributes.get("else_branch")
    if branch is None or branch.type != ir.AttributeType.GRAPH:
        return False
    return len(branch.as_graph().outputs) == len(node.outputs)


def settled(graph: ir.Graph) -> list[str]:
    """Puts the ``else_branch`` in place of every marked node.

    Returns:
        What the marks said, each once.
    """
    found = alternatives(graph)
    for node in found:
        branch = node.attributes["else_branch"].as_graph()
        inner, made = list(branch), list(branch.outputs)
        for value in list(branch.initializers.values()):
            branch.initializers.pop(str(value.name))
            graph.register_initializer(value)
        branch.outputs.clear()
        branch.remove(inner)
        graph.insert_before(node, inner)
        for old, new in zip(node.outputs, made, strict=True):
            if old.is_graph_output():
                new.name, old.name = old.name, f"{old.name}/chosen"
            old.replace_all_uses_with(new, replace_graph_outputs=True)
        graph.remove(node, safe=True)
    return list(dict.fromkeys(node.metadata_props[KEY] for node in found))
