"""The computations that the attention-preamble operators share, over :class:`ir_ops.numeric.Numeric`."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

from ir_ops.layout import FRACTALS, CacheMode, address, nz_block
from ir_ops.numeric import Numeric

FLOAT8_MAX = {"float8_e5m2": 57344.0, "float8_e4m3fn": 448.0}
SMALL_INTEGERS = {"int8": (-128.0, 127.0), "int4": (-8.0, 7.0)}


def rms_norm(xp: Numeric, x: Any, width: Any, gamma: Any, epsilon: Any) -> Any:
    """``x / sqrt(mean(x^2) + epsilon) * gamma`` over the last axis, in the type of x; divides before it multiplies."""
    mean = xp.sum_columns(x * x) * (1.0 / width)
    return x / xp.sqrt(mean + epsilon) * gamma


def rms_norm_rows(xp: Numeric, x: Any, gamma: Any, epsilon: Any) -> tuple[Any, Any]:
    """``x / rms * gamma`` over the axes of gamma, in fp32, and ``1 / rms`` with those axes at size 1.

    The rank of gamma must be known.
    """
    axes = xp.rank(gamma)
    width = xp.dim(gamma, 0)
    for axis in range(1, axes):
        width = width * xp.dim(gamma, axis)
    rms = xp.sqrt(xp.sum_columns(x * x, axes) * (1.0 / width) + epsilon)
    return x / rms * xp.cast(gamma, "float32"), 1.0 / rms


def rotate(xp: Numeric, x: Any, cos: Any, sin: Any, mode: str) -> Any:
    """``x * cos + rot(x) * sin`` over the last axis for one of :data:`ir_ops.contract_rows.ROTARY_MODES`.

    cos and sin are as wide as x and broadcast against it.
    """
    width = xp.dim(x, -1)
    if mode == "half":
        return rotate_halves(xp, x, cos, sin, width)
    if mode == "interleave-half":
        return rotate_interleaved(xp, x, cos, sin, width)
    if mode == "quarter":
        half = width // 2
        ends = ((0, half), (half, width))
        x_, cos_, sin_ = ([xp.columns(part, *bounds) for bounds in ends] for part in (x, cos, sin))
        return xp.concat_columns([rotate_halves(xp, x_[i], cos_[i], sin_[i], half) for i in range(2)])
    column = xp.arange(width)
    sign = xp.cast(column % 2, "float32") * 2.0 - 1.0
    return x * cos + xp.take_columns(x, column + 1 - column % 2 * 2) * sign * sin


def silu(xp: Numeric, x: Any) -> Any:
    """``x * sigmoid(x)``; the exponential is of ``-|x|``, so that it never overflows."""
    power = xp.exp(0.0 - xp.abs(x))
    return x * xp.where(x >= 0.0, 1.0, power) / (power + 1.0)


def to_small(xp: Numeric, x: Any, dtype: str) -> Any:
    """fp32 as int8, int4 (of whole numbers; clamped, NaN is 0) or float8 (saturating at the largest finite value)."""
    if dtype in SMALL_INTEGERS:
        low, high = SMALL_INTEGERS[dtype]
        return xp.cast(xp.clip(xp.nan_to_zero(x), low, high), dtype)
    return xp.cast(xp.clip(x, -FLOAT8_MAX[dtype], FLOAT8_MAX[dtype]), dtype)


def to_integer(xp: Numeric, x: Any, dtype: str) -> Any:
    """fp32, rounded half to even, as int8, uint8 or int32: clamped, NaN is 0."""
    x = xp.nan_to_zero(xp.round(x))
    if dtype != "int32":
        return xp.cast(xp.clip(x, *((-128.0, 127.0) if dtype == "int8" else (0.0, 255.0))), dtype)
    # the largest int32 is no fp32: the next one below it is 2^31 - 128
    inside = xp.cast(xp.clip(x, -(2.0**31), 2.0**31 - 128.0), dtype)
    return xp.where(x >= 2.0**31, 2**31 - 1, inside)


def rotate_interleaved(xp: Numeric, x: Any, cos: Any, sin: Any, width: Any) -> Any:
    """Rotates pairs ``(x[2j], x[2j+1])`` into columns ``j`` and ``width/2 + j``: interleaved in, halves out."""
    half = width // 2
    even, odd = xp.columns(x, 0, width, 2), xp.columns(x, 1, width, 2)
    low = even * xp.columns(cos, 0, half) - odd * xp.columns(sin, 0, half)
    high = odd * xp.columns(cos, half, width) + even * xp.columns(sin, half, width)
    return xp.concat_columns([low, high])


def rotate_halves(xp: Numeric, x: Any, cos: Any, sin: Any, width: Any) -> Any:
    """Rotates pairs ``(x[j], x[width/2 + j])`` where they are, in the type of x: halves in, halves out."""
    half = width // 2
    crossed = xp.concat_columns([xp.columns(x, half, width), xp.columns(x, 0, half)])
    # products that are moved twice before they are added: ONNX Runtime, which computes fp16 in fp32, rounds them then
    products = xp.concat_columns([x * cos, crossed * sin])
    low = xp.columns(products, 0, half) - xp.columns(products, width, width + half)
    high = xp.columns(products, half, width) + xp.columns(products, width + half, width * 2)
    return xp.concat_columns([low, high])


def dequantise(xp: Numeric, x: Any, weight_scale: Any, activation_scale: Any, bias: Any) -> Any:
    """int32 rows ``[T, H]`` as fp32: times the scales, an int32 bias added (wrapping) before and any other after.

    ``weight_scale`` and ``bias`` have H elements, ``activation_scale`` T; the last two may be None.
    """
    before = bias is not None and xp.dtype(bias) == "int32"
    if before:
        x = x + xp.reshape(bias, [1, -1])
    x = xp.cast(x, "float32") * xp.reshape(weight_scale, [1, -1])
    if activation_scale is not None:
        x = x * xp.reshape(activation_scale, [-1, 1])
    if bias is not None and not before:
        x = x + xp.reshape(xp.cast(bias, "float32"), [1, -1])
    return x


def store(
    xp: Numeric, x: Any, dtype: str, scale: Any, offset: Any, float8_cast: str = "saturate", divide: bool = False
) -> Any:
    """A row as the cache holds it, quantised in fp32: multiplied or divided by the scale; a NaN becomes the int8 0."""
    if scale is None:
        return xp.cast(x, dtype)
    x = xp.cast(x, "float32")
    x = x / scale if divide else x * scale
    if offset is not None:
        x = x + offset
    if dtype == "int8":
        x = xp.clip(xp.round(xp.nan_to_zero(x)), -128.0, 127.0)
    elif float8_cast == "integer":
        x = xp.clip(xp.round(x), -128.0, 127.0)
    elif float8_cast == "saturate":
        x = xp.clip(x, -FLOAT8_MAX[dtype], FLOAT8_MAX[dtype])
    return xp.cast(x, dtype)


@dataclass(frozen=True)
class Slots:
    """Where the tokens go: page, row in the page and validity, each ``[B*S]``; and the rows of a page."""

    mode: CacheMode
    page: Any
    row: Any
    valid: Any
    rows: Any


def slots(xp: Numeric, mode: CacheMode, index: Any, batch: Any, tokens: Any, rows: Any) -> Slots:
    """The slots that ``index`` names in a cache mode, for pages (or a batch's own cache) of ``rows`` rows."""
    token = xp.arange(batch * tokens)
    slot = xp.reshape(index, [-1])
    if mode.slot == "row":
        return Slots(mode, token // tokens, slot, slot >= 0, rows)
    if mode.slot == "slot":
        return Slots(mode, slot // rows, slot % rows, slot >= 0, rows)
    if mode.slot == "start":
        batch_of = token // tokens
        return Slots(mode, batch_of, xp.take(slot, batch_of) + token % tokens, token >= 0, rows)
    pages = (tokens + (rows - 1)) // rows
    slot = xp.take(slot, token // tokens * pages + token % tokens // rows)
    return Slots(mode, slot // rows, token % tokens % rows, slot >= 0, rows)


def by_token(xp: Numeric, x: Any) -> Any:
    """``[B, N, S, D]`` as ``[B*S, N, D]``."""
    return xp.reshape(xp.transpose(x, [0, 2, 1, 3]), [-1, xp.dim(x, 1), xp.dim(x, 3)])


def write_fractals(xp: Numeric, cache: Any, places: Slots, values: Any) -> Any:
    """:func:`write_cache` for an NZ cache that is declared ``[pages, N*D/d0, rows, d0]``."""
    blocks = xp.reshape(values, [-1, xp.dim(cache, 1), xp.dim(cache, 3)])
    return write_cache(xp, cache, replace(places, mode=FRACTALS), blocks)


def write_cache(xp: Numeric, cache: Any, places: Slots, values: Any) -> Any:
    """The cache with ``values`` ``[B*S, N, D]``, already of its element type, at their slots."""
    heads, width = xp.dim(values, 1), xp.dim(values, 2)
    page, row = (xp.reshape(part, [-1, 1, 1]) for part in (places.page, places.row))
    head = xp.reshape(xp.arange(heads), [1, -1, 1])
    order, by_row = places.mode.order, places.mode.order != "NZ"
    column = 0 if by_row else xp.reshape(xp.arange(width), [1, 1, -1])
    d0 = nz_block(xp.dtype(cache))
    offsets = address(order, page, row, head, column, rows=places.rows, heads=heads, columns=width, d0=d0)
    return xp.write(cache, offsets, values, places.valid, rows=by_row)
