"""Values as short sums of signed products of atoms: which elements of which sources make up each element.

An atom is one element of a source value. Atoms of source ``i`` are numbered ``base(i) + flat position``; 0 is the
factor 1 and a negative atom is a reciprocal. Movement operators are run on index arrays and the terms are gathered;
multiplication joins factors, addition joins terms. There is no tolerance anywhere.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
import onnx_ir as ir

from fusion.facts.graph import GraphView, dtype_name
from fusion.facts.probe import Probe
from fusion.facts.semantics import lookup
from fusion.facts.semantics.table import broadcast_shape
from ir_ops.dtypes import Array, by_onnx

MAX_TERMS = 8
MAX_FACTORS = 8


class Unreadable(Exception):
    """A value that is not a short sum of products of movable sources."""


@dataclass
class Sym:
    """``coef[K, *shape]`` and ``atom[K, F, *shape]``: element = sum over K of coef times the product of F atoms."""

    coef: Array
    atom: Array

    @property
    def shape(self) -> tuple[int, ...]:
        return tuple(self.coef.shape[1:])

    def take(self, index: Array) -> Sym:
        """The elements at flat positions ``index``, in its shape."""
        terms, factors = self.atom.shape[:2]
        coef = self.coef.reshape(terms, -1)[:, index]
        return Sym(coef, self.atom.reshape(terms, factors, -1)[:, :, index])


def constant_sym(array: Array) -> Sym:
    return Sym(array.astype(np.float64)[None], np.zeros((1, 0, *array.shape), np.int64))


def tidy(sym: Sym) -> Sym:
    """Canonical form: factors sorted, x * 1/x dropped, equal terms merged, zero terms gone, terms sorted."""
    coef, atom = sym.coef, np.where(sym.coef[:, None] == 0, 0, sym.atom)
    if atom.shape[1] > 1:
        atom = _sorted_factors(atom)
        for low in range(atom.shape[1] - 1):
            for high in range(low + 1, atom.shape[1]):
                cancels = (atom[:, low] == -atom[:, high]) & (atom[:, low] != 0)
                if cancels.any():
                    atom[:, low] = np.where(cancels, 0, atom[:, low])
                    atom[:, high] = np.where(cancels, 0, atom[:, high])
        atom = _sorted_factors(atom)
    coef = coef.copy()
    for low in range(len(coef)):
        for high in range(low + 1, len(coef)):
            same = (atom[low] == atom[high]).all(axis=0)
            if same.any():
                coef[low] = np.where(same, coef[low] + coef[high], coef[low])
                coef[high] = np.where(same, 0, coef[high])
    atom = np.where(coef[:, None] == 0, 0, atom)
    coef, atom = _sorted_terms(coef, atom)
    terms = max(1, int((coef != 0).sum(axis=0).max(initial=0)))
    factors = int((atom != 0).sum(axis=1).max(initial=0))
    return Sym(coef[:terms], atom[:terms, :factors])


_LAST = np.iinfo(np.int64).max


def _sorted_factors(atom: Array) -> Array:
    key = np.where(atom == 0, _LAST, np.abs(atom))
    return np.take_along_axis(atom, np.argsort(key, axis=1, kind="stable"), axis=1)


def _sorted_terms(coef: Array, atom: Array) -> tuple[Array, Array]:
    """Terms in the order of their atoms, zero terms last."""
    if len(coef) == 1:
        return coef, atom
    for factor in reversed(range(atom.shape[1])):
        key = np.where(atom[:, factor] == 0, _LAST, np.abs(atom[:, factor]))
        order = np.argsort(key, axis=0, kind="stable")
        coef = np.take_along_axis(coef, order, axis=0)
        atom = np.take_along_axis(atom, order[:, None], axis=0)
    order = np.argsort(coef == 0, axis=0, kind="stable")
    return np.take_along_axis(coef, order, axis=0), np.take_along_axis(atom, order[:, None], axis=0)


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
            return self._reciprocal(self.read(_operand(node, 0), budget))
        if node.op_type in ("Mul", "Div", "Add", "Sub") or (node.op_type == "Sum" and len(node.inputs) == 2):
            return self._arithmetic(node, budget)
        if node.op_type == "RotaryEmbedding" and budget >= 2:
            return self._rotary(node)
        return None

    def _cast(self, node: ir.Node, budget: int) -> Sym | None:
        """A Cast between float types moves elements; one to or from integers is a source."""
        source, target = dtype_name(node.inputs[0]), by_onnx(int(self.view.attrs(node)["to"]))
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
        index = definition.run(self.view.attrs(node), operands)[value.index() or 0]
        return _joined(parts).take(np.asarray(index))

    def _reciprocal(self, inner: Sym) -> Sym | None:
        if len(inner.coef) != 1 or (inner.coef == 0).any():
            return None
        return Sym(1.0 / inner.coef, -inner.atom)

    def _arithmetic(self, node: ir.Node, budget: int) -> Sym | None:
        left, right = _operand(node, 0), _operand(node, 1)
        free = any(self._is_neutral(node.op_type, side, operand) for side, operand in enumerate((left, right)))
        if not free:
            if budget == 0:
                return None
            budget -= 1
        a, b = self.read(left, budget), self.read(right, budget)
        if node.op_type in ("Add", "Sub", "Sum"):
            return self._add(a, b, -1.0 if node.op_type == "Sub" else 1.0)
        if node.op_type == "Div":
            inverse = self._reciprocal(b)
            return None if inverse is None else _multiply(a, inverse)
        return _multiply(a, b)

    def _is_neutral(self, op_type: str, side: int, operand: ir.Value) -> bool:
        """A factor -1 or a structural mask, or adding structural zeros, costs no budget.

        Other numbers do: a scaled cos table is a source by itself, the number belongs to it.
        """
        constant = self.view.structural(self.view.root(operand))
        if constant is None or constant.dtype.kind == "b":
            return False
        wide = constant.astype(np.float64)
        if op_type in ("Mul", "Div"):
            sign_or_mask = wide.size > 1 or float(wide.reshape(-1)[0]) == -1.0
            return sign_or_mask and (op_type == "Mul" or (side == 1 and bool((wide != 0).all())))
        return not wide.any()

    def _add(self, a: Sym, b: Sym, sign: float) -> Sym:
        shape = broadcast_shape(a.shape, b.shape)
        a, b = _broadcast(a, shape), _broadcast(b, shape)
        terms = len(a.coef) + len(b.coef)
        if terms > MAX_TERMS:
            raise Unreadable("more terms than a rotation has")
        factors = max(a.atom.shape[1], b.atom.shape[1])
        atom = np.concatenate([_padded(a.atom, factors), _padded(b.atom, factors)])
        return tidy(Sym(np.concatenate([a.coef, sign * b.coef]), atom))

    def _rotary(self, node: ir.Node) -> Sym | None:
        """RotaryEmbedding of ai.onnx without position ids: the definition, written in terms."""
        attrs = self.view.attrs(node)
        if len(node.inputs) > 3 and node.inputs[3] is not None:
            return None
        x, cos, sin = (self.read(_operand(node, place), 0) for place in range(3))
        heads = int(attrs.get("num_heads", 0))
        if len(x.shape) == 3 and (heads <= 0 or x.shape[2] % heads):
            return None
        flat = np.arange(math.prod(x.shape)).reshape(x.shape)
        if len(x.shape) == 3:
            flat = flat.reshape(x.shape[0], x.shape[1], heads, -1).transpose(0, 2, 1, 3)
        width = int(attrs.get("rotary_embedding_dim", 0)) or flat.shape[-1]
        half = width // 2
        pairs = (flat[..., 0:width:2], flat[..., 1:width:2]) if attrs.get("interleaved") else (
            flat[..., :half], flat[..., half:width])  # fmt: skip
        table = np.arange(math.prod(cos.shape)).reshape(cos.shape)[:, None, :, :half]
        c, s = cos.take(table), sin.take(table)
        first, second = x.take(pairs[0]), x.take(pairs[1])
        low = self._add(_multiply(first, c), _multiply(second, s), -1.0)
        high = self._add(_multiply(second, c), _multiply(first, s), 1.0)
        rest = x.take(flat[..., width:])
        joined = _joined([low, high, rest])
        count = math.prod(low.shape)
        a, b = np.arange(count).reshape(low.shape), count + np.arange(count).reshape(low.shape)
        woven = np.stack([a, b], -1).reshape(*a.shape[:-1], 2 * half)
        turned = woven if attrs.get("interleaved") else np.concatenate([a, b], -1)
        order = np.concatenate([turned, 2 * count + np.arange(math.prod(rest.shape)).reshape(rest.shape)], -1)
        if len(x.shape) == 3:
            order = order.transpose(0, 2, 1, 3).reshape(x.shape)
        return joined.take(order)


def _operand(node: ir.Node, position: int) -> ir.Value:
    value = node.inputs[position]
    if value is None:
        raise Unreadable(f"{node.op_type} without operand {position}")
    return value


def _padded(atom: Array, factors: int) -> Array:
    missing = factors - atom.shape[1]
    if missing == 0:
        return atom
    return np.concatenate([atom, np.zeros((atom.shape[0], missing, *atom.shape[2:]), np.int64)], axis=1)


def _broadcast(sym: Sym, shape: tuple[int, ...]) -> Sym:
    if sym.shape == shape:
        return sym
    lead = (1,) * (len(shape) - len(sym.shape))
    coef = sym.coef.reshape(len(sym.coef), *lead, *sym.shape)
    atom = sym.atom.reshape(*sym.atom.shape[:2], *lead, *sym.shape)
    return Sym(np.broadcast_to(coef, (len(coef), *shape)), np.broadcast_to(atom, (*atom.shape[:2], *shape)))


def _joined(parts: list[Sym]) -> Sym:
    """Flat elements of several syms one after the other."""
    terms = max(len(part.coef) for part in parts)
    factors = max(part.atom.shape[1] for part in parts)
    coefs, atoms = [], []
    for part in parts:
        count = math.prod(part.shape)
        coef = np.zeros((terms, count))
        coef[: len(part.coef)] = part.coef.reshape(len(part.coef), count)
        atom = np.zeros((terms, factors, count), np.int64)
        atom[: len(part.coef), : part.atom.shape[1]] = part.atom.reshape(*part.atom.shape[:2], count)
        coefs.append(coef)
        atoms.append(atom)
    return Sym(np.concatenate(coefs, axis=-1), np.concatenate(atoms, axis=-1))


def _multiply(a: Sym, b: Sym) -> Sym:
    shape = broadcast_shape(a.shape, b.shape)
    a, b = _broadcast(a, shape), _broadcast(b, shape)
    if len(a.coef) * len(b.coef) > MAX_TERMS or a.atom.shape[1] + b.atom.shape[1] > MAX_FACTORS:
        raise Unreadable("more terms than a rotation has")
    coefs, atoms = [], []
    for left in range(len(a.coef)):
        for right in range(len(b.coef)):
            coefs.append(a.coef[left] * b.coef[right])
            atoms.append(np.concatenate([a.atom[left], b.atom[right]]))
    return tidy(Sym(np.stack(coefs), np.stack(atoms)))
