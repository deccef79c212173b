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

from ir_ops import contract as rules
from ir_ops.contract import ASCEND_2, DEVICES, EIGHT_BIT, FLOATS, QuantCache
from ir_ops.declaration import (
    Attr,
    Attrs,
    Case,
    Constraint,
    Finding,
    Input,
    Note,
    Operator,
    Output,
    Shape,
    TensorSpec,
    dim,
    shape_differs,
    shape_text,
)
from ir_ops.layout import KV_CACHE_MODES
from ir_ops.notes import cache_modes, quantisation
from ir_ops.numeric import Numeric
from ir_ops.preamble import by_token, rms_norm, rotate_interleaved, slots, store, write_cache

_mode = rules.mode_of(KV_CACHE_MODES)
_batch, _heads, _tokens, _rope = dim("kv", 0), dim("kv", 1), dim("kv", 2), dim("cos", -1)
_blocks, _page = dim("k_cache", 0), dim("k_cache", 1)


def _v2(case: Case) -> bool:
    return case.has("v")


def _v1(case: Case) -> bool:
    return not case.has("v")


def _paged(case: Case) -> bool:
    return _mode(case).paged


def _norm(case: Case) -> bool:
    return not _mode(case).paged


def _by_block(case: Case) -> bool:
    return _mode(case).slot == "block"


def _nz(case: Case) -> bool:
    return _mode(case).order == "NZ"


def _k_width(case: Case) -> int:
    """Columns of a k_cache row: the rotated part (V1) or the whole normalised key (V2)."""
    return case.dim("gamma", 0) if _v2(case) else _rope(case)


def _v_width(case: Case) -> int:
    return case.dim("v", -1) if _v2(case) else case.dim("gamma", 0)


def _rows(case: Case) -> int:
    """Token rows of one page, or of one batch's own cache."""
    return case.dim("k_cache", 1 if _paged(case) else 2)


_K = QuantCache("k_cache", "k_rope_scale", "k_rope_offset", _k_width)
_V = QuantCache("ckv_cache", "c_kv_scale", "c_kv_offset", _v_width)
_CACHES = (_K, _V)


def _v1_one_head(case: Case) -> Iterator[Finding]:
    if _heads(case) != 1:
        yield f"N = {_heads(case)} without v", "N = 1"


def _v2_device_heads(case: Case) -> Iterator[Finding]:
    if _heads(case) not in (1, 2, 4, 8):
        yield f"N = {_heads(case)}", "N in 1, 2, 4, 8"


def _split(case: Case) -> Iterator[Finding]:
    if len(case.shape("gamma")) != 1:
        yield f"gamma {shape_text(case.shape('gamma'))}", "a 1-D gamma"
    elif _v1(case) and case.dim("kv", -1) != case.dim("gamma", 0) + _rope(case):
        yield f"D = {case.dim('kv', -1)}", f"len(gamma) + rope width = {case.dim('gamma', 0)} + {_rope(case)}"


def _v1_device_widths(case: Case) -> Iterator[Finding]:
    if (_rope(case), case.dim("gamma", 0)) != (64, 512):
        yield f"Dk = {_rope(case)}, Dv = {case.dim('gamma', 0)}", "Dk = 64, Dv = 512"


def _v2_shapes(case: Case) -> Iterator[Finding]:
    kv, v = case.shape("kv"), case.shape("v")
    if len(v) != 4 or shape_differs(v[:3], kv[:3]):
        yield f"v {shape_text(v)}", f"[B, N, S, Dv] with B, N, S of kv {shape_text(kv)}"
    if case.dim("gamma", 0) != case.dim("kv", -1):
        yield f"gamma {shape_text(case.shape('gamma'))}", f"[{case.dim('kv', -1)}]"
    if _rope(case) > case.dim("kv", -1):
        yield f"rope width {_rope(case)}", f"at most the key width {case.dim('kv', -1)}"


def _v2_device_widths(case: Case) -> Iterator[Finding]:
    found = (case.dim("kv", -1), _rope(case), case.dim("v", -1))
    if found != (192, 64, 128):
        yield "key, rope, v widths " + ", ".join(map(str, found)), "192, 64, 128"


def _v2_device_cos_heads(case: Case) -> Iterator[Finding]:
    if case.dim("cos", 1) != _heads(case):
        yield f"cos dim 1 = {case.dim('cos', 1)}", f"N = {_heads(case)}"


def _cache_shapes(case: Case) -> Iterator[Finding]:
    for cache in _CACHES:
        shape, heads, width = case.shape(cache.cache), _heads(case), cache.width(case)
        wanted: Shape = (None, None, heads, width) if _paged(case) else (None, heads, None, width)
        if shape_differs(shape, wanted):
            yield f"{cache.cache} {shape_text(shape)}", f"{shape_text(wanted)} in mode {_mode(case).name}"


def _norm_cache(case: Case) -> Iterator[Finding]:
    for name in ("k_cache", "ckv_cache"):
        if case.dim(name, 0) != _batch(case):
            yield f"{name} batch {case.dim(name, 0)}", f"B = {_batch(case)}"
        if case.dim(name, 2) < _tokens(case):
            yield f"{name} rows {case.dim(name, 2)}", f"at least S = {_tokens(case)}"
    if case.dim("k_cache", 2) != case.dim("ckv_cache", 2):
        yield f"rows {case.dim('k_cache', 2)} and {case.dim('ckv_cache', 2)}", "equal rows in both caches"


def _device_quant_shapes(case: Case) -> Iterator[Finding]:
    names = [name for cache in _CACHES for name in (cache.scale, cache.offset)]
    given = {name: case.shape(name) for name in names if case.has(name)}
    for name, shape in given.items():
        if _v2(case) and len(shape) != 2:
            yield f"{name} {shape_text(shape)}", "[N, D] when v is given"
        if _v1(case) and case.product in ASCEND_2 and shape == (1,):
            yield f"{name} [1]", "[D] or [1, D]"
    if len({len(shape) for shape in given.values()}) > 1:
        yield ", ".join(f"{name} {shape_text(shape)}" for name, shape in given.items()), "equal ranks"


def _v1_norm_plain(case: Case) -> Iterator[Finding]:
    if rules.any_quantised(case, _CACHES):
        yield "Norm mode with an 8-bit cache and no v", "a paged mode, or plain caches"


def _v1_offset_ignored(case: Case) -> Iterator[Finding]:
    for cache in _CACHES:
        if case.has(cache.offset):
            yield cache.offset, "symmetric quantisation"


def _v_given(case: Case) -> Iterator[Finding]:
    yield "v given (V2)", "V1"


def _kirin_plain(case: Case) -> Iterator[Finding]:
    if case.dtype("kv") != "float16" and not rules.any_quantised(case, _CACHES):
        yield f"kv {case.dtype('kv')}", "float16"


def _device_rope_rows(case: Case) -> Iterator[Finding]:
    mode = str(case.attrs["cache_mode"])
    free = mode == "Norm" or (mode == "PA" and not rules.any_quantised(case, _CACHES))
    if case.dim("cos", 2) == 1 and _tokens(case) > 1 and not free:
        yield f"one cos row for S = {_tokens(case)} in mode {mode}", f"{_tokens(case)} rows"


CONSTRAINTS = (
    Constraint("KV-01", "kv must be 4-D", rules.rank("kv", "[B, N, S, D]")),
    Constraint("KV-02", "no input may be empty", rules.not_empty()),
    Constraint(
        "KV-03",
        "gamma, cos, sin and v must have the element type of kv",
        rules.same_type("kv", "gamma", "cos", "sin", "v"),
    ),
    Constraint(
        "KV-04", "the product does not take this element type", rules.type_in("kv", "float16", "bfloat16"), DEVICES
    ),
    Constraint("KV-06", "a joined kv (no v) has one head", rules.when(_v1, _v1_one_head)),
    Constraint("KV-06", "the product does not take this head count", rules.when(_v2, _v2_device_heads), DEVICES),
    Constraint("KV-07", "the last dim of kv must be the normalised width plus the rotated width", _split),
    Constraint("KV-08", "the rotated width must be even", rules.even("rope width", _rope)),
    Constraint("KV-09", "the product has fixed widths", rules.when(_v1, _v1_device_widths), ASCEND_2),
    Constraint("KV-10", "v, gamma and cos must fit the separate key", rules.when(_v2, _v2_shapes)),
    Constraint("KV-10", "the product has fixed widths for a separate key", rules.when(_v2, _v2_device_widths), DEVICES),
    Constraint("KV-11", "cos and sin must fit kv", rules.cos_and_sin("kv", "[B, N or 1, S or 1, R]")),
    Constraint(
        "KV-11", "the product wants cos and sin for every head", rules.when(_v2, _v2_device_cos_heads), ASCEND_2
    ),
    Constraint("KV-12", "unknown cache_mode", rules.known_word("cache_mode", KV_CACHE_MODES)),
    Constraint("KV-13", "a cache has another shape", _cache_shapes),
    Constraint(
        "KV-14", "the caches of Norm mode must fit the batch and hold its tokens", rules.when(_norm, _norm_cache)
    ),
    Constraint(
        "KV-15",
        "the paged caches must have the same pages",
        rules.when(_paged, rules.same_pages("k_cache", "ckv_cache")),
    ),
    Constraint(
        "KV-15",
        "the product needs pages of more than one token",
        rules.when(_paged, rules.page_over_one(_page)),
        DEVICES,
    ),
    Constraint(
        "KV-16",
        "the product has a page size multiple",
        rules.when(_paged, rules.page_multiple(_page, _CACHES)),
        DEVICES,
    ),
    Constraint("KV-17", "an NZ cache row must divide into 32-byte fractals", rules.when(_nz, rules.nz_width(_CACHES))),
    Constraint(
        "KV-18", "index must have one element for each token or page", rules.index_shape(_mode, _batch, _tokens, _page)
    ),
    Constraint("KV-19", "an index is out of range or written twice", rules.index_values(_mode, _batch, _rows, _blocks)),
    Constraint(
        "KV-19",
        "a page index should be the first slot of its page",
        rules.when(_by_block, rules.block_starts(_page)),
        severity="warning",
    ),
    Constraint("KV-20", "an offset needs its scale", rules.offset_needs_scale(_CACHES)),
    Constraint(
        "KV-21", "a scale goes with an 8-bit cache and a plain cache with none", rules.scale_and_type(_CACHES, "kv")
    ),
    Constraint("KV-22", "a quantisation parameter has another shape", rules.quant_shapes(_CACHES, _heads)),
    Constraint("KV-22", "the product takes fewer parameter shapes", _device_quant_shapes, DEVICES),
    Constraint("KV-23", "two 8-bit caches must have one element type", rules.one_quant_type(_K, _V)),
    Constraint(
        "KV-24", "the product quantises to int8 only", rules.quant_type_in(_CACHES, "int8"), ("A2", "A3", "kirin")
    ),
    Constraint(
        "KV-25",
        "the product does not quantise a joined kv in Norm mode",
        rules.when(_v1, rules.when(_norm, _v1_norm_plain)),
        ASCEND_2,
    ),
    Constraint(
        "KV-26",
        "the product ignores offsets of a joined kv",
        rules.when(_v1, _v1_offset_ignored),
        ASCEND_2,
        "warning",
        True,
    ),
    Constraint("KV-27", "the product ignores v", rules.when(_v2, _v_given), ("950",), "warning", True),
    Constraint("KV-27", "the product does not take v", rules.when(_v2, _v_given), ("kirin",)),
    Constraint("KV-28", "the product takes float16 only when nothing is quantised", _kirin_plain, ("kirin",)),
    Constraint("KV-29", "epsilon must be finite", rules.finite("epsilon")),
    Constraint("KV-29", "epsilon should be positive", rules.positive("epsilon"), severity="warning"),
    Constraint("KV-31", "the product needs cos and sin rows for every token in this mode", _device_rope_rows, ASCEND_2),
    Constraint(
        "KV-32",
        "block_num is small for B and S",
        rules.when(_paged, rules.enough_blocks(_blocks, _page, _batch, _tokens)),
        severity="warning",
    ),
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


def _compute(xp: Numeric, x: Mapping[str, Any], attrs: Mapping[str, Any]) -> dict[str, Any]:
    kv, gamma, cos, sin = (xp.cast(x[name], "float32") for name in ("kv", "gamma", "cos", "sin"))
    norm_width, rope_width = xp.dim(x["gamma"], 0), xp.dim(x["cos"], 3)
    if "v" in x:
        key = rms_norm(xp, kv, norm_width, gamma, attrs["epsilon"])
        rotated = rotate_interleaved(xp, xp.columns(key, 0, rope_width), cos, sin, rope_width)
        k = xp.concat_columns([rotated, xp.columns(key, rope_width, norm_width)])
        v, widths = x["v"], (norm_width, xp.dim(x["v"], 3))
    else:
        v = rms_norm(xp, xp.columns(kv, 0, norm_width), norm_width, gamma, attrs["epsilon"])
        k = rotate_interleaved(xp, xp.columns(kv, norm_width, norm_width + rope_width), cos, sin, rope_width)
        widths = (rope_width, norm_width)
    mode = KV_CACHE_MODES[str(attrs["cache_mode"])]
    batch, heads, tokens = (xp.dim(x["kv"], axis) for axis in range(3))
    places = slots(xp, mode, x["index"], batch, tokens, xp.dim(x["k_cache"], 1 if mode.paged else 2))
    outputs: dict[str, Any] = {}
    for cache, value in zip(_CACHES, (k, v), strict=True):
        old, scale, offset = x[cache.cache], x.get(cache.scale), x.get(cache.offset)
        stored = store(xp, by_token(xp, value), xp.dtype(old), scale, offset, str(attrs["float8_cast"]))
        outputs[cache.cache] = write_cache(xp, old, places, stored)
    kind = xp.dtype(x["kv"])
    for name, value, width in (("k_rope", k, widths[0]), ("c_kv", v, widths[1])):
        outputs[name] = xp.cast(value, kind) if attrs["is_output_kv"] else xp.zeros([batch, heads, tokens, width], kind)
    return outputs


NOTES = (
    cache_modes(KV_CACHE_MODES),
    quantisation("8-bit element = value * scale + offset"),
    Note(
        "Choices where the contract leaves room",
        items=(
            "float8 caches take the scaled value directly, saturating at the largest finite value. `float8_cast` "
            "has the other readings: `nonsaturate` gives NaN or infinity as the device kernel does, `integer` "
            "rounds and clamps to -128..127 first, as the contract's text says for every quantised type.",
            "hifloat8 has no ONNX type: only GE graphs can declare it.",
            "float32 is an extension of `generic`: the contract's prototype has it, no product takes it. Its rows may "
            "be kept in float16 or bfloat16 caches, rounded once.",
            "`generic` takes any widths and head counts, pages of any size, quantised Norm caches, offsets, and one "
            "row or head of cos and sin for all. Products: V1 Dk 64 and Dv 512 (A2, A3); V2 widths 192, 64, 128 and "
            "1, 2, 4 or 8 heads; pages of 16 tokens or a multiple, 32 where a cache is 8-bit.",
            "Norm caches have the batch size of kv. The same row may be written in different batches.",
            "Only -1 skips; other negative indices are refused. k_rope and c_kv are delivered for skipped tokens too.",
            "is_output_kv is honoured in every mode; where it is false the two outputs are zeros.",
            "Only the two _NZ modes store fractals; heads come before the column blocks.",
            "In paged modes an index of any shape with the right number of elements is accepted.",
            "An unknown cache_mode is refused, not read as Norm. A small block_num is a warning: the slots decide.",
        ),
    ),
)

OPERATOR = Operator(
    name="KvRmsNormRopeCache",
    doc=__doc__,
    types={
        "T": FLOATS,
        "TK": (*FLOATS, *EIGHT_BIT),
        "TC": (*FLOATS, *EIGHT_BIT),
        "I": ("int64",),
        "F": ("float32",),
    },
    inputs=(
        Input("kv", "T", "V1 [B, 1, S, Dv + R]; V2 [B, N, S, Dk]", "the projected row"),
        Input("gamma", "T", "V1 [Dv]; V2 [Dk]", "RMSNorm weight"),
        Input("cos", "T", "[B, N or 1, S or 1, R]", "full width, in output order"),
        Input("sin", "T", "as cos"),
        Input("index", "I", "Norm [B, S]; PA* [B*S]; PA_BLK_* [B*ceil(S/block_size)]", "where to write; -1 skips"),
        Input("k_cache", "TK", "Norm [B, N, Scache, Dk]; PA* [blocks, block_size, N, Dk]", "in place", ref="k_cache"),
        Input("ckv_cache", "TC", "as k_cache with Dv columns", "in place", ref="ckv_cache"),
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
    notes=NOTES,
    shapes=_shapes,
    compute=_compute,
    combines=rules.caches_combine("T", "TK", "TC"),
    body_types=rules.no_float8,
)  # fmt: skip
