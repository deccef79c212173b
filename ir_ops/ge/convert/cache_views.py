"""Caches that a model hands to an operator in another shape of the same memory."""

from __future__ import annotations

import math
from collections.abc import Iterator

import onnx_ir as ir

from ir_ops.ge.convert.caches import one_reader, ref_pairs
from ir_ops.ge.convert.load import plain_domain
from ir_ops.ge.model import Shape


def settle_views(graph: ir.Graph, shapes: dict[str, Shape | None]) -> list[str]:
    """Gives caches the shape in which the operator updates them, and takes away the Reshapes in between.

    GE updates a RefData in place only where it feeds the operator directly. A cache that reaches its slot through one
    Reshape, and whose new content is a graph output through the Reshape back, is the same memory in either shape: input
    and output are declared in the operator's shape. Other readers of the output get its old shape.

    Args:
        graph: the model's graph, changed in place.
        shapes: dims of the graph inputs (-1 unknown), brought up to date.

    Returns:
        What the user has to know.
    """
    changed = [note for view in tuple(_views(graph, shapes)) if (note := _settle(graph, shapes, *view))]
    if not changed:
        return []
    more = f" and {len(changed) - 1} more" if len(changed) > 1 else ""
    return [f"{changed[0]}{more}: caches are declared as their operator takes them, the same memory"]


_View = tuple[ir.Node, int, int, Shape]


def _views(graph: ir.Graph, shapes: dict[str, Shape | None]) -> Iterator[_View]:
    """(node, its slot, its output, dims in the slot) of caches that come and go through a Reshape."""
    for node in graph:
        for i, o in ref_pairs(node):
            view, made = node.inputs[i], node.outputs[o]
            there = None if view is None else _reshape(view.producer())
            if view is None or there is None or not one_reader(view) or not one_reader(made):
                continue
            cache, back = there.inputs[0], _reshape(next(iter(made.uses()))[0])
            if cache is None or back is None or not cache.is_graph_input() or cache.name in graph.initializers:
                continue
            result = back.outputs[0]
            once = sum(value is result for value in graph.outputs) == 1
            if not one_reader(cache) or not once or not _same_rows(cache, result):
                continue
            dims = _dims(shapes.get(cache.name or ""), there)
            if dims is not None:
                yield node, i, o, dims


def _reshape(node: ir.Node | None) -> ir.Node | None:
    plain = node is not None and node.op_type == "Reshape" and not plain_domain(node.domain)
    return node if plain else None


def _same_rows(cache: ir.Value, result: ir.Value) -> bool:
    """Whether all dims behind the first are known and equal; the first is then, too, as both have all elements."""
    rows = [None if value.shape is None else list(value.shape)[1:] for value in (cache, result)]
    return rows[0] is not None and rows[0] == rows[1] and all(isinstance(dim, int) and dim > 0 for dim in rows[0])


def _dims(old: Shape | None, there: ir.Node) -> Shape | None:
    """The dims a Reshape gives, where it keeps the first one and all others are certain."""
    target = there.inputs[1].const_value if there.inputs[1] is not None else None
    if old is None or target is None or min(old[1:], default=0) < 1 or there.attributes.get("allowzero"):
        return None
    first, *rest = (int(dim) for dim in target.numpy().reshape(-1))
    size = math.prod(old[1:])
    if first == 0 and rest.count(-1) == 1:
        known = math.prod(dim for dim in rest if dim != -1)
        rest = [dim if dim != -1 else size // known if known > 0 else 0 for dim in rest]
    if min(rest, default=0) < 1 or math.prod(rest) != size or first not in (-1, 0, old[0]):
        return None
    return (old[0], *rest)


def _settle(graph: ir.Graph, shapes: dict[str, Shape | None], node: ir.Node, i: int, o: int, dims: Shape) -> str:
    view, made = node.inputs[i], node.outputs[o]
    assert view is not None
    there, (back, _) = view.producer(), next(iter(made.uses()))
    assert there is not None and there.inputs[0] is not None
    cache, result = there.inputs[0], back.outputs[0]
    name, first = cache.name or "", cache.shape[0] if cache.shape is not None else None
    node.replace_input_with(i, cache)
    graph.remove(there, safe=True)
    cache.shape = ir.Shape([first, *dims[1:]])
    made.shape, made.type = cache.shape, cache.type
    place = next(number for number, value in enumerate(graph.outputs) if value is result)
    output, result.name = result.name, f"{result.name}/as_it_was"
    graph.outputs[place] = made
    made.name = output
    if not result.uses():
        graph.remove(back, safe=True)
    old, shapes[name] = shapes[name], dims
    return "" if old == dims else f"{name} is {list(dims)}, in the ONNX model {list(old or ())}"
