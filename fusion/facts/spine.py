"""The way of a cache through the graph: what moves it, or changes its type, between an input and an output."""

from __future__ import annotations

from dataclasses import dataclass

import onnx_ir as ir

from fusion.facts.conversions import converts
from fusion.facts.graph import GraphView, content_readers, dtype_name, uses
from fusion.facts.semantics import lookup


@dataclass(frozen=True)
class Spine:
    """A cache on its way.

    Attributes:
        cache: the graph input that holds the old content.
        out: the graph output that carries it on.
        nodes: nodes between the two that depend on the cache by movement, in graph order.
    """

    cache: ir.Value
    out: ir.Value
    nodes: tuple[ir.Node, ...]

    @property
    def index_operands(self) -> list[ir.Value]:
        """What the nodes are told beside data: shapes, axes, indices, conditions."""
        found: dict[int, ir.Value] = {}
        for node in self.nodes:
            if converts(node):
                continue
            data = {id(item) for item in data_operands(node)}
            for item in node.inputs:
                if item is not None and id(item) not in data:
                    found[id(item)] = item
        return list(found.values())

    @property
    def values(self) -> list[ir.Value]:
        """The cache on its way, behind each node; a node that writes two caches gives one of it."""
        carried = {id(self.cache)}
        found: list[ir.Value] = []
        for node in self.nodes:
            definition = lookup(node.domain, node.op_type)
            apart = definition.carries if definition is not None else ()
            for place, value in enumerate(node.outputs):
                source = node.inputs[apart[place]] if apart else None
                if source is None or id(source) in carried:
                    carried.add(id(value))
                    found.append(value)
        return found

    @property
    def targets(self) -> list[ir.Value]:
        """What a probe must be able to evaluate to follow the cache."""
        return [self.cache, self.out, *self.index_operands]


def find_spines(view: GraphView) -> list[Spine]:
    """All outputs that carry a float or 8-bit graph input on through movement, with something written on the way.

    The view learns which inputs are caches.
    """
    found = []
    for out in view.graph.outputs:
        cache = _cache_behind(out)
        if cache is not None:
            spine = Spine(cache, out, _nodes_between(view, cache, out))
            if _is_cache(spine):
                found.append(spine)
    view.caches = {id(spine.cache) for spine in found}
    return found


def _cache_behind(out: ir.Value) -> ir.Value | None:
    """The graph input whose elements an output carries on, None when it carries none through an operator."""
    pending, seen = [out], {id(out)}
    while pending:
        value = pending.pop()
        node = value.producer()
        if node is None:
            if value is not out and value.is_graph_input() and _is_cache_type(value):
                return value
            continue
        for operand in _carrying_operands(node, value):
            if id(operand) not in seen:
                seen.add(id(operand))
                pending.insert(0, operand)
    return None


def _is_cache_type(value: ir.Value) -> bool:
    name = dtype_name(value)
    rank = len(value.shape) if value.shape is not None else 0
    return rank >= 3 and (name.startswith(("float", "bfloat")) or name in ("int8", "uint8"))


def _carrying_operands(node: ir.Node, value: ir.Value) -> list[ir.Value]:
    """Operands through which a node may carry a cache on to ``value``; of scatters the destination only."""
    operands = data_operands(node)
    definition = lookup(node.domain, node.op_type)
    if definition is None or definition.moves == (-1,) or node.op_type == "Where":
        return operands
    place = definition.carries[value.index() or 0] if definition.carries else 0
    return [item for item in operands if item is node.inputs[place]][:1]


def data_operands(node: ir.Node) -> list[ir.Value]:
    """Operands whose elements a node moves or converts, none for a node that computes."""
    if converts(node):
        return [item for item in node.inputs[:1] if item is not None]
    definition = lookup(node.domain, node.op_type)
    if definition is None or definition.moves is None:
        return []
    places = range(len(node.inputs)) if definition.moves == (-1,) else definition.moves
    return [item for place in places if place < len(node.inputs) and (item := node.inputs[place]) is not None]


def _nodes_between(view: GraphView, cache: ir.Value, out: ir.Value) -> tuple[ir.Node, ...]:
    depends: dict[int, bool] = {id(cache): True}
    stack = [out]
    nodes: dict[int, ir.Node] = {}
    while stack:
        value = stack[-1]
        if id(value) in depends:
            stack.pop()
            continue
        node = value.producer()
        operands = [] if node is None else data_operands(node)
        missing = [item for item in operands if id(item) not in depends]
        if missing:
            stack.extend(missing)
            continue
        stack.pop()
        depends[id(value)] = any(depends[id(item)] for item in operands)
        if depends[id(value)] and node is not None:
            nodes[id(node)] = node
    return tuple(sorted(nodes.values(), key=view.order))


def _is_cache(spine: Spine) -> bool:
    """Whether something is written on the way, or nothing else is done with the input: a write that got lost."""
    carried = {id(spine.cache)} | {id(value) for value in spine.values}
    if any(id(item) not in carried for node in spine.nodes for item in data_operands(node)):
        return True
    inside = {id(node) for node in spine.nodes}
    return all(id(node) in inside for node, _ in uses(spine.cache))


def old_content_readers(spine: Spine) -> list[ir.Node]:
    """Nodes outside the spine that read the old content; asking for its shape is no reading."""
    return [node for _, node in _outside_readers(spine, [spine.cache])]


def half_written_readers(spine: Spine) -> list[tuple[ir.Value, ir.Node]]:
    """Readers outside the spine of the cache while it is being written: neither the old content nor the final one."""
    values = [value for value in spine.values if value is not spine.out]
    return _outside_readers(spine, values)


def _outside_readers(spine: Spine, values: list[ir.Value]) -> list[tuple[ir.Value, ir.Node]]:
    inside = {id(node) for node in spine.nodes}
    readers = [(value, node) for value in values for node in content_readers(value, inside)]
    return [(value, node) for value, node in readers if not _only_measured(node)]


def _only_measured(node: ir.Node, depth: int = 4) -> bool:
    """Whether a node only moves elements, and only the shape of what it gives is asked for."""
    definition = lookup(node.domain, node.op_type)
    if definition is None or definition.moves is None or not depth:
        return False
    return not any(value.is_graph_output() for value in node.outputs) and all(
        reader.op_type in ("Shape", "Size") or _only_measured(reader, depth - 1)
        for value in node.outputs
        for reader, _ in uses(value)
    )
