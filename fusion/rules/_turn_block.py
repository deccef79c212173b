"""What the rotary operators have in common: rows, tables and types of a rotation, and putting the result back."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field

import onnx_ir as ir

from fusion.candidate import Refused
from fusion.emit import Emitter
from fusion.facts.analysis import Facts
from fusion.facts.graph import dtype_name
from fusion.facts.rotary.rotations import Rotated
from fusion.facts.rotary.turned import Tabled, Turned
from fusion.facts.trial.probe import Probe
from fusion.facts.trial.trials import shape_under, with_ones
from fusion.rules import _block as block
from fusion.rules._dims import dim_like

Sizes = list[tuple[int, ...]]
"""A shape under each probe."""


@dataclass
class TurnSite:
    """One rotation in one element type.

    Attributes:
        turned: the fact.
        kind: the type the operator computes in.
        x, cos, sin: the values to start from, casts that only widen taken off.
        results: values that the rotated rows take the place of.
        probes: trial sizes.
        fresh: a further one.
    """

    turned: Turned
    kind: str
    x: ir.Value
    cos: ir.Value
    sin: ir.Value
    results: list[ir.Value]
    probes: list[Probe]
    fresh: Probe | None
    region: list[ir.Node] = field(default_factory=list)

    @property
    def feeds(self) -> list[ir.Value]:
        positions = [item for table in (self.turned.cos, self.turned.sin) for item in table.feeds[1:]]
        return list(dict.fromkeys([self.x, self.cos, self.sin, *positions]))

    def sizes(self, value: ir.Value) -> Sizes:
        return [probe.shape(value) or () for probe in self.probes]

    @property
    def shapes(self) -> Sizes:
        """The rotated rows, heads by themselves."""
        whole = self.sizes(self.turned.out)
        heads = self.turned.heads
        if not heads:
            return whole
        return [(*shape[:-1], heads, shape[-1] // heads) for shape in whole]

    @property
    def may_broadcast(self) -> bool:
        """Whether the graph runs with a dim of 1 in x, cos or sin where another has more, though trial sizes agree."""
        return any(self._broadcasts(one) for one in with_ones(self.probes[0].view, self.probes[0]))

    def _broadcasts(self, one: Probe) -> bool:
        turned = self.turned
        out, x = (shape_under(one, value) for value in (turned.out, turned.x))
        if out is None or x is None:
            return False
        if math.prod(out) != math.prod(x):
            return True
        rows = (*out[:-1], turned.heads, out[-1] // turned.heads) if turned.heads else out
        tables = [(table, shape_under(one, table.value)) for table in (turned.cos, turned.sin)]
        return any(own is not None and self._lacks_rows(table, own, rows) for table, own in tables)

    def _lacks_rows(self, table: Tabled, own: tuple[int, ...], rows: tuple[int, ...]) -> bool:
        """Whether a table of shape ``own`` has not one row for each of ``rows`` along its axes."""
        if table.positions is not None:
            return False
        if table.columns:
            return math.prod(own[: -table.joined]) != math.prod(rows[axis] for axis in table.axes)
        trial = self.probes[0].shape(table.value) or ()
        places = zip(trial[::-1], self.shapes[0][::-1], own[::-1], rows[::-1], strict=False)
        return any(size == full and now != row for size, full, now, row in places)

    @property
    def table_shapes(self) -> tuple[Sizes, Sizes]:
        """Of cos and sin as the operators want them."""
        return self._table_shapes(self.turned.cos), self._table_shapes(self.turned.sin)

    def _table_shapes(self, table: Tabled) -> Sizes:
        found = []
        for shape, own in zip(self.shapes, self.sizes(table.value), strict=True):
            if table.columns:
                lead = tuple(size if axis in table.axes else 1 for axis, size in enumerate(shape[:-1]))
                found.append((*lead, self.turned.width))
            else:
                found.append((1,) * (len(shape) - len(own)) + own)
        return found


def read_site(facts: Facts, rotated: Rotated, turned: Turned) -> TurnSite:
    """Types and results of a rotation; raises Refused where no operator can express it."""
    x, cos, sin = (block.narrow(value) for value in (turned.x, turned.cos.value, turned.sin.value))
    kinds, made = [dtype_name(value) for value in (x, cos, sin)], dtype_name(turned.out)
    if not all(kinds) or not made:
        raise Refused(
            "type-unknown", "the element type is known", "none", "float16, bfloat16 or float32", "", turned.out
        )
    made, results = block.results_of(facts, turned.out, kinds[0])
    kind = kinds[0] if len({*kinds, made}) == 1 else "float32"
    site = TurnSite(turned, kind, x, cos, sin, results, rotated.probes, rotated.fresh)
    if any(len(shape) not in (2, 3, 4) for shape in site.shapes):
        raise Refused(
            "rope-rank", "rows of rank 2 to 4", str(site.shapes[0]), "[B, N, S, D] or [T, N, D]", "", turned.out
        )
    for value in (x, cos, sin):
        if any(probe.known(value).loose and 1 in (probe.shape(value) or ()) for probe in rotated.probes):
            raise Refused(
                "rope-tables", "sizes of rows and tables follow from shapes", f"{value.name}, as many as data say",
                "the same sizes in each call", "", turned.out,
            )  # fmt: skip
    site.region = block.region_of(results, site.feeds)
    return site


def same_shaped(site: TurnSite) -> list[tuple[ir.Value, ir.Value]]:
    """Values of the region whose shape is asked for, and x, which has that shape too."""
    found: list[tuple[ir.Value, ir.Value]] = []
    for node in () if site.may_broadcast else site.region:
        for value in node.outputs:
            asked = any(use.node.op_type in ("Shape", "Size") for use in value.uses())
            if asked and site.sizes(value) == site.sizes(site.x):
                found.append((value, site.x))
    return found


class Rows:
    """Builds the operands of a rotation."""

    def __init__(self, facts: Facts, emit: Emitter, site: TurnSite) -> None:
        self.facts, self.emit, self.site = facts, emit, site

    def operands(self, batch_axis: int | None = None) -> list[ir.Value]:
        """x, cos and sin; of equal sizes where the graph would broadcast one of them.

        Raises:
            Refused: they could be broadcast, and the rows of x are joined or in another shape.
        """
        made = [self.x(), self.table("cos", batch_axis), self.table("sin", batch_axis)]
        site, shapes = self.site, self.site.shapes
        if not site.may_broadcast:
            return made
        if site.turned.reshaped or site.turned.heads or len(shapes[0]) == 2:
            raise Refused(
                "rope-broadcast", "x, cos and sin have equal rows", "dims of different names, which may be 1 in one",
                "one name for dims that are equal", "name the dims of the inputs alike", site.turned.out,
            )  # fmt: skip
        axes = [axis for axis in range(len(shapes[0]) - 1) if len({shape[axis] for shape in shapes}) > 1]
        dims: list[int | ir.Value] = [1] * len(shapes[0])
        for axis in axes:
            dims[axis] = self._largest([self.emit.dim(value, axis, "rows") for value in made])
        target = self.emit.shape_vector(dims, "rows_shape")
        return [self.emit.node("Expand", [value, target], "rows_all") for value in made]

    def _largest(self, dims: list[ir.Value]) -> ir.Value:
        """Without Max, which takes integers from opset 12 on."""
        largest = dims[0]
        for dim in dims[1:]:
            more = self.emit.node("Greater", [dim, largest], "rows_more", dtype=ir.DataType.BOOL)
            largest = self.emit.node("Where", [more, dim, largest], "rows_most", dtype=ir.DataType.INT64)
        return largest

    def x(self) -> ir.Value:
        """The rows in the operator's type and of rank 3 or 4."""
        value = self.emit.cast(self.site.x, self.site.kind, "x")
        wanted = self.site.shapes
        if len(wanted[0]) == 2:
            wanted = [(shape[0], 1, shape[1]) for shape in wanted]
        return self._shaped(value, self.site.sizes(self.site.x), wanted, "x_rows")

    def table(self, name: str, batch_axis: int | None = None) -> ir.Value:
        """cos or sin in full width, each dim that of the rows or 1; ``batch_axis`` is one that must be of the rows."""
        site, turned = self.site, self.site.turned
        table = turned.cos if name == "cos" else turned.sin
        wanted = site.table_shapes[0 if name == "cos" else 1]
        value = self.emit.cast(site.cos if name == "cos" else site.sin, site.kind, name)
        own = site.sizes(table.value)
        if table.positions is not None:
            value = self.emit.node("Gather", [value, table.positions], f"{name}_looked_up", {"axis": 0})
            own = [(*spread, shape[-1]) for spread, shape in zip(site.sizes(table.positions), own, strict=True)]
        if table.joined > 1:
            joined = [(*shape[: -table.joined], math.prod(shape[-table.joined :])) for shape in own]
            value, own = self._shaped(value, own, joined, f"{name}_joined"), joined
        if table.columns:
            value = self._columns(value, table.columns, own[0][-1], name)
            own = [(*shape[:-1], turned.width) for shape in own]
        if len(wanted[0]) == 2:
            wanted = [(shape[0], 1, shape[1]) for shape in wanted]
        value = self._shaped(value, own, wanted, f"{name}_rows")
        if batch_axis is not None:
            value = self._spread(value, wanted, batch_axis, name)
        return value

    def _columns(self, value: ir.Value, columns: tuple[int, ...], width: int, name: str) -> ir.Value:
        half = list(range(width))
        if list(columns) == half:
            return value
        if list(columns) == half + half:
            return self.emit.concat([value, value], f"{name}_twice")
        return self.emit.node(
            "Gather", [value, self.emit.ints(columns, f"{name}_columns")], f"{name}_wide", {"axis": -1}
        )

    def _spread(self, value: ir.Value, wanted: Sizes, axis: int, name: str) -> ir.Value:
        rows = self.site.shapes
        if all(shape[axis] == row[axis] for shape, row in zip(wanted, rows, strict=True)):
            return value
        dims: list[int | ir.Value] = [1] * len(wanted[0])
        dims[axis] = self._dim([row[axis] for row in rows], f"{name}_batch")
        return self.emit.node("Expand", [value, self.emit.shape_vector(dims, f"{name}_shape")], f"{name}_spread")

    def _dim(self, sizes: list[int], part: str) -> int | ir.Value:
        candidates = [self.site.x, self.site.cos, *self.facts.view.graph.inputs]
        found = dim_like(self.emit, self.site.probes, sizes, candidates, part)
        if found is None:
            raise Refused(
                "rope-shape",
                "the dims of the rows can be told",
                str(sizes),
                "dims of values in front",
                "",
                self.site.turned.out,
            )
        return found

    def _shaped(self, value: ir.Value, own: Sizes, wanted: Sizes, part: str) -> ir.Value:
        """A value of shape ``own`` in the shape ``wanted``."""
        if own == wanted:
            return value
        dims: list[int | ir.Value] = []
        open_axes = []
        for axis in range(len(wanted[0])):
            sizes = [shape[axis] for shape in wanted]
            if len(set(sizes)) == 1:
                dims.append(sizes[0])
            elif axis < len(own[0]) and [shape[axis] for shape in own] == sizes:
                dims.append(0)
            else:
                open_axes.append(axis)
                dims.append(-1)
        for axis in open_axes[1:]:
            dims[axis] = self._dim([shape[axis] for shape in wanted], part + "_dim")
        return self.emit.reshape(value, self.emit.shape_vector(dims, part + "_shape"), part)

    def restored(self, y: ir.Value) -> list[tuple[ir.Value, ir.Value]]:
        """Old result -> the rotated rows in its shape and type."""
        wanted = self.site.sizes(self.site.turned.out)
        own = [(shape[0], 1, shape[1]) if len(shape) == 2 else shape for shape in self.site.shapes]
        shaped = self._shaped(y, own, wanted, "y_rows")
        return [(old, self.emit.cast(shaped, dtype_name(old), "y_cast")) for old in self.site.results]

    def part(self, value: ir.Value, start: int, end: int, name: str) -> ir.Value:
        """Columns ``start`` to ``end``."""
        bounds: Sequence[ir.Value] = [
            self.emit.ints([number], f"{name}_{what}")
            for what, number in (("start", start), ("end", end), ("axis", -1))
        ]
        return self.emit.node("Slice", [value, *bounds], name)


def refuse_kept(facts: Facts, site: TurnSite, asked: list[tuple[ir.Value, ir.Value]]) -> None:
    """Raises Refused where the graph goes on computing the rotation for other readers."""
    block.refuse_kept(facts, site.region, site.turned.sums, site.results, [value for value, _ in asked])
