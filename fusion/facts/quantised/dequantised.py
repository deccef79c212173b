"""Dequantisation: rows that are int32 sums times scales plus a bias, whatever operators spell it.

Handled: a Cast of int32 to float32, or DequantizeLinear of int32, behind MatMulInteger or anything else; products with
scales of columns, of tokens or of the whole, in any order and split up at will; a bias of columns behind the products,
or an int32 one in front of the Cast. The arithmetic has to be float32: a narrower type would overflow where the
operators do not.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

import numpy as np
import onnx_ir as ir

from fusion.facts.graph import GraphView, dtype_name
from fusion.facts.semantics import lookup
from fusion.facts.symbols.parameters import Part, Scale, product
from fusion.facts.symbols.symbolic import Source, Symbolic
from fusion.facts.symbols.terms import Sym, Unreadable
from fusion.facts.trial.probe import Probe
from ir_ops.dtypes import Array

BUDGET = 6


@dataclass(frozen=True)
class NotDequantised:
    """Why rows are not dequantised sums, as far as that is worth telling."""

    fact: str
    found: str
    wanted: str
    value: ir.Value | None = None


@dataclass
class Dequantised:
    """``value = float32(sums) * weight * activation + bias`` under one probe.

    Attributes:
        sums: the int32 elements of the rows, ``position[T, N, D]``.
        weight: scales of columns, and numbers; None for neither.
        activation: scales of the whole or of tokens: elements ``[T, 1, 1]``, and whether they divide.
        bias: elements ``[N, D]`` of a float or int32 value.
    """

    sums: Part
    weight: Scale | None
    activation: list[tuple[Part, bool]]
    bias: Part | None

    @property
    def sources(self) -> list[ir.Value]:
        """The values that the rows are computed from."""
        found = [self.sums.value]
        found += [part.value for part, _ in (self.weight.parts if self.weight is not None else [])]
        found += [part.value for part, _ in self.activation]
        return found + ([self.bias.value] if self.bias is not None else [])


def read_dequantised(view: GraphView, probe: Probe, part: Part) -> Dequantised | NotDequantised:
    """Reads the elements ``part.position[T, N, D]`` of a float value, one more level of arithmetic at a time."""
    symbolic = Symbolic(view, probe, set())
    first: Dequantised | NotDequantised | None = None
    for budget in range(BUDGET + 1):
        try:
            sym = symbolic.read(part.value, budget).take(part.position)
        except Unreadable:
            break
        sums = next((item for item in symbolic.sources if _sums_behind(view, item.value) is not None), None)
        found = None if sums is None else _taken_apart(view, symbolic, sym, sums)
        if found is not None:
            narrow = _narrow_arithmetic(view, part.value, {id(value) for value in found.sources})
            if narrow is not None:
                return _narrow(narrow)
            if _has_constant_weight(view, found):
                return _with_int_bias(view, probe, found)
            # one level deeper, a scale of the activation may come apart from that of the weight
            first = first or _with_int_bias(view, probe, found)
    for source in symbolic.sources:
        node = source.value.producer()
        if first is None and node is not None and node.op_type == "Cast" and dtype_name(node.inputs[0]) == "int32":
            return _narrow(source.value)
    return first or NotDequantised("rows are int32 sums times scales", "no int32 value behind them", "a Cast of int32")


def _narrow(value: ir.Value) -> NotDequantised:
    return NotDequantised("the sums are dequantised in float32", f"in {dtype_name(value)}", "float32", value)


def _has_constant_weight(view: GraphView, found: Dequantised) -> bool:
    return all(view.is_constant(part.value) for part, _ in (found.weight.parts if found.weight is not None else []))


def _sums_behind(view: GraphView, value: ir.Value) -> ir.Value | None:
    """The int32 value that a source is, converted to float32."""
    node = value.producer()
    if node is None or node.domain not in ("", "ai.onnx") or node.op_type not in ("Cast", "DequantizeLinear"):
        return None
    if dtype_name(node.inputs[0]) != "int32":
        return None
    if node.op_type == "Cast" and view.cast_target(node) == "float32":
        return node.inputs[0]
    if dtype_name(value) == "float32" and node.op_type == "DequantizeLinear":
        zero = node.inputs[2] if len(node.inputs) > 2 else None
        content = None if zero is None else view.constant(zero)
        plain = zero is None or (content is not None and not content.any())
        return node.inputs[0] if plain and not view.attrs(node).get("block_size", 0) else None
    return None


def _taken_apart(view: GraphView, symbolic: Symbolic, sym: Sym, sums: Source) -> Dequantised | None:
    """Main term and bias of ``sym[T, N, D]``; None when there is more to it."""
    live = sym.coef != 0
    inside = _inside(sym.atom, sums) & live[:, None]
    is_main = inside.sum(axis=1) == 1
    if not (is_main.sum(axis=0) == 1).all() or (sym.atom[inside] < 0).any():
        return None
    main = is_main.argmax(axis=0)
    coef = np.take_along_axis(sym.coef, main[None], axis=0)[0]
    atom = np.take_along_axis(sym.atom, main[None, None], axis=0)[0]
    if np.unique(coef).size != 1:
        return None
    own = _inside(atom, sums)
    position = np.where(own, atom, 0).sum(axis=0) - sums.base
    factors = _factors(symbolic, np.where(own, 0, atom))
    rest_live = live & ~is_main
    bias = _bias(symbolic, sym, rest_live) if rest_live.any() else None
    if factors is None or (rest_live.any() and bias is None):
        return None
    weight = Scale(float(coef.reshape(-1)[0])) if coef.reshape(-1)[0] != 1 else None
    activation: list[tuple[Part, bool]] = []
    for part, divides in factors:
        if (part.position == part.position[:, :1, :1]).all():
            activation.append((Part(part.source, part.position[:, :1, :1]), divides))
        elif (part.position == part.position[:1]).all():
            weight = product(weight, Scale(1.0, [(Part(part.source, part.position[0]), divides)]))
        else:
            return None
    node, inner = sums.value.producer(), _sums_behind(view, sums.value)
    assert node is not None and inner is not None
    if node.op_type == "DequantizeLinear":
        scale = _linear_scale(view, symbolic, node, sums, position)
        if scale is None:
            return None
        weight = product(weight, scale)
    return Dequantised(Part(Source(inner, 0, sums.shape), position), weight, activation, bias)


def _inside(atom: Array, source: Source) -> Array:
    found: Array = (np.abs(atom) >= source.base) & (np.abs(atom) < source.base + math.prod(source.shape))
    return found


def _factors(symbolic: Symbolic, atom: Array) -> list[tuple[Part, bool]] | None:
    """Each source's factor of every element of ``atom[F, T, N, D]``; None where one is missing or mixed."""
    found = []
    for source in symbolic.sources:
        inside = _inside(atom, source)
        if not inside.any():
            continue
        if not (inside.sum(axis=0) == 1).all():
            return None
        own = np.where(inside, atom, 0).sum(axis=0)
        if (own < 0).any() and (own > 0).any():
            return None
        found.append((Part(source, np.abs(own) - source.base), bool((own < 0).all())))
    return found


def _bias(symbolic: Symbolic, sym: Sym, live: Array) -> Part | None:
    """The one further term, which must be the same for every token; None when it is something else."""
    if not (live.sum(axis=0) == 1).all():
        return None
    term = live.argmax(axis=0)
    coef = np.take_along_axis(sym.coef, term[None], axis=0)[0]
    atom = np.take_along_axis(sym.atom, term[None, None], axis=0)[0]
    if (coef != 1).any() or not ((atom != 0).sum(axis=0) == 1).all():
        return None
    own = atom.sum(axis=0)
    if (own <= 0).any() or (own != own[:1]).any():
        return None
    source = symbolic.source_of(int(own.reshape(-1)[0]))
    position = own[0] - source.base
    if position.min() < 0 or position.max() >= math.prod(source.shape):
        return None
    return Part(source, position)


def _linear_scale(view: GraphView, symbolic: Symbolic, node: ir.Node, sums: Source, position: Array) -> Scale | None:
    """DequantizeLinear's scale for elements at ``position[T, N, D]``; None when it differs by token."""
    scale = node.inputs[1]
    shape = None if scale is None else symbolic.probe.shape(scale)
    if scale is None or shape is None or len(shape) > 1:
        return None
    number = view.scalar(scale)
    if number is not None:
        return Scale(number)
    where = np.zeros_like(position)
    if math.prod(shape) > 1:
        axis = int(view.attrs(node).get("axis", 1)) % len(sums.shape)
        where = np.asarray(np.unravel_index(position, sums.shape)[axis])
    if (where != where[:1]).any():
        return None
    return Scale(1.0, [(Part(Source(scale, 0, shape), where[0]), False)])


def _narrow_arithmetic(view: GraphView, value: ir.Value, sources: set[int]) -> ir.Value | None:
    """A result of arithmetic between the sums and ``value`` that is not float32."""
    pending, seen = [value], {id(value)} | sources
    while pending:
        item = pending.pop()
        node = item.producer()
        if node is None or view.is_constant(item):
            continue
        definition = lookup(node.domain, node.op_type)
        if node.op_type == "Cast" or (definition is not None and definition.moves not in (None, (-1,))):
            operands = node.inputs[:1]
        else:
            operands = node.inputs
            if (definition is None or definition.moves is None) and dtype_name(item) != "float32":
                return item
        for operand in operands:
            if operand is not None and id(operand) not in seen:
                seen.add(id(operand))
                pending.append(operand)
    return None


def _with_int_bias(view: GraphView, probe: Probe, found: Dequantised) -> Dequantised:
    """The same sums without an int32 bias that was added to them, where no other bias is in the way."""
    value = view.root(found.sums.value)
    node = value.producer()
    if found.bias is not None or node is None or node.op_type != "Add" or node.domain not in ("", "ai.onnx"):
        return found
    shape = probe.shape(value)
    for inner, other in ((0, 1), (1, 0)):
        summand, bias = node.inputs[inner], node.inputs[other]
        if summand is None or bias is None or not shape or probe.shape(summand) != shape:
            continue
        own = probe.shape(bias)
        if view.is_constant(bias) and own and own[-1] == shape[-1] and math.prod(own) == shape[-1]:
            column = found.sums.position % shape[-1]
            if (column == column[:1]).all():
                sums = Part(Source(summand, 0, shape), found.sums.position)
                return replace(found, sums=sums, bias=Part(Source(bias, 0, own), column[0]))
    return found
