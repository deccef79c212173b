"""Products of powers: the normal form of chains of Mul, Div, Pow, Sqrt, Reciprocal and Neg, in whatever order."""

from __future__ import annotations

from dataclasses import dataclass, field

import onnx_ir as ir

from fusion.facts.graph import GraphView
from fusion.facts.strip import signless

_DEPTH = 4
"""How many operators are looked through backwards; forwards the way is longer."""
_PRODUCTS = ("Mul", "Div", "Pow", "Sqrt", "Reciprocal")


@dataclass
class Product:
    """``coef`` times bases (by value number) to their exponents."""

    coef: float
    powers: dict[int, float]
    values: dict[int, ir.Value] = field(default_factory=dict)

    def times(self, other: Product, sign: float) -> Product:
        powers = dict(self.powers)
        for base, power in other.powers.items():
            powers[base] = powers.get(base, 0.0) + sign * power
        coef = self.coef * other.coef if sign > 0 else self.coef / other.coef if other.coef else float("nan")
        kept = {base: power for base, power in powers.items() if power}
        return Product(coef, kept, {**self.values, **other.values})

    def raised(self, power: float) -> Product:
        if self.coef == 0 or (self.coef < 0 and power != int(power)):
            return Product(float("nan"), {})
        return Product(self.coef**power, {base: own * power for base, own in self.powers.items()}, self.values)


class Algebra:
    """Reads values as products.

    Args:
        view: the graph.
        bases: value numbers that matter; what holds none of them stays one factor, whatever it is computed from.
    """

    def __init__(self, view: GraphView, bases: set[int]) -> None:
        self._view, self._bases = view, bases
        self._known: dict[int, Product] = {}

    def enter(self, value: ir.Value, form: Product) -> None:
        """What a value is from now on."""
        self._known[id(value)] = form

    def step(self, node: ir.Node, depth: int = _DEPTH) -> Product | None:
        """The result of a node; None where it is no product."""
        operands = [item for item in node.inputs if item is not None]
        first = self.form(operands[0], depth)
        if node.op_type in ("Identity", "Cast"):
            return first
        if node.op_type == "Neg":
            return Product(-first.coef, first.powers, first.values)
        if node.op_type == "Sqrt":
            return first.raised(0.5)
        if node.op_type == "Reciprocal":
            return first.raised(-1.0)
        if node.op_type == "Pow":
            power = self._view.scalar(operands[1])
            return None if power is None else first.raised(power)
        return first.times(self.form(operands[1], depth), 1.0 if node.op_type == "Mul" else -1.0)

    def form(self, value: ir.Value, depth: int = _DEPTH) -> Product:
        """A value as a product; of itself alone where it is nothing else."""
        known = self._known.get(id(value))
        if known is not None:
            return known
        number = self._view.scalar(value)
        if number is not None:
            return Product(number, {})
        sign, inner = signless(self._view, value)
        known = self._known.get(id(inner))
        if known is not None:
            return Product(sign * known.coef, known.powers, known.values)
        node, base = inner.producer(), self._view.number(inner)
        standard = node is not None and node.op_type in _PRODUCTS and node.domain in ("", "ai.onnx")
        if node is not None and standard and depth and base not in self._bases:
            opened = self.step(node, depth - 1)
            if opened is not None and self._bases & opened.powers.keys():
                return Product(sign * opened.coef, opened.powers, opened.values)
        return Product(sign, {base: 1.0}, {base: inner})
