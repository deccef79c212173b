"""Convolution: the short one over tokens that linear attention begins with."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from fusion.facts.semantics.table import Attrs, Operands, Unsupported, computing
from ir_ops.dtypes import Array


class _Windows(NamedTuple):
    """Of one spatial axis: padding in front and behind, how windows lie, and how many there are."""

    low: int
    high: int
    step: int
    dilation: int
    number: int


def _windows(attrs: Attrs, x: tuple[int, ...], w: tuple[int, ...]) -> list[_Windows]:
    rank = len(w) - 2
    if attrs.get("auto_pad", "NOTSET") not in ("NOTSET", "VALID") or len(x) != len(w) or rank < 1:
        raise Unsupported("Conv with automatic padding, or of another rank than its weight")
    pads = list(attrs.get("pads") or [0] * (2 * rank))
    steps, dilations = (list(attrs.get(name) or [1] * rank) for name in ("strides", "dilations"))
    found = []
    for axis in range(rank):
        low, high = pads[axis], pads[axis + rank]
        room = x[axis + 2] + low + high - dilations[axis] * (w[axis + 2] - 1)
        found.append(_Windows(low, high, steps[axis], dilations[axis], max(-(-room // steps[axis]), 0)))
    return found


def _shape(attrs: Attrs, operands: Operands) -> list[tuple[int, ...]]:
    x, w = operands[0], operands[1]
    assert x is not None and w is not None
    return [(x.shape[0], w.shape[0], *(window.number for window in _windows(attrs, x.shape, w.shape)))]


@computing("Conv", _shape)
def conv(attrs: Attrs, x: Array, w: Array, bias: Array | None = None) -> Array:
    windows, groups = _windows(attrs, x.shape, w.shape), int(attrs.get("group", 1))
    if x.shape[1] != w.shape[1] * groups or w.shape[0] % groups:
        raise Unsupported(f"Conv of {x.shape[1]} channels by {list(w.shape)} in {groups} groups")
    wide = np.float32 if x.dtype.itemsize == 2 else x.dtype
    padded = np.pad(x.astype(wide), [(0, 0), (0, 0), *(window[:2] for window in windows)])
    padded = padded.reshape(x.shape[0], groups, -1, *padded.shape[2:])
    weight = w.astype(wide).reshape(groups, -1, *w.shape[1:])
    total = np.zeros((x.shape[0], groups, weight.shape[1], *(window.number for window in windows)), wide)
    for place in np.ndindex(*w.shape[2:]):
        starts = [at * window.dilation for at, window in zip(place, windows, strict=True)]
        taps = np.moveaxis(weight, (0, 1, 2), (-3, -2, -1))[place]
        spans = [slice(None)] * 3 + [
            slice(start, start + window.step * window.number, window.step)
            for start, window in zip(starts, windows, strict=True)
        ]
        part = padded[tuple(spans)]
        total += np.einsum("goc,bgc...->bgo...", taps, part)
    result = total.reshape(x.shape[0], -1, *total.shape[3:])
    if bias is not None:
        result = result + bias.astype(wide).reshape(-1, *[1] * (result.ndim - 2))
    return result.astype(x.dtype)
