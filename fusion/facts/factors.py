"""Products of floats under one number however they are spelled: by factors, divisors, signs and powers of two.

``x * c``, ``(x * 2) * (c / 2)``, ``-(x * -c)`` and, but for rounding, ``x / (1 / c)`` are one value, and so are
``a - b`` and ``a + -b``. A number stands for a base times a sign and a power of two. A base is a product of bases and
inverses, or whatever else computes a value. Sums are not taken apart, constants are not multiplied with each other.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Hashable, Sequence
from typing import Any, NamedTuple

import numpy as np
import onnx_ir as ir

OPERATORS = frozenset(("Mul", "Div", "Reciprocal", "Neg", "Pow", "Add", "Sub"))
_FLOATS = frozenset((ir.DataType.FLOAT, ir.DataType.FLOAT16, ir.DataType.BFLOAT16, ir.DataType.DOUBLE))
Constant = Callable[[ir.Value], "np.ndarray[Any, Any] | None"]


class _Scaled(NamedTuple):
    """``base * 2 ** exponent``, negated or not."""

    base: int
    exponent: int = 0
    negative: bool = False

    def times(self, base: int, other: _Scaled, power: int = 1) -> _Scaled:
        return _Scaled(base, self.exponent + power * other.exponent, self.negative != other.negative)


class Factors:
    """Gives numbers to products.

    Args:
        number_of: the number of a key, a new one for a new key.
        constant: the content of a constant that may be read.
        square: whether a node raises its operand to the power of 2.
    """

    def __init__(
        self, number_of: Callable[[Hashable], int], constant: Constant, square: Callable[[ir.Node], bool]
    ) -> None:
        self._number_of, self._constant, self._square = number_of, constant, square
        self._known: dict[int, _Scaled] = {}
        self._inverse: dict[int, int] = {}
        self._one = number_of(("one",))

    def number(self, node: ir.Node, operands: Sequence[int]) -> int | None:
        """The number of what a node computes from operands of these numbers; None for no product or sum of floats."""
        if node.op_type not in OPERATORS or node.domain not in ("", "ai.onnx"):
            return None
        if node.outputs[0].dtype not in _FLOATS or -1 in operands:
            return None
        told = [
            self._told(item, number) for item, number in zip(node.inputs, operands, strict=True) if item is not None
        ]
        first, last = told[0], told[-1]
        match node.op_type:
            case "Neg":
                return self._of(first._replace(negative=not first.negative))
            case "Reciprocal":
                return self._of(_Scaled(self._over(first.base), -first.exponent, first.negative))
            case "Mul":
                return self._of(first.times(self._product(first.base, last.base), last))
            case "Div":
                return self._of(first.times(self._product(first.base, self._over(last.base)), last, -1))
            case "Add":
                return self._number_of(("sum", *sorted(operands)))
            case "Sub":
                minus = self._of(last._replace(negative=not last.negative))
                return self._number_of(("sum", *sorted((operands[0], minus))))
        return self._of(first.times(self._product(first.base, first.base), first)) if self._square(node) else None

    def _of(self, scaled: _Scaled) -> int:
        if scaled == _Scaled(scaled.base):
            return scaled.base
        number = self._number_of(("scaled", *scaled))
        self._known[number] = scaled
        return number

    def _told(self, value: ir.Value, number: int) -> _Scaled:
        known = self._known.get(number)
        if known is None:
            array = self._constant(value)
            known = self._known[number] = (None if array is None else self._normal(array)) or _Scaled(number)
        return known

    def _normal(self, array: np.ndarray[Any, Any]) -> _Scaled | None:
        """A constant as a base whose largest number is from 0.5 to 1; a power of two without axes as 1."""
        wide = array.astype(np.float64)
        largest = float(np.abs(wide).max(initial=0.0))
        if not largest or not math.isfinite(largest):
            return None
        exponent = math.frexp(largest)[1]
        negative = bool(wide.reshape(-1)[np.flatnonzero(wide)[0]] < 0)
        base = np.ldexp(-wide if negative else wide, -exponent)
        if not base.shape and base == 0.5:
            return _Scaled(self._one, exponent - 1, negative)
        return _Scaled(self._number_of(("base", str(array.dtype), base.shape, base.tobytes())), exponent, negative)

    def _product(self, left: int, right: int) -> int:
        if self._one in (left, right):
            return right if left == self._one else left
        return self._number_of(("times", *sorted((left, right))))

    def _over(self, base: int) -> int:
        if base == self._one:
            return base
        inverse = self._inverse.get(base)
        if inverse is None:
            inverse = self._inverse[base] = self._number_of(("over", base))
            self._inverse[inverse] = base
        return inverse
