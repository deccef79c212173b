"""KvRmsNormRopeCache: RMSNorm, rotary embedding, optional quantisation and cache write of one KV projection.

V1 (``v`` absent) takes the joined row ``[Dv | R]`` of an MLA down-projection: the left part is normalised and goes to
``ckv_cache``, the right part is rotated and goes to ``k_cache``. V2 (``v`` given) normalises the whole key row, rotates
its first R columns and writes it to ``k_cache``; ``v`` goes to ``ckv_cache`` unchanged.

Rotation: interleaved in, halves out. Pair ``(x[2j], x[2j+1])`` gives columns ``j`` and ``R/2 + j``. All arithmetic is
fp32; quantisation multiplies by the scale, adds the offset and consumes the unrounded fp32 value.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np

from ir_ops.declaration import (
    Attr,
    Attrs,
    Case,
    Constraint,
    Finding,
    Input,
    Operator,
    Output,
    Shape,
    TensorSpec,
    Undecided,
    shape_differs,
    shape_text,
)
from ir_ops.dtypes import by_name
from ir_ops.layout import KV_CACHE_MODES, CacheMode, address, nz_block
from ir_ops.numeric import Numeric
from ir_ops.preamble import rms_norm, rotate_interleaved, slots, store

_FLOATS = ("float32", "float16", "bfloat16")
_EIGHT_BIT = ("int8", "hifloat8", "float8_e5m2", "float8_e4m3fn")
_ASCEND_2 = ("A2", "A3")
_DEVICES = ("950", "A3", "A2", "kirin")
_QUANT = {"k_cache": ("k_rope_scale", "k_rope_offset"), "ckv_cache": ("c_kv_scale", "c_kv_offset")}


def _is_v2(case: Case) -> bool:
    return case.has("v")


def _k_width(case: Case) -> int:
    """Columns of a k_cache row: the rotated part (V1) or the whole normalised key (V2)."""
    return case.dim("gamma", 0) if _is_v2(case) else case.dim("cos", -1)


def _v_width(case: Case) -> int:
    return case.dim("v", -1) if _is_v2(case) else case.dim("gamma", 0)


def _width(case: Case, cache: str) -> int:
    return _k_width(case) if cache == "k_cache" else _v_width(case)


def _mode(case: Case) -> CacheMode:
    mode = KV_CACHE_MODES.get(str(case.attrs["cache_mode"]))
    if mode is None:
        raise Undecided("cache_mode")
    return mode


def _bits(case: Case, name: str) -> int:
    return by_name(case.dtype(name)).bits


def _quantised(case: Case, cache: str) -> bool:
    return _bits(case, cache) == 8


def _kv_rank(case: Case) -> Iterator[Finding]:
    if len(case.shape("kv")) != 4:
        yield f"kv {shape_text(case.shape('kv'))}", "[B, N, S, D]"


def _not_empty(case: Case) -> Iterator[Finding]:
    for name, spec in case.specs.items():
        if spec.shape is not None and 0 in spec.shape:
            yield f"{name} {shape_text(spec.shape)}", "every dim >= 1"


def _one_float_type(case: Case) -> Iterator[Finding]:
    for name in ("gamma", "cos", "sin", "v"):
        if case.has(name) and case.dtype(name) != case.dtype("kv"):
            yield f"{name} {case.dtype(name)}", f"{case.dtype('kv')} as kv"


def _device_float_type(case: Case) -> Iterator[Finding]:
    if case.dtype("kv") not in ("float16", "bfloat16"):
        yield f"kv {case.dtype('kv')}", "float16 | bfloat16"


def _v1_one_head(case: Case) -> Iterator[Finding]:
    if not _is_v2(case) and case.dim("kv", 1) != 1:
        yield f"N = {case.dim('kv', 1)} without v", "N = 1"


def _v2_device_heads(case: Case) -> Iterator[Finding]:
    if _is_v2(case) and case.dim("kv", 1) not in (1, 2, 4, 8):
        yield f"N = {case.dim('kv', 1)}", "N in 1, 2, 4, 8"


def _v1_split(case: Case) -> Iterator[Finding]:
    if len(case.shape("gamma")) != 1:
        yield f"gamma {shape_text(case.shape('gamma'))}", "a 1-D gamma"
    elif not _is_v2(case) and case.dim("kv", -1) != case.dim("gamma", 0) + case.dim("cos", -1):
        yield f"D = {case.dim('kv', -1)}", f"len(gamma) + rope width = {case.dim('gamma', 0)} + {case.dim('cos', -1)}"


def _rope_even(case: Case) -> Iterator[Finding]:
    if case.dim("cos", -1) % 2:
        yield f"rope width {case.dim('cos', -1)}", "an even width"


def _v1_device_widths(case: Case) -> Iterator[Finding]:
    if not _is_v2(case) and (case.dim("cos", -1), case.dim("gamma", 0)) != (64, 512):
        yield f"Dk = {case.dim('cos', -1)}, Dv = {case.dim('gamma', 0)}", "Dk = 64, Dv = 512"


def _v2_shapes(case: Case) -> Iterator[Finding]:
    if not _is_v2(case):
        return
    kv, v = case.shape("kv"), case.shape("v")
    if len(v) != 4 or shape_differs(v[:3], kv[:3]):
        yield f"v {shape_text(v)}", f"[B, N, S, Dv] with B, N, S of kv {shape_text(kv)}"
    if case.dim("gamma", 0) != case.dim("kv", -1):
        yield f"gamma {shape_text(case.shape('gamma'))}", f"[{case.dim('kv', -1)}]"
    if case.dim("cos", -1) > case.dim("kv", -1):
        yield f"rope width {case.dim('cos', -1)}", f"at most the key width {case.dim('kv', -1)}"


def _v2_device_widths(case: Case) -> Iterator[Finding]:
    if _is_v2(case):
        found = (case.dim("kv", -1), case.dim("cos", -1), case.dim("v", -1))
        if found != (192, 64, 128):
            yield "key, rope, v widths " + ", ".join(map(str, found)), "192, 64, 128"


def _cos_sin(case: Case) -> Iterator[Finding]:
    kv, cos, sin = case.shape("kv"), case.shape("cos"), case.shape("sin")
    if shape_differs(sin, cos):
        yield f"sin {shape_text(sin)}", f"the shape of cos {shape_text(cos)}"
    fits = len(cos) == 4 and len(kv) == 4 and not shape_differs(cos[:1], kv[:1])
    if fits:
        fits = all(cos[axis] in (1, None) or not shape_differs((cos[axis],), (kv[axis],)) for axis in (1, 2))
    if not fits:
        yield f"cos {shape_text(cos)}", f"[B, N or 1, S or 1, R] for kv {shape_text(kv)}"


def _v2_device_cos_heads(case: Case) -> Iterator[Finding]:
    if _is_v2(case) and case.dim("cos", 1) != case.dim("kv", 1):
        yield f"cos dim 1 = {case.dim('cos', 1)}", f"N = {case.dim('kv', 1)}"


def _known_mode(case: Case) -> Iterator[Finding]:
    if case.attrs["cache_mode"] not in KV_CACHE_MODES:
        yield f"cache_mode {case.attrs['cache_mode']!r}", " | ".join(KV_CACHE_MODES)


def _cache_shapes(case: Case) -> Iterator[Finding]:
    mode = _mode(case)
    for cache in _QUANT:
        shape = case.shape(cache)
        heads, width = case.dim("kv", 1), _width(case, cache)
        wanted: Shape = (None, None, heads, width) if mode.paged else (None, heads, None, width)
        if shape_differs(shape, wanted):
            yield f"{cache} {shape_text(shape)}", f"{shape_text(wanted)} in mode {mode.name}"


def _norm_cache(case: Case) -> Iterator[Finding]:
    if _mode(case).paged:
        return
    for cache in _QUANT:
        if case.dim(cache, 0) != case.dim("kv", 0):
            yield f"{cache} batch {case.dim(cache, 0)}", f"B = {case.dim('kv', 0)}"
        if case.dim(cache, 2) < case.dim("kv", 2):
            yield f"{cache} rows {case.dim(cache, 2)}", f"at least S = {case.dim('kv', 2)}"
    if case.dim("k_cache", 2) != case.dim("ckv_cache", 2):
        yield f"rows {case.dim('k_cache', 2)} and {case.dim('ckv_cache', 2)}", "equal rows in both caches"


def _paged_cache(case: Case) -> Iterator[Finding]:
    if _mode(case).paged:
        k, ckv = case.shape("k_cache")[:2], case.shape("ckv_cache")[:2]
        if shape_differs(k, ckv):
            yield f"k_cache {shape_text(k)}, ckv_cache {shape_text(ckv)}", "equal block_num and block_size"


def _device_page_over_one(case: Case) -> Iterator[Finding]:
    if _mode(case).paged and case.dim("k_cache", 1) <= 1:
        yield f"block_size {case.dim('k_cache', 1)}", "block_size > 1"


def _device_page_multiple(case: Case) -> Iterator[Finding]:
    if _mode(case).paged:
        multiple = 32 if any(_quantised(case, cache) for cache in _QUANT) else 16
        if case.dim("k_cache", 1) % multiple:
            yield f"block_size {case.dim('k_cache', 1)}", f"a multiple of {multiple}"


def _nz_width(case: Case) -> Iterator[Finding]:
    if _mode(case).order == "NZ":
        for cache in _QUANT:
            d0 = nz_block(case.dtype(cache))
            if _width(case, cache) % d0:
                yield f"{cache} width {_width(case, cache)}", f"a multiple of {d0}"


def _index_count(case: Case) -> tuple[Shape, int]:
    """Wanted shape and count of index."""
    mode, batch, tokens = _mode(case), case.dim("kv", 0), case.dim("kv", 2)
    if mode.slot == "row":
        return (batch, tokens), batch * tokens
    if mode.slot == "block":
        tokens = -(-tokens // case.dim("k_cache", 1))
    return (batch * tokens,), batch * tokens


def _index_shape(case: Case) -> Iterator[Finding]:
    wanted, count = _index_count(case)
    shape = case.shape("index")
    if len(wanted) == 2:
        wrong = shape_differs(shape, wanted)
    else:
        if None in shape:
            raise Undecided("index")
        wrong = int(np.prod([dim for dim in shape if dim is not None], dtype=np.int64)) != count
    if wrong:
        yield f"index {shape_text(shape)}", f"{shape_text(wanted)} in mode {_mode(case).name}"


def _index_values(case: Case) -> Iterator[Finding]:
    mode, index = _mode(case), case.value("index")
    if mode.slot == "row":
        limit, groups = case.dim("k_cache", 2), index.reshape(case.dim("kv", 0), -1)
    else:
        limit, groups = case.dim("k_cache", 0) * case.dim("k_cache", 1), index.reshape(1, -1)
    outside = np.flatnonzero((index.reshape(-1) < -1) | (index.reshape(-1) >= limit))
    if outside.size:
        place = int(outside[0])
        yield f"index[{place}] = {int(index.reshape(-1)[place])}", f"-1 (skip) to {limit - 1}"
        return
    pages = case.dim("k_cache", 1) if mode.slot == "block" else 1
    for group in groups:
        seen: dict[int, int] = {}
        for place, value in enumerate(group.tolist()):
            if value >= 0 and seen.setdefault(value // pages, place) != place:
                yield f"index[{place}] = {value} again", "distinct pages" if pages > 1 else "distinct slots"
                return


def _block_start(case: Case) -> Iterator[Finding]:
    if _mode(case).slot == "block":
        index, size = case.value("index").reshape(-1), case.dim("k_cache", 1)
        inside = np.flatnonzero((index >= 0) & (index % size != 0))
        if inside.size:
            yield f"index[{int(inside[0])}] = {int(index[inside[0]])}", f"a multiple of block_size {size}"


def _offset_needs_scale(case: Case) -> Iterator[Finding]:
    for scale, offset in _QUANT.values():
        if case.has(offset) and not case.has(scale):
            yield f"{offset} without {scale}", "both or neither"


def _scale_and_type(case: Case) -> Iterator[Finding]:
    for cache, (scale, _) in _QUANT.items():
        if case.has(scale) and not _quantised(case, cache):
            yield f"{scale} with a {case.dtype(cache)} {cache}", "an 8-bit cache"
        if not case.has(scale) and case.dtype(cache) != case.dtype("kv"):
            yield f"{case.dtype(cache)} {cache} without {scale}", f"{scale}, or a {case.dtype('kv')} cache"


def _quant_shapes(case: Case) -> Iterator[Finding]:
    for cache, names in _QUANT.items():
        for name in names:
            if case.has(name):
                width, heads, shape = _width(case, cache), case.dim("kv", 1), case.shape(name)
                accepted: list[Shape] = [(1,), (width,), (1, width), (heads, width)]
                if all(shape_differs(shape, wanted) for wanted in accepted):
                    yield f"{name} {shape_text(shape)}", f"[1], [{width}], [1, {width}] or [{heads}, {width}]"


def _device_quant_shapes(case: Case) -> Iterator[Finding]:
    given = {name: case.shape(name) for names in _QUANT.values() for name in names if case.has(name)}
    for name, shape in given.items():
        if _is_v2(case) and len(shape) != 2:
            yield f"{name} {shape_text(shape)}", "[N, D] when v is given"
        if not _is_v2(case) and case.product in _ASCEND_2 and shape == (1,):
            yield f"{name} [1]", "[D] or [1, D]"
    if len({len(shape) for shape in given.values()}) > 1:
        yield ", ".join(f"{name} {shape_text(shape)}" for name, shape in given.items()), "equal ranks"


def _one_quant_type(case: Case) -> Iterator[Finding]:
    k, ckv = case.dtype("k_cache"), case.dtype("ckv_cache")
    if k in _EIGHT_BIT and ckv in _EIGHT_BIT and k != ckv:
        yield f"k_cache {k}, ckv_cache {ckv}", "one 8-bit type"


def _int8_only(case: Case) -> Iterator[Finding]:
    for cache in _QUANT:
        if _quantised(case, cache) and case.dtype(cache) != "int8":
            yield f"{cache} {case.dtype(cache)}", "int8"


def _v1_norm_plain(case: Case) -> Iterator[Finding]:
    if not _is_v2(case) and not _mode(case).paged and any(_quantised(case, cache) for cache in _QUANT):
        yield "Norm mode with an 8-bit cache and no v", "a paged mode, or plain caches"


def _v1_offset_ignored(case: Case) -> Iterator[Finding]:
    if not _is_v2(case):
        for _, offset in _QUANT.values():
            if case.has(offset):
                yield offset, "symmetric quantisation"


def _v_given(case: Case) -> Iterator[Finding]:
    if _is_v2(case):
        yield "v given (V2)", "V1"


def _kirin_plain(case: Case) -> Iterator[Finding]:
    if case.dtype("kv") != "float16" and not any(_quantised(case, cache) for cache in _QUANT):
        yield f"kv {case.dtype('kv')}", "float16"


def _epsilon_finite(case: Case) -> Iterator[Finding]:
    if not np.isfinite(case.attrs["epsilon"]):
        yield f"epsilon {case.attrs['epsilon']}", "a finite number"


def _epsilon_positive(case: Case) -> Iterator[Finding]:
    if np.isfinite(case.attrs["epsilon"]) and float(case.attrs["epsilon"]) <= 0:  # type: ignore[arg-type]
        yield f"epsilon {case.attrs['epsilon']}", "epsilon > 0"


def _device_rope_rows(case: Case) -> Iterator[Finding]:
    mode = str(case.attrs["cache_mode"])
    if case.dim("cos", 2) == 1 and case.dim("kv", 2) > 1:
        plain = not any(_quantised(case, cache) for cache in _QUANT)
        if not (mode == "Norm" or (mode == "PA" and plain)):
            yield f"one cos row for S = {case.dim('kv', 2)} in mode {mode}", f"{case.dim('kv', 2)} rows"


def _enough_blocks(case: Case) -> Iterator[Finding]:
    if _mode(case).paged:
        floor = case.dim("kv", 2) // case.dim("k_cache", 1) * case.dim("kv", 0)
        if case.dim("k_cache", 0) < floor:
            yield f"block_num {case.dim('k_cache', 0)}", f"at least {floor}"


CONSTRAINTS = (
    Constraint("KV-01", "kv must be 4-D", _kv_rank),
    Constraint("KV-02", "no input may be empty", _not_empty),
    Constraint("KV-03", "gamma, cos, sin and v must have the element type of kv", _one_float_type),
    Constraint("KV-04", "the product does not take this element type", _device_float_type, _DEVICES),
    Constraint("KV-06", "a joined kv (no v) has one head", _v1_one_head),
    Constraint("KV-06", "the product does not take this head count", _v2_device_heads, _DEVICES),
    Constraint("KV-07", "the last dim of kv must be the normalised width plus the rotated width", _v1_split),
    Constraint("KV-08", "the rotated width must be even", _rope_even),
    Constraint("KV-09", "the product has fixed widths", _v1_device_widths, _ASCEND_2),
    Constraint("KV-10", "v, gamma and cos must fit the separate key", _v2_shapes),
    Constraint("KV-10", "the product has fixed widths for a separate key", _v2_device_widths, _DEVICES),
    Constraint("KV-11", "cos and sin must fit kv", _cos_sin),
    Constraint("KV-11", "the product wants cos and sin for every head", _v2_device_cos_heads, _ASCEND_2),
    Constraint("KV-12", "unknown cache_mode", _known_mode),
    Constraint("KV-13", "a cache has another shape", _cache_shapes),
    Constraint("KV-14", "the caches of Norm mode must fit the batch and hold its tokens", _norm_cache),
    Constraint("KV-15", "the paged caches must have the same pages", _paged_cache),
    Constraint("KV-15", "the product needs pages of more than one token", _device_page_over_one, _DEVICES),
    Constraint("KV-16", "the product has a page size multiple", _device_page_multiple, _DEVICES),
    Constraint("KV-17", "an NZ cache row must divide into 32-byte fractals", _nz_width),
    Constraint("KV-18", "index must have one element for each token or page", _index_shape),
    Constraint("KV-19", "an index is out of range or written twice", _index_values),
    Constraint("KV-19", "a page index should be the first slot of its page", _block_start, severity="warning"),
    Constraint("KV-20", "an offset needs its scale", _offset_needs_scale),
    Constraint("KV-21", "a scale goes with an 8-bit cache and a plain cache with none", _scale_and_type),
    Constraint("KV-22", "a quantisation parameter has another shape", _quant_shapes),
    Constraint("KV-22", "the product takes fewer parameter shapes", _device_quant_shapes, _DEVICES),
    Constraint("KV-23", "two 8-bit caches must have one element type", _one_quant_type),
    Constraint("KV-24", "the product quantises to int8 only", _int8_only, ("A2", "A3", "kirin")),
    Constraint("KV-25", "the product does not quantise a joined kv in Norm mode", _v1_norm_plain, _ASCEND_2),
    Constraint("KV-26", "the product ignores offsets of a joined kv", _v1_offset_ignored, _ASCEND_2, "warning", True),
    Constraint("KV-27", "the product ignores v", _v_given, ("950",), "warning", True),
    Constraint("KV-27", "the product does not take v", _v_given, ("kirin",)),
    Constraint("KV-28", "the product takes float16 only when nothing is quantised", _kirin_plain, ("kirin",)),
    Constraint("KV-29", "epsilon must be finite", _epsilon_finite),
    Constraint("KV-29", "epsilon should be positive", _epsilon_positive, severity="warning"),
    Constraint(
        "KV-31", "the product needs cos and sin rows for every token in this mode", _device_rope_rows, _ASCEND_2
    ),
    Constraint("KV-32", "block_num is small for B and S", _enough_blocks, severity="warning"),
)
"""KV-05 (index is int64) is the type row ``I``; KV-30 (finite inputs) is a documented precondition, not checked."""


def _shapes(specs: Mapping[str, TensorSpec], attrs: Attrs) -> dict[str, TensorSpec]:
    def shape(name: str, rank: int) -> Shape:
        spec = specs.get(name)
        return spec.shape if spec is not None and spec.shape is not None and len(spec.shape) == rank else (None,) * rank

    rows = shape("kv", 4)[:3]
    k = shape("gamma", 1)[0] if "v" in specs else shape("cos", 4)[3]
    v = shape("v", 4)[3] if "v" in specs else shape("gamma", 1)[0]
    kv_type = specs["kv"].dtype
    return {
        "k_cache": specs["k_cache"],
        "ckv_cache": specs["ckv_cache"],
        "k_rope": TensorSpec(kv_type, (*rows, k)),
        "c_kv": TensorSpec(kv_type, (*rows, v)),
    }


def _compute(xp: Numeric, x: Mapping[str, Any], attrs: Attrs) -> dict[str, Any]:
    mode = KV_CACHE_MODES[str(attrs["cache_mode"])]
    kv, gamma, cos, sin = (xp.cast(x[name], "float32") for name in ("kv", "gamma", "cos", "sin"))
    norm_width, rope_width = x["gamma"].shape[0], x["cos"].shape[-1]
    epsilon = float(attrs["epsilon"])  # type: ignore[arg-type]
    if "v" in x:
        key = rms_norm(xp, kv, norm_width, gamma, epsilon)
        rotated = rotate_interleaved(xp, xp.columns(key, 0, rope_width), cos, sin, rope_width)
        tail = [xp.columns(key, rope_width, norm_width)] if rope_width < norm_width else []
        k, v = xp.concat_columns([rotated, *tail]), xp.cast(x["v"], "float32")
        widths = (norm_width, x["v"].shape[-1])
    else:
        v = rms_norm(xp, xp.columns(kv, 0, norm_width), norm_width, gamma, epsilon)
        k = rotate_interleaved(xp, xp.columns(kv, norm_width, norm_width + rope_width), cos, sin, rope_width)
        widths = (rope_width, norm_width)

    batch, heads, tokens = (xp.dim(x["kv"], axis) for axis in range(3))
    rows = xp.dim(x["k_cache"], 1 if mode.paged else 2)
    page, row, valid = slots(xp, mode, x["index"], batch, tokens, rows)
    page, row = (xp.reshape(part, [-1, 1, 1]) for part in (page, row))
    head = xp.reshape(xp.arange(heads), [1, -1, 1])
    outputs: dict[str, Any] = {}
    for (cache, (scale, offset)), value, width in zip(_QUANT.items(), (k, v), widths, strict=True):
        dtype = by_name(str(x[cache].dtype)).name
        column = xp.reshape(xp.arange(width), [1, 1, -1])
        place = address(mode.order, page, row, head, column, rows=rows, heads=heads, columns=width, d0=nz_block(dtype))
        by_token = xp.reshape(xp.transpose(value, [0, 2, 1, 3]), [-1, heads, width])
        stored = store(xp, by_token, dtype, x.get(scale), x.get(offset), str(attrs["float8_cast"]))
        outputs[cache] = xp.write(x[cache], place, stored, valid)
    for name, value, width in (("k_rope", k, widths[0]), ("c_kv", v, widths[1])):
        kind = str(x["kv"].dtype)
        outputs[name] = xp.cast(value, kind) if attrs["is_output_kv"] else xp.zeros([batch, heads, tokens, width], kind)
    return outputs


def _combines(choice: Mapping[str, str]) -> bool:
    """A cache has the type of kv or an 8-bit one; two 8-bit caches have one type (KV-21, KV-23)."""
    caches = (choice["TK"], choice["TC"])
    if any(kind not in _EIGHT_BIT and kind != choice["T"] for kind in caches):
        return False
    eight = [kind for kind in caches if kind in _EIGHT_BIT]
    return len(set(eight)) <= 1


OPERATOR = Operator(
    name="KvRmsNormRopeCache",
    doc=__doc__,
    types={
        "T": _FLOATS,
        "TK": (*_FLOATS, *_EIGHT_BIT),
        "TC": (*_FLOATS, *_EIGHT_BIT),
        "I": ("int64",),
        "F": ("float32",),
    },
    inputs=(
        Input("kv", "T", "V1 [B, 1, S, Dv + R]; V2 [B, N, S, Dk]", "the projected row"),
        Input("gamma", "T", "V1 [Dv]; V2 [Dk]", "RMSNorm weight"),
        Input("cos", "T", "[B, N or 1, S or 1, R]", "full width, in output order"),
        Input("sin", "T", "as cos"),
        Input("index", "I", "Norm [B, S]; PA* [B*S]; PA_BLK_* [B*ceil(S/block_size)]", "where to write; -1 skips"),
        Input("k_cache", "TK", "Norm [B, N, Scache, Dk]; PA* [block_num, block_size, N, Dk]", "in place", False, "k_cache"),
        Input("ckv_cache", "TC", "as k_cache with Dv columns", "in place", False, "ckv_cache"),
        Input("k_rope_scale", "F", "[1], [Dk], [1, Dk] or [N, Dk]", "multiplier; given when k_cache is 8-bit", True),
        Input("c_kv_scale", "F", "[1], [Dv], [1, Dv] or [N, Dv]", "multiplier; given when ckv_cache is 8-bit", True),
        Input("k_rope_offset", "F", "as k_rope_scale", "added after the scale", True),
        Input("c_kv_offset", "F", "as c_kv_scale", "added after the scale", True),
        Input("v", "T", "[B, N, S, Dv]", "selects V2", True),
    ),
    outputs=(
        Output("k_cache", "TK", "as the input", "the same buffer", ref=True),
        Output("ckv_cache", "TC", "as the input", "the same buffer", ref=True),
        Output("k_rope", "T", "[B, N, S, Dk]", "what went to k_cache, before quantisation; zeros unless is_output_kv"),
        Output("c_kv", "T", "[B, N, S, Dv]", "what went to ckv_cache, before quantisation; zeros unless is_output_kv"),
    ),
    attrs=(
        Attr("epsilon", "Float", 1e-5, "added to the mean square"),
        Attr("cache_mode", "String", "Norm", "how the caches are laid out", tuple(KV_CACHE_MODES)),
        Attr("is_output_kv", "Bool", False, "deliver k_rope and c_kv"),
        Attr("float8_cast", "String", "saturate",
             "how a value becomes float8: saturate to the largest finite value, nonsaturate, or integer (round and "
             "clamp to -128..127 first, the contract read literally)", ("saturate", "nonsaturate", "integer"), True),
    ),
    constraints=CONSTRAINTS,
    shapes=_shapes,
    compute=_compute,
    combines=_combines,
    body_types=lambda choice: not any(by_name(kind).is_8bit_float for kind in choice.values()),
)  # fmt: skip
