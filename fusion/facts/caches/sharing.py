"""Facts of one layer found again in the next: what has the same structure is read once and given other names.

A piece of a graph is walked from its end, values numbered as they come. Two pieces with one text differ in names and
weights only, so a fact about the first becomes one about the second when each of its values is exchanged for the value
of the same number.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Hashable, Iterator, Mapping
from typing import Any

import numpy as np
import onnx_ir as ir

from fusion.facts.caches.cache_write import CacheWrite, read_write
from fusion.facts.caches.rows import BUDGET, Row, read_row
from fusion.facts.caches.slots import Slots
from fusion.facts.caches.write_map import NotAWrite
from fusion.facts.graph import GraphView, dtype_name
from fusion.facts.norms.norm import NormFact
from fusion.facts.semantics import Conflict, lookup
from fusion.facts.spine import Spine, data_operands
from fusion.facts.symbols.parameters import Reason
from fusion.facts.symbols.symbolic import Symbolic
from fusion.facts.trial.probe import Probe
from fusion.facts.trial.settle import settle, start_sizes

SEEDS = (0, 1)
MARGIN = 4
"""How much more arithmetic than a row is opened by is part of its piece: rounding, clipping."""
_FREE = ("Cast", "Identity", "Neg", "Reciprocal")
_OPENED = (
    "Mul", "Div", "Add", "Sub", "Sum", "RotaryEmbedding", "Round", "Clip", "Min", "Max", "QuantizeLinear",
)  # fmt: skip
"""What reading a row looks through, besides movement; anything else is where the piece ends."""


class _Unlike(Exception):
    """A fact refers to a value outside the piece that was compared."""


# --- writes ----------------------------------------------------------------------------------------------------------


def read_writes(view: GraphView, spines: list[Spine]) -> list[CacheWrite | NotAWrite]:
    """What :func:`fusion.facts.caches.cache_write.read_write` gives for each spine."""
    known: dict[Hashable, tuple[CacheWrite | NotAWrite, list[ir.Value]]] = {}
    found: list[CacheWrite | NotAWrite] = []
    for spine in spines:
        key, updates = _written_alike(view, spine)
        like = known.get(key)
        result = None if like is None else _same_write(view, spine, updates, *like)
        if result is None:
            result = read_write(view, spine)
            known[key] = (result, updates)
        found.append(result)
    return found


def _written_alike(view: GraphView, spine: Spine) -> tuple[Hashable, list[ir.Value]]:
    """A key of the spine's operators, what they are told, and the trial sizes they start with; and its updates."""
    numbers = {id(spine.cache): 0}
    updates: dict[int, ir.Value] = {}
    parts: list[Hashable] = []
    for node in spine.nodes:
        moved = {id(item) for item in data_operands(node)}
        operands: list[Hashable] = []
        for item in node.inputs:
            if item is None:
                operands.append(None)
            elif id(item) in numbers:
                operands.append(numbers[id(item)])
            elif id(item) in moved:
                updates.setdefault(id(item), item)
                operands.append(("update", list(updates).index(id(item)), dtype_name(item)))
            else:
                operands.append(("told", view.number(item)))
        parts.append((node.domain, node.op_type, _attributes(view, node), tuple(operands)))
        for value in node.outputs:
            numbers[id(value)] = len(numbers)
    dims = tuple(dim if isinstance(dim, int) else None for dim in spine.cache.shape or ())
    starts = tuple(id(start_sizes(view, seed, spine.out)) for seed in SEEDS)
    return (dtype_name(spine.cache), dims, tuple(parts), numbers.get(id(spine.out)), starts), [*updates.values()]


def _same_write(
    view: GraphView, spine: Spine, operands: list[ir.Value], like: CacheWrite | NotAWrite, its_operands: list[ir.Value]
) -> CacheWrite | NotAWrite | None:
    """The fact about another spine with the same key, None when trial sizes tell them apart.

    A node that writes two caches has the other cache's rows among its operands: they are no updates of this one.
    """
    if isinstance(like, NotAWrite):
        # a longer output is longer at any size; other reasons may depend on it
        return NotAWrite(spine.cache, spine.out, like.reason, like.detail) if like.reason == "cache-grows" else None
    counterpart = {id(its): own for its, own in zip(its_operands, operands, strict=True)}
    updates = [counterpart[id(its)] for its in like.updates if id(its) in counterpart]
    if len(updates) != len(like.updates):
        return None
    pairs = [(like.cache, spine.cache), *zip(like.updates, updates, strict=True)]
    for written in like.probes:
        probe = written.probe
        try:
            if settle(view, probe.seed, probe.numbers, spine.targets, probe.sizes) is not probe:
                return None
            if any(probe.shape(mine) != probe.shape(its) for its, mine in pairs):
                return None
        except Conflict:
            return None
    slots, run = _own_slots(view, spine, like.slots), None if like.run is None else _own_slots(view, spine, like.run)
    if slots is None or (run is None) != (like.run is None):
        return None
    return dataclasses.replace(
        like, spine=spine, updates=tuple(updates), slots=slots, run=run, probes=list(like.probes)
    )


def _own_slots(view: GraphView, spine: Spine, slots: Slots) -> Slots | None:
    """Slots as this spine is told them: each layer may compute the same numbers anew."""
    number = view.number(slots.value)
    pending, seen = spine.index_operands, set()
    while pending:
        value = view.root(pending.pop())
        if view.number(value) == number:
            return dataclasses.replace(slots, value=value)
        node = value.producer()
        if id(value) not in seen and node is not None:
            seen.add(id(value))
            pending += [item for item in node.inputs if item is not None]
    return None


# --- rows ------------------------------------------------------------------------------------------------------------


class SharedRows:
    """Reads rows, each structure once."""

    def __init__(self, view: GraphView, norms: dict[int, NormFact]) -> None:
        self._view, self._norms = view, norms
        self._known: dict[Hashable, tuple[Row | Reason, _Piece]] = {}

    def read(self, write: CacheWrite) -> Row | Reason:
        """What :func:`fusion.facts.caches.rows.read_row` gives."""
        if len(write.updates) != 1:
            return read_row(self._view, write, self._norms)
        piece = _Piece(self._view, [item.probe for item in write.probes], set(self._norms))
        piece.walk(write.updates[0])
        key = (tuple(piece.text), dtype_name(write.cache), tuple(id(item) for item in write.probes), write.order)
        if key in self._known:
            like, its_piece = self._known[key]
            try:
                return self._renamed(like, its_piece.renaming(piece), write)
            except _Unlike:
                pass
        found = read_row(self._view, write, self._norms)
        self._known[key] = found, piece
        return found

    def _renamed(self, like: Row | Reason, names: Mapping[int, Any], write: CacheWrite) -> Row | Reason:
        if isinstance(like, Reason):
            return _renamed(like, names)  # type: ignore[no-any-return]
        peeled, start = _renamed(like.peeled, names), _renamed(like.start, names)
        views = [_renamed(item, names) for item in like.views]
        norm = self._norms.get(id(views[0].x.value))
        if (norm is None) != (like.norm is None):
            raise _Unlike
        write = dataclasses.replace(write, probes=list(like.write.probes))
        return Row(write, norm, peeled, start, views)


class _Piece:
    """Values behind an update, numbered as a walk meets them, and the text of what the walk has seen."""

    def __init__(self, view: GraphView, probes: list[Probe], stops: set[int]) -> None:
        self._view, self._probes, self._stops = view, probes, stops
        self._number: dict[int, int] = {}
        self._values: list[ir.Value] = []
        self._nodes: list[ir.Node] = []
        self.text: list[Hashable] = []

    def walk(self, start: ir.Value) -> None:
        pending = [(start, BUDGET + MARGIN)]
        self._give(start)
        for value, budget in pending:  # grows while it is walked
            pending.extend(self._visit(value, budget))

    def renaming(self, other: _Piece) -> dict[int, Any]:
        """Id of a value or node of this piece -> the one in a piece of the same text."""
        names: dict[int, Any] = {id(mine): its for mine, its in zip(self._values, other._values, strict=True)}
        names |= {id(mine): its for mine, its in zip(self._nodes, other._nodes, strict=True)}
        return names

    def _give(self, value: ir.Value) -> bool:
        """Numbers a value; whether it is new."""
        if id(value) in self._number:
            return False
        self._number[id(value)] = len(self._values)
        self._values.append(value)
        return True

    def _visit(self, value: ir.Value, budget: int) -> Iterator[tuple[ir.Value, int]]:
        node = value.producer()
        definition = None if node is None else lookup(node.domain, node.op_type)
        kind = "" if definition is None else definition.kind
        free = kind == "move" or (node is not None and node.op_type in _FREE)
        opened = free or (budget > 0 and node is not None and node.op_type in _OPENED)
        if node is None or id(value) in self._stops or not opened or self._view.is_constant(value):
            self.text.append(self._leaf(value))
            return
        self._nodes.append(node)
        operands: list[Hashable] = []
        for item in node.inputs:
            if item is None:
                operands.append(None)
                continue
            known = self._told(item)
            if known is not None:
                operands.append(known)
                continue
            if self._give(item):
                yield item, budget if free else budget - 1
            operands.append(self._number[id(item)])
        shapes = tuple(probe.shape(value) for probe in self._probes)
        attrs = _attributes(self._view, node)
        self.text.append((node.domain, node.op_type, attrs, value.index(), dtype_name(value), shapes, tuple(operands)))

    def _told(self, value: ir.Value) -> Hashable:
        """The content of an integer that depends on shapes only, under each probe."""
        if "float" in dtype_name(value):
            return None
        contents = []
        for probe in self._probes:
            known = probe.known(value)
            if known.taint or known.array is None or known.array.dtype.kind not in "iub":
                return None
            contents.append((known.array.shape, known.array.dtype.str, known.array.tobytes()))
        return tuple(contents)

    def _leaf(self, value: ir.Value) -> Hashable:
        structural = self._view.structural(value)
        if structural is not None:
            return ("constant", structural.dtype.str, structural.shape, structural.tobytes())
        node = value.producer()
        made_by = None if node is None else (node.domain, node.op_type)
        shapes = tuple(probe.shape(value) for probe in self._probes)
        return (self._view.is_constant(value), id(value) in self._stops, made_by, dtype_name(value), shapes)


def _attributes(view: GraphView, node: ir.Node) -> Hashable:
    return tuple((name, str(item)) for name, item in view.attrs(node).items())


def _renamed(item: Any, names: Mapping[int, Any]) -> Any:
    """A fact with its values and nodes exchanged; arrays, probes and written views stay."""
    if isinstance(item, (ir.Value, ir.Node)):
        if id(item) not in names:
            raise _Unlike
        return names[id(item)]
    if isinstance(item, Symbolic):
        again = Symbolic(item.view, item.probe, item.stops)
        again.sources = [_renamed(source, names) for source in item.sources]
        return again
    if isinstance(item, (tuple, list)):
        return type(item)(_renamed(part, names) for part in item)
    if item is None or isinstance(item, (str, int, float, np.ndarray)) or not dataclasses.is_dataclass(item):
        return item
    if hasattr(item, "probe"):
        return item
    fields = {field.name: _renamed(getattr(item, field.name), names) for field in dataclasses.fields(item)}
    made: Any = type(item)
    return made(**fields)
