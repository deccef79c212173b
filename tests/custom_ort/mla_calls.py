"""Random legal calls of MlaPrologV3 of small sizes, over all modes, types and cache layouts of policy ``generic``."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnxruntime

from ir_ops.contract import kept_as
from ir_ops.dtypes import Array, by_name, by_numpy
from ir_ops.layout import MLA_CACHE_MODES, nz_block
from ir_ops.ops._mla_rules import packed_width
from tests.custom_ort.calls import Call, contents, values

NAME = "MlaPrologV3"
ALIASES = {"kv_cache": "kv_cache_out", "kr_cache": "kr_cache_out"}
WEIGHTS = ("weight_dq", "weight_uq_qr", "weight_uk", "weight_dkv_kr")
FLOATS = ("float32", "float16", "bfloat16")
E4M3 = "float8_e4m3fn"
QUERY_TYPES = tuple(int(part) for part in onnxruntime.__version__.split(".")[:2]) >= (1, 24)
"""Whether the runtime lets the operator say the element type of a quantised query."""


def scales(rng: np.random.Generator, shape: tuple[int, ...], middle: float) -> Array:
    array: Array = (middle * np.exp2(rng.uniform(-1, 1, shape))).astype(np.float32)
    return array


def eight_bit(rng: np.random.Generator, shape: tuple[int, ...], dtype: str) -> Array:
    if dtype == "int8":
        return rng.integers(-127, 128, shape).astype(np.int8)
    return values(rng, shape, dtype, 40.0)


def mx_codes(rng: np.random.Generator, shape: tuple[int, ...], middle: int) -> Array:
    return rng.integers(middle - 2, middle + 3, shape).astype(np.uint8)


class Draw:
    """A call under way: its sizes and what was decided so far."""

    def __init__(self, rng: np.random.Generator, fixed: dict[str, Any]) -> None:
        def pick(name: str, *choices: Any) -> Any:
            return fixed[name] if name in fixed else choices[int(rng.integers(len(choices)))]

        self.rng, self.pick = rng, pick
        self.weights, self.cache = int(pick("weights", 0, 0, 1, 2, 3, 4)), int(pick("cache", 0, 0, 1, 2, 3))
        modes = list(MLA_CACHE_MODES) if self.cache != 3 else ["PA_BSND", "BSND", "TND"]
        self.mode = MLA_CACHE_MODES[pick("mode", *modes)]
        self.plain = pick("plain", *FLOATS)
        self.flat = {"BSND": False, "TND": True}.get(self.mode.name, bool(rng.integers(2)))
        self.batch, self.count = int(rng.integers(1, 4)), int(rng.choice([1, 2, 5, 9]))
        self.rows = int(rng.choice([1, 4, 16]))
        self.lengths = rng.integers(0, 9, self.batch) if self.flat and self.mode.slot == "page" else None
        if self.lengths is not None:
            self.lengths[-1] += self.lengths.sum() == 0
        step = 32 if self.weights == 3 else 1
        self.hidden, self.q_rank = (
            step * int(rng.integers(1, 3 if step > 1 else 70)),
            step * int(rng.integers(1, 3 if step > 1 else 70)),
        )
        self.heads, self.nope = int(rng.integers(1, 4)), int(rng.choice([1, 16, 33, 64]))
        kept = pick("kept", self.plain, *kept_as(self.plain))
        self.kv_type = {0: kept, 2: "int8"}.get(self.cache) or pick("kv_type", "int8", E4M3)
        self.kr_type = {0: kept, 2: "int8"}.get(self.cache, self.plain)
        nz = self.mode.order == "NZ"
        self.kv_rank = (nz_block(self.kv_type) if nz else 8) * int(rng.integers(1, 6))
        self.rope = (nz_block(self.kr_type) if nz else 2) * int(rng.integers(1, 3 if nz else 20))
        self.tile = int(rng.choice([size for size in range(1, self.kv_rank + 1) if self.kv_rank % size == 0]))

    @property
    def tokens(self) -> int:
        return int(self.lengths.sum()) if self.lengths is not None else self.batch * self.count

    @property
    def lead(self) -> tuple[int, ...]:
        return (self.tokens,) if self.flat else (self.batch, self.count)


def weight_inputs(draw: Draw) -> dict[str, Array]:
    """token_x, the weights and their scales, such that the products are near 1."""
    rng, plain = draw.rng, draw.plain
    kind = {2: "int8", 3: E4M3, 4: E4M3}.get(draw.weights, plain)
    up = {1: "int8"}.get(draw.weights, kind)
    widths = {"dq": draw.q_rank, "uq_qr": draw.heads * (draw.nope + draw.rope), "dkv_kr": draw.kv_rank + draw.rope}

    def matrix(rows: int, columns: int, dtype: str) -> Array:
        if by_name(dtype).bits == 8:
            return eight_bit(rng, (rows, columns), dtype)
        return values(rng, (rows, columns), dtype, rows**-0.5)

    inputs = {
        "token_x": eight_bit(rng, (*draw.lead, draw.hidden), kind)
        if draw.weights >= 2
        else values(rng, (*draw.lead, draw.hidden), kind),
        "weight_dq": matrix(draw.hidden, widths["dq"], kind),
        "weight_uq_qr": matrix(draw.q_rank, widths["uq_qr"], up),
        "weight_uk": values(rng, (draw.heads, draw.nope, draw.kv_rank), plain, draw.nope**-0.5),
        "weight_dkv_kr": matrix(draw.hidden, widths["dkv_kr"], kind),
    }
    for name, rows, wanted in (("dq", draw.hidden, 2), ("uq_qr", draw.q_rank, 1), ("dkv_kr", draw.hidden, 2)):
        if draw.weights == 3:
            inputs[f"dequant_scale_w_{name}"] = mx_codes(rng, (widths[name], rows // 32), 119)
        elif draw.weights >= wanted:
            inputs[f"dequant_scale_w_{name}"] = scales(rng, (1, widths[name]), rows**-0.5 / 64)
    if draw.weights == 3:
        inputs["dequant_scale_x"] = mx_codes(rng, (draw.tokens, draw.hidden // 32), 122)
    elif draw.weights >= 2:
        inputs["dequant_scale_x"] = scales(rng, (draw.tokens, 1), 1 / 64)
    if draw.weights in (1, 2, 4) and rng.integers(2):
        inputs["smooth_scales_cq"] = scales(rng, (1, draw.q_rank), 1.0)
    return inputs


def index_inputs(draw: Draw, pages: int) -> dict[str, Array]:
    """cache_index without repeats, some of it -1, and the sequences' ends."""
    rng, inputs = draw.rng, dict[str, Array]()
    if draw.lengths is not None:
        inputs["actual_seq_len"] = np.cumsum(draw.lengths).astype(np.int32)
    if draw.mode.slot == "token":
        return inputs
    if draw.mode.slot == "page":
        needed = needed_pages(draw)
        index = rng.permutation(pages)[:needed]
        if not draw.flat and rng.integers(2):
            index = index.reshape(draw.batch, -1)
    else:
        index = rng.permutation(pages * draw.rows)[: draw.tokens].reshape(draw.lead)
    index = index.astype(np.int64)
    index[rng.random(index.shape) < rng.choice([0.0, 0.2, 1.0], p=[0.6, 0.35, 0.05])] = -1
    return inputs | {"cache_index": index}


def needed_pages(draw: Draw) -> int:
    if draw.lengths is not None:
        return int((-(-draw.lengths // draw.rows)).sum())
    if draw.mode.slot == "page":
        return draw.batch * -(-draw.count // draw.rows)
    return -(-draw.tokens // draw.rows)


def cache_inputs(draw: Draw) -> dict[str, Array]:
    rng, pages = draw.rng, needed_pages(draw) + int(draw.rng.integers(1, 3))
    lead = (pages, draw.rows) if draw.mode.paged else draw.lead
    width = draw.kv_rank
    if draw.cache == 3:
        width = packed_width(draw.kv_rank, draw.rope, by_name(draw.plain).itemsize, draw.tile)
    inputs = {
        "kv_cache": contents(rng, (*lead, 1, width), draw.kv_type),
        "kr_cache": contents(rng, (0,) if draw.cache == 3 else (*lead, 1, draw.rope), draw.kr_type),
    }
    if draw.cache == 1:
        one = scales(rng, (1,), 40.0)
        inputs["quant_scale_ckv"] = one if rng.integers(2) else np.full((1, draw.kv_rank), one[0])
    if draw.cache == 2:
        inputs["quant_scale_ckv"] = scales(rng, (1, draw.kv_rank), 40.0)
        inputs["quant_scale_ckr"] = scales(rng, (1, draw.rope), 40.0)
    if draw.cache == 3 and (draw.kv_type == "int8" or draw.weights == 4):
        inputs["k_nope_clip_alpha"] = rng.choice([1.0, 0.7], 1).astype(np.float32)
    return inputs | index_inputs(draw, pages)


def random_call(rng: np.random.Generator, **fixed: Any) -> Call:
    """One legal call; ``fixed`` sets weights, cache, mode, plain or kv_type."""
    draw = Draw(rng, fixed)
    inputs = weight_inputs(draw)
    for name, size in (("rmsnorm_gamma_cq", draw.q_rank), ("rmsnorm_gamma_ckv", draw.kv_rank)):
        inputs[name] = values(rng, (size,), draw.plain)
    for name in ("rope_sin", "rope_cos"):
        inputs[name] = values(rng, (*draw.lead, draw.rope), draw.plain)
    inputs |= cache_inputs(draw)
    attrs: dict[str, Any] = {
        "cache_mode": draw.mode.name,
        "weight_quant_mode": draw.weights,
        "kv_cache_quant_mode": draw.cache,
        "query_quant_mode": int(draw.cache == 1 and draw.pick("query", 0, 1) and QUERY_TYPES),
        "query_norm_flag": bool(rng.integers(2)),
        "ckvkr_repo_mode": int(draw.cache == 3),
        "quant_scale_repo_mode": int(draw.cache == 3),
        "tile_size": draw.tile,
        "rmsnorm_epsilon_cq": float(rng.choice([1e-5, 1e-6])),
        "qc_qr_scale": float(rng.choice([1.0, 1.5])),
        "kc_scale": float(rng.choice([1.0, 0.75])),
    }
    return Call(inputs, attrs)


def without_fp8(call: Call) -> bool:
    return not any(by_numpy(array.dtype).is_8bit_float or array.dtype == np.uint8 for array in call.inputs.values())


def unpacked(rows: Array, call: Call) -> tuple[Array, Array, Array]:
    """The parts of packed per-tile rows: 8-bit values, rotated keys, scales."""
    kv, rope = call.inputs["weight_uk"].shape[2], call.inputs["rope_cos"].shape[-1]
    plain = call.inputs["weight_uk"].dtype
    raw = np.ascontiguousarray(rows).view(np.uint8)
    split = kv + rope * plain.itemsize
    parts = (raw[..., :kv], raw[..., kv:split], raw[..., split:])
    kinds = (rows.dtype, plain, np.dtype(np.float32))
    left, middle, right = (np.ascontiguousarray(part).view(kind) for part, kind in zip(parts, kinds, strict=True))
    return left, middle, right


CALLS = {NAME: random_call}
"""Operator -> generator of legal calls."""
