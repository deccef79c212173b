"""The computation of MlaPrologV3 over :class:`ir_ops.numeric.Numeric`.

Values are rounded to the operand type T (that of weight_uk) where the contract says so: the two products of a token_x
that is not quantised, the normed query, the up-projection by plain weights, the nope part before its product with
weight_uk, and that product. Everything else is float32. With T = float32 nothing is rounded in between.

float8 and packed per-tile rows have no function body; they are computed in numpy.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import ml_dtypes
import numpy as np

from ir_ops.dtypes import Array, by_name
from ir_ops.layout import MLA_CACHE_MODES, CacheMode
from ir_ops.numeric import Numeric
from ir_ops.ops._mla_rules import MX_BLOCK
from ir_ops.preamble import FLOAT8_MAX, Slots, rms_norm, rotate_interleaved, store, write_cache

E4M3 = "float8_e4m3fn"
_SMALLEST = float(np.finfo(np.float32).tiny)
_LARGEST = {"int8": 127.0, E4M3: FLOAT8_MAX[E4M3]}


def _numpy_type(dtype: str) -> np.dtype[Any]:
    kind = by_name(dtype).np
    assert kind is not None
    return kind


def wide(xp: Numeric, x: Any) -> Any:
    return xp.cast(x, "float32")


def rounded(xp: Numeric, x: Any, like: Any) -> Any:
    """float32 values as the element type of a tensor leaves them."""
    return wide(xp, xp.cast(x, xp.dtype(like)))


def dynamic(xp: Numeric, x: Any, dtype: str) -> tuple[Any, Any]:
    """Rows as 8-bit values and their scale: largest magnitude / largest value. A zero row has scale 0 and zeros."""
    scale = xp.max_columns(xp.abs(x)) / _LARGEST[dtype]
    quotient = xp.nan_to_zero(x / scale)
    return store(xp, quotient, dtype, 1.0, None, "saturate"), scale


def mx_scales(bits: Array) -> Array:
    """e8m0 scales, given as such or as their bits, as float32."""
    values: Array = bits.view(ml_dtypes.float8_e8m0fnu).astype(np.float32)
    return values


def mx_values(x: Array, scales: Array) -> Array:
    """Rows of e4m3 blocks as float32: every 32 columns share a scale."""
    values: Array = x.astype(np.float32) * np.repeat(mx_scales(scales), MX_BLOCK, axis=-1)
    return values


def mx_quantise(x: Array, dtype: str) -> tuple[Array, Array]:
    """float32 rows in MX blocks: 2^(floor(log2 of the largest) - 8) is the scale; a zero block has the smallest."""
    blocks = x.reshape(*x.shape[:-1], x.shape[-1] // MX_BLOCK, MX_BLOCK)
    largest = np.abs(blocks).max(axis=-1, keepdims=True)
    exponent = np.frexp(largest)[1] - 1 - 8
    code = np.where(largest > 0, np.clip(exponent + 127, 0, 254), 0)
    code = np.where(np.isfinite(largest), code, np.where(np.isnan(largest), 255, 254)).astype(np.uint8)
    scaled = blocks / code.view(ml_dtypes.float8_e8m0fnu).astype(np.float32)
    top = FLOAT8_MAX[E4M3]
    values = np.clip(scaled, -top, top).reshape(x.shape).astype(ml_dtypes.float8_e4m3fn)
    return values, code[..., 0].view(_numpy_type(dtype))


def product(xp: Numeric, a: Any, weight: Any, scale_a: Any, scale_w: Any) -> Any:
    """``a`` [T, K] times a weight [K, M] as float32, both of one element type, with the scales where they have some."""
    if xp.dtype(a) == "int8":
        return wide(xp, xp.matmul_integer(a, weight)) * scale_a * scale_w
    if scale_w is None:
        return xp.matmul(wide(xp, a), wide(xp, weight))
    if scale_w.dtype != np.float32:
        return mx_values(a, scale_a) @ mx_values(weight.T, scale_w).T
    return xp.matmul(wide(xp, a), wide(xp, weight)) * scale_a * scale_w


def down(xp: Numeric, x: Mapping[str, Any], name: str) -> Any:
    """token_x [T, He] times a weight, rounded to T when token_x has that type."""
    tokens = xp.reshape(x["token_x"], [-1, xp.dim(x["token_x"], -1)])
    made = product(xp, tokens, x[name], x.get("dequant_scale_x"), x.get(f"dequant_scale_{name.replace('weight', 'w')}"))
    return rounded(xp, made, x["weight_uk"]) if x.get("dequant_scale_x") is None else made


def quantised_norm(xp: Numeric, x: Mapping[str, Any], c: Any) -> tuple[Any, Any]:
    """The normed query as the operand of the up-projection, and its scale (None for plain weights)."""
    scale_w, kind = x.get("dequant_scale_w_uq_qr"), xp.dtype(x["weight_uq_qr"])
    if scale_w is None:
        return xp.cast(c, kind), None
    if kind == E4M3 and scale_w.dtype != np.float32:
        return mx_quantise(rounded(xp, c, x["weight_uk"]), str(xp.dtype(scale_w)))
    if x.get("smooth_scales_cq") is not None:
        c = c * x["smooth_scales_cq"]
    return dynamic(xp, c, kind)


def query(xp: Numeric, x: Mapping[str, Any], attrs: Mapping[str, Any]) -> dict[str, Any]:
    """query, query_rope, their scale, and the normed query with its scale; all by token."""
    uk, gamma = x["weight_uk"], wide(xp, x["rmsnorm_gamma_cq"])
    a = down(xp, x, "weight_dq")
    c = rms_norm(xp, a, xp.dim(gamma, 0), gamma, attrs["rmsnorm_epsilon_cq"]) * attrs["qc_qr_scale"]
    normed, scale = quantised_norm(xp, x, c)
    m = product(xp, normed, x["weight_uq_qr"], scale, x.get("dequant_scale_w_uq_qr"))
    if scale is None:
        m = rounded(xp, m, uk)
    heads, nope, rope = xp.dim(uk, 0), xp.dim(uk, 1), xp.dim(x["rope_cos"], -1)
    m = xp.reshape(m, [xp.dim(a, 0), heads, nope + rope])
    left = xp.transpose(rounded(xp, xp.columns(m, 0, nope), uk), [1, 0, 2])
    q = xp.cast(xp.transpose(xp.matmul(left, wide(xp, uk)), [1, 0, 2]), xp.dtype(uk))
    cos, sin = (wide(xp, xp.reshape(x[name], [-1, 1, rope])) for name in ("rope_cos", "rope_sin"))
    turned = rotate_interleaved(xp, xp.columns(m, nope, nope + rope), cos, sin, rope)
    made = {
        "query": q,
        "query_rope": xp.cast(turned, xp.dtype(uk)),
        "query_norm": normed,
        "dequant_scale_q_norm": scale,
    }
    if attrs["query_quant_mode"]:
        made["query"], each = dynamic(xp, wide(xp, q), str(xp.dtype(x["kv_cache"])))
        # The scores of query and cache are multiplied by both scales: the rotated part is brought to the same unit.
        one = xp.reshape(xp.columns(x["quant_scale_ckv"], 0, 1), [1])
        ratio = xp.where(each >= _SMALLEST, one / each, xp.zeros([1], "float32"))
        made["query_rope"] = xp.cast(wide(xp, made["query_rope"]) * ratio, xp.dtype(uk))
        made["dequant_scale_q_nope"] = each
    return made


def key(xp: Numeric, x: Mapping[str, Any], attrs: Mapping[str, Any]) -> tuple[Any, Any]:
    """The compressed row [T, Hckv] and the rotated key [T, Dr], float32."""
    gamma = wide(xp, x["rmsnorm_gamma_ckv"])
    width, rope = xp.dim(gamma, 0), xp.dim(x["rope_cos"], -1)
    b = down(xp, x, "weight_dkv_kr")
    normed = rms_norm(xp, xp.columns(b, 0, width), width, gamma, attrs["rmsnorm_epsilon_ckv"]) * attrs["kc_scale"]
    cos, sin = (wide(xp, xp.reshape(x[name], [-1, rope])) for name in ("rope_cos", "rope_sin"))
    return normed, rotate_interleaved(xp, xp.columns(b, width, width + rope), cos, sin, rope)


def packed_rows(c: Array, k: Array, plain: Array, dtype: str, tile: int, alpha: Array | None) -> Array:
    """Per-tile rows in bytes: 8-bit values, the rotated key in its own type, a float32 scale for each tile."""
    tiles = c.reshape(c.shape[0], c.shape[1] // tile, tile)
    largest = np.abs(tiles).max(axis=-1, keepdims=True)
    if dtype == E4M3:
        largest = np.maximum(largest, np.float32(1e-4))
    if alpha is not None:
        largest = largest * alpha.reshape(-1)[0]
    scale = largest / np.float32(_LARGEST[dtype])
    quotient = np.nan_to_num(np.clip(tiles, -largest, largest) / scale, nan=0.0)
    if dtype == "int8":
        quotient = np.rint(quotient)
    quotient = np.clip(quotient, -128 if dtype == "int8" else -_LARGEST[E4M3], _LARGEST[dtype])
    values = quotient.reshape(c.shape).astype(by_name(dtype).np)
    parts = [values, k.astype(plain.dtype), scale[..., 0]]
    rows = np.concatenate([np.ascontiguousarray(part).view(np.uint8) for part in parts], axis=-1)
    packed: Array = rows.view(_numpy_type(dtype))
    return packed


def places(xp: Numeric, mode: CacheMode, x: Mapping[str, Any], rows: Any) -> Slots:
    """Page and row of every token."""
    flat = xp.rank(x["token_x"]) == 2
    count = xp.dim(x["token_x"], 0) if flat else xp.dim(x["token_x"], 0) * xp.dim(x["token_x"], 1)
    token = xp.arange(count)
    if mode.slot == "token":
        return Slots(mode, token * 0, token, token >= 0, rows)
    index = xp.reshape(x["cache_index"], [-1])
    if mode.slot == "slot":
        return Slots(mode, index // rows, index % rows, index >= 0, rows)
    if flat:
        ends = xp.cast(x["actual_seq_len"], "int64")
        passed = xp.cast(xp.reshape(token, [-1, 1]) >= xp.reshape(ends, [1, -1]), "int64")
        sequence = xp.reshape(xp.sum_columns(passed), [-1])
        starts = xp.concat_columns([xp.zeros([1], "int64"), ends])
        last = xp.dim(ends, 0)
        pages = (ends - xp.columns(starts, 0, last) + (rows - 1)) // rows
        first = xp.concat_columns([xp.zeros([1], "int64"), xp.cumsum(pages)])
        position = token - xp.take(starts, sequence)
        block = xp.take(first, sequence) + position // rows
    else:
        tokens = xp.dim(x["token_x"], 1)
        position = token % tokens
        block = token // tokens * ((tokens + (rows - 1)) // rows) + position // rows
    page = xp.take(index, block)
    return Slots(mode, page, position % rows, page >= 0, rows)


def write(xp: Numeric, x: Mapping[str, Any], attrs: Mapping[str, Any], c: Any, k: Any) -> dict[str, Any]:
    """The caches with the rows of all tokens."""
    caches = {name: x[name] for name in ("kv_cache", "kr_cache")}
    mode = MLA_CACHE_MODES[str(attrs["cache_mode"])]
    rows = xp.dim(x["kv_cache"], 1)
    if isinstance(rows, int) and 0 in x["kv_cache"].shape:
        return caches
    quant, kind = attrs["kv_cache_quant_mode"], str(xp.dtype(x["kv_cache"]))
    spots = places(xp, mode, x, rows)
    if quant == 3:
        stored = packed_rows(c, k, x["weight_uk"], kind, int(attrs["tile_size"]), x.get("k_nope_clip_alpha"))
        caches["kv_cache"] = write_cache(xp, x["kv_cache"], spots, stored[:, None, :])
        return caches
    scales = {"kv_cache": x.get("quant_scale_ckv"), "kr_cache": x.get("quant_scale_ckr")}
    if quant == 1:
        scales["kv_cache"] = xp.reshape(xp.columns(x["quant_scale_ckv"], 0, 1), [1])
    for name, value in (("kv_cache", c), ("kr_cache", k)):
        stored = store(xp, value, xp.dtype(x[name]), scales[name], None, "saturate")
        caches[name] = write_cache(xp, x[name], spots, xp.reshape(stored, [-1, 1, xp.dim(x[name], -1)]))
    return caches


def compute(xp: Numeric, x: Mapping[str, Any], attrs: Mapping[str, Any]) -> dict[str, Any]:
    """All outputs; those that a mode does not have are empty."""
    made = query(xp, x, attrs)
    caches = write(xp, x, attrs, *key(xp, x, attrs))
    lead = [xp.dim(x["token_x"], axis) for axis in range(xp.rank(x["token_x"]) - 1)]
    outputs: dict[str, Any] = {}
    for name in ("query", "query_rope"):
        outputs[name] = xp.reshape(made[name], [*lead, xp.dim(made[name], 1), xp.dim(made[name], 2)])
    outputs |= caches
    outputs["dequant_scale_q_nope"] = made.get("dequant_scale_q_nope", xp.zeros([0], "float32"))
    normed, scale = made["query_norm"], made["dequant_scale_q_norm"]
    scale_type = "float32" if scale is None else xp.dtype(scale)
    outputs["query_norm"] = xp.zeros([0], xp.dtype(x["weight_uq_qr"]))
    outputs["dequant_scale_q_norm"] = xp.zeros([0], scale_type)
    if attrs["query_norm_flag"]:
        outputs["query_norm"] = xp.reshape(normed, [*lead, xp.dim(normed, 1)])
        outputs["dequant_scale_q_norm"] = outputs["dequant_scale_q_norm"] if scale is None else scale
    return outputs
