"""The address map of a write under one probe: which element of which update ends where in the cache.

The cache's elements are tagged 0, 1, 2, ... and the elements of everything written into it with numbers above; the
spine is run on the tags. The result *is* the address map.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
import onnx_ir as ir

from fusion.facts.conversions import converts, not_kept
from fusion.facts.graph import GraphView
from fusion.facts.semantics import Conflict, Unsupported, lookup
from fusion.facts.spine import Spine, data_operands
from fusion.facts.trial.probe import Probe
from fusion.facts.trial.settle import settle
from ir_ops.dtypes import Array

MOST = 1 << 25
"""Elements of the largest cache that is tagged: a quarter of a gigabyte an array."""


@dataclass(frozen=True)
class NotAWrite:
    """A graph output that is moved from a cache input but is not an in-place write, and why."""

    cache: ir.Value
    out: ir.Value
    reason: str
    detail: str


@dataclass
class WriteMap:
    """What the spine did to the tags.

    Attributes:
        tags: per element of the new cache, in its shape: its own flat position where nothing was written, else
            ``tags.size`` plus the flat position in the updates, these one after the other.
        updates: values whose elements are written, in tag order.
    """

    spine: Spine
    probe: Probe
    tags: Array
    updates: tuple[ir.Value, ...]


def run_tags(view: GraphView, spine: Spine, probe: Probe) -> WriteMap | NotAWrite:
    """Runs the spine on tags. A size conflict on the way ties symbols and starts over.

    Raises:
        Conflict: sizes disagree and nothing explains it.
        OutOfRange: the probe's slot numbers do not fit the cache.
        Unsupported: an index that depends on data the probe does not know.
    """
    while True:
        try:
            return _Tagging(view, spine, probe).run()
        except Conflict as conflict:
            sizes = probe.sizes.copy()
            tied = sizes.unify(conflict.left, conflict.right, conflict.divides, conflict.or_one)
            if conflict.place is None or not tied:
                raise
            probe = settle(view, probe.seed, probe.numbers, spine.targets, sizes)


class _Tagging:
    """One run: tags of the values seen so far, and the next unused tag."""

    def __init__(self, view: GraphView, spine: Spine, probe: Probe) -> None:
        shape = probe.shape(spine.cache)
        if shape is None:
            raise Unsupported("a cache of unknown rank")
        self._view, self._spine, self._probe, self._shape = view, spine, probe, shape
        self._next = math.prod(shape)
        if self._next > MOST:
            raise Unsupported(f"a cache of {list(shape)} has more than {MOST} elements, and no size that can be shrunk")
        self._tags: dict[int, Array] = {id(spine.cache): np.arange(self._next).reshape(shape)}
        self._updates: list[ir.Value] = []

    def run(self) -> WriteMap | NotAWrite:
        for node in self._spine.nodes:
            definition = lookup(node.domain, node.op_type)
            assert definition is not None
            if converts(node):
                assert node.inputs[0] is not None
                self._tags[id(node.outputs[0])] = self._data(node.inputs[0])
                continue
            operands = self._operands(node)
            try:
                results = definition.run(self._view.attrs(node), operands)
            except Conflict as conflict:
                conflict.place = node
                raise
            for value, result in zip(node.outputs, results, strict=False):
                self._tags[id(value)] = np.asarray(result)
        final = self._tags[id(self._spine.out)]
        refusal = _not_in_place(self._spine, final, self._shape)
        changed = not_kept(self._view, self._spine.cache, self._spine.out, self._spine.nodes)
        if refusal is None and changed:
            refusal = NotAWrite(self._spine.cache, self._spine.out, "cache-converted", changed)
        return refusal or WriteMap(self._spine, self._probe, *self._used(final))

    def _used(self, final: Array) -> tuple[Array, tuple[ir.Value, ...]]:
        """Tags and updates without what never reaches this cache: a node may write others too."""
        start, shift, kept = final.size, 0, []
        result = final
        for value in self._updates:
            size = self._tags[id(value)].size
            inside = (final >= start) & (final < start + size)
            if inside.any() or not size:
                result = np.where(inside, final - shift, result) if shift else result
                kept.append(value)
            else:
                shift += size
            start += size
        return result, tuple(kept)

    def _operands(self, node: ir.Node) -> list[Array | None]:
        data = {id(item) for item in data_operands(node)}
        return [
            None if item is None else self._data(item) if id(item) in data else self._index(item)
            for item in node.inputs
        ]

    def _data(self, value: ir.Value) -> Array:
        """The tags of a value; one that is not moved from the cache is an update and gets new ones."""
        tags = self._tags.get(id(value))
        if tags is None:
            shape = self._probe.shape(value)
            if shape is None:
                raise Unsupported(f"the shape of {value.name} is not known")
            size = math.prod(shape)
            tags = self._tags[id(value)] = self._next + np.arange(size).reshape(shape)
            self._updates.append(value)
            self._next += size
        return tags

    def _index(self, value: ir.Value) -> Array:
        known = self._probe.known(value)
        if known.array is None:
            raise Unsupported(f"the index {value.name} cannot be computed ({known.why or 'data'})")
        return known.array


def _not_in_place(spine: Spine, final: Array, shape: tuple[int, ...]) -> NotAWrite | None:
    """Why the tags are not those of a cache with some elements overwritten."""
    if final.shape != shape:
        longer = [axis for axis, (a, b) in enumerate(zip(shape, final.shape, strict=False)) if b > a]
        if len(final.shape) == len(shape) and len(longer) == 1:
            return NotAWrite(spine.cache, spine.out, "cache-grows", f"Concat growth along axis {longer[0]}")
        detail = f"shape {list(final.shape)} from {list(shape)}"
        return NotAWrite(spine.cache, spine.out, "cache-reshaped", detail)
    flat = final.reshape(-1)
    kept = flat < flat.size
    if ((flat != np.arange(flat.size)) & kept).any():
        detail = "elements that are not written change their place"
        return NotAWrite(spine.cache, spine.out, "cache-moved", detail)
    if kept.all():
        return NotAWrite(spine.cache, spine.out, "cache-unwritten", "nothing is written")
    return None
