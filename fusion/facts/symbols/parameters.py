"""Scale and offset of quantised rows: factors and terms that do not change with the token."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
import onnx_ir as ir

from fusion.facts.graph import GraphView
from fusion.facts.quant import Peeled
from fusion.facts.symbols.symbolic import Source, Symbolic
from fusion.facts.symbols.terms import Sym, tidy
from ir_ops.dtypes import Array


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
    """A quantisation parameter: ``number`` times elements of values, some as reciprocals.

    Attributes:
        parts: (elements ``[N, D]`` of a value, whether it divides).
    """

    number: float = 1.0
    parts: list[tuple[Part, bool]] = field(default_factory=list)

    @property
    def divides(self) -> bool:
        """Whether a reciprocal is needed to multiply with it."""
        return any(inverse for _, inverse in self.parts)


@dataclass
class Parameters:
    """A quantised row taken apart: ``main * scale + offset``."""

    main: Sym
    scale: Scale | None = None
    offset: Scale | None = None


def product(left: Scale | None, right: Scale | None) -> Scale | None:
    """Both factors as one."""
    if left is None or right is None:
        return right if left is None else left
    return Scale(left.number * right.number, left.parts + right.parts)


def single(symbolic: Symbolic, sym: Sym) -> Part | None:
    """The one source all elements are taken from unchanged, None when there is more to it."""
    if sym.atom.shape[:2] != (1, 1) or (sym.coef != 1).any() or (sym.atom <= 0).any():
        return None
    source = symbolic.source_of(int(sym.atom.reshape(-1)[0]))
    position = sym.atom[0, 0] - source.base
    if position.min() < 0 or position.max() >= np.prod(source.shape):
        return None
    return Part(source, position)


def read_parameters(symbolic: Symbolic, sym: Sym) -> Parameters | Reason:
    """Takes the factors common to all main terms, and the terms without a token, off ``sym[T, N, D]``."""
    rows = _rows_of_one_token(symbolic, sym) if sym.shape[0] == 1 else []
    fixed = (sym.atom == sym.atom[:, :, :1]).all(axis=2)
    constant_term = fixed.all(axis=1) & (sym.coef == sym.coef[:, :1]).all(axis=1)
    for source in rows:
        constant_term &= ~_inside(source, sym.atom).any(axis=(1, 2))
    is_offset = constant_term & (sym.coef[:, 0] != 0)
    counts = is_offset.sum(axis=0)
    if counts.max() > 1 or counts.min() != counts.max():
        return Reason("quant-form", "offset", "terms that do not change with the token", "one offset for every column")
    coef, atom, offset = sym.coef, sym.atom, None
    if counts.max() == 1:
        term = is_offset.argmax(axis=0)
        own_coef = np.take_along_axis(coef[:, 0], term[None], axis=0)[0]
        own_atom = np.take_along_axis(atom[:, :, 0], term[None, None], axis=0)[0]
        found = _parameter(symbolic, own_coef, own_atom)
        if isinstance(found, Reason):
            return found
        offset = found
        coef = coef.copy()
        np.put_along_axis(coef, np.broadcast_to(term, (1, *coef.shape[1:])), 0.0, axis=0)
        if not coef.any():
            return Reason("quant-form", "quantised row", "constants only", "rows that depend on the token")
    main = tidy(Sym(coef, atom))
    factors = [source for source in symbolic.sources if source not in rows]
    return _common_factors(factors, main.coef, main.atom, offset)


def _inside(source: Source, atoms: Array) -> Array:
    """Which atoms are elements of a source, or their reciprocals."""
    result: Array = (np.abs(atoms) >= source.base) & (np.abs(atoms) < source.base + int(np.prod(source.shape)))
    return result


def _rows_of_one_token(symbolic: Symbolic, sym: Sym) -> list[Source]:
    """Where a graph of one token says nothing of what changes with it: the sources that rows come from.

    These are computed from inputs of the graph; where none is, the largest input. Should that be a parameter the rows
    are not found in it, and nothing fuses.
    """
    used = [source for source in symbolic.sources if _inside(source, sym.atom).any()]
    open_ones = [source for source in used if not symbolic.view.is_constant(source.value)]
    computed = [source for source in open_ones if source.value.producer() is not None]
    return computed or sorted(open_ones, key=lambda source: int(np.prod(source.shape)))[-1:]


def _common_factors(sources: Sequence[Source], coef: Array, atom: Array, offset: Scale | None) -> Parameters:
    """Pulls the factors and the number that all terms share out of them."""
    live = coef != 0
    scale: Scale | None = None
    for source in sources:
        inside = _inside(source, atom)
        if not ((inside.sum(axis=1) == 1) | ~live).all():
            continue
        own = np.where(inside, atom, 0).sum(axis=1)
        first = own[0, :1]
        if not ((own == first[None]) | ~live).all() or ((first < 0).any() and (first > 0).any()):
            continue
        part = Part(source, np.abs(first[0]) - source.base)
        scale = product(scale, Scale(1.0, [(part, bool((first < 0).all()))]))
        atom = np.where(inside, 0, atom)
    sizes = np.abs(coef[live])
    number = float(coef[0].reshape(-1)[0]) if len(coef) == 1 and np.unique(coef).size == 1 else float(sizes[0])
    if number != 1 and (sizes == abs(number)).all():
        scale = product(scale, Scale(number))
        coef = coef / number
    return Parameters(tidy(Sym(coef, atom)), scale, offset)


def _parameter(symbolic: Symbolic, coef: Array, atoms: Array) -> Scale | Reason:
    """A parameter from its coefficient ``[N, D]`` and atoms ``[F, N, D]``, each factor from one value."""
    numbers = np.unique(coef)
    if len(numbers) != 1:
        return Reason("quant-form", "quantisation parameter", "different numbers by column", "one value")
    parts: list[tuple[Part, bool]] = []
    rest = atoms
    for source in symbolic.sources:
        inside = _inside(source, rest)
        if not inside.any():
            continue
        row = np.where(inside, rest, 0).sum(axis=0)
        if not (inside.sum(axis=0) == 1).all() or ((row < 0).any() and (row > 0).any()):
            return Reason("quant-form", "quantisation parameter", "missing for some columns", "every column")
        parts.append((Part(source, np.abs(row) - source.base), bool((row < 0).all())))
        rest = np.where(inside, 0, rest)
    return Scale(float(numbers[0]), parts)


def linear_parameters(
    view: GraphView, symbolic: Symbolic, peeled: Peeled, position: Array
) -> tuple[Scale | None, Scale | None] | Reason:
    """The scale (a divisor) and zero point of QuantizeLinear for rows at ``position[T, N, D]`` of its input."""
    assert peeled.linear is not None
    found: list[Scale | None] = []
    for value, divides in zip(peeled.linear, (True, False), strict=True):
        if value is None:
            found.append(None)
            continue
        number = view.scalar(value)
        if divides and number == 0:
            return Reason("quant-scale", "QuantizeLinear divides by its scale", "a scale of 0", "another number", value)
        if number is not None:
            found.append(Scale(1.0 / number if divides else number) if divides or number else None)
            continue
        where = _along_axis(view, symbolic, peeled, value, position)
        if where is None:
            return Reason(
                "quant-form", "QuantizeLinear scale", "one that differs by token", "one for each column", value
            )
        found.append(Scale(1.0, [(where, divides)]))
    return found[0], found[1]


def _along_axis(view: GraphView, symbolic: Symbolic, peeled: Peeled, value: ir.Value, position: Array) -> Part | None:
    """The elements of a parameter vector that QuantizeLinear applies to each column."""
    shape, inner = symbolic.probe.shape(value), symbolic.probe.shape(peeled.value)
    if shape is None or inner is None or len(shape) > 1:
        return None
    axis = int(view.attrs(peeled.nodes[0]).get("axis", 1)) % len(inner)
    where = np.unravel_index(position, inner)[axis] if len(shape) == 1 and shape[0] > 1 else np.zeros_like(position)
    if (where != where[:1]).any():
        return None
    return Part(Source(value, 0, shape), where[0])
