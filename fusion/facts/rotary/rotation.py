"""Reading a rotation off its terms: which pairs of columns turn into which, with which cos and sin.

Every rotated element is ``x[main] * cos[..] + sign * x[cross] * sin[..]``. The operators rotate pairs into a low and a
high half: column j of the low half and column j of the high half come from one pair. Whether the pair was adjacent
(interleaved) or half a row apart does not matter here: the columns it came from are read and kept.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from fusion.facts.symbols.symbolic import Source, Symbolic
from fusion.facts.symbols.terms import Sym
from ir_ops.dtypes import Array


@dataclass(frozen=True)
class NotARotation:
    code: str
    fact: str
    found: str
    wanted: str


@dataclass
class Rotation:
    """A rotation of columns ``start .. start + width`` of each row; other columns pass.

    Attributes:
        source: the value that is rotated.
        position: ``[T, N, D]`` flat positions in it, in the column order the operator wants: pairs adjacent within
            the rotated columns, passing columns as they are.
        cos, sin: ``[T, N, width]`` flat positions in their sources, in output order.
    """

    source: Source
    position: Array
    start: int
    width: int
    cos_source: Source
    cos: Array
    sin_source: Source
    sin: Array


def read_rotation(symbolic: Symbolic, sym: Sym) -> Rotation | NotARotation:
    """Reads ``sym[T, N, D]`` as a rotation into halves."""
    terms = (sym.coef != 0).sum(axis=0)
    factors = (sym.atom != 0).sum(axis=1)
    if terms.max() != 2 or (sym.atom < 0).any():
        return NotARotation(
            "row-form", "written value", f"sums of {int(terms.max())} terms", "a norm, a rotation or a copy"
        )
    columns = np.flatnonzero((terms == 2).all(axis=(0, 1)))
    if not len(columns) or ((terms == 2).any(axis=(0, 1)).sum() != len(columns)):
        return NotARotation(
            "rope-columns", "rotated columns", "columns that differ by token", "the same for all tokens"
        )
    start, width = int(columns[0]), len(columns)
    if columns[-1] - start + 1 != width or width % 2:
        return NotARotation(
            "rope-columns", "rotated columns", f"{width} columns with gaps", "an even, contiguous range"
        )
    turned = sym.atom[:, :, :, :, start : start + width]
    if (factors[:, :, :, start : start + width] != 2).any() or turned.shape[1] < 2:
        return NotARotation("row-form", "written value", "terms of other than two factors", "x * cos and x * sin")
    if (np.abs(sym.coef[:, :, :, start : start + width]) != 1).any():
        return NotARotation("rope-scaled", "rotation", "a constant factor on the rotated columns", "factor 1")
    passing = [column for column in range(sym.shape[2]) if not start <= column < start + width]
    if passing and ((factors[0][:, :, passing] != 1).any() or (sym.coef[0][:, :, passing] != 1).any()):
        return NotARotation("row-form", "columns that are not rotated", "scaled columns", "copied columns")
    return _split(symbolic, sym, start, width, passing)


def _split(symbolic: Symbolic, sym: Sym, start: int, width: int, passing: list[int]) -> Rotation | NotARotation:
    """Separates x from its tables and matches the terms of each pair."""
    atom = sym.atom[:2, :2, :, :, start : start + width]
    coef = sym.coef[:2, :, :, start : start + width]
    answer: Rotation | NotARotation = NotARotation("row-form", "rotation", "no common factor x", "x * cos and x * sin")
    for source in symbolic.sources:
        inside = (atom >= source.base) & (atom < source.base + max(1, math.prod(source.shape)))
        if not (inside.sum(axis=1) == 1).all():
            continue
        x = np.where(inside, atom, 0).sum(axis=1) - source.base
        table = np.where(inside, 0, atom).sum(axis=1)
        found = _pairs(symbolic, source, x, table, coef, start)
        if isinstance(found, Rotation):
            rest = sym.atom[0, 0][:, :, passing] - source.base
            if passing and (rest.min() < 0 or rest.max() >= math.prod(source.shape)):
                return NotARotation(
                    "rope-columns", "columns that are not rotated", "another value", "the rotated value"
                )
            return _with_passing(found, rest, passing, sym.shape[2])
        answer = found
    return answer


def _with_passing(rotation: Rotation, rest: Array, passing: list[int], columns: int) -> Rotation:
    position = np.empty((*rotation.position.shape[:2], columns), np.int64)
    position[:, :, rotation.start : rotation.start + rotation.width] = rotation.position
    position[:, :, passing] = rest
    rotation.position = position
    return rotation


def _pairs(
    symbolic: Symbolic, source: Source, x: Array, table: Array, coef: Array, start: int
) -> Rotation | NotARotation:
    """``x``, ``table``, ``coef`` are ``[2 terms, T, N, width]``."""
    half = x.shape[3] // 2
    minus = coef[:, :, :, :half] < 0
    if not (minus.sum(axis=0) == 1).all() or (coef[:, :, :, half:] < 0).any():
        return _wrong_signs(coef, half)
    low_cross = np.where(minus[0], x[0][..., :half], x[1][..., :half])
    low_main = np.where(minus[0], x[1][..., :half], x[0][..., :half])
    low_sin = np.where(minus[0], table[0][..., :half], table[1][..., :half])
    low_cos = np.where(minus[0], table[1][..., :half], table[0][..., :half])
    high_is_first = x[0][..., half:] == low_cross
    high_main = np.where(high_is_first, x[0][..., half:], x[1][..., half:])
    high_cross = np.where(high_is_first, x[1][..., half:], x[0][..., half:])
    high_cos = np.where(high_is_first, table[0][..., half:], table[1][..., half:])
    high_sin = np.where(high_is_first, table[1][..., half:], table[0][..., half:])
    if (high_main != low_cross).any() or (high_cross != low_main).any():
        return NotARotation(
            "rope-pairs",
            "pairs of columns",
            "low and high half come from different pairs",
            "column j and column half + j from one pair",
        )
    cos, sin = np.concatenate([low_cos, high_cos], -1), np.concatenate([low_sin, high_sin], -1)
    tables = []
    for name, atoms in (("cos", cos), ("sin", sin)):
        owner = symbolic.source_of(int(atoms.reshape(-1)[0]))
        position = atoms - owner.base
        if position.min() < 0 or position.max() >= math.prod(owner.shape):
            return NotARotation("rope-tables", name, "several values", "one value for all columns")
        tables.append((owner, position))
    pairs = np.stack([low_main, low_cross], -1).reshape(*low_main.shape[:2], 2 * half)
    return Rotation(source, pairs, start, 2 * half, tables[0][0], tables[0][1], tables[1][0], tables[1][1])


def _wrong_signs(coef: Array, half: int) -> NotARotation:
    """Names the sign pattern that was found."""
    negative = (coef < 0).any(axis=0).reshape(-1, 2 * half)[0]
    if (negative[half:].all() and not negative[:half].any()) or (negative[1::2].all() and not negative[0::2].any()):
        return NotARotation("rope-sign", "sign of the rotation", "inverse rotation", "low half minus, high half plus")
    if negative[0::2].all() and not negative[1::2].any():
        return NotARotation(
            "rope-interleaved-out",
            "column order of the rotated row",
            "interleaved pairs in the cache",
            "a low and a high half: the cached contents would differ by a permutation",
        )
    return NotARotation("rope-sign", "sign of the rotation", "no rotation's signs", "low half minus, high half plus")
