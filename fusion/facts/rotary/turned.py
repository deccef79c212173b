"""A rotation of whole rows, wherever it stands: which value is turned into which, in which way, with which tables.

``y = x * cos + rot(x) * sin`` over the last axis. Read off the terms of y, two levels of arithmetic deep: there x, cos
and sin stand by themselves, whatever is behind them.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

import numpy as np
import onnx_ir as ir

from fusion.facts.closure import closure
from fusion.facts.graph import GraphView
from fusion.facts.rotary.near import values_near
from fusion.facts.rotary.rotation import NotARotation, Rotation, read_rotation
from fusion.facts.semantics import Conflict
from fusion.facts.symbols.parameters import Reason
from fusion.facts.symbols.symbolic import Symbolic
from fusion.facts.symbols.terms import Unreadable
from fusion.facts.trial.probe import Probe
from ir_ops.dtypes import Array

BUDGET = 2
MODES = ("half", "interleave", "interleave-half")
"""Of the operators: pairs (j, h + j) in and out, pairs (2j, 2j + 1) in and out, adjacent pairs in and halves out."""


@dataclass(frozen=True)
class Tabled:
    """cos or sin as the rotated value uses it.

    Attributes:
        value: where the rows and columns are taken from.
        positions: row numbers that are looked up in ``value`` first; None for its own rows.
        columns: column of ``value`` for each column of the result; empty where it fits by broadcasting as it is.
        axes: axes of the result that its rows run over, in order; empty where it fits as it is.
        joined: how many of its last axes together are the columns.
    """

    value: ir.Value
    columns: tuple[int, ...]
    axes: tuple[int, ...]
    joined: int = 1
    positions: ir.Value | None = None

    @property
    def feeds(self) -> list[ir.Value]:
        return [self.value] if self.positions is None else [self.value, self.positions]


@dataclass(frozen=True)
class Turned:
    """``out`` is ``x`` rotated.

    Attributes:
        mode: one of MODES.
        start, width: the rotated columns; others pass.
        reshaped: x has the elements of ``out`` in their order, in another shape.
        heads: x and ``out`` are ``[B, S, N * D]`` with this N, and axes are those of ``[B, S, N, D]``; 0 for rows by
            themselves.
        nearer: the same rotation of a nearer value, which has been put into halves already.
    """

    out: ir.Value
    x: ir.Value
    mode: str
    cos: Tabled
    sin: Tabled
    start: int
    width: int
    reshaped: bool
    heads: int = 0
    nearer: Turned | None = None

    @property
    def feeds(self) -> list[ir.Value]:
        """The values at which it begins."""
        return [self.x, *self.cos.feeds, *self.sin.feeds]

    @property
    def region(self) -> list[ir.Node]:
        return closure([self.out], {id(value) for value in self.feeds})

    @property
    def sums(self) -> list[ir.Node]:
        return [node for node in self.region if node.op_type in ("Add", "Sub", "Sum", "RotaryEmbedding")]

    def alike(self, other: Turned) -> bool:
        """Whether two trial sizes read the same."""
        return self == other


def read_turned(view: GraphView, probe: Probe, out: ir.Value) -> Turned | Reason:
    """Reads ``out`` as rotated rows under one trial size."""
    symbolic = Symbolic(view, probe, set())
    try:
        sym = symbolic.read(out, BUDGET)
    except (Unreadable, Conflict) as error:
        return Reason("row-form", "rotation", str(error), "x * cos + rot(x) * sin", out)
    shape = sym.shape
    if len(shape) < 2 or shape[-1] < 2 or 0 in shape:
        return Reason("row-form", "rotation", f"shape {list(shape)}", "rows of an even width", out)
    rows = np.arange(math.prod(shape)).reshape(-1, 1, shape[-1])
    woven = np.concatenate([np.arange(0, shape[-1], 2), np.arange(1, shape[-1], 2)])
    reason: NotARotation | None = None
    for order in (np.arange(shape[-1]), woven):
        found = read_rotation(symbolic, sym.take(rows[:, :, order]))
        if isinstance(found, Rotation):
            return _Reading(view, probe, symbolic, out, shape, found, order).turned()
        if reason is None or (reason.code in ("row-form", "rope-interleaved-out") and found.code != "row-form"):
            reason = found
    assert reason is not None
    return Reason(reason.code, reason.fact, reason.found, reason.wanted, out)


class _Reading:
    """A rotation in terms of roots, to be told in terms of values near it."""

    def __init__(
        self, view: GraphView, probe: Probe, symbolic: Symbolic, out: ir.Value, shape: tuple[int, ...],
        rotation: Rotation, order: Array,
    ) -> None:  # fmt: skip
        self.view, self.probe, self.symbolic, self.out, self.shape = view, probe, symbolic, out, shape
        self.rotation = rotation
        self.woven = bool((np.diff(order) != 1).any())
        back = np.argsort(order)
        start, end = rotation.start, rotation.start + rotation.width
        count, width = rotation.position.shape[0], shape[-1]
        pairs = rotation.position.reshape(count, width)
        self.first, self.second = pairs[:, start:end:2], pairs[:, start + 1 : end : 2]
        whole = end - start == width
        self.tables = {
            "cos": (rotation.cos_source, rotation.cos.reshape(count, -1)),
            "sin": (rotation.sin_source, rotation.sin.reshape(count, -1)),
        }
        if self.woven and whole:
            self.tables = {name: (owner, item[:, back]) for name, (owner, item) in self.tables.items()}
        self.passing = np.delete(pairs, np.s_[start:end], axis=1)
        self.roots = [rotation.source.value, rotation.cos_source.value, rotation.sin_source.value]

    def turned(self) -> Turned | Reason:
        rotation, width = self.rotation, self.shape[-1]
        if self.woven and rotation.width != width:
            return Reason("rope-columns", "rotated columns", "adjacent pairs among others", "whole rows", self.out)
        picked = self._rows_of_x()
        if not picked:
            return Reason(
                "rope-pairs", "pairs of columns", "pairs in another order, or rows of another value",
                "pairs of neighbours or of halves, row by row", self.out,
            )  # fmt: skip
        # where rows are put apart first and halves turned then, the operator that does both takes the farther value
        x, mode, reshaped = picked[-1]
        nearer = picked[0] if len(picked) > 1 else None
        cos, sin = self._table("cos", x), self._table("sin", x)
        for name, table in (("cos", cos), ("sin", sin)):
            if table is None:
                return Reason(
                    "rope-tables", f"{name} has one row for each row of x, or for each along some axes",
                    "rows in another order", "rows in the order of x", self.tables[name][0].value,
                )  # fmt: skip
        assert cos is not None and sin is not None
        turned = Turned(self.out, x, mode, cos, sin, rotation.start, rotation.width, reshaped)
        if nearer is None or nearer[1] == mode:
            return turned
        return replace(turned, nearer=replace(turned, x=nearer[0], mode=nearer[1], reshaped=nearer[2]))

    def _rows_of_x(self) -> list[tuple[ir.Value, str, bool]]:
        """Values that hold x row by row, the mode, and whether it needs another shape: nearest first.

        One of each mode is enough, of the right shape if there is one.
        """
        others = [root for root in self.roots[1:] if root is not self.roots[0]]
        known = list(values_near(self.symbolic, self.rotation.source, [self.out], others))
        found: dict[str, tuple[ir.Value, str, bool]] = {}
        for reshaped in (False, True):
            for value, position in reversed(known) if reshaped else known:
                shape = self.probe.shape(value)
                if position.size != math.prod(self.shape) or (shape != self.shape) != reshaped:
                    continue
                mode = self._mode(position.reshape(-1, self.shape[-1]))
                if mode and mode not in found:
                    found[mode] = (value, mode, reshaped)
        nearness = {id(value): place for place, (value, _) in enumerate(known)}
        return sorted(found.values(), key=lambda entry: nearness[id(entry[0])])

    def _mode(self, rows: Array) -> str:
        """The mode that turns ``rows`` into what was read, "" for none."""
        start, end = self.rotation.start, self.rotation.start + self.rotation.width
        turned = rows[:, start:end]
        if not np.array_equal(np.delete(rows, np.s_[start:end], axis=1), self.passing):
            return ""
        half = (end - start) // 2
        if np.array_equal(turned[:, :half], self.first) and np.array_equal(turned[:, half:], self.second):
            return "" if self.woven else "half"
        if np.array_equal(turned[:, 0::2], self.first) and np.array_equal(turned[:, 1::2], self.second):
            return "interleave" if self.woven else "interleave-half"
        return ""

    def _table(self, name: str, x: ir.Value) -> Tabled | None:
        owner, wanted = self.tables[name]
        others = [root for root in (x, *self.roots[1:]) if root is not owner.value]
        for value, position in values_near(self.symbolic, owner, [self.out], others):
            fitting = self._as_it_is(value, position, wanted)
            for joined in (1, 2):
                fitting = fitting or self._by_rows(value, position, wanted, joined)
            if fitting is not None:
                return fitting
        return None

    def _as_it_is(self, value: ir.Value, position: Array, wanted: Array) -> Tabled | None:
        shape = position.shape
        if len(shape) > len(self.shape) or not shape or shape[-1] != self.rotation.width:
            return None
        full = (*self.shape[:-1], self.rotation.width)
        padded = (1,) * (len(full) - len(shape)) + shape
        if any(own not in (1, size) for own, size in zip(padded, full, strict=True)):
            return None
        if np.array_equal(np.broadcast_to(position, full).reshape(wanted.shape), wanted):
            return Tabled(value, (), ())
        return None

    def _by_rows(self, value: ir.Value, position: Array, wanted: Array, joined: int) -> Tabled | None:
        """Rows of ``value`` along some axes of the result, and its columns in some order."""
        if position.ndim < joined:
            return None
        width = math.prod(position.shape[-joined:])
        flat = position.reshape(-1)
        place = np.full(int(flat.max()) + 1, -1)
        place[flat[::-1]] = np.arange(flat.size)[::-1]
        if wanted.max() >= place.size or (place[wanted] < 0).any():
            return None
        row, column = place[wanted] // width, place[wanted] % width
        if (row != row[:, :1]).any() or (column != column[:1]).any():
            return None
        rows = row[:, 0].reshape(self.shape[:-1])
        axes = tuple(axis for axis in range(rows.ndim) if (np.diff(rows, axis=axis) != 0).any())
        sizes = [self.shape[axis] if axis in axes else 1 for axis in range(rows.ndim)]
        expected = np.broadcast_to(np.arange(math.prod(sizes)).reshape(sizes), rows.shape)
        if not np.array_equal(rows, expected) or math.prod(sizes) * width != position.size:
            return None
        return Tabled(value, tuple(int(item) for item in column[0]), axes, joined)
