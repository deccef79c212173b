"""Dims that operators want told: from which value they are taken, and rows that a graph may leave to broadcasting.

Whether a dim may be 1 is tried: where the names of dims do not say that two sizes are equal, and only an elementwise
operator makes them so, the graph runs with a size of 1 too.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import onnx_ir as ir

from fusion.emit import Emitter
from fusion.facts.trial.probe import Probe
from fusion.facts.trial.trials import shape_under
from fusion.rules import _cache_op as common


def dim_like(
    emit: Emitter, probes: Sequence[Probe], sizes: list[int], candidates: Sequence[ir.Value], part: str,
    ones: Sequence[Probe] = (),
) -> int | ir.Value | None:  # fmt: skip
    """A dim that has ``sizes`` under the probes: a number, or taken from one of ``candidates``; None without any.

    Args:
        ones: trial sizes of 1 for dims that could be broadcast; one that could not is preferred.
    """
    places = list(places_of(probes, sizes, candidates))
    if not places:
        return sizes[0] if len(set(sizes)) == 1 else None
    certain = (
        place for place in places if all((shape_under(one, place[0]) or ())[place[1] :][:1] != (1,) for one in ones)
    )
    candidate, axis = next(certain, places[0])
    static = common.static_dims(candidate)
    known = static[axis] if axis < len(static) else None
    return known if known is not None else emit.dim(candidate, axis, part)


def places_of(
    probes: Sequence[Probe], sizes: list[int], candidates: Sequence[ir.Value]
) -> Iterator[tuple[ir.Value, int]]:
    """Values and their axes that have ``sizes`` under the probes."""
    for candidate in candidates:
        shapes = [probe.shape(candidate) or () for probe in probes]
        for axis in range(min(map(len, shapes))):
            if [shape[axis] for shape in shapes] == sizes:
                yield candidate, axis


def all_rows(
    emit: Emitter, probes: Sequence[Probe], ones: Sequence[Probe], table: ir.Value, rows: ir.Value,
    leading: int, candidates: Sequence[ir.Value], part: str,
) -> ir.Value:  # fmt: skip
    """cos or sin with a row wherever the operator wants one.

    Args:
        ones: see :func:`fusion.facts.trial.trials.with_ones`.
        table: the value in the graph.
        rows: the same in the operator's type and columns.
        leading: how many axes both have in front of the columns.
        candidates: values that have the operator's dims: the first that does decides; graph inputs where none does.
    """
    shapes = [probe.shape(table) or () for probe in probes]
    dims: list[int | ir.Value] = [1] * (leading + 1)
    for axis in range(leading) if ones else ():
        sizes = [shape[axis] for shape in shapes]
        first = next(places_of(probes, sizes, candidates), None)
        places = places_of(probes, sizes, probes[0].view.graph.inputs) if first is None else [first]
        place = next((place for place in places if _is_wider(ones, place, (table, axis))), None)
        if place is not None:
            dims[axis] = emit.dim(*place, part=part)
    if not any(isinstance(dim, ir.Value) for dim in dims):
        return rows
    return emit.node("Expand", [rows, emit.shape_vector(dims, part + "_all_shape")], part + "_all")


def _is_wider(ones: Sequence[Probe], dim: tuple[ir.Value, int], other: tuple[ir.Value, int]) -> bool:
    """Whether a dim is what another is broadcast to: more where that is 1, and equal where it is not."""
    told = [[shape_under(one, value) for value, _ in (dim, other)] for one in ones]
    sizes = [(shape[dim[1]], its[other[1]]) for shape, its in told if shape is not None and its is not None]
    return all(own in (1, size) for size, own in sizes) and any(own == 1 != size for size, own in sizes)
