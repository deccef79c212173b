"""The nodes a fusion stands for, and whether anything else looks into them."""

from __future__ import annotations

import onnx_ir as ir

from fusion.candidate import Refused
from fusion.facts.closure import closure as closure
from fusion.facts.graph import GraphView, content_readers, dtype_name
from fusion.facts.semantics import lookup


def is_data(value: ir.Value) -> bool:
    """A float or 8-bit value; integers of 32 and 64 bits are structure."""
    name = dtype_name(value)
    return name in ("int8", "uint8") or "float" in name or not name


def moved_from(node: ir.Node, origins: dict[int, int]) -> int | None:
    """The origin whose elements alone a node moves on; None when it computes, or mixes with other values."""
    definition = lookup(node.domain, node.op_type)
    if definition is None or node.domain not in ("", "ai.onnx"):
        return None
    if node.op_type == "Cast":
        moved = [item for item in node.inputs[:1] if item is not None]
        if "float" not in dtype_name(node.outputs[0]):
            return None
    elif definition.moves is None:
        return None
    else:
        places = range(len(node.inputs)) if definition.moves == (-1,) else definition.moves
        moved = [item for place in places if place < len(node.inputs) and (item := node.inputs[place]) is not None]
    found = {origins.get(id(item)) for item in moved}
    if not moved or None in found:
        return None
    # views of several sources together still compute nothing; of a delivered value they have to be its own
    return found.pop() if len(found) == 1 else None


SOURCE = -1
"""The origin of views of the region's sources."""


def delivered_outside(
    view: GraphView, region: list[ir.Node], sources: set[int], delivered: list[ir.Value], replaced: set[int]
) -> set[int]:
    """Ids of the delivered values that are read outside the region, themselves or through a view.

    Raises:
        Refused: a value inside the region that is not delivered is read outside it or is a graph output.
    """
    inside = {id(node) for node in region}
    origins = dict.fromkeys(sources, SOURCE) | {id(value): number for number, value in enumerate(delivered)}
    needed: set[int] = set()
    for node in sorted(region, key=view.order):
        origin = moved_from(node, origins)
        for value in node.outputs:
            if origin is not None:
                origins.setdefault(id(value), origin)
            own = origins.get(id(value))
            if own == SOURCE or id(value) in replaced or not is_data(value):
                continue
            reader = _outside_reader(view, value, inside)
            if reader and own is None:
                raise Refused(
                    "inner-value-read",
                    "values inside the match are not read outside it",
                    f"{value.name} is {reader}",
                    "only values that the operator delivers",
                    "compute the value a second time for that reader",
                    value,
                )
            if reader and own is not None:
                needed.add(id(delivered[own]))
    return needed


def _outside_reader(view: GraphView, value: ir.Value, inside: set[int]) -> str:
    if id(value) in view.outputs:
        return "a graph output"
    for reader in content_readers(value, inside):
        return f"read by {reader.op_type} {reader.name or reader.outputs[0].name}"
    return ""
