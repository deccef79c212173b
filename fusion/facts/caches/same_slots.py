"""Whether two caches are written at the same slots, by one value or by equal computations."""

from __future__ import annotations

from collections.abc import Hashable

import onnx_ir as ir

from fusion.facts.caches.cache_write import CacheWrite
from fusion.facts.graph import GraphView
from fusion.facts.numbering import COMMUTATIVE
from fusion.facts.trial.probe import Probe
from fusion.facts.trial.settle import settle
from ir_ops.dtypes import Array


def same_slots(view: GraphView, a: CacheWrite, b: CacheWrite) -> bool:
    """Whether two writes have one slot mapping: the same layout and the same numbers."""
    alike = (a.slots.form, a.slots.shared, a.slots.start) == (b.slots.form, b.slots.shared, b.slots.start)
    return alike and a.order == b.order and _same_numbers(view, a, b)


def _same_numbers(view: GraphView, a: CacheWrite, b: CacheWrite) -> bool:
    """One value, or equal computations on equal shapes.

    Exporters compute ``start + Range(0, tokens)`` once for each cache, from shapes of different values.
    """
    left, right = a.slots.value, b.slots.value
    if view.number(left) == view.number(right):
        return True
    for written in a.probes:
        probe = _with_equal_shapes(view, written.probe, left, right)
        if probe is None:
            return False
        computations = _Computations(view, probe)
        if computations.number(left) != computations.number(right):
            return False
    return True


def _with_equal_shapes(view: GraphView, probe: Probe, left: ir.Value, right: ir.Value) -> Probe | None:
    """A probe under which both values have one shape, None when sizes forbid it."""
    sizes = probe.sizes
    while True:
        probe = settle(view, probe.seed, probe.numbers, [left, right], sizes)
        a, b = probe.shape(left), probe.shape(right)
        if a is None or b is None or len(a) != len(b):
            return None
        unequal = next((pair for pair in zip(a, b, strict=True) if pair[0] != pair[1]), None)
        if unequal is None:
            return probe
        sizes = probe.sizes.copy()
        if not sizes.unify(*unequal):
            return None


class _Computations:
    """Numbers that are equal for equal computations, where all that follows from shapes alone counts as its content."""

    def __init__(self, view: GraphView, probe: Probe) -> None:
        self._view, self._probe = view, probe
        self._numbers: dict[int, int] = {}
        self._number_of: dict[Hashable, int] = {}

    def number(self, value: ir.Value) -> int:
        stack = [self._view.root(value)]
        while stack:
            top = stack[-1]
            missing = [root for root in self._operands(top) if id(root) not in self._numbers]
            if missing and id(top) not in self._numbers:
                stack.extend(missing)
                continue
            stack.pop()
            if id(top) not in self._numbers:
                self._numbers[id(top)] = self._number_of.setdefault(self._key(top), len(self._number_of))
        return self._numbers[id(self._view.root(value))]

    def _content(self, value: ir.Value) -> Array | None:
        known = self._probe.known(value)
        return None if known.taint else known.array

    def _operands(self, value: ir.Value) -> list[ir.Value]:
        node = value.producer()
        if node is None or self._content(value) is not None:
            return []
        return [self._view.root(item) for item in node.inputs if item is not None]

    def _key(self, value: ir.Value) -> Hashable:
        content, node = self._content(value), value.producer()
        if content is not None:
            return content.dtype.str, content.shape, content.tobytes()
        if node is None:
            return id(value)
        attrs = tuple(sorted((name, str(item)) for name, item in self._view.attrs(node).items()))
        operands = tuple(None if item is None else self._numbers[id(self._view.root(item))] for item in node.inputs)
        if node.op_type in COMMUTATIVE and node.domain in ("", "ai.onnx"):
            operands = tuple(sorted(operands, key=lambda item: -1 if item is None else item))
        return node.domain, node.op_type, attrs, operands, value.index()
