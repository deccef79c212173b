"""All rotations of a graph, wherever they stand, and what keeps near misses from being one.

Handled: whatever operators move halves or pairs, with tables given, computed, gathered or scaled; operators that are a
rotation by themselves are read by :mod:`fusion.facts.rotary.rotary_ops`. A site is read once per structure.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass, replace

import numpy as np
import onnx_ir as ir

from fusion.facts.graph import GraphView, dtype_name
from fusion.facts.rotary.rotary_ops import is_rotary, read_rotary
from fusion.facts.rotary.turned import BUDGET, Turned, read_turned
from fusion.facts.semantics import lookup
from fusion.facts.symbols.outline import outline
from fusion.facts.symbols.parameters import Reason
from fusion.facts.trial.probe import Probe
from fusion.facts.trial.trials import Trials

_AHEAD = 6
"""How many movements may put a rotated row together behind its sums."""
_QUIET = ("row-form", "rope-scaled")
"""Reasons that sums of products have which nobody would take for a rotation."""


@dataclass
class Rotated:
    """A rotation that two trial sizes agree on.

    Attributes:
        probes: these sizes.
        fresh: a further one for the proof; None where a site of this structure has been read before.
    """

    turned: Turned
    probes: list[Probe]
    fresh: Probe | None


class Rotations:
    """Finds them once, on demand."""

    def __init__(self, view: GraphView, trials: Trials) -> None:
        self._view, self._trials = view, trials
        self._found: list[Rotated] | None = None
        self._reasons: list[Reason] = []
        self._known: dict[str, tuple[Turned | Reason, list[ir.Value]]] = {}

    def found(self) -> list[Rotated]:
        """All rotations in graph order."""
        if self._found is None:
            self._found = self._search()
        return self._found

    def reasons(self) -> list[Reason]:
        """Near misses, each at the value that is no rotation."""
        self.found()
        return self._reasons

    def _search(self) -> list[Rotated]:
        found: dict[int, Rotated] = {}
        done: set[int] = set()
        for node in self._view.graph:
            if is_rotary(node):
                self._enter(found, done, self._read_operator(node))
                continue
            if id(node.outputs[0] if node.outputs else node) in done or not _is_sum_of_products(self._view, node):
                continue
            self._enter(found, done, self._read_at(node.outputs[0]))
        self._reasons = [reason for reason in self._reasons if id(reason.value) not in done]
        return list(found.values())

    def _enter(self, found: dict[int, Rotated], done: set[int], read: Rotated | Reason | None) -> None:
        if isinstance(read, Rotated):
            found[id(read.turned.out)] = read
            done |= {id(item) for entry in read.turned.region for item in entry.outputs}
        elif read is not None and read.code not in _QUIET:
            self._reasons.append(read)

    def _read_operator(self, node: ir.Node) -> Rotated | Reason | None:
        targets = [item for item in (*node.inputs, *node.outputs) if item is not None]
        probes = self._trials.probes(targets)
        if not probes:
            return None
        views = [read_rotary(self._view, probe, node) for probe in probes]
        one, other = views
        if isinstance(one, Reason) or isinstance(other, Reason):
            return one if isinstance(one, Reason) else other if isinstance(other, Reason) else None
        if not one.alike(other):
            return None
        fresh = self._trials.fresh(targets)
        return Rotated(one, [_looked_up(one, probe) for probe in probes], fresh and _looked_up(one, fresh))

    def _read_at(self, anchor: ir.Value) -> Rotated | Reason | None:
        """The first whole rotation at or behind a sum of products, else the first partial one, else a reason."""
        partial: Rotated | None = None
        reason: Reason | None = None
        for value in _ahead(self._view, anchor):
            read = self._read(value)
            if isinstance(read, Reason):
                if reason is None or read.code not in _QUIET:
                    reason = read
                continue
            if read is not None and read.turned.width == _width(read) > 2:
                return read
            partial = partial or read
        return partial or reason

    def _read(self, out: ir.Value) -> Rotated | Reason | None:
        probes = self._trials.probes([out])
        if not probes:
            return None
        views: list[Turned] = []
        is_new = False
        for probe in probes:
            key, values = outline(self._view, probe, out, BUDGET)
            if key not in self._known:
                is_new = True
                self._known[key] = (read_turned(self._view, probe, out), values)
            read, own = self._known[key]
            again = _rebound(read, own, values, out)
            if again is None:
                again = read_turned(self._view, probe, out)
            if isinstance(again, Reason):
                return again
            views.append(again)
        if not views[0].alike(views[1]):
            return Reason("rope-sizes", "rotation", "another rotation at another size", "one rotation", out)
        return Rotated(views[0], probes, self._trials.fresh([out]) if is_new else None)


def _looked_up(turned: Turned, probe: Probe) -> Probe:
    """The probe with positions that are rows of the tables."""
    value, positions = turned.cos.value, turned.cos.positions
    if positions is None:
        return probe
    shape, rows = probe.shape(positions) or (), (probe.shape(value) or (1,))[0]
    given = probe.array(positions)
    numbers = np.arange(math.prod(shape)).reshape(shape) if given is None else np.abs(given)
    return probe.with_data(positions, (numbers % rows).astype(np.int64))


def _width(read: Rotated) -> int:
    return (read.probes[0].shape(read.turned.out) or (0,))[-1]


def _rebound(
    read: Turned | Reason, own: list[ir.Value], values: list[ir.Value], out: ir.Value
) -> Turned | Reason | None:
    """What was read of one site, told of another of the same structure; None where that cannot be done."""
    if isinstance(read, Reason):
        return replace(read, value=out)
    if read.out is out:
        return read
    place = {id(value): number for number, value in enumerate(own)}

    def told(one: Turned) -> Turned:
        x, cos, sin = (values[place[id(item)]] for item in (one.x, one.cos.value, one.sin.value))
        nearer = None if one.nearer is None else told(one.nearer)
        return replace(
            one, out=out, x=x, cos=replace(one.cos, value=cos), sin=replace(one.sin, value=sin), nearer=nearer
        )

    try:
        return told(read)
    except KeyError:
        return None


def _is_sum_of_products(view: GraphView, node: ir.Node) -> bool:
    if node.op_type not in ("Add", "Sub", "Sum") or node.domain not in ("", "ai.onnx") or len(node.inputs) != 2:
        return False
    return all(_is_product(view, item) for item in node.inputs)


def _is_product(view: GraphView, value: ir.Value | None) -> bool:
    """A product of two values that are no numbers, seen through signs and casts."""
    for _ in range(4):
        node = value.producer() if value is not None else None
        if node is None:
            return False
        if node.op_type == "Mul":
            if all(item is not None and view.scalar(item) is None for item in node.inputs):
                return True
            # a factor of -1 is a sign
            value = next((item for item in node.inputs if item is not None and view.scalar(item) is None), None)
        elif node.op_type in ("Neg", "Cast", "Identity"):
            value = node.inputs[0]
        else:
            return False
    return False


def _ahead(view: GraphView, value: ir.Value) -> Iterator[ir.Value]:
    """The value, and what movement makes of it, nearest first."""
    yield value
    seen, level = {id(value)}, [value]
    for _ in range(_AHEAD):
        following = []
        for item in level:
            for node, place in view.following(item):
                if not _moves(node, place):
                    continue
                for output in node.outputs:
                    if id(output) not in seen:
                        seen.add(id(output))
                        following.append(output)
        yield from following
        level = following


def _moves(node: ir.Node, place: int) -> bool:
    if node.domain not in ("", "ai.onnx"):
        return False
    if node.op_type == "Cast":
        return "float" in dtype_name(node.outputs[0])
    definition = lookup(node.domain, node.op_type)
    if definition is None or definition.moves is None or node.op_type in ("Expand", "Tile", "Split"):
        return False
    return definition.moves == (-1,) or place in definition.moves
