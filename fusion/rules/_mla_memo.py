"""Readings of one layer that hold for all layers of the same structure.

A reading depends on the operators between some values and the up-projection, on their shapes and constants, and on
nothing else. Layers are alike in that, so the first one is read and the others are only compared.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence
from typing import TypeVar

import onnx_ir as ir

from fusion.facts.graph import GraphView, dtype_name
from fusion.facts.trial.probe import Probe
from fusion.rules._mla_product import MOST

Result = TypeVar("Result")


class Structure:
    """What is between ``values`` and ``stops`` under a probe.

    Attributes:
        key: equal for equal structures.
        leaves: the values it begins at, in the order in which they are met.
    """

    def __init__(self, view: GraphView, probe: Probe, values: Sequence[ir.Value], *stops: ir.Value) -> None:
        self._view, self._probe = view, probe
        self._stops = {id(stop): place for place, stop in enumerate(stops)}
        self._numbers: dict[int, int] = {}
        self._parts: list[Hashable] = []
        self.leaves: list[ir.Value] = []
        pending = list(values)
        while pending and len(self._numbers) < 4 * MOST:
            pending += self._visit(pending.pop())
        whole = not pending
        ends = tuple(self._numbers.get(id(value)) for value in values)
        self.key: Hashable = (probe.seed, ends, tuple(self._parts)) if whole else None

    def _visit(self, value: ir.Value) -> list[ir.Value]:
        if id(value) in self._numbers:
            return []
        self._numbers[id(value)] = len(self._numbers)
        node = value.producer()
        known = self._probe.known(value)
        stop = self._stops.get(id(value))
        if stop is None and known.array is not None and not known.taint:
            self._parts.append((known.array.dtype.str, known.array.shape, known.array.tobytes()))
            return []
        if stop is not None or node is None or self._view.is_constant(value) or known.shape is None:
            self._parts.append((len(self.leaves), stop, dtype_name(value), known.shape))
            self.leaves.append(value)
            return []
        operands = [item for item in node.inputs if item is not None]
        attrs = tuple(sorted((name, str(item)) for name, item in self._view.attrs(node).items()))
        places = tuple(None if item is None else self._numbers.get(id(item), -1) for item in node.inputs)
        self._parts.append((node.domain, node.op_type, attrs, value.index(), dtype_name(value), known.shape, places))
        return operands[::-1]


def shared(
    view: GraphView,
    what: Hashable,
    structure: Structure,
    read: Callable[[], Result],
    moved: Callable[[Result, Sequence[ir.Value], Sequence[ir.Value]], Result | None],
) -> Result:
    """The result of ``read``, or that of an equal structure.

    Args:
        what: names the reading and its further arguments.
        moved: makes the result of one structure that of another from the leaves of both; None where it cannot.
    """
    if structure.key is None:
        return read()
    key = ("mla", what, structure.key)
    if key in view.kept:
        result, leaves = view.kept[key]
        found = moved(result, leaves, structure.leaves)
        if found is not None:
            return found
    made = read()
    view.kept[key] = made, structure.leaves
    return made
