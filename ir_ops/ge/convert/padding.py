"""Padding, and the short convolution over tokens that is a sum of shifted products."""

from __future__ import annotations

from typing import Any

import numpy as np

from ir_ops.ge.convert.call import FLOATS, NodeCall
from ir_ops.ge.convert.registry import Result, converts
from ir_ops.ge.convert.unsupported import Unsupported
from ir_ops.ge.tensor import Tensor

_INT64_MAX = 2**63 - 1


@converts("Pad", dtypes="float32, float16, bfloat16, int32, int64", ge="PadV3",
          note="mode constant; amounts may be computed, then for every axis, and must not be negative")  # fmt: skip
def pad(n: NodeCall) -> Result:
    n.require(*FLOATS, "int32", "int64")
    if n.attr("mode", "constant") != "constant":
        raise Unsupported(f"Pad in mode {n.attr('mode')}", "mode constant")
    amounts = n.arg(1).constant()
    if amounts is None and n.has(3):
        raise Unsupported("Pad of chosen axes by amounts that are computed", "amounts for every axis")
    paddings = n.x(1) if amounts is None else _for_all_axes(n, [int(item) for item in amounts.reshape(-1)])
    value: Any = n.reshape(n.x(2), [], "value") if n.has(2) else n.scalar(0, n.dtype(0))
    inputs = {"x": n.x(0), "paddings": paddings, "constant_values": value}
    return n.emit("PadV3", inputs, {"mode": "constant", "paddings_contiguous": False})


def _for_all_axes(n: NodeCall, amounts: list[int]) -> Any:
    """In front of each axis, then behind each."""
    if min(amounts, default=0) < 0:
        raise Unsupported("Pad by a negative number, which cuts", "a Slice")
    rank = n.rank(0)
    axes = n.ints(3) if n.has(3) else list(range(rank))
    whole = np.zeros((2, rank), np.int64)
    whole[:, [n.axis(axis, rank) for axis in axes]] = np.reshape(amounts, (2, len(axes)))
    return n.vector(whole.reshape(-1).tolist())


@converts("Conv", dtypes="float32, float16, bfloat16", ge="PadV3, StridedSliceV2, Mul, Add",
          note="over one axis, channel by channel, step 1: the short one in front of linear attention")  # fmt: skip
def conv(n: NodeCall) -> Result:
    n.require(*FLOATS)
    channels, each, *kernel = n.shape(1)
    plain = n.attr("auto_pad", "NOTSET") == "NOTSET" and set(n.attr("strides") or [1]) == {1}
    if n.rank(0) != 3 or each != 1 or int(n.attr("group", 1)) != channels or kernel[0] < 1 or not plain:
        raise Unsupported("Conv that mixes channels, or over several axes, or with a step",
                          "one axis, as many groups as channels, step 1")  # fmt: skip
    low, high = n.attr("pads") or (0, 0)
    spread = int((n.attr("dilations") or [1])[0])
    x = n.x(0) if not (low or high) else _padded(n, int(low), int(high))
    total = None
    for tap in range(kernel[0]):
        weight = _cut(n, n.x(1), 2, tap, tap + 1, f"weight{tap}")  # [C, 1, 1]
        weight = n.reshape(weight, [channels, 1], f"taps{tap}")
        behind = (kernel[0] - 1 - tap) * spread
        part = _cut(n, x, 2, tap * spread, -behind if behind else _INT64_MAX, f"shifted{tap}")
        term = n.emit("Mul", {"x1": part, "x2": weight}, part=f"term{tap}")
        total = term if total is None else n.emit("Add", {"x1": total, "x2": term}, part=f"sum{tap}")
    assert total is not None
    if n.has(2):
        return n.emit("Add", {"x1": total, "x2": n.reshape(n.x(2), [channels, 1], "bias")})
    return total


def _padded(n: NodeCall, low: int, high: int) -> Tensor:
    inputs = {"x": n.x(0), "paddings": n.vector([0, 0, low, 0, 0, high]), "constant_values": n.scalar(0, n.dtype(0))}
    return n.emit("PadV3", inputs, {"mode": "constant", "paddings_contiguous": False}, "padded")


def _cut(n: NodeCall, x: Tensor, axis: int, begin: int, end: int, part: str) -> Tensor:
    bounds = {"begin": n.vector([begin]), "end": n.vector([end]), "axes": n.vector([axis]), "strides": n.vector([1])}
    return n.emit("StridedSliceV2", {"x": x, **bounds}, part=part)
