"""Whether two caches are written at the same slots, by one value or by equal computations."""

from __future__ import annotations

import onnx_ir as ir

from fusion.facts.cache_write import CacheWrite
from fusion.facts.graph import GraphView
from fusion.facts.probe import Probe
from fusion.facts.settle import settle


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
        if probe is None or _computation(view, probe, left) != _computation(view, probe, right):
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


def _computation(view: GraphView, probe: Probe, value: ir.Value) -> object:
    """How a value is computed, with everything that follows from shapes alone as its numbers."""
    value = view.root(value)
    known = probe.known(value)
    if known.array is not None and not known.taint:
        return known.array.dtype.str, known.array.shape, known.array.tobytes()
    node = value.producer()
    if node is None:
        return id(value)
    attrs = tuple(sorted((name, str(item)) for name, item in view.attrs(node).items()))
    operands = tuple(None if item is None else _computation(view, probe, item) for item in node.inputs)
    return node.op_type, attrs, operands, value.index()
