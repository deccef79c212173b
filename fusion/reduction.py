"""Small weights for a proof: sums over a hidden size get few terms, everything else keeps its size.

Products with a weight are the only place where a hidden size matters, and a sum of 7168 products proves no more than
one of 20. Where a fused operator contains whole projections, a proof at the graph's sizes would make random weights of
hundreds of megabytes.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

import numpy as np

from ir_ops.dtypes import Array

MATRIX_LIMIT = 1 << 17
"""Elements of a weight up to which it keeps its size."""
SMALL = (22, 26, 34, 38, 46, 58)
"""Sizes to choose from: none is a head's width, a page, or a product of trial sizes."""
ROUNDING = 2.0**-23
"""How far a float32 scalar may be from what it stands for."""
LARGEST = 1 << 16
"""A longer constant names no sizes."""

Numbers = tuple[tuple[float, float], ...]


@dataclass(frozen=True)
class Reduction:
    """Which sizes are taken smaller, and where.

    Attributes:
        sizes: hidden size -> the one that stands for it.
        axes: id of a fed value -> its axes that have such a size.
        summed: id of a weight -> the axis that is summed over; its numbers are scaled so that sums stay near 1.
        constants: ids of constants, and of frozen shapes, in front of the products: they may name the sizes.
        numbers: id of a scalar -> what it may stand for, say the rounded 1/n of a mean, and what to take for that.
    """

    sizes: Mapping[int, int] = field(default_factory=dict)
    axes: Mapping[int, tuple[int, ...]] = field(default_factory=dict)
    summed: Mapping[int, int] = field(default_factory=dict)
    constants: frozenset[int] = frozenset()
    numbers: Mapping[int, Numbers] = field(default_factory=dict)

    def shape(self, key: int, shape: tuple[int, ...]) -> tuple[int, ...]:
        """The shape that a fed value has in the proof."""
        axes = self.axes.get(key, ())
        return tuple(self.sizes.get(size, size) if axis in axes else size for axis, size in enumerate(shape))

    def scale(self, key: int, shape: tuple[int, ...]) -> float:
        """What random numbers of a fed value are multiplied by."""
        return float(shape[self.summed[key]]) ** -0.5 if key in self.summed and shape[self.summed[key]] else 1.0

    def constant(self, key: int, array: Array) -> Array:
        """A constant with the small sizes in place of those it names, a scalar as the number it stands for."""
        if key in self.numbers and array.size == 1 and array.dtype.kind == "f":
            return _scalar(array, self.numbers[key])
        if key not in self.constants or array.size > LARGEST or array.dtype.kind not in "iu":
            return array
        changed: Array = array.copy()
        for large, small in self.sizes.items():
            changed[array == large] = small
        return changed

    def restored(self, shape: tuple[int, ...]) -> tuple[int, ...]:
        """The shape at the graph's sizes of a value that the proof evaluated."""
        large = {small: size for size, small in self.sizes.items()}
        return tuple(large.get(size, size) for size in shape)


def _scalar(array: Array, numbers: Numbers) -> Array:
    number = float(array.reshape(-1)[0])
    for rounded, exact in numbers:
        if abs(number - rounded) <= ROUNDING * abs(rounded):
            return np.full_like(array, exact)
    return array


def numbers_of_norm(count: int, epsilon: float, taken: int) -> Numbers:
    """Scalars with which graphs spell a mean over ``count`` elements, and the same for ``taken`` elements."""
    n, m = float(count), float(taken)
    return ((1 / n, 1 / m), (n, m), (n**0.5, m**0.5), (n**-0.5, m**-0.5), (n * epsilon, m * epsilon))


NONE = Reduction()
"""Nothing is taken smaller."""


def small_sizes(large: list[int], used: set[int]) -> dict[int, int]:
    """A small size for each, all different and not in use."""
    free = [size for size in SMALL if size not in used]
    return dict(zip(dict.fromkeys(large), free, strict=False))
