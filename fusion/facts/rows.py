"""What the rows written to a cache are: normalised, rotated or plain columns of which value, quantised how.

Reading starts at the written value with movement only and opens one more level of arithmetic at a time, until the
terms have the form of a meaning. A rotation is one sum over one product, so it shows at the second level, with x, cos
and sin by themselves, whatever is behind them.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace

import numpy as np
import onnx_ir as ir

from fusion.facts.cache_write import CacheWrite, WrittenView
from fusion.facts.graph import GraphView, dtype_name
from fusion.facts.norm import NormFact
from fusion.facts.quant import NotQuantised, Peeled, peel
from fusion.facts.rotation import NotARotation, Rotation, read_rotation
from fusion.facts.symbolic import Source, Sym, Symbolic, Unreadable, tidy
from ir_ops.dtypes import Array, by_name

BUDGET = 6


@dataclass(frozen=True)
class Reason:
    """Why a row has no meaning that an operator knows."""

    code: str
    fact: str
    found: str
    wanted: str
    value: ir.Value | None = None


@dataclass
class Part:
    """Elements of one source: ``position[T, N, columns]`` are flat positions in ``source``."""

    source: Source
    position: Array

    @property
    def value(self) -> ir.Value:
        return self.source.value


@dataclass
class Scale:
    """A quantisation parameter: a value (positions ``[N, D]``) or a number. ``divides``: x is divided by it."""

    part: Part | None
    number: float
    divides: bool = False


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
    own, the widths of the graph's norms and of common heads are tried.
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
    """Possible widths of one head, wide ones first."""
    geometry, probe = write.probes[0].geometry, write.probes[0].probe
    widths = {64, 96, 128, 192, 256}
    for norm in norms.values():
        shape = probe.shape(norm.x)
        if shape:
            widths.add(shape[-1])
    fitting = [width for width in widths if geometry.columns % width == 0 and width % geometry.d0 == 0]
    return sorted((width for width in fitting if width < geometry.columns), reverse=True)


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
            if quantised:
                opened = _open_quantised(view, written, update)
                if isinstance(opened, Reason):
                    return opened
                peeled, position = opened
                start = peeled.value
            found = _read(view, written, start, position, set(norms), peeled)
        except Unreadable as error:
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
    part = _single(symbolic, sym)
    if part is None:
        return Reason("row-unreadable", "quantised row", "several 8-bit values", "one", update)
    peeled = peel(view, part.value)
    if isinstance(peeled, NotQuantised):
        return Reason("quant-form", peeled.fact, peeled.found, peeled.wanted, peeled.value)
    inner = written.probe.shape(peeled.value)
    if inner != part.source.shape:
        return Reason("quant-form", "quantised row", "parameters wider than the row", "a row of the cache", part.value)
    return peeled, part.position


def _single(symbolic: Symbolic, sym: Sym) -> Part | None:
    """The one source all elements are taken from unchanged, None when there is more to it."""
    if sym.atom.shape[:2] != (1, 1) or (sym.coef != 1).any() or (sym.atom <= 0).any():
        return None
    source = symbolic.source_of(int(sym.atom.reshape(-1)[0]))
    position = sym.atom[0, 0] - source.base
    if position.min() < 0 or position.max() >= np.prod(source.shape):
        return None
    return Part(source, position)


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
        except Unreadable:
            break
        if isinstance(found, Reason):
            # "no such form yet" says less than what a rotation was refused for
            reason = reason if found.code == "row-form" else found
        elif found.rotation is not None or id(found.x.value) in stops:
            return found
        elif copy is None or found.parameters > copy.parameters:
            copy = found
    if copy is not None and (reason.code == "row-form" or peeled is not None):
        return copy
    return copy if copy is not None and copy.x.value.producer() is None else reason


def _meaning(
    view: GraphView, written: WrittenView, symbolic: Symbolic, whole: Sym, position: Array, peeled: Peeled | None
) -> RowView | Reason:
    sym = whole.take(position)
    parameters = _parameters(symbolic, sym) if peeled is not None else (sym, None, None)
    if isinstance(parameters, Reason):
        return parameters
    main, scale, offset = parameters
    if peeled is not None and peeled.linear is not None:
        if scale is not None or offset is not None:
            return Reason("quant-form", "scale", "a scale in front of QuantizeLinear", "one scale")
        linear = _linear_parameters(view, written, symbolic, peeled)
        if isinstance(linear, Reason):
            return linear
        scale, offset = linear
    plain = _single(symbolic, main)
    if plain is not None:
        return RowView(written, symbolic, position, plain, None, scale, offset)
    rotation = read_rotation(symbolic, main)
    if isinstance(rotation, NotARotation):
        return Reason(rotation.code, rotation.fact, rotation.found, rotation.wanted)
    return RowView(written, symbolic, position, Part(rotation.source, rotation.position), rotation, scale, offset)


def _parameters(symbolic: Symbolic, sym: Sym) -> tuple[Sym, Scale | None, Scale | None] | Reason:
    """Takes the factors common to all main terms, and the terms without a token, off a quantised row."""
    fixed = (sym.atom == sym.atom[:, :, :1]).all(axis=(2,))
    constant_term = (fixed | (sym.atom[:, :, 0] == 0)).all(axis=1) & (sym.coef == sym.coef[:, :1]).all(axis=1)
    present = sym.coef[:, 0] != 0
    is_offset = constant_term & present
    counts = is_offset.sum(axis=0)
    if counts.max() > 1 or counts.min() != counts.max():
        return Reason("quant-form", "offset", "terms that do not change with the token", "one offset for every column")
    coef, atom, offset = sym.coef, sym.atom, None
    if counts.max() == 1:
        term = int(is_offset.argmax(axis=0).reshape(-1)[0])
        if not is_offset[term].all():
            return Reason("quant-form", "offset", "an offset of other columns", "one offset for every column")
        offset = _parameter(symbolic, coef[term][0], atom[term][:, 0])
        if isinstance(offset, Reason):
            return offset
        coef, atom = np.delete(coef, term, axis=0), np.delete(atom, term, axis=0)
        if not len(coef):
            return Reason("quant-form", "quantised row", "constants only", "rows that depend on the token")
    return _common_scale(symbolic, coef, atom, offset)


def _common_scale(
    symbolic: Symbolic, coef: Array, atom: Array, offset: Scale | None
) -> tuple[Sym, Scale | None, Scale | None] | Reason:
    live = coef != 0
    fixed = (atom == atom[:, :, :1]).all(axis=2)
    number = np.abs(coef[0]).reshape(-1)[0]
    scale: Scale | None = None
    for factor in range(atom.shape[1]):
        candidate = atom[0, factor]
        if not fixed[0, factor].all() or (candidate == 0).any():
            continue
        inside = (atom == candidate[None, None]).any(axis=1) | ~live
        if not inside.all():
            continue
        if scale is not None:
            return Reason("quant-form", "scale", "two factors that do not change with the token", "one scale")
        found = _parameter(symbolic, np.ones_like(coef[0][0]), candidate[:1])
        if isinstance(found, Reason):
            return found
        scale = found
        position = (atom == candidate[None, None]).argmax(axis=1)
        atom = atom.copy()
        np.put_along_axis(atom, position[:, None], 0, axis=1)
    if number != 1 and (np.abs(coef)[live] == number).all():
        if scale is not None:
            return Reason("quant-form", "scale", "a number beside a scale", "one scale")
        scale = Scale(None, float(number))
        coef = coef / number
    return tidy(Sym(coef, atom)), scale, offset


def _parameter(symbolic: Symbolic, coef: Array, atoms: Array) -> Scale | Reason:
    """A parameter from its coefficient ``[N, D]`` and atoms ``[F, N, D]``: one value's elements, or one number."""
    used = (atoms != 0).any(axis=(1, 2))
    if not used.any():
        numbers = np.unique(coef)
        if len(numbers) != 1:
            return Reason("quant-form", "quantisation parameter", "different numbers by column", "one value")
        return Scale(None, float(numbers[0]))
    if used.sum() != 1 or (coef != coef.reshape(-1)[0]).any() or coef.reshape(-1)[0] != 1:
        return Reason("quant-form", "quantisation parameter", "a product", "one value")
    row = atoms[int(used.argmax())]
    divides = bool((row < 0).all())
    if not divides and (row <= 0).any():
        return Reason("quant-form", "quantisation parameter", "missing for some columns", "every column")
    source = symbolic.source_of(int(abs(row.reshape(-1)[0])))
    position = np.abs(row) - source.base
    if position.min() < 0 or position.max() >= np.prod(source.shape):
        return Reason("quant-form", "quantisation parameter", "several values", "one value")
    return Scale(Part(source, position), 1.0, divides)


def _linear_parameters(
    view: GraphView, written: WrittenView, symbolic: Symbolic, peeled: Peeled
) -> tuple[Scale | None, Scale | None] | Reason:
    """QuantizeLinear with one scale for the tensor, or one for each column when its axis is the last."""
    assert peeled.linear is not None
    scale, zero = peeled.linear
    number = view.scalar(scale)
    offset = 0.0 if zero is None else view.scalar(zero)
    if number is None or offset is None:
        return Reason("quant-form", "QuantizeLinear scale", "a tensor of scales", "one constant scale", scale)
    return Scale(None, number, divides=True), Scale(None, float(offset)) if offset else None


def positions_in(view: GraphView, row: Row, value: ir.Value) -> list[Array] | None:
    """Per probe, where the rows before quantisation lie in ``value``; None when they are not all there."""
    found: list[Array] = []
    for entry in row.views:
        read = _read(view, entry.view, row.start, entry.position, {id(value)}, row.peeled)
        if isinstance(read, Reason) or read.x.value is not value or read.rotation is not None:
            return None
        found.append(read.x.position)
    return found
