"""Random legal calls of the building blocks, over all modes, types and shapes of policy ``generic``."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from ir_ops.dtypes import Array
from tests.custom_ort.calls import FLOATS, Call, values

Rng = np.random.Generator
WIDTHS = (1, 2, 3, 7, 16, 17, 63, 64, 65, 128, 200)


def pick(rng: Rng, options: Any) -> Any:
    return options[int(rng.integers(len(options)))]


def leading(rng: Rng, most: int = 3) -> tuple[int, ...]:
    """Leading dims; now and then one of them is 0."""
    shape = tuple(int(rng.integers(1, 5)) for _ in range(int(rng.integers(0, most + 1))))
    return (0, *shape[1:]) if shape and rng.random() < 0.05 else shape


def rms_norm(rng: Rng) -> Call:
    kind, rows = str(pick(rng, FLOATS)), leading(rng)
    normed = (int(pick(rng, WIDTHS)),) if rng.random() < 0.7 else (int(rng.integers(1, 4)), int(pick(rng, WIDTHS)))
    x = values(rng, (*rows, *normed), kind, float(pick(rng, [1.0, 1e-3, 50.0])))
    gamma = values(rng, normed, kind if rng.random() < 0.6 else "float32")
    return Call({"x": x, "gamma": gamma}, {"epsilon": float(pick(rng, [1e-6, 1e-5, 0.1]))})


def add_rms_norm(rng: Rng) -> Call:
    call = rms_norm(rng)
    x, gamma = call.inputs["x"], call.inputs["gamma"]
    other = (rng.standard_normal(x.shape)).astype(x.dtype)
    return Call({"x1": x, "x2": other, "gamma": gamma.astype(x.dtype)}, call.attrs)


def rotated(rng: Rng, shape: tuple[int, ...], kind: str) -> dict[str, Array]:
    """Rows with cos and sin that broadcast along some of the leading axes."""
    parameter = tuple(1 if rng.random() < 0.4 else size for size in shape[:-1])
    return {
        "x": values(rng, shape, kind),
        "cos": values(rng, (*parameter, shape[-1]), kind),
        "sin": values(rng, (*parameter, shape[-1]), kind),
    }


def rotary_position_embedding(rng: Rng) -> Call:
    mode = int(rng.integers(4))
    width = int(pick(rng, [4, 8, 12, 36, 64, 128] if mode == 2 else [2, 6, 14, 64, 66, 128]))
    shape = (*(int(rng.integers(1, 6)) for _ in range(int(rng.integers(2, 4)))), width)
    shape = (0, *shape[1:]) if rng.random() < 0.03 else shape
    inputs = rotated(rng, shape, str(pick(rng, FLOATS)))
    if rng.random() < 0.2:
        inputs["rotate"] = values(rng, (width, width), str(inputs["x"].dtype), width**-0.5)
    return Call(inputs, {"mode": mode})


def interleave_rope(rng: Rng) -> Call:
    batch, heads, tokens = (int(rng.integers(1, 5)) for _ in range(3))
    width, kind = int(pick(rng, [2, 6, 64, 66, 128])), str(pick(rng, FLOATS))
    row = (batch, 1, tokens if rng.random() < 0.7 else 1, width)
    inputs = {"x": values(rng, (batch, heads, tokens, width), kind)}
    return Call({**inputs, "cos": values(rng, row, kind), "sin": values(rng, row, kind)}, {})


def swi_glu(rng: Rng) -> Call:
    shape = [*leading(rng), int(pick(rng, WIDTHS))]
    dim = int(rng.integers(-len(shape), len(shape)))
    shape[dim] = 2 * int(pick(rng, (0, 1, 5, 40, 1100))) if rng.random() < 0.3 else 2 * shape[dim]
    x = values(rng, tuple(shape), str(pick(rng, FLOATS)), float(pick(rng, [1.0, 10.0, 60.0])))
    return Call({"x": x}, {"dim": dim} if dim != -1 or rng.random() < 0.5 else {})


def ascend_quant_v2(rng: Rng) -> Call:
    target = int(pick(rng, [2, 2, 2, 29, 35, 36]))
    shape = (*leading(rng, 2), int(pick(rng, [2, 16, 34, 64, 1100, 2060] if target == 29 else WIDTHS)))
    axis, kind = int(rng.integers(-len(shape), len(shape))), str(pick(rng, FLOATS))
    full = tuple(size if at == axis % len(shape) else 1 for at, size in enumerate(shape))
    form = pick(rng, [(1,), (shape[axis],), full])
    spread = {2: 30.0, 29: 2.0, 35: 3000.0, 36: 100.0}[target]
    inputs = {"x": values(rng, shape, kind, float(pick(rng, [1.0, 3.0]))), "scale": values(rng, form, kind, spread)}
    if rng.random() < 0.6:
        inputs["offset"] = values(rng, form, kind, 4.0)
    attrs: dict[str, Any] = {"dst_type": target, "axis": axis}
    if target in (2, 29):
        attrs["round_mode"] = str(pick(rng, ["round", "floor", "ceil", "trunc"]))
    if rng.random() < 0.3:
        attrs["sqrt_mode"] = True
        inputs["scale"] = np.sqrt(np.abs(inputs["scale"].astype(np.float32))).astype(inputs["scale"].dtype)
    return Call(inputs, attrs)


def dynamic_quant(rng: Rng) -> Call:
    target = int(pick(rng, [2, 2, 2, 29, 35, 36]))
    shape = (*(leading(rng, 2) or (3,)), int(pick(rng, [2, 16, 34, 64, 1100, 2060] if target == 29 else WIDTHS)))
    kind = str(pick(rng, FLOATS))
    inputs = {"x": values(rng, shape, kind)}
    rows = int(np.prod(shape[:-1]))
    if rows > 1 and rng.random() < 0.3:
        inputs["x"].reshape(rows, -1)[int(rng.integers(rows))] = 0
    groups = int(rng.integers(1, 5))
    if rng.random() < 0.3:
        ends = np.sort(rng.integers(0, rows + 1, groups)).astype(np.int32)
        ends[-1] = rows
        inputs["smooth_scales"], inputs["group_index"] = values(rng, (groups, shape[-1]), kind), ends
    elif rng.random() < 0.5:
        inputs["smooth_scales"] = values(rng, shape[-1:], kind)
    return Call(inputs, {"dst_type": target})


CALLS: dict[str, Callable[[Rng], Call]] = {
    "RmsNorm": rms_norm,
    "AddRmsNorm": add_rms_norm,
    "RotaryPositionEmbedding": rotary_position_embedding,
    "InterleaveRope": interleave_rope,
    "SwiGlu": swi_glu,
    "AscendQuantV2": ascend_quant_v2,
    "DynamicQuant": dynamic_quant,
}
"""Operator -> generator of legal calls."""
