"""Norms, rotations and MLPs as ``torch.export`` spells them."""

from __future__ import annotations

import math
from functools import partial

import numpy as np

from ir_ops.dtypes import Array, by_name
from models.architecture import Architecture
from models.graph import INT64_MAX, Dims, Graph, Tensor


def rms_norm(g: Graph, x: Tensor, epsilon: float, name: str) -> Tensor:
    """``gamma * (x * rsqrt(mean(x^2) + epsilon))``, the root in float32, gamma in the model's type."""
    width = x.dims[-1]
    assert isinstance(width, int)
    gamma = g.weight(x.dtype, (width,), name, gain=True)
    if g.opset == 23:  # the one opset for which the exporter fuses it
        return g.op("RMSNormalization", [x, gamma], x.dims, axis=-1, epsilon=epsilon, stash_type=1)
    wide = g.cast(x, "float32")
    square = g.op("Pow", [wide, g.constant(2.0, "float32")], wide.dims)
    lead: Dims = (*wide.dims[:-1], 1)
    mean = g.op("ReduceMean", [square, g.constant([-1])], lead, noop_with_empty_axes=0, keepdims=1)
    root = g.op("Sqrt", [g.binary("Add", mean, g.constant(epsilon, "float32"))], lead)
    inverse = g.op("Reciprocal", [root], lead)
    return g.binary("Mul", gamma, g.cast(g.binary("Mul", wide, inverse), x.dtype))


def inverse_frequencies(model: Architecture) -> tuple[Array, float]:
    """``[D/2]`` float32, and the factor of cos and sin (YaRN's, else 1)."""
    width, yarn = model.rotary, model.yarn
    plain = 1.0 / model.theta ** (np.arange(0, width, 2) / width)
    if yarn is None:
        return plain.astype(np.float32), 1.0

    def turning(rotations: float) -> float:
        return width * math.log(yarn.original_length / (rotations * 2 * math.pi)) / (2 * math.log(model.theta))

    low, high = max(math.floor(turning(yarn.beta_fast)), 0), min(math.ceil(turning(yarn.beta_slow)), width - 1)
    ramp = np.clip((np.arange(width // 2) - low) / max(high - low, 0.001), 0, 1)
    mixed = plain / yarn.factor * ramp + plain * (1 - ramp)
    return mixed.astype(np.float32), yarn.gain(yarn.mscale) / yarn.gain(yarn.mscale_all_dim)


def cos_and_sin(g: Graph, model: Architecture, positions: Tensor, dtype: str) -> tuple[Tensor, Tensor]:
    """``[b, S, D]`` in the model's type from positions ``[b, S, 1]``."""
    numbers, factor = inverse_frequencies(model)
    frequencies = g.constant(numbers, "float32", "m.model.rotary_emb.inv_freq")
    angles = g.binary("Mul", g.cast(positions, "float32"), frequencies)
    both = g.op("Concat", [angles, angles], (*angles.dims[:-1], model.rotary), axis=-1)
    found = [g.op("Cos", [both], both.dims), g.op("Sin", [both], both.dims)]
    if factor != 1.0:
        found = [g.binary("Mul", item, g.constant(factor, "float32")) for item in found]
    cos, sin = (g.cast(item, dtype) for item in found)
    return cos, sin


def rotate_half(g: Graph, x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """``x * cos + cat(-x2, x1) * sin`` for x ``[B, N, S, D]``, cos and sin ``[b, S, D]``."""
    c, s = (g.once(f"unsqueezed {item.name}", partial(g.unsqueeze, item, 1)) for item in (cos, sin))
    width, axis = x.dims[-1], len(x.dims) - 1
    assert isinstance(width, int)
    first = g.binary("Mul", x, c)
    low, high = g.slice(x, 0, width // 2, axis), g.slice(x, width // 2, INT64_MAX, axis)
    turned = g.op("Concat", [g.op("Neg", [high], high.dims), low], x.dims, axis=-1)
    return g.binary("Add", first, g.binary("Mul", turned, s))


def rotate_interleaved(g: Graph, x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """Pairs of neighbouring columns are rotated; the result lies in halves. cos and sin are read up to D/2."""
    width = x.dims[-1]
    assert isinstance(width, int)
    c, s = (g.once(f"half {item.name}", partial(_first_half, g, item)) for item in (cos, sin))
    even, odd = g.slice(x, 0, INT64_MAX, 3, 2), g.slice(x, 1, INT64_MAX, 3, 2)
    low = g.binary("Sub", g.binary("Mul", even, c), g.binary("Mul", odd, s))
    high = g.binary("Add", g.binary("Mul", odd, c), g.binary("Mul", even, s))
    return g.op("Concat", [low, high], x.dims, axis=-1)


def _first_half(g: Graph, table: Tensor) -> Tensor:
    """``table[:, :, :D/2].unsqueeze(1)``."""
    width = table.dims[2]
    assert isinstance(width, int)
    return g.unsqueeze(g.slice(table, 0, width // 2, 2), 1)


def _pair_factor(g: Graph, table: Tensor) -> Tensor:
    return g.unsqueeze(g.cast(_first_half(g, table), "float32"), -1)


def rotate_complex(g: Graph, x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """DeepSeek-V2's product of complex numbers, lowered to pairs; the result stays in pairs."""
    width = x.dims[-1]
    assert isinstance(width, int)
    c, s = (g.once(f"pairs {item.name}", partial(_pair_factor, g, item)) for item in (cos, sin))
    pairs = g.reshape(g.cast(x, "float32"), (*x.dims[:-1], width // 2, 2))
    real, imaginary = g.slice(pairs, 0, 1, 4), g.slice(pairs, 1, 2, 4)
    products = [g.binary("Mul", a, b) for a, b in ((real, c), (imaginary, s), (real, s), (imaginary, c))]
    parts = [g.binary("Sub", products[0], products[1]), g.binary("Add", products[2], products[3])]
    joined = g.op("Concat", parts, pairs.dims, axis=-1)
    return g.cast(g.reshape(joined, x.dims), x.dtype)


def mlp(g: Graph, x: Tensor, width: int) -> Tensor:
    """``down(silu(gate(x)) * up(x))``."""
    hidden = x.dims[-1]
    assert isinstance(hidden, int)
    gate = g.linear(x, width)
    silu = g.binary("Mul", gate, g.op("Sigmoid", [gate], gate.dims, name=g.fresh("val")), name=g.fresh("silu"))
    return g.linear(g.binary("Mul", silu, g.linear(x, width)), hidden)


def lowest(dtype: str) -> float:
    """What a masked score gets: the type's lowest number."""
    kind = by_name(dtype)
    if kind.name == "bfloat16":
        return float(np.array(0xFF7F, np.uint16).view(np.dtype(kind.np)))
    assert kind.np is not None
    return float(np.finfo(kind.np).min)
