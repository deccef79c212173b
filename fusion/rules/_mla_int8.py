"""The up-projection of MlaPrologV3 in int8: normed rows quantised by their largest value, times an int8 weight."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import onnx_ir as ir

from fusion.candidate import Refused
from fusion.facts.graph import GraphView, dtype_name
from fusion.facts.quantised.dynamic_quant import DynamicFact, find_dynamic
from fusion.rules._mla_product import Moved, Product, source_of

_KEY = "rows quantised by their largest value"


def int8_products(view: GraphView, moved: list[Moved]) -> Iterator[tuple[Product, Moved]]:
    """Products ``round(x / s) @ weight * s * scale`` of moved rows x, ``s = max|x| / 127`` of each."""
    for fact in _dynamic(view):
        item = next((item for item in moved if view.number(item.value) == view.number(fact.x)), None)
        if item is None:
            continue
        for node, place in view.following(fact.y):
            if node.op_type == "MatMulInteger" and place == 0 and _is_plain(view, node):
                made = _scaled(view, node, fact, item.value)
                if made is not None:
                    _refuse_narrow(fact)
                    yield made, item


def _refuse_narrow(fact: DynamicFact) -> None:
    """Refuses rows that are rounded to 16 bits first: the operator rounds none, and integers would differ by a step.

    Raises:
        Refused: they are.
    """
    value: ir.Value | None = fact.largest.inputs[0]
    kinds = {dtype_name(fact.x)}
    while value is not None and value is not fact.x:
        kinds.add(dtype_name(value))
        node = value.producer()
        value = None if node is None else node.inputs[0]
    if kinds != {"float32"}:
        raise Refused(
            "mla-quant-products", "normed rows are quantised as they are",
            f"{' and '.join(sorted(kinds - {'float32'}))} rows of {fact.x.name}", "float32 from the norm on", "",
            fact.y,
        )  # fmt: skip


def _dynamic(view: GraphView) -> list[DynamicFact]:
    if _KEY not in view.kept:
        view.kept[_KEY] = [fact for fact in find_dynamic(view) if isinstance(fact, DynamicFact)]
    found: list[DynamicFact] = view.kept[_KEY]
    return found


def _is_plain(view: GraphView, node: ir.Node) -> bool:
    """Whether both operands are without zero points, the second a constant."""
    points = [view.constant(item) for item in node.inputs[2:] if item is not None]
    weight = node.inputs[1]
    return (
        weight is not None
        and view.is_constant(view.root(weight))
        and all(point is not None and not np.any(point) for point in points)
    )


def _scaled(view: GraphView, node: ir.Node, fact: DynamicFact, x: ir.Value) -> Product | None:
    """The product once both scales are multiplied to the sums, in any order; None where something else is done."""
    rows = {id(source_of(view, item)) for item in fact.scales}
    weight, value = node.inputs[1], node.outputs[0]
    assert weight is not None
    scale: ir.Value | None = None
    by_row = False
    for _ in range(8):
        only = view.only_reader(value)
        if only is None or only[0].op_type not in ("Cast", "Mul") or value.is_graph_output():
            break
        reader, place = only
        if reader.op_type == "Mul":
            for other in _factors(view, reader.inputs[1 - place]):
                if id(source_of(view, other)) in rows and not by_row:
                    by_row = True
                elif view.is_constant(view.root(other)) and scale is None:
                    scale = other
                else:
                    return None
        value = reader.outputs[0]
        if by_row and scale is not None:
            return Product(value, x, weight, False, scale=scale)
    return None


def _factors(view: GraphView, value: ir.Value | None) -> list[ir.Value]:
    """A value, or the two that a Mul joined: both scales may be multiplied first."""
    node = None if value is None else source_of(view, value).producer()
    if node is not None and node.op_type == "Mul":
        sides = [item for item in node.inputs if item is not None]
        if sum(view.is_constant(view.root(item)) for item in sides) == 1:
            return sides
    return [] if value is None else [value]
