"""Which caches a model updates in place, as far as its graph says so."""

from __future__ import annotations

from collections.abc import Iterator

import onnx_ir as ir

from ir_ops.ge.convert.load import plain_domain
from ir_ops.ops import DOMAIN, OPS

_STANDARD_REFS = {"ScatterND": ((0, 0),), "TensorScatter": ((0, 0),)}


def ref_slots(node: ir.Node) -> tuple[tuple[int, int], ...]:
    """(input, output) pairs that share a buffer in the GE operator a node becomes."""
    domain = plain_domain(node.domain)
    if domain == DOMAIN and node.op_type in OPS:
        operator = OPS[node.op_type]
        outputs = [port.name for port in operator.outputs]
        return tuple((i, outputs.index(entry.ref)) for i, entry in enumerate(operator.inputs) if entry.ref is not None)
    return _STANDARD_REFS.get(node.op_type, ()) if not domain else ()


def one_reader(value: ir.Value) -> bool:
    """Whether one node alone reads a value."""
    return len(value.uses()) == 1 and not value.is_graph_output()


def in_place_inputs(graph: ir.Graph) -> dict[ir.Node, list[int]]:
    """Node -> its inputs that are updated in place.

    A graph input that only this slot reads, whose new content is a graph output, is RefData. The result of an earlier
    in-place update that only this slot reads carries the same buffer on.
    """
    found: dict[ir.Node, list[int]] = {}
    carried: set[ir.Value] = set()
    for node in graph:
        for i, o in ref_pairs(node):
            source, result = node.inputs[i], node.outputs[o]
            if source is None or not one_reader(source):
                continue
            fresh = source.is_graph_input() and source.name not in graph.initializers and _ends_as_output(result)
            if fresh or source in carried:
                found.setdefault(node, []).append(i)
                carried.add(result)
    return found


def ref_pairs(node: ir.Node) -> Iterator[tuple[int, int]]:
    """:func:`ref_slots`, as far as the node has them."""
    for i, o in ref_slots(node):
        if i < len(node.inputs) and o < len(node.outputs):
            yield i, o


def _ends_as_output(value: ir.Value) -> bool:
    """Whether a new cache content, possibly updated again in place, is a graph output."""
    while not value.is_graph_output():
        uses = tuple(value.uses())
        if len(uses) != 1:
            return False
        user, index = uses[0]
        nexts = [node_output for i, node_output in ref_pairs(user) if i == index]
        if not nexts:
            return False
        value = user.outputs[nexts[0]]
    return True
