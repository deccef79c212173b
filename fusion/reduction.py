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
LARGEST = 1 << 16
"""A longer constant names no sizes."""


@dataclass(frozen=True)
class Reduction:
    """Which sizes are taken smaller, and where.

    Attributes:
        sizes: hidden size -> the one that stands for it.
        axes: id of a fed value -> its axes that have such a size.
        summed: id of a weight -> the axis that is summed over; its numbers are scaled so that sums stay near 1.
        constants: ids of constants, and of frozen shapes, in front of the products: they may name the sizes.
    """

    sizes: Mapping[int, int] = field(default_factory=dict)
    axes: Mapping[int, tuple[int, ...]] = field(default_factory=dict)
    summed: Mapping[int, int] = field(default_factory=dict)
    constants: frozenset[int] = frozenset()

    def shape(self, key: int, shape: tuple[int, ...]) -> tuple[int, ...]:
        """The shape that a fed value has in the proof."""
        axes = self.axes.get(key, ())
        return tuple(self.sizes.get(size, size) if axis in axes else size for axis, size in enumerate(shape))

    def scale(self, key: int, shape: tuple[int, ...]) -> float:
        """What random numbers of a fed value are multiplied by."""
        return float(shape[self.summed[key]]) ** -0.5 if key in self.summed and shape[self.summed[key]] else 1.0

    def constant(self, key: int, array: Array) -> Array:
        """A constant with the small sizes in place of those it names: itself, or one divided by it."""
        if key not in self.constants or array.size > LARGEST or not self.sizes:
            return array
        changed: Array = array.copy()
        for large, small in self.sizes.items():
            changed[array == large] = small
            if array.dtype.kind == "f":
                changed[np.isclose(array.astype(np.float64), 1 / large, rtol=1e-3)] = 1 / small
        return changed

    def restored(self, shape: tuple[int, ...]) -> tuple[int, ...]:
        """The shape at the graph's sizes of a value that the proof evaluated."""
        large = {small: size for size, small in self.sizes.items()}
        return tuple(large.get(size, size) for size in shape)


NONE = Reduction()
"""Nothing is taken smaller."""


def small_sizes(large: list[int], used: set[int]) -> dict[int, int]:
    """A small size for each, all different and not in use."""
    free = [size for size in SMALL if size not in used]
    return dict(zip(dict.fromkeys(large), free, strict=False))
