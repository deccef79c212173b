"""Operators that hold several steps, opened: the same steps in standard operators, so that they can be told apart.

A runtime's own operator may rotate, append to a cache and attend in one node. Nothing outside can put its hand between
these steps; opened, the graph is what an exporter without that operator would have written, and everything that reads
such graphs reads it. The opened form is a step on the way to something better and never an end: a model that is not
converted keeps its operators.

An operator is one module here, with a line in :data:`OPENERS`.
"""

from __future__ import annotations

from collections.abc import Callable

import onnx_ir as ir

from fusion.candidate import Refused
from fusion.emit import Emitter
from fusion.facts.graph import GraphView
from fusion.facts.semantics.table import MICROSOFT
from fusion.facts.trial.settle import Survey
from fusion.surgery.opening.group_query_attention import open_group_query_attention
from fusion.surgery.opening.opened import Opened
from fusion.surgery.opening.tokens import SharedTokens

Opener = Callable[[GraphView, Survey, ir.Node, Emitter, SharedTokens], Opened]
"""Emits the steps of a node. Raises Refused for a form of the operator that is not understood exactly."""
OPENERS: dict[tuple[str, str], Opener] = {(MICROSOFT, "GroupQueryAttention"): open_group_query_attention}


def open_steps(model: ir.Model) -> int:
    """Opens every operator of :data:`OPENERS` in the main graph; returns how many there were.

    Args:
        model: with local functions inlined, values typed as far as that is known.

    Raises:
        Refused: one of them has a form that is not understood; says which, and what is in the way. The model is as it
            was then.
    """
    graph = model.graph
    nodes = [node for node in graph if (node.domain, node.op_type) in OPENERS]
    if not nodes:
        return 0
    view = GraphView(graph, model.opset_imports.get("", 0))
    survey, taken, shared = Survey(view), _names(graph), SharedTokens()
    emitters = [Emitter(node.name or f"{node.op_type}/{node.outputs[0].name}", taken) for node in nodes]
    try:
        opened = [OPENERS[node.domain, node.op_type](view, survey, node, emit, shared)
                  for node, emit in zip(nodes, emitters, strict=True)]  # fmt: skip
    except Refused:
        for emit in emitters:
            emit.discard()
        raise
    for node, emit, steps in zip(nodes, emitters, opened, strict=True):
        _put(graph, node, emit, steps)
    return len(opened)


def _names(graph: ir.Graph) -> set[str]:
    names = {value.name for value in (*graph.inputs, *graph.initializers.values()) if value.name}
    return names | {output.name for node in graph.all_nodes() for output in node.outputs if output.name}


def _put(graph: ir.Graph, node: ir.Node, emit: Emitter, steps: Opened) -> None:
    """The steps in place of their node; outputs of the graph keep their names."""
    for constant in emit.constants:
        graph.register_initializer(constant)
    graph.insert_before(node, emit.nodes)
    for value, shape in steps.shapes:
        value.shape = shape
    for old, new in steps.results:
        new.shape, new.type = old.shape or new.shape, old.type or new.type
        for place, output in enumerate(graph.outputs):
            if output is old:
                old.name, new.name = f"{old.name}/inside", old.name
                graph.outputs[place] = new
        old.replace_all_uses_with(new)
    graph.remove(node, safe=True)
