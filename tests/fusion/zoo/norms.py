"""Legal ways to write ``x / sqrt(mean(x^2) + eps) * gamma`` over the last axis.

Each function takes the graph, ``x`` in the activation type, the constant ``gamma``, ``eps`` and the rank of ``x``, and
returns the normalised value in the activation type.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from tests.fusion.zoo.graph import Array, Graph

Norm = Callable[[Graph, str, Array, float, int], str]


def _mean_square(g: Graph, xf: str, axis: int = -1) -> str:
    return g.reduce("ReduceMean", g.op("Pow", xf, g.scalar(2.0)), axis)


def _gamma32(g: Graph, gamma: Array) -> str:
    return g.const(gamma.astype(np.float32))


def hf_reciprocal(g: Graph, x: str, gamma: Array, eps: float, rank: int) -> str:
    xf = g.up(x)
    root = g.op("Sqrt", g.op("Add", _mean_square(g, xf), g.scalar(eps)))
    return g.op("Mul", g.const(gamma, g.dtype), g.down(g.op("Mul", xf, g.op("Reciprocal", root))))


def hf_div_one(g: Graph, x: str, gamma: Array, eps: float, rank: int) -> str:
    xf = g.up(x)
    root = g.op("Sqrt", g.op("Add", _mean_square(g, xf), g.scalar(eps)))
    return g.op("Mul", g.const(gamma, g.dtype), g.down(g.op("Mul", xf, g.op("Div", g.scalar(1.0), root))))


def div_root_gamma32(g: Graph, x: str, gamma: Array, eps: float, rank: int) -> str:
    xf = g.up(x)
    mean = g.reduce("ReduceMean", g.op("Mul", xf, xf))
    y = g.op("Div", xf, g.op("Sqrt", g.op("Add", mean, g.scalar(eps))))
    return g.down(g.op("Mul", y, _gamma32(g, gamma)))


def positive_axis(g: Graph, x: str, gamma: Array, eps: float, rank: int) -> str:
    xf = g.up(x)
    root = g.op("Sqrt", g.op("Add", _mean_square(g, xf, rank - 1), g.scalar(eps)))
    return g.down(g.op("Mul", g.op("Mul", xf, g.op("Reciprocal", root)), _gamma32(g, gamma)))


def power_minus_half(g: Graph, x: str, gamma: Array, eps: float, rank: int) -> str:
    xf = g.up(x)
    inverse = g.op("Pow", g.op("Add", _mean_square(g, xf), g.scalar(eps)), g.scalar(-0.5))
    return g.down(g.op("Mul", _gamma32(g, gamma), g.op("Mul", xf, inverse)))


def power_half(g: Graph, x: str, gamma: Array, eps: float, rank: int) -> str:
    xf = g.up(x)
    root = g.op("Pow", g.op("Add", _mean_square(g, xf), g.scalar(eps)), g.scalar(0.5))
    return g.down(g.op("Mul", g.op("Div", xf, root), _gamma32(g, gamma)))


def epsilon_first(g: Graph, x: str, gamma: Array, eps: float, rank: int) -> str:
    xf = g.up(x)
    root = g.op("Sqrt", g.op("Add", g.const(np.array([eps], np.float32)), _mean_square(g, xf)))
    return g.op("Mul", g.down(g.op("Div", xf, root)), g.const(gamma, g.dtype))


def inverse_first(g: Graph, x: str, gamma: Array, eps: float, rank: int) -> str:
    xf = g.up(x)
    root = g.op("Sqrt", g.op("Add", _mean_square(g, xf), g.scalar(eps)))
    return g.op("Mul", g.down(g.op("Mul", g.op("Reciprocal", root), xf)), g.const(gamma, g.dtype))


def sum_over_n(g: Graph, x: str, gamma: Array, eps: float, rank: int) -> str:
    xf = g.up(x)
    mean = g.op("Div", g.reduce("ReduceSum", g.op("Mul", xf, xf)), g.scalar(float(gamma.size)))
    root = g.op("Sqrt", g.op("Add", mean, g.scalar(eps)))
    return g.down(g.op("Mul", g.op("Div", xf, root), _gamma32(g, gamma)))


def sum_square_times(g: Graph, x: str, gamma: Array, eps: float, rank: int) -> str:
    xf = g.up(x)
    mean = g.op("Mul", g.reduce("ReduceSumSquare", xf), g.scalar(1.0 / gamma.size))
    root = g.op("Sqrt", g.op("Add", mean, g.scalar(eps)))
    return g.down(g.op("Mul", _gamma32(g, gamma), g.op("Div", xf, root)))


def l2_squared(g: Graph, x: str, gamma: Array, eps: float, rank: int) -> str:
    xf = g.up(x)
    length = g.reduce("ReduceL2", xf)
    mean = g.op("Div", g.op("Mul", length, length), g.scalar(float(gamma.size)))
    root = g.op("Sqrt", g.op("Add", mean, g.scalar(eps)))
    return g.down(g.op("Mul", g.op("Div", xf, root), _gamma32(g, gamma)))


def gamma_times_inverse(g: Graph, x: str, gamma: Array, eps: float, rank: int) -> str:
    xf = g.up(x)
    root = g.op("Sqrt", g.op("Add", _mean_square(g, xf), g.scalar(eps)))
    factor = g.op("Mul", g.op("Reciprocal", root), _gamma32(g, gamma))
    return g.down(g.op("Mul", xf, factor))


def gamma_times_x(g: Graph, x: str, gamma: Array, eps: float, rank: int) -> str:
    xf = g.up(x)
    root = g.op("Sqrt", g.op("Add", _mean_square(g, xf), g.scalar(eps)))
    return g.down(g.op("Div", g.op("Mul", _gamma32(g, gamma), xf), root))


def gamma_over_root(g: Graph, x: str, gamma: Array, eps: float, rank: int) -> str:
    xf = g.up(x)
    root = g.op("Sqrt", g.op("Add", _mean_square(g, xf), g.scalar(eps)))
    return g.down(g.op("Mul", g.op("Div", _gamma32(g, gamma), root), xf))


def one_plus_constant(g: Graph, x: str, gamma: Array, eps: float, rank: int) -> str:
    """Gemma's and Qwen3-Next's form, with the constant sum not folded."""
    xf = g.up(x)
    root = g.op("Sqrt", g.op("Add", _mean_square(g, xf), g.scalar(eps)))
    weight = g.op("Add", g.scalar(1.0), g.const(gamma.astype(np.float32) - np.float32(1)))
    return g.down(g.op("Mul", g.op("Mul", xf, g.op("Reciprocal", root)), weight))


def negated_square(g: Graph, x: str, gamma: Array, eps: float, rank: int) -> str:
    xf = g.up(x)
    root = g.op("Sqrt", g.op("Add", _mean_square(g, g.op("Neg", xf)), g.scalar(eps)))
    return g.down(g.op("Mul", g.op("Div", xf, root), _gamma32(g, gamma)))


def double_negation(g: Graph, x: str, gamma: Array, eps: float, rank: int) -> str:
    xf = g.up(x)
    negative = g.op("Neg", xf)
    root = g.op("Sqrt", g.op("Add", g.reduce("ReduceMean", g.op("Mul", xf, xf)), g.scalar(eps)))
    return g.down(g.op("Neg", g.op("Mul", g.op("Div", negative, root), _gamma32(g, gamma))))


def mean_recomputed(g: Graph, x: str, gamma: Array, eps: float, rank: int) -> str:
    """``x * sqrt(m) / m`` where m is computed twice, without common subexpressions."""
    xf = g.up(x)
    first = g.op("Add", _mean_square(g, xf), g.scalar(eps))
    again = g.op("Add", _mean_square(g, xf), g.scalar(eps))
    y = g.op("Div", g.op("Mul", xf, g.op("Sqrt", first)), again)
    return g.down(g.op("Mul", y, _gamma32(g, gamma)))


def folded_n(g: Graph, x: str, gamma: Array, eps: float, rank: int) -> str:
    """``x * sqrt(n) / sqrt(sum(x^2) + n * eps)``."""
    xf = g.up(x)
    n = gamma.size
    total = g.reduce("ReduceSum", g.op("Mul", xf, xf))
    root = g.op("Sqrt", g.op("Add", total, g.scalar(n * eps)))
    y = g.op("Div", g.op("Mul", xf, g.scalar(float(np.sqrt(n)))), root)
    return g.down(g.op("Mul", y, _gamma32(g, gamma)))


def keepdims_off(g: Graph, x: str, gamma: Array, eps: float, rank: int) -> str:
    xf = g.up(x)
    mean = g.reduce("ReduceMean", g.op("Mul", xf, xf), keepdims=0)
    root = g.op("Sqrt", g.op("Add", g.unsqueeze(mean, rank - 1), g.scalar(eps)))
    return g.down(g.op("Mul", g.op("Div", xf, root), _gamma32(g, gamma)))


def gamma_full_rank(g: Graph, x: str, gamma: Array, eps: float, rank: int) -> str:
    xf = g.up(x)
    weight = g.const(gamma.astype(np.float32).reshape((1,) * (rank - 1) + (-1,)))
    root = g.op("Sqrt", g.op("Add", _mean_square(g, xf), g.const(np.full((1,) * rank, eps, np.float32))))
    return g.down(g.op("Mul", g.op("Div", xf, root), weight))


def gamma_reshaped(g: Graph, x: str, gamma: Array, eps: float, rank: int) -> str:
    xf = g.up(x)
    weight = g.unsqueeze(g.up(g.const(gamma, g.dtype)), *range(rank - 1))
    root = g.op("Sqrt", g.op("Add", _mean_square(g, xf), g.scalar(eps)))
    return g.down(g.op("Mul", weight, g.op("Div", xf, root)))


def idle_nodes(g: Graph, x: str, gamma: Array, eps: float, rank: int) -> str:
    """Identity and Casts that change nothing, on every edge, between the two readers of x too."""
    xf = g.cast(g.op("Identity", x), "float32")
    other = g.op("Identity", g.cast(xf, "float32"))
    mean = g.op("Identity", g.reduce("ReduceMean", g.op("Mul", xf, other)))
    root = g.op("Sqrt", g.op("Identity", g.op("Add", mean, g.op("Identity", g.scalar(eps)))))
    y = g.op("Mul", g.op("Mul", other, g.scalar(1.0)), g.op("Reciprocal", root))
    return g.op("Identity", g.cast(g.op("Mul", y, _gamma32(g, gamma)), g.dtype))


def own_type(g: Graph, x: str, gamma: Array, eps: float, rank: int) -> str:
    """Everything in the activation type."""
    mean = g.reduce("ReduceMean", g.op("Mul", x, x))
    root = g.op("Sqrt", g.op("Add", mean, g.scalar(eps, g.dtype)))
    return g.op("Mul", g.op("Div", x, root), g.const(gamma, g.dtype))


def in_double(g: Graph, x: str, gamma: Array, eps: float, rank: int) -> str:
    xd = g.cast(x, "float64")
    mean = g.reduce("ReduceMean", g.op("Mul", xd, xd))
    root = g.op("Sqrt", g.op("Add", mean, g.scalar(float(np.float32(eps)), "float64")))
    return g.cast(g.op("Mul", g.op("Div", xd, root), g.const(gamma, "float64")), g.dtype)


def squared_root(g: Graph, x: str, gamma: Array, eps: float, rank: int) -> str:
    """``x * gamma * r / (r * r)`` with r the root: exponents that cancel."""
    xf = g.up(x)
    root = g.op("Sqrt", g.op("Add", _mean_square(g, xf), g.scalar(eps)))
    y = g.op("Div", g.op("Mul", g.op("Mul", xf, _gamma32(g, gamma)), root), g.op("Pow", root, g.scalar(2.0)))
    return g.down(y)


def gamma_in_parts(g: Graph, x: str, gamma: Array, eps: float, rank: int) -> str:
    """A factor 2 beside half of gamma; the square is that of ``-1 * x``."""
    xf = g.up(x)
    root = g.op("Sqrt", g.op("Add", _mean_square(g, g.op("Mul", xf, g.scalar(-1.0))), g.scalar(eps)))
    twice = g.op("Mul", g.op("Div", xf, root), g.scalar(2.0))
    return g.down(g.op("Mul", twice, _gamma32(g, gamma / gamma.dtype.type(2))))


def count_in_parts(g: Graph, x: str, gamma: Array, eps: float, rank: int) -> str:
    """``sum * 2 * (1 / 2n)`` for the mean."""
    xf = g.up(x)
    total = g.op("Mul", g.reduce("ReduceSum", g.op("Mul", xf, xf)), g.scalar(2.0))
    root = g.op("Sqrt", g.op("Add", g.op("Mul", total, g.scalar(0.5 / gamma.size)), g.scalar(eps)))
    return g.down(g.op("Mul", _gamma32(g, gamma), g.op("Div", xf, root)))


def recomputed_otherwise(g: Graph, x: str, gamma: Array, eps: float, rank: int) -> str:
    """``x * sqrt(m) * (1 / m)`` where m is computed twice, with Pow and with Mul."""
    xf = g.up(x)
    first = g.op("Add", _mean_square(g, xf), g.scalar(eps))
    again = g.op("Add", g.reduce("ReduceMean", g.op("Mul", xf, xf)), g.scalar(eps))
    y = g.op("Mul", g.op("Mul", xf, g.op("Sqrt", first)), g.op("Reciprocal", again))
    return g.down(g.op("Mul", y, _gamma32(g, gamma)))


def undone_moves(g: Graph, x: str, gamma: Array, eps: float, rank: int) -> str:
    """Moves that are undone again, signs that cancel, a factor of 1, on every way to the product."""
    xf = g.up(x)
    order = [*range(1, rank), 0]
    turned = g.transpose(g.transpose(xf, *order), *(order.index(axis) for axis in range(rank)))
    root = g.op("Sqrt", g.op("Add", _mean_square(g, g.op("Neg", g.op("Neg", turned))), g.scalar(eps)))
    flat = g.op("Reshape", g.reshape(xf, -1), g.op("Shape", xf))
    y = g.op("Mul", g.op("Div", g.squeeze(g.unsqueeze(flat, 0), 0), root), g.scalar(1.0))
    return g.down(g.op("Mul", g.op("Concat", y, axis=-1), _gamma32(g, gamma)))


def standard_op(g: Graph, x: str, gamma: Array, eps: float, rank: int) -> str:
    return g.op("RMSNormalization", x, g.const(gamma, g.dtype), axis=-1, epsilon=eps, stash_type=1)


def runtime_op(g: Graph, x: str, gamma: Array, eps: float, rank: int) -> str:
    """ONNX Runtime's own operator, in the default domain as it writes it."""
    return g.op("SimplifiedLayerNormalization", x, g.const(gamma, g.dtype), axis=-1, epsilon=eps, stash_type=1)


NORMS: dict[str, Norm] = {
    norm.__name__: norm
    for norm in (
        hf_reciprocal,
        hf_div_one,
        div_root_gamma32,
        positive_axis,
        power_minus_half,
        power_half,
        epsilon_first,
        inverse_first,
        sum_over_n,
        sum_square_times,
        l2_squared,
        gamma_times_inverse,
        gamma_times_x,
        gamma_over_root,
        one_plus_constant,
        negated_square,
        double_negation,
        mean_recomputed,
        folded_n,
        keepdims_off,
        gamma_full_rank,
        gamma_reshaped,
        idle_nodes,
        own_type,
        in_double,
        squared_root,
        gamma_in_parts,
        count_in_parts,
        recomputed_otherwise,
        undone_moves,
        standard_op,
        runtime_op,
    )
}
NORM_SINCE = {"standard_op": 23}
"""Opset from which a spelling exists."""
