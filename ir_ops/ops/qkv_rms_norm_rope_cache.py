"""QkvRmsNormRopeCache: RMSNorm, rotary embedding, optional quantisation and cache write of a packed QKV projection.

A row of ``qkv`` holds Nq query heads, Nk key heads and Nv value heads of D columns. Query and key heads are normalised
one by one (RMSNorm with a weight of their own each) and rotated; value heads stay as they are. Queries go to ``q_out``,
keys and values, quantised or not, to their caches.

Rotation by halves: pair ``(x[j], x[D/2 + j])`` stays where it is. All arithmetic is fp32; quantisation divides by the
scale, adds the offset and consumes the unrounded fp32 value.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any

from ir_ops import contract as rules
from ir_ops.contract import ASCEND_2, DEVICES, FLOATS, QuantCache
from ir_ops.declaration import (
    Attr,
    Attrs,
    AttrValue,
    Case,
    Constraint,
    Finding,
    Input,
    Note,
    Operator,
    Output,
    Shape,
    TensorSpec,
    Undecided,
    dim,
    shape_differs,
    shape_text,
)
from ir_ops.dtypes import by_name
from ir_ops.layout import FRACTAL_TEXT, ORDER_TEXT, QKV_CACHE_MODES, nz_block
from ir_ops.notes import quantisation
from ir_ops.numeric import Numeric
from ir_ops.preamble import rms_norm, rotate_halves, slots, store, write_fractals

_mode = rules.mode_of(QKV_CACHE_MODES)
_tokens, _blocks, _page = dim("qkv", 0), dim("k_cache", 0), dim("k_cache", 2)


def _sizes(case: Case) -> list[int]:
    """B, S, Nqkv, D; B and S may be -1."""
    return rules.int_list(case.attrs, "qkv_size", 4)


def _width(case: Case) -> int:
    return _sizes(case)[3]


def _heads(place: int) -> Callable[[Case], int]:
    return lambda case: rules.int_list(case.attrs, "head_nums", 3)[place]


_q_heads, _k_heads, _v_heads = _heads(0), _heads(1), _heads(2)
_K = QuantCache("k_cache", "k_scale", "k_offset", _width)
_V = QuantCache("v_cache", "v_scale", "v_offset", _width)
_CACHES = (_K, _V)
_CACHE_HEADS = ((_K, _k_heads), (_V, _v_heads))


def _attr_sizes(case: Case) -> Iterator[Finding]:
    sizes, heads = case.attrs["qkv_size"], case.attrs["head_nums"]
    assert isinstance(sizes, list) and isinstance(heads, list)
    if len(sizes) != 4 or min(sizes[2:]) < 1 or any(size < 1 and size != -1 for size in sizes[:2]):
        yield f"qkv_size {sizes}", "[B, S, Nqkv, D], each >= 1, B and S also -1 (read from qkv)"
    if len(heads) != 3 or min(heads) < 1:
        yield f"head_nums {heads}", "[Nq, Nk, Nv], each >= 1"


def _sizes_given(case: Case) -> Iterator[Finding]:
    if -1 in _sizes(case)[:2]:
        yield f"qkv_size {_sizes(case)}", "the numbers B and S"


def _qkv_shape(case: Case) -> Iterator[Finding]:
    (batch, tokens, heads, width), shape = _sizes(case), case.shape("qkv")
    rows = batch * tokens if min(batch, tokens) > 0 else None
    wrong = shape_differs(shape, (rows, heads * width))
    if not wrong and rows is None and shape[0] is not None:
        wrong = shape[0] % max(batch, tokens, 1) != 0
    if wrong:
        yield f"qkv {shape_text(shape)}", f"[B*S, {heads * width}] for qkv_size {_sizes(case)}"


def _head_sum(case: Case) -> Iterator[Finding]:
    heads = [_q_heads(case), _k_heads(case), _v_heads(case)]
    if sum(heads) != _sizes(case)[2]:
        yield f"head_nums {heads} with Nqkv = {_sizes(case)[2]}", "Nq + Nk + Nv = Nqkv"


def _equal_kv_heads(case: Case) -> Iterator[Finding]:
    if _k_heads(case) != _v_heads(case):
        yield f"Nk = {_k_heads(case)}, Nv = {_v_heads(case)}", "Nk = Nv"


def _head_groups(case: Case) -> Iterator[Finding]:
    if _k_heads(case) > 0 and _q_heads(case) % _k_heads(case):
        yield f"Nq = {_q_heads(case)}, Nk = {_k_heads(case)}", "a multiple of Nk"


def _device_width(case: Case) -> Iterator[Finding]:
    if _width(case) != 128:
        yield f"D = {_width(case)}", "D = 128"


def _aligned_width(case: Case) -> Iterator[Finding]:
    size = _width(case) * by_name(case.dtype("qkv")).itemsize
    if size % 32:
        yield f"D = {_width(case)}, {size} bytes", "a multiple of 32 bytes"


def _cache_shapes(case: Case) -> Iterator[Finding]:
    for cache, heads in _CACHE_HEADS:
        shape, d0 = case.shape(cache.cache), nz_block(case.dtype(cache.cache))
        wanted: Shape = (None, heads(case) * _width(case) // d0, None, d0)
        if shape_differs(shape, wanted):
            yield f"{cache.cache} {shape_text(shape)}", f"{shape_text(wanted)}: {FRACTAL_TEXT}"


def _same_pages(case: Case) -> Iterator[Finding]:
    pairs = [(case.dim(cache.cache, 0), case.dim(cache.cache, 2)) for cache in _CACHES]
    if shape_differs(*pairs):
        shown = ", ".join(f"{cache.cache} {shape_text(pair)}" for cache, pair in zip(_CACHES, pairs, strict=True))
        yield shown, "equal block_num and block_size"


def _enough_blocks(case: Case) -> Iterator[Finding]:
    batch, tokens = _sizes(case)[:2]
    if min(batch, tokens) > 0 and _page(case) > 0:
        floor = -(-tokens // _page(case)) * batch
        if _blocks(case) < floor:
            yield f"block_num {_blocks(case)}", f"at least {floor}"


def _no_operator(case: Case) -> Iterator[Finding]:
    yield f"product {case.product}", "A2, A3 or generic"


CONSTRAINTS = (
    Constraint("QKV-20", "no input may be empty", rules.not_empty()),
    Constraint("QKV-01", "qkv_size is [B, S, Nqkv, D] and head_nums is [Nq, Nk, Nv], of positive sizes", _attr_sizes),
    Constraint("QKV-01", "the product needs B and S", _sizes_given, DEVICES),
    Constraint("QKV-02", "qkv must be [B*S, Nqkv*D]", _qkv_shape),
    Constraint("QKV-03", "the heads must add up", _head_sum),
    Constraint("QKV-03", "the product has as many key heads as value heads", _equal_kv_heads, DEVICES),
    Constraint("QKV-04", "the product groups query heads evenly over key heads", _head_groups, ASCEND_2),
    Constraint(
        "QKV-04", "query heads should be a multiple of key heads", _head_groups, ("generic",), severity="warning"
    ),
    Constraint("QKV-05", "the product has a fixed head width", _device_width, DEVICES),
    Constraint("QKV-06", "the head width must be even", rules.even("D", _width)),
    Constraint("QKV-06", "the product needs heads of a multiple of 32 bytes", _aligned_width, DEVICES),
    Constraint("QKV-07", "the product does not take this element type", rules.type_in("qkv", *FLOATS[1:]), DEVICES),
    Constraint(
        "QKV-07",
        "q_gamma, k_gamma, cos, sin and q_out must have the element type of qkv",
        rules.same_type("qkv", "q_gamma", "k_gamma", "cos", "sin", "q_out"),
    ),
    Constraint("QKV-08", "index must have one element for each token",
               rules.shape_is(lambda case: (_tokens(case),), "index")),
    Constraint("QKV-09", "a gamma must have one element for each column of a head",
               rules.shape_is(lambda case: (_width(case),), "q_gamma", "k_gamma")),
    Constraint("QKV-09", "cos and sin must have one full row for each token",
               rules.shape_is(lambda case: (_tokens(case), _width(case)), "cos", "sin")),
    Constraint("QKV-10", "q_out has another shape",
               rules.shape_is(lambda case: (_tokens(case), _q_heads(case) * _width(case)), "q_out")),
    Constraint("QKV-11", "a head must divide into 32-byte fractals of its cache", rules.nz_width(_CACHES)),
    Constraint("QKV-11", "a cache has another shape", _cache_shapes),
    Constraint("QKV-11", "the caches must have the same pages", _same_pages),
    Constraint("QKV-12", "the product has a page size multiple", rules.page_multiple(_page, _CACHES), DEVICES),
    Constraint("QKV-13", "the product needs more blocks for B and S", _enough_blocks, DEVICES),
    Constraint("QKV-13", "block_num is small for B and S", _enough_blocks, ("generic",), severity="warning"),
    Constraint("QKV-14", "unknown cache_mode", rules.known_word("cache_mode", QKV_CACHE_MODES)),
    Constraint(
        "QKV-15", "a scale goes with an int8 cache and a plain cache with none", rules.scale_and_type(_CACHES, "qkv")
    ),
    Constraint("QKV-16", "an offset needs its scale", rules.offset_needs_scale(_CACHES)),
    Constraint("QKV-17", "a quantisation parameter of the keys must be [Nk, D]",
               rules.shape_is(lambda case: (_k_heads(case), _width(case)), "k_scale", "k_offset")),
    Constraint("QKV-17", "a quantisation parameter of the values must be [Nv, D]",
               rules.shape_is(lambda case: (_v_heads(case), _width(case)), "v_scale", "v_offset")),
    Constraint("QKV-18", "a scale divides: it must be finite and not 0", rules.divisors("k_scale", "v_scale")),
    Constraint("QKV-19", "an index is out of range or written twice",
               rules.index_values(_mode, _tokens, _page, _blocks)),
    Constraint("QKV-22", "the product does not have this operator", _no_operator, ("950", "kirin")),
    Constraint("QKV-23", "epsilon must be finite", rules.finite("epsilon")),
    Constraint("QKV-23", "epsilon should be positive", rules.positive("epsilon"), severity="warning"),
)  # fmt: skip
"""QKV-21 (an estimate of the device memory) binds nobody; QKV-22 and QKV-23 are kvfuse's own numbers."""


def _shapes(specs: Mapping[str, TensorSpec], attrs: Attrs) -> dict[str, TensorSpec]:
    kind, shape = specs["qkv"].dtype, specs["qkv"].shape
    tokens = shape[0] if shape is not None and len(shape) == 2 else None
    try:
        (batch, length, _, width), heads = rules.int_list(attrs, "qkv_size", 4), rules.int_list(attrs, "head_nums", 3)
    except Undecided:
        columns: list[int | None] = [None] * 3
    else:
        columns = [count * width for count in heads]
        tokens = batch * length if tokens is None and min(batch, length) > 0 else tokens
    full = [TensorSpec(kind, (tokens, count)) for count in columns]
    raw = full if attrs.get("is_output_qkv") else [TensorSpec(kind, (0,))] * 3
    buffer = specs.get("q_out")
    return {
        "q_out": full[0] if buffer is None or buffer.shape is None else buffer,
        "k_cache": specs["k_cache"],
        "v_cache": specs["v_cache"],
        "q_out_before_quant": raw[0],
        "k_out_before_quant": raw[1],
        "v_out_before_quant": raw[2],
    }


def _ge_attrs(specs: Mapping[str, TensorSpec], attrs: Attrs) -> dict[str, AttrValue]:
    """B and S from the number of tokens; where neither is given, the tokens are one sequence."""
    batch, length, *rest = rules.int_list(attrs, "qkv_size", 4)
    if min(batch, length) < 0:
        shape = specs["qkv"].shape
        tokens = shape[0] if shape else None
        if tokens is None:
            raise Undecided("qkv_size")
        batch = batch if batch > 0 else tokens // length if length > 0 else 1
        length = length if length > 0 else tokens // batch
    return {**attrs, "qkv_size": [batch, length, *rest]}


def _compute(xp: Numeric, x: Mapping[str, Any], attrs: Mapping[str, Any]) -> dict[str, Any]:
    width, counts = attrs["qkv_size"][3], attrs["head_nums"]
    cos, sin = (xp.reshape(xp.cast(x[name], "float32"), [-1, 1, width]) for name in ("cos", "sin"))

    def heads(place: int) -> Any:
        first = sum(counts[:place])
        part = xp.columns(x["qkv"], first * width, (first + counts[place]) * width)
        return xp.reshape(part, [-1, counts[place], width])

    def rotated(place: int, gamma: str) -> Any:
        rows, weight = xp.cast(heads(place), "float32"), xp.cast(x[gamma], "float32")
        return rotate_halves(xp, rms_norm(xp, rows, width, weight, attrs["epsilon"]), cos, sin, width)

    q, k, v = rotated(0, "q_gamma"), rotated(1, "k_gamma"), heads(2)
    kind, tokens = xp.dtype(x["qkv"]), xp.dim(x["qkv"], 0)
    mode = QKV_CACHE_MODES[str(attrs["cache_mode"])]
    places = slots(xp, mode, x["index"], tokens, 1, xp.dim(x["k_cache"], 2))
    flat = [xp.reshape(xp.cast(part, kind), [-1, count * width]) for part, count in zip((q, k, v), counts, strict=True)]
    outputs: dict[str, Any] = {"q_out": flat[0]}
    for cache, value in zip(_CACHES, (k, v), strict=True):
        old, scale, offset = x[cache.cache], x.get(cache.scale), x.get(cache.offset)
        stored = store(xp, value, xp.dtype(old), scale, offset, divide=True)
        outputs[cache.cache] = write_fractals(xp, old, places, stored)
    for name, value in zip(("q", "k", "v"), flat, strict=True):
        outputs[f"{name}_out_before_quant"] = value if attrs["is_output_qkv"] else xp.zeros([0], kind)
    return outputs


NOTES = (
    Note(
        "Caches and slots",
        (
            ("mode", "declared shape", "memory", "an index element is"),
            ("PA_NZ", FRACTAL_TEXT, ORDER_TEXT["NZ"], "flat slot page*block_size + row, 0 to block_num*block_size-1"),
        ),
        (
            "d0 is 32 bytes of the cache's own type: 8 columns of float32, 16 of a 16-bit type, 32 of int8. The two "
            "caches may differ in it.",
            "-1 leaves the slot alone; every byte that is not addressed stays. q_out and the before_quant outputs are "
            "delivered for skipped tokens too.",
            "A cache is updated in place where its output shares the input's buffer.",
        ),
    ),
    quantisation("int8 element = value / scale + offset"),
    Note(
        "Choices where the contract leaves room",
        items=(
            "k_out_before_quant has Nk*D columns, v_out_before_quant Nv*D. They and q_out_before_quant have shape [0] "
            "where is_output_qkv is false.",
            "q_out as an input is a buffer whose contents do not matter. In ONNX it may be left out: the output is "
            "then allocated; export to GE supplies it.",
            "B and S of qkv_size may be -1 in ONNX, where the number of tokens is that of qkv. Export fills them in "
            "from the shape of qkv, as one sequence where both are open.",
            "`generic` takes any head counts (Nk and Nv may differ), any even D that divides into the fractals of "
            "both caches, pages of any size, and float32, whose rows may be kept in float16 or bfloat16 caches. "
            "Products: D 128, Nk = Nv, Nq a multiple of Nk, pages of 16 tokens or a multiple, 32 where a cache is "
            "int8, and enough blocks for B and S.",
            "cos and sin have one row for each token: a row for each batch is refused.",
            "The range of an index is half open, a slot is written once, only -1 skips; other negative indices are "
            "refused.",
            "The device memory that the contract estimates (QKV-21) is not checked.",
            "The 950 and Kirin products have no such operator.",
        ),
    ),
)

OPERATOR = Operator(
    name="QkvRmsNormRopeCache",
    doc=__doc__,
    types={"T": FLOATS, "TK": (*FLOATS, "int8"), "TV": (*FLOATS, "int8"), "I": ("int64",), "F": ("float32",)},
    inputs=(
        Input("qkv", "T", "[B*S, Nqkv*D]", "the projected rows: query, key, value heads"),
        Input("q_gamma", "T", "[D]", "RMSNorm weight of the query heads"),
        Input("k_gamma", "T", "[D]", "RMSNorm weight of the key heads"),
        Input("cos", "T", "[B*S, D]", "full width"),
        Input("sin", "T", "as cos"),
        Input("index", "I", "[B*S]", "where to write; -1 skips"),
        Input("q_out", "T", "[B*S, Nq*D]", "a buffer for the output; GE requires it, ONNX may leave it out", True,
              ref="q_out", supplied="qkv"),
        Input("k_cache", "TK", FRACTAL_TEXT, "in place", ref="k_cache"),
        Input("v_cache", "TV", FRACTAL_TEXT, "in place", ref="v_cache"),
        Input("k_scale", "F", "[Nk, D]", "divisor; given when k_cache is int8", True),
        Input("v_scale", "F", "[Nv, D]", "divisor; given when v_cache is int8", True),
        Input("k_offset", "F", "[Nk, D]", "added after the division", True),
        Input("v_offset", "F", "[Nv, D]", "added after the division", True),
    ),
    outputs=(
        Output("q_out", "T", "[B*S, Nq*D]", "normalised and rotated queries", ref=True),
        Output("k_cache", "TK", "as the input", "the same buffer", ref=True),
        Output("v_cache", "TV", "as the input", "the same buffer", ref=True),
        Output("q_out_before_quant", "T", "[B*S, Nq*D]", "as q_out; [0] unless is_output_qkv"),
        Output("k_out_before_quant", "T", "[B*S, Nk*D]", "what went to k_cache, before quantisation; [0] unless "
               "is_output_qkv"),
        Output("v_out_before_quant", "T", "[B*S, Nv*D]", "what went to v_cache, before quantisation; [0] unless "
               "is_output_qkv"),
    ),
    attrs=(
        Attr("qkv_size", "ListInt", None, "[B, S, Nqkv, D]; B and S may be -1 in ONNX"),
        Attr("head_nums", "ListInt", None, "[Nq, Nk, Nv]"),
        Attr("epsilon", "Float", 1e-6, "added to the mean square"),
        Attr("cache_mode", "String", "PA_NZ", "how the caches are laid out", tuple(QKV_CACHE_MODES)),
        Attr("is_output_qkv", "Bool", False, "deliver the three before_quant outputs"),
    ),
    constraints=CONSTRAINTS,
    notes=NOTES,
    shapes=_shapes,
    compute=_compute,
    combines=rules.caches_combine("T", "TK", "TV"),
    ge_attrs=_ge_attrs,
)  # fmt: skip
