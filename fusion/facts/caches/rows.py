"""What the rows written to a cache are: normalised, rotated or plain columns of which value, quantised how.

Reading starts at the written value with movement only and opens one more level of arithmetic at a time, until the
terms have the form of a meaning. A rotation is one sum over one product, so it shows at the second level, with x, cos
and sin by themselves, whatever is behind them.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace

import onnx_ir as ir

from fusion.facts.caches.cache_write import CacheWrite
from fusion.facts.caches.written import WrittenView
from fusion.facts.graph import GraphView, dtype_name
from fusion.facts.norms.norm import NormFact
from fusion.facts.quant import NotQuantised, Peeled, peel, requantised
from fusion.facts.rotary.rotation import NotARotation, Rotation, read_rotation
from fusion.facts.semantics import Conflict
from fusion.facts.symbols.parameters import (
    Parameters,
    Part,
    Reason,
    Scale,
    linear_parameters,
    product,
    read_parameters,
    single,
)
from fusion.facts.symbols.symbolic import Symbolic
from fusion.facts.symbols.terms import Sym, Unreadable
from ir_ops.dtypes import Array, by_name

BUDGET = 6


@dataclass
class RowView:
    """The meaning of the written rows under one probe.

    Attributes:
        position: ``[T, N, D]`` flat positions of the rows in the row's ``start``.
        x: what is moved, scaled, or rotated; for normalised rows the norm's result.
        rotation: the rotated columns, None for rows that are not rotated.
        scale, offset: quantisation parameters, None where there are none.
    """

    view: WrittenView
    symbolic: Symbolic
    position: Array
    x: Part
    rotation: Rotation | None = None
    scale: Scale | None = None
    offset: Scale | None = None

    @property
    def parameters(self) -> int:
        return (self.scale is not None) + (self.offset is not None)


@dataclass
class Row:
    """The meaning that all probes agree on.

    Attributes:
        norm: the norm whose result x is, None otherwise.
        peeled: the rounding chain of quantised rows.
        start: the value that the float rows begin at (the update, or what is rounded).
    """

    write: CacheWrite
    norm: NormFact | None
    peeled: Peeled | None
    start: ir.Value
    views: list[RowView] = field(default_factory=list)

    @property
    def rotated(self) -> bool:
        return self.views[0].rotation is not None

    @property
    def x(self) -> ir.Value:
        return self.views[0].x.value


def read_row(view: GraphView, write: CacheWrite, norms: dict[int, NormFact]) -> Row | Reason:
    """Reads the rows of a write; every probe must give the same answer.

    An NZ cache in its physical shape shows heads and columns as one axis: when the joined row has no meaning of its
    own, widths that it divides into are tried.
    """
    found = _read_row(view, write, norms)
    joined = write.probes[0].geometry
    if joined.order != "NZ" or joined.heads != 1 or (isinstance(found, Row) and (found.rotated or found.norm)):
        return found
    for width in _head_widths(write, norms):
        split = _read_row(view, with_heads(write, joined.columns // width), norms)
        if isinstance(split, Row) and (split.rotated or split.norm):
            return split
    return found


def with_heads(write: CacheWrite, heads: int) -> CacheWrite:
    """The same write with each row read as ``heads`` heads side by side."""
    views = []
    for item in write.probes:
        geometry = replace(item.geometry, heads=heads, columns=item.geometry.heads * item.geometry.columns // heads)
        source = item.source.reshape(item.source.shape[0], heads, geometry.columns)
        views.append(replace(item, geometry=geometry, source=source))
    return replace(write, probes=views)


def _head_widths(write: CacheWrite, norms: dict[int, NormFact]) -> list[int]:
    """Possible widths of one head: those of norms and common ones first, wide ones before narrow ones."""
    geometry, probe = write.probes[0].geometry, write.probes[0].probe
    widths = {64, 96, 128, 192, 256}
    for norm in norms.values():
        try:
            shape = probe.shape(norm.x)
        except Conflict:  # somewhere else in the graph, where these sizes do not fit
            continue
        if shape:
            widths.add(shape[-1])
    fitting = [width for width in range(geometry.d0, geometry.columns, geometry.d0) if geometry.columns % width == 0]
    return sorted(fitting, key=lambda width: (width not in widths, -width))


def _read_row(view: GraphView, write: CacheWrite, norms: dict[int, NormFact]) -> Row | Reason:
    if len(write.updates) != 1:
        return Reason("row-several-updates", "written value", f"{len(write.updates)} values", "one value")
    update = write.updates[0]
    peeled: Peeled | None = None
    start = update
    quantised = by_name(dtype_name(write.cache)).bits == 8
    views: list[RowView] = []
    for written in write.probes:
        try:
            position = written.source
            if quantised and "float" in dtype_name(update):
                # the cache is dequantised, written and quantised again: so are the rows
                peeled = requantised(update, write.spine.nodes)
            elif quantised:
                opened = _open_quantised(view, written, update)
                if isinstance(opened, Reason):
                    return opened
                peeled, position = opened
                start = peeled.value
            found = _read(view, written, start, position, set(norms), peeled)
        except (Unreadable, Conflict) as error:
            return Reason("row-unreadable", "written value", str(error), "a short sum of products", start)
        if isinstance(found, Reason):
            return found
        views.append(found)
    first = views[0]
    if any(other.x.value is not first.x.value for other in views[1:]):
        return Reason("row-unreadable", "written value", "the trial sizes read different sources", "one source", start)
    return Row(write, norms.get(id(first.x.value)), peeled, start, views)


def _open_quantised(view: GraphView, written: WrittenView, update: ir.Value) -> tuple[Peeled, Array] | Reason:
    """The rounding chain behind an 8-bit update, and the update's elements as positions in what is rounded."""
    symbolic = Symbolic(view, written.probe, set())
    sym = symbolic.read(update, 0).take(written.source)
    part = single(symbolic, sym)
    if part is None:
        return Reason("row-unreadable", "quantised row", "several 8-bit values", "one", update)
    peeled = peel(view, part.value)
    if isinstance(peeled, NotQuantised):
        return Reason("quant-form", peeled.fact, peeled.found, peeled.wanted, peeled.value)
    inner = written.probe.shape(peeled.value)
    if inner != part.source.shape:
        return Reason("quant-form", "quantised row", "parameters wider than the row", "a row of the cache", part.value)
    return peeled, part.position


def _read(
    view: GraphView, written: WrittenView, start: ir.Value, position: Array, stops: set[int], peeled: Peeled | None
) -> RowView | Reason:
    """Opens the row level by level until it has a meaning."""
    symbolic = Symbolic(view, written.probe, stops)
    reason = Reason("row-form", "written value", "no known form", "a norm, a rotation or a copy", start)
    copy: RowView | None = None
    for budget in range(BUDGET + 1):
        try:
            found = _meaning(view, written, symbolic, symbolic.read(start, budget), position, peeled)
        except (Unreadable, Conflict):
            break
        if isinstance(found, Reason):
            # "no such form yet" says less than what a rotation was refused for
            reason = reason if found.code == "row-form" else found
        elif found.rotation is not None or id(found.x.value) in stops:
            return found
        elif copy is None or (copy.scale is None and found.parameters > copy.parameters):
            # a scale has been found: what is behind it is the value, a bias say, and no offset
            copy = found
    if copy is not None and (reason.code == "row-form" or peeled is not None):
        return copy
    return copy if copy is not None and copy.x.value.producer() is None else reason


def _meaning(
    view: GraphView, written: WrittenView, symbolic: Symbolic, whole: Sym, position: Array, peeled: Peeled | None
) -> RowView | Reason:
    sym = whole.take(position)
    read = read_parameters(symbolic, sym) if peeled is not None else Parameters(sym)
    if isinstance(read, Reason):
        return read
    main, scale, offset = read.main, read.scale, read.offset
    if peeled is not None and peeled.linear is not None:
        linear = linear_parameters(view, symbolic, peeled, position)
        if isinstance(linear, Reason) or offset is not None:
            return linear if isinstance(linear, Reason) else Reason(
                "quant-form", "offset", "an offset in front of QuantizeLinear", "a zero point"
            )  # fmt: skip
        scale, offset = product(scale, linear[0]), linear[1]
    plain = single(symbolic, main)
    if plain is not None:
        return RowView(written, symbolic, position, plain, None, scale, offset)
    rotation = read_rotation(symbolic, main)
    if isinstance(rotation, NotARotation):
        return Reason(rotation.code, rotation.fact, rotation.found, rotation.wanted)
    return RowView(written, symbolic, position, Part(rotation.source, rotation.position), rotation, scale, offset)


def positions_in(view: GraphView, row: Row, value: ir.Value) -> list[Array] | None:
    """Per probe, where the rows before quantisation lie in ``value``; None when they are not all there."""
    found: list[Array] = []
    for entry in row.views:
        read = _read(view, entry.view, row.start, entry.position, {id(value)}, row.peeled)
        if isinstance(read, Reason) or read.x.value is not value or read.rotation is not None:
            return None
        found.append(read.x.position)
    return found
