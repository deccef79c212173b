"""DequantRopeQuantKvcache: optional dequantisation, rotary embedding, int8 quantisation and cache write of packed QKV.

A row of ``x`` holds Nq query heads, Nkv key heads and Nkv value heads of D columns. An int32 row, the result of an int8
product, is dequantised first; a float row is taken as it is. Queries and keys are rotated; keys and values are
quantised to int8 and written to their caches.

Rotation by halves: pair ``(x[j], x[D/2 + j])`` stays where it is. Arithmetic is fp32, but where cos is float16 the
rotation is done in float16. Quantisation divides by the scale and adds the offset.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any

from ir_ops import contract as rules
from ir_ops.contract import ASCEND_2, DEVICES, FLOATS
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
    Undecided,
    dim,
    shape_differs,
    shape_text,
)
from ir_ops.layout import DEQUANT_CACHE_MODES, ORDER_TEXT
from ir_ops.numeric import Numeric
from ir_ops.preamble import dequantise, rotate_halves, slots, store, write_cache

_mode = rules.mode_of(DEQUANT_CACHE_MODES)
_batch, _hidden = dim("x", 0), dim("x", -1)
_pages, _rows, _heads, _width = (dim("k_cache", axis) for axis in range(4))
_DEQUANT = ("weight_scale", "activation_scale", "bias")


def _splits(case: Case) -> list[int]:
    return rules.int_list(case.attrs, "size_splits", 3)


def _length(case: Case) -> int:
    """S; 1 for a 2-D x."""
    return case.dim("x", 1) if len(case.shape("x")) == 3 else 1


def _tokens(case: Case) -> int:
    return _batch(case) * _length(case)


def _kv_elements(case: Case) -> int:
    return _heads(case) * _width(case)


def _quantised(case: Case) -> bool:
    return case.dtype("x") == "int32"


def _plain(case: Case) -> bool:
    return case.dtype("x") != "int32"


def _contiguous(case: Case) -> bool:
    return not _mode(case).paged


def _paged(case: Case) -> bool:
    return _mode(case).paged


def _x_rank(case: Case) -> Iterator[Finding]:
    if len(case.shape("x")) not in (2, 3):
        yield f"x {shape_text(case.shape('x'))}", "[B, S, H] or [B, H]"


def _device_hidden(case: Case) -> Iterator[Finding]:
    if _hidden(case) > 4096 or _hidden(case) % 64:
        yield f"H = {_hidden(case)}", "at most 4096 and a multiple of 64"


def _split_sum(case: Case) -> Iterator[Finding]:
    splits = case.attrs["size_splits"]
    assert isinstance(splits, list)
    if len(splits) != 3 or min(splits) < 0:
        yield f"size_splits {splits}", "3 sizes >= 0"
    elif sum(splits) != _hidden(case):
        yield f"size_splits {splits}", f"a sum of H = {_hidden(case)}"


def _equal_splits(case: Case) -> Iterator[Finding]:
    if _splits(case)[1] != _splits(case)[2]:
        yield f"size_splits {_splits(case)}", "equal sizes of k and v"


def _device_width(case: Case) -> Iterator[Finding]:
    if _width(case) % 16:
        yield f"D = {_width(case)}", "a multiple of 16"


def _head_splits(case: Case) -> Iterator[Finding]:
    query, key, _ = _splits(case)
    if key != _kv_elements(case):
        yield f"size_splits[1] = {key}", f"Nkv * D = {_heads(case)} * {_width(case)}"
    if _width(case) and query % _width(case):
        yield f"size_splits[0] = {query}", f"a multiple of D = {_width(case)}"


def _equal_caches(case: Case) -> Iterator[Finding]:
    key, value = case.shape("k_cache"), case.shape("v_cache")
    if len(key) != 4 or shape_differs(key, value):
        yield f"k_cache {shape_text(key)}, v_cache {shape_text(value)}", "two equal [C1, C2, Nkv, D]"


def _rope_shape(case: Case) -> Shape:
    shape = case.shape("x")
    return (shape[0], _width(case)) if len(shape) == 2 else (*shape[:2], 1, _width(case))


def _no_weight_scale(case: Case) -> Iterator[Finding]:
    if not case.has("weight_scale"):
        yield "no weight_scale", f"weight_scale of {_hidden(case)} elements"


def _single_offset(case: Case) -> Iterator[Finding]:
    if case.has("offset_k") != case.has("offset_v"):
        yield "offset_k only" if case.has("offset_k") else "offset_v only", "both or neither"


def _batches_fit(case: Case) -> Iterator[Finding]:
    if _pages(case) < _batch(case):
        yield f"C1 = {_pages(case)}", f"at least B = {_batch(case)}"


def _starts(case: Case) -> Iterator[Finding]:
    last = _rows(case) - _length(case)
    for place, row in enumerate(case.value("indices").reshape(-1)):
        if not 0 <= row <= last:
            yield f"indices[{place}] = {int(row)}", f"0 to C2 - S = {last}"
            return


def _ignored(case: Case) -> Iterator[Finding]:
    given = [name for name in _DEQUANT if case.has(name)]
    if given:
        yield f"{', '.join(given)} with {case.dtype('x')} x", "int32 x"


def _no_operator(case: Case) -> Iterator[Finding]:
    yield f"product {case.product}", "A2, A3 or generic"


def _shape_of(count: Callable[[Case], int]) -> Callable[[Case], Shape]:
    return lambda case: (count(case),)


CONSTRAINTS = (
    Constraint("DRQ-19", "no input may be empty", rules.not_empty()),
    Constraint("DRQ-01", "x must be 2-D or 3-D", _x_rank),
    Constraint("DRQ-02", "the product limits the last dim of x", _device_hidden, DEVICES),
    Constraint("DRQ-03", "size_splits must be the sizes of q, k and v in a row of x", _split_sum),
    Constraint("DRQ-04", "k and v must have splits of one size", _equal_splits),
    Constraint("DRQ-05", "the head width must be even", rules.even("D", _width)),
    Constraint("DRQ-05", "the product needs a head width that 16 divides", _device_width, DEVICES),
    Constraint("DRQ-07", "k_cache and v_cache must be 4-D and of one shape", _equal_caches),
    Constraint("DRQ-06", "the splits must be whole heads as the caches have them", _head_splits),
    Constraint("DRQ-08", "cos and sin must fit x", rules.shape_is(_rope_shape, "cos", "sin")),
    Constraint("DRQ-08", "sin must have the element type of cos", rules.same_type("cos", "sin")),
    Constraint("DRQ-09", "x that is not int32 must have the element type of cos",
               rules.when(_plain, rules.same_type("cos", "x"))),
    Constraint("DRQ-09", "the product does not take this element type", rules.type_in("cos", *FLOATS[1:]), DEVICES),
    Constraint("DRQ-10", "int32 x needs weight_scale", rules.when(_quantised, _no_weight_scale)),
    Constraint("DRQ-10", "weight_scale must have one element for each column of x",
               rules.when(_quantised, rules.elements_are(_hidden, "weight_scale"))),
    Constraint("DRQ-11", "activation_scale must have one element for each token",
               rules.when(_quantised, rules.elements_are(_tokens, "activation_scale"))),
    Constraint("DRQ-11", "bias must have one element for each column of x",
               rules.when(_quantised, rules.elements_are(_hidden, "bias"))),
    Constraint("DRQ-12", "a scale or offset must have one element for each column of a cache row",
               rules.elements_are(_kv_elements, "scale_k", "scale_v", "offset_k", "offset_v")),
    Constraint("DRQ-13", "unknown quant_mode", rules.known_word("quant_mode", {"static": 0})),
    Constraint("DRQ-14", "unknown layout", rules.known_word("layout", {"BSND": 0})),
    Constraint("DRQ-15", "the product ignores a single offset", _single_offset, ASCEND_2, "warning", True),
    Constraint("DRQ-16", "unknown cache_mode", rules.known_word("cache_mode", DEQUANT_CACHE_MODES)),
    Constraint("DRQ-17", "a contiguous cache must hold every batch", rules.when(_contiguous, _batches_fit)),
    Constraint("DRQ-17", "indices must have one element for each batch",
               rules.when(_contiguous, rules.shape_is(_shape_of(_batch), "indices"))),
    Constraint("DRQ-17", "the rows of a batch must fit its cache", rules.when(_contiguous, _starts)),
    Constraint("DRQ-18", "indices must have one element for each token",
               rules.when(_paged, rules.shape_is(_shape_of(_tokens), "indices"))),
    Constraint("DRQ-18", "an index is out of range or written twice",
               rules.when(_paged, rules.index_values(_mode, _batch, _rows, _pages, name="indices", lowest=0))),
    Constraint("DRQ-20", "a scale divides: it must be finite and not 0", rules.divisors("scale_k", "scale_v")),
    Constraint("DRQ-21", "only int32 x is dequantised", rules.when(_plain, _ignored), severity="warning"),
    Constraint("DRQ-22", "the product takes int32 indices", rules.type_in("indices", "int32"), DEVICES),
    Constraint("DRQ-23", "the product does not have this operator", _no_operator, ("950", "kirin")),
)  # fmt: skip
"""DRQ-22 and DRQ-23 are kvfuse's own numbers."""


def _shapes(specs: Mapping[str, TensorSpec], attrs: Attrs) -> dict[str, TensorSpec]:
    kind, shape, cache = specs["cos"].dtype, specs["x"].shape, specs["k_cache"].shape
    width = cache[3] if cache is not None and len(cache) == 4 else None
    try:
        query, key, _ = rules.int_list(attrs, "size_splits", 3)
    except Undecided:
        heads: list[int | None] = [None, None]
    else:
        heads = [size // width if width else None for size in (query, key)]
    if shape is None or len(shape) not in (2, 3):
        q, kv = TensorSpec(kind, None), TensorSpec(kind, None)
    else:
        q, kv = (TensorSpec(kind, (*shape[:-1], count, width)) for count in heads)
    if not attrs.get("kv_output"):
        kv = TensorSpec(kind, (0,))
    return {"q": q, "k": kv, "v": kv, "k_cache": specs["k_cache"], "v_cache": specs["v_cache"]}


def _compute(xp: Numeric, x: Mapping[str, Any], attrs: Mapping[str, Any]) -> dict[str, Any]:
    query, key, _ = attrs["size_splits"]
    heads, width = xp.dim(x["k_cache"], 2), xp.dim(x["k_cache"], 3)
    kind, rows = xp.dtype(x["cos"]), xp.reshape(x["x"], [-1, query + 2 * key])
    if xp.dtype(rows) == "int32":
        rows = dequantise(xp, rows, x["weight_scale"], x.get("activation_scale"), x.get("bias"))
    arithmetic = "float16" if kind == "float16" else "float32"
    cos, sin = (xp.cast(xp.reshape(x[name], [-1, 1, width]), arithmetic) for name in ("cos", "sin"))
    lead = [xp.dim(x["x"], axis) for axis in range(xp.rank(x["x"]) - 1)]

    entering = xp.cast(rows, arithmetic)

    def part(of: Any, start: int, size: int) -> Any:
        return xp.reshape(xp.columns(of, start, start + size), [-1, size // width, width])

    def rotated(start: int, size: int) -> Any:
        return rotate_halves(xp, part(entering, start, size), cos, sin, width)

    def delivered(value: Any, count: Any) -> Any:
        return xp.reshape(xp.cast(value, kind), [*lead, count, width])

    k, v = rotated(query, key), part(rows, query + key, key)
    q_heads = query // width
    outputs = {"q": delivered(rotated(0, query), q_heads) if query else xp.zeros([*lead, 0, width], kind)}
    for name, value in (("k", k), ("v", v)):
        outputs[name] = delivered(value, heads) if attrs["kv_output"] else xp.zeros([0], kind)
    mode = DEQUANT_CACHE_MODES[str(attrs["cache_mode"])]
    length = lead[1] if len(lead) == 2 else 1
    places = slots(xp, mode, xp.cast(x["indices"], "int64"), lead[0], length, xp.dim(x["k_cache"], 1))
    for name, value in (("k", k), ("v", v)):
        scale, offset = (
            None if item is None else xp.reshape(item, [heads, width])
            for item in (x[f"scale_{name}"], x.get(f"offset_{name}"))
        )
        stored = store(xp, value, "int8", scale, offset, divide=True)
        outputs[f"{name}_cache"] = write_cache(xp, x[f"{name}_cache"], places, stored)
    return {name: outputs[name] for name in ("q", "k", "v", "k_cache", "v_cache")}


NOTES = (
    Note(
        "Caches and indices",
        (
            ("mode", "declared shape and memory", "indices", "an element is"),
            ("contiguous", "[C1 >= B, C2, Nkv, D]", "[B]", "row of the first token of the batch, 0 to C2 - S"),
            ("page", ORDER_TEXT["BSND"], "[B*S], [B] for a 2-D x", "flat slot, 0 to C1*C2 - 1, each once"),
        ),
        (
            "Every byte that is not addressed stays. A cache is updated in place where its output shares the input's "
            "buffer.",
            "A 2-D x is one token a batch: S = 1.",
        ),
    ),
    Note(
        "Numbers",
        (
            ("cos", "x", "enters the rotation as", "rotation in", "k is quantised from", "v is quantised from"),
            ("float16", "int32", "float16", "float16", "the float16 result", "float32, not rounded"),
            ("float16", "float16", "x", "float16", "the float16 result", "x"),
            ("bfloat16, float32", "int32", "float32, not rounded", "float32", "float32, not rounded",
             "float32, not rounded"),
            ("bfloat16, float32", "as cos", "x", "float32", "float32, not rounded", "x"),
        ),
        (
            "int32: float32(x) * weight_scale * activation_scale + bias; an int32 bias is added to x before and wraps.",
            "int8 element = value / scale + offset in float32, rounded half to even, clamped to -128..127, NaN becomes "
            "0. q, k and v are rounded to the type of cos.",
        ),
    ),
    Note(
        "Choices where the contract leaves room",
        items=(
            "Rounding is the device kernel's, not that of the published reference, which rounds the dequantised row "
            "to the type of cos first: they differ by one int8 step in rare elements.",
            "Quantisation divides; the reciprocal form differs at ties.",
            "Each offset counts alone. The products add offsets only where both are given.",
            "k and v have shape [0] where kv_output is false.",
            "Negative indices are refused in both modes. A contiguous cache may have more batches than x.",
            "Scales, offsets, weight_scale, activation_scale and bias are taken in any shape with the right number of "
            "elements.",
            "`generic` takes any H, any even D, any head counts (no query head at all, too), float32 and int64 "
            "indices. Products: H at most 4096 and a multiple of 64, D a multiple of 16, int32 indices.",
            "The 950 has no such operator, and no document says that Kirin has it.",
        ),
    ),
)  # fmt: skip


def _combines(choice: Mapping[str, str]) -> bool:
    return choice["X"] in ("int32", choice["T"])


OPERATOR = Operator(
    name="DequantRopeQuantKvcache",
    doc=__doc__,
    types={
        "X": (*FLOATS, "int32"), "T": FLOATS, "C": ("int8",), "I": ("int32", "int64"), "F": ("float32",),
        "TB": (*FLOATS, "int32"),
    },
    inputs=(
        Input("x", "X", "[B, S, H] or [B, H]", "the projected rows: query, key, value heads"),
        Input("cos", "T", "[B, S, 1, D]; [B, D] for a 2-D x", "full width"),
        Input("sin", "T", "as cos"),
        Input("k_cache", "C", "[C1, C2, Nkv, D]", "in place", ref="k_cache"),
        Input("v_cache", "C", "as k_cache", "in place", ref="v_cache"),
        Input("indices", "I", "contiguous [B]; page [B*S]", "where to write"),
        Input("scale_k", "F", "[Nkv, D]", "divisor of the keys"),
        Input("scale_v", "F", "[Nkv, D]", "divisor of the values"),
        Input("offset_k", "F", "[Nkv, D]", "added after the division", True),
        Input("offset_v", "F", "[Nkv, D]", "added after the division", True),
        Input("weight_scale", "F", "[H]", "multiplier of an int32 x, which needs it", True),
        Input("activation_scale", "F", "[B*S]", "multiplier of an int32 x", True),
        Input("bias", "TB", "[H]", "added to an int32 x", True),
    ),
    outputs=(
        Output("q", "T", "[B, S, Nq, D] or [B, Nq, D]", "rotated queries"),
        Output("k", "T", "as q with Nkv heads", "rotated keys; [0] unless kv_output"),
        Output("v", "T", "as k", "values; [0] unless kv_output"),
        Output("k_cache", "C", "as the input", "the same buffer", ref=True),
        Output("v_cache", "C", "as the input", "the same buffer", ref=True),
    ),
    attrs=(
        Attr("size_splits", "ListInt", None, "[Nq*D, Nkv*D, Nkv*D]"),
        Attr("quant_mode", "String", "static", "how k and v are quantised", ("static",)),
        Attr("layout", "String", "BSND", "order of q, k and v", ("BSND",)),
        Attr("kv_output", "Bool", False, "deliver k and v"),
        Attr("cache_mode", "String", "contiguous", "how the caches are laid out", tuple(DEQUANT_CACHE_MODES)),
    ),
    constraints=CONSTRAINTS,
    notes=NOTES,
    shapes=_shapes,
    compute=_compute,
    combines=_combines,
    needs_rank=("x",),
)  # fmt: skip
