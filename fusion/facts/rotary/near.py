"""Values between a source and a result that hold elements of the source and nothing else, by movement alone."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import onnx_ir as ir

from fusion.facts.closure import closure
from fusion.facts.graph import GraphView, dtype_name
from fusion.facts.semantics import lookup
from fusion.facts.symbols.symbolic import Source, Symbolic
from ir_ops.dtypes import Array


def values_near(
    symbolic: Symbolic, source: Source, outs: Sequence[ir.Value], others: Sequence[ir.Value] = ()
) -> Iterator[tuple[ir.Value, Array]]:
    """Such values nearest to the results ``outs`` first, the source last; each with its elements' positions in it.

    A value counts only where the results need the source through it alone.

    Args:
        symbolic: a reading in which the source is one.
        others: values that end the way back, too.
    """
    stops = {id(source.value), *(id(other) for other in others)}
    moved = {id(source.value): source.value}
    for node in sorted(closure(outs, stops), key=symbolic.view.order):
        moved |= {id(value): value for value in _moved_on(symbolic.view, node, moved)}
    for value in reversed(moved.values()):
        if value is not source.value and _passes_by(value, source.value, outs, stops):
            continue
        sym = symbolic.read(value, 0)
        if sym.atom.shape[:2] == (1, 1) and (sym.coef == 1).all():
            yield value, sym.atom[0, 0] - source.base


def _passes_by(value: ir.Value, source: ir.Value, outs: Sequence[ir.Value], stops: set[int]) -> bool:
    """Whether the results need the source not only through ``value``."""
    inner = closure(outs, {id(value), *stops})
    return any(item is source for node in inner for item in node.inputs if node.op_type not in ("Shape", "Size"))


def _moved_on(view: GraphView, node: ir.Node, moved: dict[int, ir.Value]) -> list[ir.Value]:
    """The results of a node that only moves elements of values in ``moved``."""
    if node.domain not in ("", "ai.onnx"):
        return []
    if node.op_type == "Cast":
        is_float = "float" in dtype_name(node.outputs[0])
        return [node.outputs[0]] if id(node.inputs[0]) in moved and is_float else []
    definition = lookup(node.domain, node.op_type)
    if definition is None or definition.moves is None:
        return []
    places = range(len(node.inputs)) if definition.moves == (-1,) else definition.moves
    operands = [node.inputs[place] for place in places if place < len(node.inputs)]
    return list(node.outputs) if operands and all(id(item) in moved for item in operands) else []
