"""Small sizes in place of large static ones, in shapes and in constants."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from ir_ops.dtypes import Array


@dataclass(frozen=True)
class Shrunk:
    """Small sizes for large ones, the largest first.

    Attributes:
        sizes: pairs (large, small).
        most: elements of the largest cache; greater numbers are no sizes.
    """

    sizes: tuple[tuple[int, int], ...] = ()
    most: int = 0

    def dim(self, size: int) -> int:
        return dict(self.sizes).get(size, size)

    def shape(self, shape: tuple[int, ...]) -> tuple[int, ...]:
        return tuple(self.dim(size) for size in shape)

    def array(self, array: Array) -> Array:
        """A constant at the small sizes: tables along a large dim are cut, numbers that count it are scaled."""
        for axis, size in enumerate(array.shape):
            array = array.take(range(self.dim(size)), axis) if self.dim(size) != size else array
        if not self.sizes or array.dtype.kind not in "iu" or not array.size:
            return array
        numbers, place = np.unique(array, return_inverse=True)
        scaled = np.array([self._number(int(number)) for number in numbers], array.dtype)
        return scaled[place].reshape(array.shape)

    def _number(self, number: int) -> int:
        """A multiple of a large size, or one less: the last position."""
        if number < 0:
            return -self._number(-number)
        if number > self.most:
            return number
        for large, small in self.sizes:
            for less in (0, 1):
                if number and (number + less) % large == 0:
                    return self._number((number + less) // large) * small - less
        return number
