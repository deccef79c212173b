"""Rotated heads that are not written to a cache: the queries of an attention.

The search starts at a norm's result and goes forward through movement, products and sums until a value that has all
its elements reads as their rotation (:mod:`fusion.facts.rotary.rotation`). Which axis of that value counts heads is
tried out; whoever joins rows demands token order anyway.
"""

from __future__ import annotations

import heapq
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

import numpy as np
import onnx_ir as ir

from fusion.facts.graph import GraphView
from fusion.facts.norms.norm import NormFact
from fusion.facts.rotary.rotation import NotARotation, Rotation, read_rotation
from fusion.facts.semantics import Conflict, lookup
from fusion.facts.symbols.outline import outline
from fusion.facts.symbols.parameters import Part, Reason, single
from fusion.facts.symbols.symbolic import Symbolic
from fusion.facts.symbols.terms import Sym, Unreadable
from fusion.facts.trial.probe import Probe
from ir_ops.dtypes import Array

BUDGET = 2
"""Nested arithmetic operations of a rotation: one sum over one product."""
LONGEST = 120
"""Values behind a norm that are looked at."""
_ARITHMETIC = ("Mul", "Add", "Sub", "Sum", "Neg", "Div", "Cast", "RotaryEmbedding")


@dataclass(frozen=True)
class HeadAxis:
    """How a value holds heads of ``width`` columns.

    Attributes:
        joined: heads and columns share the last axis.
        axis: the axis of heads once they are apart, counted from the end; -2 where heads follow tokens.
    """

    joined: bool
    axis: int

    def positions(self, shape: Sequence[int], width: int) -> Array:
        """Flat positions ``[T, N, width]`` in a value of that shape."""
        apart = (*shape[:-1], shape[-1] // width, width) if self.joined else tuple(shape)
        flat = np.moveaxis(np.arange(math.prod(shape)).reshape(apart), self.axis, -2)
        return flat.reshape(-1, *flat.shape[-2:])


@dataclass
class Heads:
    """Rotated heads of a norm's result.

    Attributes:
        norm: the norm.
        value: the earliest value that holds all of them rotated.
        layout: where its heads are.
        probes: the trial sizes.
        rotations: per trial size, the rotation of ``[T, N, D]`` rows.
    """

    norm: NormFact
    value: ir.Value
    layout: HeadAxis
    probes: list[Probe]
    rotations: list[Rotation]

    @property
    def rows(self) -> list[Part]:
        """Elements of the norm's result, pairs of the rotation adjacent."""
        return [Part(rotation.source, rotation.position) for rotation in self.rotations]


def head_axes(shape: Sequence[int], width: int, tokens: int) -> Iterator[HeadAxis]:
    """The ways in which a value may hold heads for ``tokens`` tokens, the likeliest first."""
    if not shape or math.prod(shape) % (tokens * width):
        return
    heads = math.prod(shape) // (tokens * width)
    if shape[-1] == width:
        for axis in range(-2, -len(shape) - 1, -1):
            if shape[axis] == heads:
                yield HeadAxis(False, axis)
    if shape[-1] == heads * width:
        yield HeadAxis(True, -2)


def read_heads(
    view: GraphView, norm: NormFact, probes: Sequence[Probe], width: int, tokens: list[int]
) -> list[Heads] | Reason:
    """The rotation of a norm's result, in every layout that its sizes allow.

    Args:
        probes: settled for all that lies behind the norm, see :func:`values_behind`.
        width: columns of a head.
        tokens: how many tokens there are, per trial size.

    Returns:
        The heads, or why what follows the norm is no rotation.
    """
    fact = f"the heads of {norm.y.name} are rotated"
    reason = Reason("row-form", fact, "no rotation behind them", "a rotation", norm.y)
    whole = math.prod(probes[0].shape(norm.y) or (0,))
    for value in values_behind(view, norm.y):
        shape = probes[0].shape(value)
        if shape is None or math.prod(shape) != whole:
            continue
        found = _heads_at(view, norm, probes, width, tokens, value)
        if isinstance(found, list):
            return found
        # "no such form" says less than what a rotation was refused for
        if found is not None and found.code != "row-form":
            reason = Reason(found.code, f"{fact}: {found.fact}", found.found, found.wanted, value)
    return reason


def _heads_at(
    view: GraphView, norm: NormFact, probes: Sequence[Probe], width: int, tokens: list[int], value: ir.Value
) -> list[Heads] | NotARotation | None:
    """The heads that a value holds; those of a layer with the structure of an earlier one are not read again."""
    try:
        outlines = [outline(view, probe, value, BUDGET, {id(norm.y)}) for probe in probes]
    except Conflict:
        return None
    values = outlines[0][1]
    key = ("heads", width, *tokens, *((id(probe), text) for probe, (text, _) in zip(probes, outlines, strict=True)))
    if key not in view.kept:
        view.kept[key] = _read_heads_at(view, norm, probes, width, tokens, value), values, probes
    like, its_values, _ = view.kept[key]
    if not isinstance(like, list):
        return like  # type: ignore[no-any-return]
    own = {id(its): mine for its, mine in zip(its_values, values, strict=True)}
    try:
        turned = [[_moved_to(rotation, own) for rotation in heads.rotations] for heads in like]
    except KeyError:  # it was read further than the outline goes
        return _read_heads_at(view, norm, probes, width, tokens, value)
    return [
        Heads(norm, value, heads.layout, list(probes), rotations) for heads, rotations in zip(like, turned, strict=True)
    ]


def _moved_to(rotation: Rotation, own: dict[int, ir.Value]) -> Rotation:
    """A rotation with other values in place of those it was read of."""
    x, cos, sin = (
        replace(source, value=own[id(source.value)])
        for source in (rotation.source, rotation.cos_source, rotation.sin_source)
    )
    return replace(rotation, source=x, cos_source=cos, sin_source=sin)


def _read_heads_at(
    view: GraphView, norm: NormFact, probes: Sequence[Probe], width: int, tokens: list[int], value: ir.Value
) -> list[Heads] | NotARotation | None:
    """Reads what a value holds, in every layout that its sizes allow; None where nothing is rotated."""
    readers = [Symbolic(view, probe, {id(norm.y)}) for probe in probes]
    try:
        sym = readers[0].read(value, BUDGET)
    except (Unreadable, Conflict):
        return None
    if (sym.coef != 0).sum(axis=0).max(initial=0) < 2:
        return None
    heads: list[Heads] = []
    reason: NotARotation | None = None
    for layout in head_axes(probes[0].shape(value) or (), width, tokens[0]):
        found = _rotations(readers, sym, value, layout, width, tokens)
        if isinstance(found, NotARotation):
            reason = found if reason is None or found.code != "row-form" else reason
        elif found is not None and all(rotation.source.value is norm.y for rotation in found):
            heads.append(Heads(norm, value, layout, list(probes), found))
    return heads or reason


def _rotations(
    readers: list[Symbolic], first: Sym, value: ir.Value, layout: HeadAxis, width: int, tokens: list[int]
) -> list[Rotation] | NotARotation | None:
    """The rotation under every trial size; None where a size does not allow the layout."""
    rotations = []
    for number, (symbolic, count) in enumerate(zip(readers, tokens, strict=True)):
        shape = symbolic.probe.shape(value) or ()
        if layout not in head_axes(shape, width, count):
            return None
        try:
            sym = first if number == 0 else symbolic.read(value, BUDGET)
        except (Unreadable, Conflict):
            return None
        found = read_rotation(symbolic, sym.take(layout.positions(shape, width)))
        if isinstance(found, NotARotation):
            return found
        rotations.append(found)
    return rotations


def values_behind(view: GraphView, value: ir.Value) -> Iterator[ir.Value]:
    """Values that are computed from one by movement, products and sums, in graph order."""
    queue: list[tuple[int, int, ir.Node]] = []
    seen: set[int] = set()

    def readers(item: ir.Value) -> None:
        for node, _ in view.following(item):
            known = lookup(node.domain, node.op_type)
            moves = known is not None and known.moves is not None
            if id(node) not in seen and (moves or node.op_type in _ARITHMETIC):
                seen.add(id(node))
                heapq.heappush(queue, (view.order(node), id(node), node))

    readers(value)
    for _ in range(LONGEST):
        if not queue:
            return
        _, _, node = heapq.heappop(queue)
        for output in node.outputs:
            yield output
            readers(output)


def moved_on(
    view: GraphView, value: ir.Value, probes: Sequence[Probe], positions: list[Array]
) -> Iterator[tuple[ir.Value, list[Array]]]:
    """The value and whatever holds all of its elements by movement alone, with the positions of the rows in each."""
    yield value, positions
    whole = math.prod(probes[0].shape(value) or (0,))
    for item in values_behind(view, value):
        shape = probes[0].shape(item)
        if shape is None or math.prod(shape) != whole:
            continue
        found = []
        for probe, own in zip(probes, positions, strict=True):
            symbolic = Symbolic(view, probe, {id(value)})
            try:
                part = single(symbolic, symbolic.read(item, 0))
            except (Unreadable, Conflict):
                break
            if part is None or part.value is not value:
                break
            inverse = np.empty(part.position.size, np.int64)
            inverse[part.position.reshape(-1)] = np.arange(part.position.size)
            found.append(inverse[own])
        if len(found) == len(positions):
            yield item, found
