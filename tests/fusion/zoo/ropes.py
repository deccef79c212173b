"""Legal ways to write the two rotations that KvRmsNormRopeCache can express.

* ``deinterleave``: ``e = x[0::2]``, ``o = x[1::2]``; result ``[e*c - o*s, o*c + e*s]``, the operator's own.
* ``half``: the same with ``e``, ``o`` the left and the right half; the operator does it on permuted columns.

Each function takes the graph, ``x`` of rank 4 with the rotated columns last, ``cos``, ``sin`` and the width, and
returns the rotated value. ``cos`` is as wide as x (``full``; of those some read only the ``first`` half, so that the
second half of the input must not matter) or half as wide (``half``).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from tests.fusion.zoo.graph import END, Graph

Build = Callable[[Graph, str, str, str, int], str]


@dataclass(frozen=True)
class Rope:
    """One spelling: what it computes, how wide its cos and sin are, from which opset on it exists."""

    build: Build
    kind: str
    width: str = "full"
    since: int = 11


ROPES: dict[str, Rope] = {}


def spelling(kind: str, width: str = "full", since: int = 11) -> Callable[[Build], Build]:
    def enter(build: Build) -> Build:
        ROPES[build.__name__] = Rope(build, kind, width, since)
        return build

    return enter


def rotate_half(g: Graph, x: str, d: int, axis: int = 3) -> str:
    low, high = g.slice(x, 0, d // 2, axis), g.slice(x, d // 2, END, axis)
    return g.op("Concat", g.op("Neg", high), low, axis=-1)


def products(g: Graph, x: str, rotated: str, cos: str, sin: str) -> str:
    return g.op("Add", g.op("Mul", x, cos), g.op("Mul", rotated, sin))


def pair(g: Graph, e: str, o: str, cos: tuple[str, str], sin: tuple[str, str]) -> tuple[str, str]:
    """Both halves of the result; ``cos`` and ``sin`` per half."""
    first = g.op("Sub", g.op("Mul", e, cos[0]), g.op("Mul", o, sin[0]))
    return first, g.op("Add", g.op("Mul", o, cos[1]), g.op("Mul", e, sin[1]))


def view_pairs(g: Graph, x: str, d: int) -> str:
    return g.reshape(x, (x, 0), (x, 1), (x, 2), d // 2, 2)


def deinterleaved(g: Graph, x: str, d: int) -> str:
    swapped = g.transpose(view_pairs(g, x, d), 0, 1, 2, 4, 3)
    return g.reshape(swapped, (x, 0), (x, 1), (x, 2), d)


@spelling("deinterleave")
def deint_view(g: Graph, x: str, cos: str, sin: str, d: int) -> str:
    z = deinterleaved(g, x, d)
    return products(g, z, rotate_half(g, z, d), cos, sin)


@spelling("deinterleave")
def deint_strided(g: Graph, x: str, cos: str, sin: str, d: int) -> str:
    z = g.op("Concat", g.slice(x, 0, END, -1, 2), g.slice(x, 1, END, -1, 2), axis=3)
    return products(g, z, rotate_half(g, z, d, -1), cos, sin)


@spelling("deinterleave", "first")
def deint_hf_slices(g: Graph, x: str, cos: str, sin: str, d: int) -> str:
    c, s = g.slice(cos, 0, d // 2, 3), g.slice(sin, 0, d // 2, 3)
    parts = pair(g, g.slice(x, 0, END, 3, 2), g.slice(x, 1, END, 3, 2), (c, c), (s, s))
    return g.op("Concat", *parts, axis=-1)


@spelling("deinterleave", "half")
def deint_chunk(g: Graph, x: str, cos: str, sin: str, d: int) -> str:
    parts = pair(g, g.slice(x, 0, d, 3, 2), g.slice(x, 1, d, 3, 2), (cos, cos), (sin, sin))
    return g.op("Concat", *parts, axis=3)


@spelling("deinterleave")
def deint_both_halves(g: Graph, x: str, cos: str, sin: str, d: int) -> str:
    c, s = g.halves(cos), g.halves(sin)
    parts = pair(g, g.slice(x, 0, END, 3, 2), g.slice(x, 1, END, 3, 2), (c[0], c[1]), (s[0], s[1]))
    return g.op("Concat", *parts, axis=-1)


@spelling("deinterleave")
def deint_gather(g: Graph, x: str, cos: str, sin: str, d: int) -> str:
    z = g.op("Gather", x, g.ints(*range(0, d, 2), *range(1, d, 2)), axis=3)
    return products(g, z, rotate_half(g, z, d), cos, sin)


@spelling("deinterleave", "half")
def deint_unbind(g: Graph, x: str, cos: str, sin: str, d: int) -> str:
    e, o = (g.squeeze(part, 4) for part in g.split(view_pairs(g, x, d), [1, 1], 4))
    return g.op("Concat", *pair(g, e, o, (cos, cos), (sin, sin)), axis=-1)


@spelling("deinterleave", "half")
def deint_pick(g: Graph, x: str, cos: str, sin: str, d: int) -> str:
    pairs = view_pairs(g, x, d)
    e, o = (g.op("Gather", pairs, g.const(np.array(k, np.int64)), axis=-1) for k in (0, 1))
    return g.op("Concat", *pair(g, e, o, (cos, cos), (sin, sin)), axis=-1)


@spelling("deinterleave", "half")
def deint_stack_back(g: Graph, x: str, cos: str, sin: str, d: int) -> str:
    """Rotates pairs in place, writes them interleaved, and de-interleaves at the end."""
    first, second = pair(g, g.slice(x, 0, END, 3, 2), g.slice(x, 1, END, 3, 2), (cos, cos), (sin, sin))
    stacked = g.op("Concat", g.unsqueeze(first, 4), g.unsqueeze(second, 4), axis=-1)
    return deinterleaved(g, g.reshape(stacked, (x, 0), (x, 1), (x, 2), d), d)


@spelling("deinterleave")
def deint_minus(g: Graph, x: str, cos: str, sin: str, d: int) -> str:
    """Subtracts the inverse quarter turn: ``z*c - cat(o, -e)*s``."""
    z = deinterleaved(g, x, d)
    turned = g.op("Concat", g.slice(z, d // 2, END, 3), g.op("Neg", g.slice(z, 0, d // 2, 3)), axis=-1)
    return g.op("Sub", g.op("Mul", z, cos), g.op("Mul", turned, sin))


@spelling("deinterleave")
def deint_in_float32(g: Graph, x: str, cos: str, sin: str, d: int) -> str:
    z = g.up(deinterleaved(g, x, d))
    return g.down(products(g, z, rotate_half(g, z, d), g.up(cos), g.up(sin)))


@spelling("deinterleave")
def deint_late(g: Graph, x: str, cos: str, sin: str, d: int) -> str:
    """Turns the pairs first, de-interleaves both summands afterwards."""
    e, o = g.slice(x, 0, END, 3, 2), g.slice(x, 1, END, 3, 2)
    turned = g.op("Concat", g.unsqueeze(g.op("Neg", o), -1), g.unsqueeze(e, -1), axis=4)
    swapped = g.transpose(turned, 0, 1, 2, 4, 3)
    rotated = g.reshape(swapped, (x, 0), (x, 1), (x, 2), d)
    return g.op("Add", g.op("Mul", sin, rotated), g.op("Mul", cos, deinterleaved(g, x, d)))


@spelling("half")
def half_slices(g: Graph, x: str, cos: str, sin: str, d: int) -> str:
    return products(g, x, rotate_half(g, x, d), cos, sin)


@spelling("half")
def half_negative_axis(g: Graph, x: str, cos: str, sin: str, d: int) -> str:
    high = g.slice(x, -(d // 2), END, -1, None)
    low = g.slice(x, -d, -(d // 2), -1, None)
    return products(g, x, g.op("Concat", g.op("Neg", high), low, axis=3), cos, sin)


@spelling("half")
def half_split(g: Graph, x: str, cos: str, sin: str, d: int) -> str:
    low, high = g.halves(x)
    return products(g, x, g.op("Concat", g.op("Neg", high), low, axis=-1), cos, sin)


@spelling("half")
def half_split_sizes(g: Graph, x: str, cos: str, sin: str, d: int) -> str:
    low, high = g.split(x, [d // 2, d // 2], 3)
    turned = g.op("Concat", g.op("Mul", high, g.scalar(-1.0, g.dtype)), low, axis=-1)
    return g.op("Add", g.op("Mul", sin, turned), g.op("Mul", cos, x))


@spelling("half", "half")
def half_chunk(g: Graph, x: str, cos: str, sin: str, d: int) -> str:
    low, high = g.halves(x, 3)
    return g.op("Concat", *pair(g, low, high, (cos, cos), (sin, sin)), axis=-1)


@spelling("half", "first")
def half_first(g: Graph, x: str, cos: str, sin: str, d: int) -> str:
    low, high = g.split(x, [d // 2, d // 2])
    c, s = g.slice(cos, 0, d // 2, -1), g.slice(sin, 0, d // 2, -1)
    return g.op("Concat", *pair(g, low, high, (c, c), (s, s)), axis=-1)


@spelling("half")
def half_signed_sin(g: Graph, x: str, cos: str, sin: str, d: int) -> str:
    """The sign sits in a constant beside sin, the turn is a plain swap."""
    low, high = g.halves(x)
    sign = g.const(np.repeat([-1.0, 1.0], d // 2), g.dtype)
    return products(g, x, g.op("Concat", high, low, axis=-1), cos, g.op("Mul", sin, sign))


@spelling("half")
def half_roll_gather(g: Graph, x: str, cos: str, sin: str, d: int) -> str:
    rolled = g.op("Gather", x, g.ints(*range(d // 2, d), *range(d // 2)), axis=-1)
    sign = g.const(np.repeat([-1.0, 1.0], d // 2).reshape(1, 1, 1, d), g.dtype)
    return products(g, x, g.op("Mul", rolled, sign), cos, sin)


@spelling("half", since=16)
def half_where(g: Graph, x: str, cos: str, sin: str, d: int) -> str:
    low, high = g.halves(x)
    swapped = g.op("Concat", high, low, axis=-1)
    mask = g.const(np.arange(d) < d // 2)
    return products(g, x, g.op("Where", mask, g.op("Neg", swapped), swapped), cos, sin)


@spelling("half")
def half_view(g: Graph, x: str, cos: str, sin: str, d: int) -> str:
    """A view ``[.., 2, d/2]`` whose two rows are the halves."""
    rows = g.reshape(x, (x, 0), (x, 1), (x, 2), 2, d // 2)
    low, high = g.split(rows, [1, 1], 3)
    turned = g.op("Concat", g.op("Neg", high), low, axis=-2)
    return products(g, x, g.reshape(turned, (x, 0), (x, 1), (x, 2), d), cos, sin)


@spelling("half")
def half_columns_first(g: Graph, x: str, cos: str, sin: str, d: int) -> str:
    """Rotates along axis 0 of a transposed copy."""
    t = g.transpose(x, 3, 0, 1, 2)
    low, high = g.halves(t, 0)
    turned = g.op("Concat", g.op("Neg", high), low, axis=0)
    c, s = g.transpose(cos, 3, 0, 1, 2), g.transpose(sin, 3, 0, 1, 2)
    return g.transpose(g.op("Add", g.op("Mul", t, c), g.op("Mul", turned, s)), 1, 2, 3, 0)


@spelling("half")
def half_sum_op(g: Graph, x: str, cos: str, sin: str, d: int) -> str:
    turned = g.op("Identity", rotate_half(g, x, d))
    return g.op("Sum", g.op("Mul", turned, sin), g.op("Mul", g.op("Identity", x), cos))


@spelling("half")
def half_minus_zero(g: Graph, x: str, cos: str, sin: str, d: int) -> str:
    low, high = g.halves(x)
    turned = g.op("Concat", g.op("Sub", g.scalar(0.0, g.dtype), high), low, axis=-1)
    return products(g, x, turned, cos, sin)


@spelling("half")
def half_sign_in_parts(g: Graph, x: str, cos: str, sin: str, d: int) -> str:
    """``sin * 2 * [-1/2, 1/2]``, and the halves swapped."""
    signs = np.where(np.arange(d) < d // 2, -0.5, 0.5).astype(np.float32)
    signed = g.op("Mul", g.op("Mul", sin, g.scalar(2.0, g.dtype)), g.const(signs, g.dtype))
    low, high = g.halves(x)
    return g.op("Add", g.op("Mul", x, cos), g.op("Mul", g.op("Concat", high, low, axis=-1), signed))


@spelling("half")
def half_undone_moves(g: Graph, x: str, cos: str, sin: str, d: int) -> str:
    """Moves that are undone again, signs that cancel, a factor of 1."""
    turned = g.transpose(g.transpose(x, 0, 2, 1, 3), 0, 2, 1, 3)
    rotated = g.op("Neg", g.op("Neg", rotate_half(g, turned, d)))
    flat = g.op("Reshape", g.reshape(x, -1), g.op("Shape", x))
    first = g.op("Mul", g.op("Mul", flat, cos), g.scalar(1.0, g.dtype))
    return g.op("Add", g.op("Concat", first, axis=1), g.op("Mul", rotated, g.squeeze(g.unsqueeze(sin, 0), 0)))


@spelling("half", "half", since=23)
def half_standard_op(g: Graph, x: str, cos: str, sin: str, d: int) -> str:
    """ONNX RotaryEmbedding; its cos and sin are ``[B, S, d/2]``."""
    return g.op("RotaryEmbedding", x, g.squeeze(cos, 1), g.squeeze(sin, 1), interleaved=0)


@spelling("deinterleave", "half", since=23)
def deint_standard_op(g: Graph, x: str, cos: str, sin: str, d: int) -> str:
    """ONNX RotaryEmbedding of interleaved pairs, its interleaved result sorted into halves."""
    y = g.op("RotaryEmbedding", x, g.squeeze(cos, 1), g.squeeze(sin, 1), interleaved=1)
    return deinterleaved(g, y, d)
