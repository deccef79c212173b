"""Legal ways to write ``clip(round(x * scale + offset), -128, 127)`` to int8.

Each function takes the graph, the float rows, the constant float32 ``scale`` (a multiplier) and ``offset`` (or None),
both of a shape that broadcasts against the rows, and returns the int8 rows.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from tests.fusion.zoo.graph import Array, Graph

Build = Callable[[Graph, str, Array, Array | None], str]


@dataclass(frozen=True)
class Quant:
    """One spelling: which offsets it can express, whether it takes scales per column, its first opset."""

    build: Build
    offset: str = "any"  # "any", "none" or "integer"
    per_column: bool = True
    since: int = 11


QUANTS: dict[str, Quant] = {}


def spelling(offset: str = "any", per_column: bool = True, since: int = 11) -> Callable[[Build], Build]:
    def enter(build: Build) -> Build:
        QUANTS[build.__name__] = Quant(build, offset, per_column, since)
        return build

    return enter


def shifted(g: Graph, x: str, offset: Array | None) -> str:
    return x if offset is None else g.op("Add", x, g.const(offset, "float32"))


def rounded(g: Graph, x: str) -> str:
    return g.cast(g.clip(g.op("Round", x), -128.0, 127.0), "int8")


@spelling()
def multiply(g: Graph, x: str, scale: Array, offset: Array | None) -> str:
    return rounded(g, shifted(g, g.op("Mul", g.up(x), g.const(scale, "float32")), offset))


@spelling()
def divide(g: Graph, x: str, scale: Array, offset: Array | None) -> str:
    return rounded(g, shifted(g, g.op("Div", g.up(x), g.const(1 / scale, "float32")), offset))


@spelling()
def multiply_commuted(g: Graph, x: str, scale: Array, offset: Array | None) -> str:
    t = g.op("Mul", g.const(scale, "float32"), g.up(x))
    return rounded(g, t if offset is None else g.op("Add", g.const(offset, "float32"), t))


@spelling()
def subtract(g: Graph, x: str, scale: Array, offset: Array | None) -> str:
    t = g.op("Mul", g.up(x), g.const(scale, "float32"))
    return rounded(g, t if offset is None else g.op("Sub", t, g.const(-offset, "float32")))


@spelling()
def clip_first(g: Graph, x: str, scale: Array, offset: Array | None) -> str:
    t = shifted(g, g.op("Mul", g.up(x), g.const(scale, "float32")), offset)
    return g.cast(g.op("Round", g.clip(t, -128.0, 127.0)), "int8")


@spelling()
def min_max(g: Graph, x: str, scale: Array, offset: Array | None) -> str:
    t = g.op("Round", shifted(g, g.op("Mul", g.up(x), g.const(scale, "float32")), offset))
    return g.cast(g.op("Max", g.op("Min", g.scalar(127.0), t), g.scalar(-128.0)), "int8")


@spelling()
def reciprocal(g: Graph, x: str, scale: Array, offset: Array | None) -> str:
    """Multiplies by the reciprocal of a constant, not folded."""
    factor = g.op("Reciprocal", g.const(1 / scale, "float32"))
    return rounded(g, shifted(g, g.op("Mul", g.up(x), factor), offset))


@spelling(since=12)
def integer_clip(g: Graph, x: str, scale: Array, offset: Array | None) -> str:
    t = g.op("Round", shifted(g, g.op("Mul", g.up(x), g.const(scale, "float32")), offset))
    whole = g.cast(t, "int32")
    return g.cast(g.op("Clip", whole, g.const(-128, "int32"), g.const(127, "int32")), "int8")


@spelling()
def offset_inside(g: Graph, x: str, scale: Array, offset: Array | None) -> str:
    """``(x + offset / scale) * scale``: the offset before the multiplication."""
    xf = g.up(x)
    inner = xf if offset is None else g.op("Add", xf, g.const(offset / scale, "float32"))
    return rounded(g, g.op("Mul", inner, g.const(scale, "float32")))


@spelling(offset="none", per_column=False)
def linear_scalar(g: Graph, x: str, scale: Array, offset: Array | None) -> str:
    zero = g.const(np.array(0), "int8")
    return g.op("QuantizeLinear", g.up(x), g.const((1 / scale).reshape(()), "float32"), zero)


@spelling(offset="none", since=13)
def linear_columns(g: Graph, x: str, scale: Array, offset: Array | None) -> str:
    steps = (1 / scale).reshape(-1)
    zero = g.const(np.zeros(steps.shape), "int8")
    return g.op("QuantizeLinear", g.up(x), g.const(steps, "float32"), zero, axis=-1)


@spelling(offset="integer", per_column=False)
def linear_zero_point(g: Graph, x: str, scale: Array, offset: Array | None) -> str:
    """Rounds before it adds the zero point: equal to the operator except at ties of an odd zero point."""
    zero = g.const(np.array(0) if offset is None else offset.reshape(()), "int8")
    return g.op("QuantizeLinear", g.up(x), g.const((1 / scale).reshape(()), "float32"), zero)
