"""Values as short sums of signed products of atoms: which elements of which sources make up each element.

Atoms of source ``i`` are numbered ``base(i) + flat position``. Movement operators are run on index arrays and the terms
are gathered; multiplication joins factors, addition joins terms.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
import onnx_ir as ir

from fusion.facts.graph import GraphView, dtype_name
from fusion.facts.semantics import OutOfRange, Unsupported, lookup
from fusion.facts.symbols.rotary_embedding import rotary_terms
from fusion.facts.symbols.terms import Sym, Unreadable, add, constant_sym, joined, multiply, reciprocal
from fusion.facts.trial.probe import Probe
from ir_ops.dtypes import Array, by_onnx

_IN_A_ROW = 4
"""Products with numbers that are read as one."""


@dataclass
class Source:
    """A value at which reading stops, and the atoms it owns."""

    value: ir.Value
    base: int
    shape: tuple[int, ...]


class Symbolic:
    """Reads values under one probe.

    Args:
        view: the graph.
        probe: sizes and structural integers.
        stops: ids of values that are sources whatever computes them (results of norms).
    """

    def __init__(self, view: GraphView, probe: Probe, stops: set[int]) -> None:
        self.view, self.probe, self.stops = view, probe, stops
        self.sources: list[Source] = []
        self._by_value: dict[int, Source] = {}
        self._next = 1
        self._memo: dict[tuple[int, int], Sym] = {}

    def source_of(self, atom: int) -> Source:
        """The source that owns an atom."""
        for source in self.sources:
            if source.base <= abs(atom) < source.base + math.prod(source.shape):
                return source
        raise KeyError(atom)

    def read(self, value: ir.Value, budget: int) -> Sym:
        """``value`` with up to ``budget`` nested arithmetic operations opened.

        Raises:
            Unreadable: an unknown shape, or more terms than a rotation can have.
        """
        key = (id(value), budget)
        if key not in self._memo:
            self._memo[key] = self._read(value, budget)
        return self._memo[key]

    def _read(self, value: ir.Value, budget: int) -> Sym:
        root = self.view.root(value)
        if root is not value:
            return self.read(root, budget)
        if id(value) in self.stops:
            return self._source(value)
        constant = self.view.structural(value)
        if constant is not None:
            return constant_sym(constant)
        node = value.producer()
        if node is None or self.view.is_constant(value):
            return self._source(value)
        opened = self._open(node, value, budget)
        return self._source(value) if opened is None else opened

    def _source(self, value: ir.Value) -> Sym:
        source = self._by_value.get(id(value))
        if source is None:
            shape = self.probe.shape(value)
            if shape is None:
                raise Unreadable(f"the shape of {value.name} is not known")
            source = Source(value, self._next, shape)
            self._next += math.prod(shape)
            self.sources.append(source)
            self._by_value[id(value)] = source
        count = math.prod(source.shape)
        atom = (source.base + np.arange(count)).reshape(1, 1, *source.shape)
        return Sym(np.ones((1, *source.shape)), atom)

    def _open(self, node: ir.Node, value: ir.Value, budget: int) -> Sym | None:
        """The value in terms of its operands, None where it has to be a source."""
        if node.domain not in ("", "ai.onnx"):
            return None
        if node.op_type == "Cast":
            return self._cast(node, budget)
        definition = lookup(node.domain, node.op_type)
        if definition is not None and definition.kind == "move":
            return self._move(node, value, budget)
        if node.op_type == "Neg":
            inner = self.read(_operand(node, 0), budget)
            return Sym(-inner.coef, inner.atom)
        if node.op_type == "Reciprocal":
            return reciprocal(self.read(_operand(node, 0), budget))
        if node.op_type in ("Mul", "Div", "Add", "Sub") or (node.op_type == "Sum" and len(node.inputs) == 2):
            return self._arithmetic(node, budget)
        if node.op_type == "RotaryEmbedding" and budget >= 2:
            if len(node.inputs) > 3 and node.inputs[3] is not None:
                return None
            x = self.read(_operand(node, 0), budget - 2)
            cos, sin = (self.read(_operand(node, place), 0) for place in (1, 2))
            try:
                return rotary_terms(self.view.attrs(node), x, cos, sin)
            except Unsupported as error:
                raise Unreadable(str(error)) from None
        return None

    def _cast(self, node: ir.Node, budget: int) -> Sym | None:
        """A Cast between float types moves elements; one to or from integers is a source."""
        try:
            source, target = dtype_name(node.inputs[0]), by_onnx(int(self.view.attrs(node)["to"]))
        except KeyError:
            raise Unreadable("a Cast to a type that does not exist") from None
        if not target.is_float or (source and not source.startswith(("float", "bfloat"))):
            return None
        if target.is_8bit_float or source.startswith("float8"):
            return None
        return self.read(_operand(node, 0), budget)

    def _move(self, node: ir.Node, value: ir.Value, budget: int) -> Sym | None:
        definition = lookup(node.domain, node.op_type)
        assert definition is not None and definition.moves is not None
        moved = range(len(node.inputs)) if definition.moves == (-1,) else definition.moves
        operands: list[Array | None] = []
        parts: list[Sym] = []
        offset = 0
        for position, item in enumerate(node.inputs):
            if item is None:
                operands.append(None)
            elif position in moved:
                part = self.read(item, budget)
                count = math.prod(part.shape)
                operands.append((offset + np.arange(count)).reshape(part.shape))
                parts.append(part)
                offset += count
            else:
                known = self.probe.known(item)
                if known.array is None or known.taint:
                    return None
                operands.append(known.array)
        try:
            index = definition.run(self.view.attrs(node), operands)[value.index() or 0]
        except (OutOfRange, Unsupported) as error:
            raise Unreadable(str(error)) from None
        return joined(parts).take(np.asarray(index))

    def _arithmetic(self, node: ir.Node, budget: int) -> Sym | None:
        left, right = _operand(node, 0), _operand(node, 1)
        numbers = self._numbers(node)
        adds_zero = node.op_type in ("Add", "Sub", "Sum") and any(self._is_zero(side) for side in (left, right))
        if not adds_zero and not (numbers is not None and _is_neutral(numbers[1])):
            if budget == 0:
                return None
            budget -= 1
        if numbers is not None:
            return multiply(self.read(numbers[0], budget), constant_sym(numbers[1]))
        a, b = self.read(left, budget), self.read(right, budget)
        if node.op_type in ("Add", "Sub", "Sum"):
            return add(a, b, -1.0 if node.op_type == "Sub" else 1.0)
        if node.op_type == "Div":
            inverse = reciprocal(b)
            return None if inverse is None else multiply(a, inverse)
        return multiply(a, b)

    def _numbers(self, node: ir.Node | None) -> tuple[ir.Value, Array] | None:
        """What numbers are multiplied with, and their product: one after the other they count as one."""
        found: tuple[ir.Value, Array] | None = None
        for _ in range(_IN_A_ROW):
            step = None if node is None else self._number(node)
            if step is None:
                break
            found = step if found is None else (step[0], step[1] * found[1])
            value = self.view.root(step[0])
            node = None if id(value) in self.stops else value.producer()
        return found

    def _number(self, node: ir.Node) -> tuple[ir.Value, Array] | None:
        """What a structural constant is multiplied with in one node; a divisor as what it multiplies with."""
        if node.op_type not in ("Mul", "Div") or node.domain not in ("", "ai.onnx"):
            return None
        for side in (0, 1) if node.op_type == "Mul" else (1,):
            constant = self.view.structural(self.view.root(_operand(node, side)))
            if constant is not None and constant.dtype.kind != "b":
                wide = constant.astype(np.float64)
                if node.op_type == "Mul":
                    return _operand(node, 1 - side), wide
                return (_operand(node, 0), 1.0 / wide) if (wide != 0).all() else None
        return None

    def _is_zero(self, operand: ir.Value) -> bool:
        """Structural zeros, which may be added for nothing."""
        constant = self.view.structural(self.view.root(operand))
        return constant is not None and constant.dtype.kind != "b" and not constant.astype(np.float64).any()


def _is_neutral(numbers: Array) -> bool:
    """A sign or a mask costs no budget.

    Other numbers do: a scaled cos table is a source by itself, the number belongs to it.
    """
    return bool(np.isin(numbers, (-1.0, 0.0, 1.0)).all()) and (numbers.size > 1 or bool(numbers.all()))


def _operand(node: ir.Node, position: int) -> ir.Value:
    value = node.inputs[position]
    if value is None:
        raise Unreadable(f"{node.op_type} without operand {position}")
    return value
