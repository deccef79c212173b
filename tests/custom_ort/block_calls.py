"""Random legal calls of the building blocks, over all modes, types and shapes of policy ``generic``."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from ir_ops.contract_rows import MOVED
from ir_ops.dtypes import Array, by_name
from ir_ops.layout import nz_block
from tests.custom_ort.calls import EIGHT_BIT, FLOATS, Call, contents, values
from tests.custom_ort.one_node import CHOSEN_TYPES

Rng = np.random.Generator
TARGETS = [2, 2, 2, 29, 35, 36] if CHOSEN_TYPES else [2]
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
    target = int(pick(rng, TARGETS))
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
    target = int(pick(rng, TARGETS))
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


def apply_rotary_pos_emb(rng: Rng) -> Call:
    layout, mode = int(rng.integers(1, 5)), str(pick(rng, ["half", "interleave", "quarter"]))
    turned = int(pick(rng, [4, 8, 12, 64] if mode == "quarter" else [2, 6, 14, 64]))
    width = turned + int(pick(rng, [0, 0, 1, 32]))
    sizes = {name: int(rng.integers(1, 5)) for name in "BST"} | {"D": width}
    order = {1: "BSND", 2: "SBND", 3: "BNSD", 4: "TND"}[layout]
    kind = str(pick(rng, FLOATS))
    rows = [tuple(sizes.get(axis, heads) for axis in order) for heads in rng.integers(1, 5, 2).tolist()]
    shared = rng.random() < 0.3
    row = {"N": 1, "D": turned, "B": 1 if shared else sizes["B"]}
    cos = tuple(row.get(axis, sizes.get(axis, 0)) for axis in order)
    inputs = {"query": values(rng, rows[0], kind), "key": values(rng, rows[1], kind)}
    inputs |= {"cos": values(rng, cos, kind), "sin": values(rng, cos, kind)}
    return Call(inputs, {"layout": layout, "rotary_mode": mode})


def scatter_pa_kv_cache(rng: Rng) -> Call:
    mode, scatter = pick(rng, [("Norm", "None"), ("Norm", "NHSD"), ("PA_NZ", "None")])
    types = [str(kind) for kind in rng.choice((*FLOATS, *EIGHT_BIT), 2)]
    types[1] = types[1] if mode == "PA_NZ" else types[0]
    tokens, heads, block, pages = (int(rng.integers(1, 6)) for _ in range(4))
    pages += -(-tokens // block)
    inputs: dict[str, Array] = {}
    for name, kind in zip(("key", "value"), types, strict=True):
        d0 = nz_block(kind)
        width = d0 * int(rng.integers(1, 4)) if mode == "PA_NZ" else int(pick(rng, [1, 3, 16, 65]))
        inputs[name] = contents(rng, (tokens, heads, width), kind)
        shape: tuple[int, ...] = (pages, block, heads, width) if scatter == "None" else (pages, heads, block, width)
        if mode == "PA_NZ":
            fractals = width // d0
            shape = (pages, heads * fractals, block, d0) if rng.random() < 0.5 else (pages, heads, fractals, block, d0)
        inputs[f"{name}_cache"] = contents(rng, shape, kind)
    if mode == "Norm" and rng.random() < 0.2:
        inputs["value"] = inputs["value_cache"] = np.zeros(0, inputs["key"].dtype)
    slots = rng.permutation(pages * block)[:tokens]
    slots[rng.random(tokens) < 0.2] = -1
    inputs["slot_mapping"] = slots.astype(pick(rng, [np.int32, np.int64]))
    return Call(inputs, {"cache_mode": mode, "scatter_mode": scatter})


def elements(rng: Rng, shape: tuple[int, ...], kind: str) -> Array:
    """Small whole numbers in any element type."""
    lowest = -8 if kind.startswith(("float", "bfloat", "int")) else 0
    array: Array = rng.integers(lowest, 8, shape).astype(np.float32).astype(by_name(kind).np)
    return array


def moved_type(rng: Rng) -> str:
    return str(pick(rng, [kind for kind in MOVED if by_name(kind).onnx is not None]))


def scatter_update(rng: Rng) -> Call:
    kind, count, row = moved_type(rng), int(rng.integers(1, 9)), leading(rng, 2)
    shape = pick(rng, [(), (count,), (count, 2), (0,), (2, 1, count)])
    named = int(np.prod(shape))
    index = rng.permutation(named + int(rng.integers(1, 5)))
    inputs = {
        "var": elements(rng, (index.size, *row), kind),
        "indices": index[:named].reshape(shape).astype(pick(rng, [np.int32, np.int64])),
        "updates": elements(rng, (*shape, *row), kind),
    }
    return Call(inputs, {"use_locking": True} if rng.random() < 0.1 else {})


def scatter_nd_update(rng: Rng) -> Call:
    kind, named = moved_type(rng), tuple(int(rng.integers(1, 5)) for _ in range(int(rng.integers(1, 5))))
    row = tuple(int(rng.integers(1, 70)) for _ in range(int(rng.integers(0, 3))))
    most = int(np.prod(named))
    shape = pick(rng, [(int(rng.integers(0, most + 1)),), (1, most), (most, 1, 1)])
    places = rng.permutation(most)[: int(np.prod(shape))].reshape(shape)
    inputs = {
        "var": elements(rng, (*named, *row), kind),
        "indices": np.stack(np.unravel_index(places, named), -1).astype(pick(rng, [np.int32, np.int64])),
        "updates": elements(rng, (*shape, *row), kind),
    }
    return Call(inputs, {})


def tensor_move(rng: Rng) -> Call:
    return Call({"x": elements(rng, (*leading(rng), int(pick(rng, WIDTHS))), moved_type(rng))}, {})


def quantize(rng: Rng) -> Call:
    words = ("torch.qint8", "torch.qint8", "torch.quint8", "torch.qint32")
    word = str(pick(rng, words if CHOSEN_TYPES else words[:1]))
    shape = (*leading(rng, 2), int(pick(rng, (*WIDTHS, 1100, 2060))))
    axis = int(rng.integers(-len(shape), len(shape)))
    form = pick(rng, [(1,), (shape[axis],)])
    spread = 1e-9 if word == "torch.qint32" and rng.random() < 0.5 else 0.02
    scales = (spread * (0.5 + rng.random(form))).astype(np.float32)
    narrow = spread > 1e-6 and rng.random() < 0.5
    inputs = {"x": values(rng, shape, str(pick(rng, FLOATS))),
              "scales": scales.astype(by_name(str(pick(rng, FLOATS))).np) if narrow else scales}  # fmt: skip
    if rng.random() < 0.6:
        inputs["zero_points"] = elements(rng, form, str(pick(rng, ["int8", "uint8", "int32", "float32", "bfloat16"])))
    return Call(inputs, {"dtype": word, "axis": axis if form != (1,) or rng.random() < 0.5 else 9})


def ascend_dequant(rng: Rng) -> Call:
    shape = (*leading(rng, 2), int(pick(rng, (*WIDTHS, 1100, 2060))))
    largest = int(pick(rng, [1000, 1 << 20, (1 << 31) - 1]))
    scale = values(rng, pick(rng, [(1,), shape[-1:]]), str(pick(rng, ["float32", "float16"])), 1e-3)
    if scale.dtype == np.float32:  # bits above the number's own say nothing
        above = rng.integers(0, 1 << 31, scale.shape).astype(np.uint64) << np.uint64(33)
        scale = scale.view(np.uint32).astype(np.uint64) | above
    attrs = {"dtype": int(pick(rng, [0, 1] if CHOSEN_TYPES else [1]))}
    attrs |= {name: True for name in ("sqrt_mode", "relu_flag") if rng.random() < 0.3}
    return Call({"x": rng.integers(-largest, largest, shape).astype(np.int32), "deq_scale": scale}, attrs)


def rope_with_sin_cos_cache(rng: Rng) -> Call:
    heads, size = [int(number) for number in rng.integers(1, 4, 2)], int(pick(rng, [2, 6, 16, 33, 64, 80]))
    half, kind = int(rng.integers(1, size // 2 + 1)), str(pick(rng, FLOATS))
    tokens, length = int(rng.integers(0, 6)), int(rng.integers(1, 9))
    inputs = {
        "queryIn": values(rng, (tokens, heads[0] * size), kind),
        "keyIn": values(rng, (tokens, heads[1] * size), kind),
        "cosSinCache": values(rng, (length, 2 * half), kind),
    }
    attrs: dict[str, Any] = {"numQHeads": heads[0], "numKHeads": heads[1], "headSize": size}
    shape = (tokens,)
    if rng.random() < 0.4:
        first, second = np.sort(rng.integers(0, half + 1, 2)).tolist()
        attrs["mropeSection"], shape = [first, second - first, half - second], (3, tokens)
    inputs["positions"] = rng.integers(0, length, shape).astype(pick(rng, [np.int32, np.int64]))
    if rng.random() < 0.3:
        attrs |= {"qStride": heads[0] * size, "kStride": heads[1] * size}
    if rng.random() < 0.5:
        attrs["isNeoxStyle"] = False
    return Call(inputs, attrs)


def dequant_swiglu_quant(rng: Rng) -> Call:
    mode, static = int(pick(rng, [0, 0, 0, 1, 2, 3])), bool(rng.random() < 0.5)
    shape = [*(leading(rng, 2) or (3,)), int(pick(rng, [1, 3, 16, 33, 64, 700]))]
    axis = -1 if mode == 1 or not static or rng.random() < 0.7 else -2
    shape[axis] *= 2
    rows, width = int(np.prod(shape[:-1])), shape[-1]
    columns, kind = width // 2 if axis == -1 else width, str(pick(rng, ["int32", "int32", *FLOATS]))
    attrs: dict[str, Any] = {"quant_mode": "static" if static else "dynamic", "swiglu_mode": mode, "activate_dim": axis}
    attrs |= {"activate_left": bool(mode or rng.random() < 0.5), "clamp_limit": float(pick(rng, [7.0, 0.5]))}
    attrs |= {"glu_alpha": float(pick(rng, [1.702, -0.5])), "glu_bias": float(pick(rng, [1.0, 0.0]))}
    groups = int(rng.integers(1, 4)) if axis == -1 and rng.random() < 0.4 else 0

    def form(size: int) -> tuple[int, ...]:
        return (groups, size) if groups else tuple(pick(rng, [(size,), (1, size)]))

    def positive(shape: tuple[int, ...], size: float) -> Array:
        return (size * (0.5 + rng.random(shape))).astype(np.float32)

    inputs = {"x": values(rng, tuple(shape), kind, 1000.0 if kind == "int32" else 1.0)}
    if kind == "int32":
        inputs["weight_scale"] = positive(form(width), 2e-3)
        if rng.random() < 0.7:
            inputs["activation_scale"] = positive((rows,), 1.0)
        if rng.random() < 0.7:
            bias = str(pick(rng, ["int32", *FLOATS]))
            inputs["bias"] = values(rng, form(width), bias, 300.0 if bias == "int32" else 0.5)
    if static:
        shapes = [(1,), form(columns), *([(groups,)] if groups else [])]
        inputs["quant_scale"] = positive(pick(rng, shapes), 0.03)
        inputs["quant_offset"] = values(rng, inputs["quant_scale"].shape, "float32", 5.0)
    elif rng.random() < 0.7:
        inputs["quant_scale"] = positive(form(columns), 1.0)
    if groups:
        ends = np.sort(rng.integers(0, rows + 1, groups))
        inputs["group_index"] = np.diff(ends, prepend=0)
    return Call(inputs, attrs)


CALLS: dict[str, Callable[[Rng], Call]] = {
    "RmsNorm": rms_norm,
    "AddRmsNorm": add_rms_norm,
    "RotaryPositionEmbedding": rotary_position_embedding,
    "InterleaveRope": interleave_rope,
    "SwiGlu": swi_glu,
    "AscendQuantV2": ascend_quant_v2,
    "DynamicQuant": dynamic_quant,
    "ApplyRotaryPosEmb": apply_rotary_pos_emb,
    "ScatterPaKvCache": scatter_pa_kv_cache,
    "ScatterUpdate": scatter_update,
    "ScatterNdUpdate": scatter_nd_update,
    "TensorMove": tensor_move,
    "Quantize": quantize,
    "AscendDequant": ascend_dequant,
    "RopeWithSinCosCache": rope_with_sin_cos_cache,
    "DequantSwigluQuant": dequant_swiglu_quant,
}
"""Operator -> generator of legal calls."""

MOVES = ("ScatterPaKvCache", "ScatterUpdate", "ScatterNdUpdate", "TensorMove")
"""Operators that compute nothing: their results have the same bits everywhere."""
