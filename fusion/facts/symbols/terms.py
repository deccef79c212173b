"""Short sums of signed products of atoms, element by element, and the algebra on them.

An atom is one element of a source value, numbered; 0 is the factor 1 and a negative atom is a reciprocal. There is no
tolerance anywhere.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from fusion.facts.semantics.table import broadcast_shape
from ir_ops.dtypes import Array

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
        """The elements at flat positions ``index``, in its shape.

        Raises:
            Unreadable: there are fewer elements, as where axes of broken graphs do not go together.
        """
        terms, factors = self.atom.shape[:2]
        count = math.prod(self.shape)
        if index.max(initial=-1) >= count:
            raise Unreadable
        coef = self.coef.reshape(terms, count)[:, index]
        return Sym(coef, self.atom.reshape(terms, factors, count)[:, :, index])


def constant_sym(array: Array) -> Sym:
    """Numbers without atoms."""
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


def add(a: Sym, b: Sym, sign: float) -> Sym:
    """``a + sign * b``, broadcast."""
    shape = broadcast_shape(a.shape, b.shape)
    a, b = _broadcast(a, shape), _broadcast(b, shape)
    if len(a.coef) + len(b.coef) > MAX_TERMS:
        raise Unreadable("more terms than a rotation has")
    factors = max(a.atom.shape[1], b.atom.shape[1])
    atom = np.concatenate([_padded(a.atom, factors), _padded(b.atom, factors)])
    return tidy(Sym(np.concatenate([a.coef, sign * b.coef]), atom))


def reciprocal(sym: Sym) -> Sym | None:
    """``1 / sym``, None for a sum."""
    if len(sym.coef) != 1 or (sym.coef == 0).any():
        return None
    return Sym(1.0 / sym.coef, -sym.atom)


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


def joined(parts: list[Sym]) -> Sym:
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


def multiply(a: Sym, b: Sym) -> Sym:
    """``a * b``, broadcast."""
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
