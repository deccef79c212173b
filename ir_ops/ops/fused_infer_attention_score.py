"""FusedInferAttentionScore: softmax attention of query tokens over keys and values that lie contiguous or in pages.

The subset that prefill and decoding of LLMs need: grouped heads; causal, banded and explicit masks; lengths for each
entry of the batch; MLA with the rotary part of queries and keys in tensors of their own; int8 keys and values.

Scores are the fp32 sum over the columns of query and key (and of their rope parts) times ``scale``; a row's result is
``sum(exp(s - M) * v) / sum(exp(s - M))`` in fp32, rounded once. A row that sees no key is 0, its logarithm +inf.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np

from ir_ops import contract as rules
from ir_ops import contract_rows
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
    TensorSpec,
)
from ir_ops.dtypes import Array
from ir_ops.numeric import Numeric
from ir_ops.ops import _fia_call as call
from ir_ops.ops import _fia_quant_rules as quant
from ir_ops.ops import _fia_rules as fia
from ir_ops.ops._fia_call import Sizes
from ir_ops.ops._fia_math import attention

_ROPE_WIDTH = 64


def _combines(choice: Mapping[str, str]) -> bool:
    """Element types that occur together; those of inputs that are not given have the first fitting one."""
    query, key, out = choice["Q"], choice["K"], choice["O"]
    if query == "int8":
        fits = key == "int8" and choice["R"] == out and choice["S"] == choice["V"] == "float32"
    else:
        fits = choice["R"] == out == query and key in (*rules.kept_as(query), "int8")
        for scale in (choice["S"], choice["V"]):
            fits = fits and (scale == "float32" or (scale == query and key == "int8"))
    return fits and choice["KR"] == (choice["R"] if key == "int8" else key)


def _no_operator(case: Case) -> Iterator[Finding]:
    yield f"product {case.product}", "950, A2, A3 or generic"


def _device_types(case: Case) -> Iterator[Finding]:
    yield from rules.type_in("query", "float16", "bfloat16", "int8")(case)
    if case.dtype("query") != "float32" and case.dtype("key") not in (case.dtype("query"), "int8"):
        yield f"key {case.dtype('key')}", f"{case.dtype('query')} | int8"


def _device_width(case: Case) -> Iterator[Finding]:
    width, step = Sizes(case).width, 32 if fia.is_int8(case, "key") else 16
    if width % step or width > 512:
        yield f"D = {width}", f"a multiple of {step}, at most 512"


def _device_rope(case: Case) -> Iterator[Finding]:
    if not case.has("query_rope"):
        return
    sizes = Sizes(case)
    last = case.dim("query_rope", -1) // (sizes.heads if sizes.axes == "BSH" else 1)
    if last != _ROPE_WIDTH:
        yield f"rope parts of {last} columns", str(_ROPE_WIDTH)
    if sizes.width not in (128, 512) or sizes.value_width() != sizes.width:
        yield f"D = {sizes.width}, Dv = {sizes.value_width()} beside rope parts", "128 and 128, or 512 and 512"


def _latent(case: Case) -> Iterator[Finding]:
    sizes = Sizes(case)
    if not case.has("query_rope") or sizes.width != 512:
        return
    mode = contract_rows.integer(case, "sparse_mode")
    if sizes.kv_heads != 1:
        yield f"num_key_value_heads {sizes.kv_heads}", "1 with D = 512 and rope parts"
    if mode not in (0, 3, 4, 9):
        yield f"sparse_mode {mode}", "0 | 3 | 4 with D = 512 and rope parts"
    if case.attrs["softmax_lse_flag"] and sizes.packed:
        yield f"softmax_lse_flag with {sizes.axes}", "false with D = 512 and rope parts"


def _joined_pages(case: Case) -> Iterator[Finding]:
    if case.has("block_table") and len(case.shape("key")) == 3 and case.dim("key", 2) > 65535:
        yield f"key rows of {case.dim('key', 2)} elements", "at most 65535"


def _device_page(case: Case) -> Iterator[Finding]:
    if case.has("block_table"):
        size, step = Sizes(case).page, 32 if fia.is_int8(case, "key") else 16
        if size % step or size > 1024:
            yield f"block_size {size}", f"a multiple of {step}, at most 1024"


def _triangle(case: Case) -> Iterator[Finding]:
    mode = contract_rows.integer(case, "sparse_mode")
    if mode in (2, 3, 4) and not case.has("atten_mask"):
        yield f"sparse_mode {mode} without atten_mask", "the triangle [2048, 2048]"


def _packed_mode(case: Case) -> Iterator[Finding]:
    if Sizes(case).packed and contract_rows.integer(case, "sparse_mode") == 2:
        yield f"sparse_mode 2 with {Sizes(case).axes}", "0 | 3 | 4"


def _sink_width(case: Case) -> Iterator[Finding]:
    if case.has("learnable_sink") and Sizes(case).value_width() not in (64, 128):
        yield f"learnable_sink with Dv = {Sizes(case).value_width()}", "64 or 128"


def _limits(case: Case) -> Iterator[Finding]:
    sizes = Sizes(case)
    for what, size, most in (("B", sizes.batch, 65536), ("N", sizes.heads, 256), ("S", sizes.tokens, 20971520)):
        if size > most:
            yield f"{what} = {size}", f"at most {most}"


def _narrow_pages(case: Case) -> Iterator[Finding]:
    """int8 keys in NZ pages beside a float query."""
    if not case.has("block_table") or not fia.is_int8(case, "key") or fia.is_int8(case, "query"):
        return
    sizes = Sizes(case)
    if len(case.shape("key")) != 5:
        yield f"int8 pages of {len(case.shape('key'))} dims", "NZ pages"
    if sizes.page not in (128, 512):
        yield f"block_size {sizes.page} with int8 pages", "128 | 512"
    if contract_rows.integer(case, "inner_precise") != 1:
        yield f"inner_precise {case.attrs['inner_precise']} with int8 pages", "1"


CONSTRAINTS = (
    Constraint("FA-24", "the product does not have this operator", _no_operator, ("kirin",)),
    Constraint("FA-22", "an input belongs to a use that is not taken", fia.not_taken),
    Constraint("FA-22", "an attribute belongs to a use that is not taken", fia.zero_attrs),
    Constraint("FA-01", "unknown input_layout", fia.known_layout),
    Constraint("FA-02", "query heads must divide evenly over key heads", fia.heads),
    Constraint("FA-01", "query must have the dims of its layout", fia.query_dims),
    Constraint("FA-03", "key and value must have one element type", rules.same_type("key", "value")),
    Constraint("FA-04", "the element type of key does not go with that of query", fia.query_and_key_types),
    Constraint("FA-04", "the product does not take these element types", _device_types, DEVICES),
    Constraint("FA-08", "block_table and block_size come together", fia.table_and_size),
    Constraint("FA-05", "query_rope and key_rope come together", fia.rope_parts),
    Constraint("FA-05", "a rope part has another element type", fia.rope_types),
    Constraint("FA-11", "the lengths are needed", fia.needed_lengths),
    Constraint("FA-12", "lengths have another shape", fia.length_dims),
    Constraint("FA-03", "key has another shape", fia.key_dims),
    Constraint("FA-03", "value has another shape", fia.value_dims),
    Constraint("FA-05", "a rope part has another shape", fia.key_rope_dims),
    Constraint("FA-08", "block_table must have a row for each entry of the batch", fia.table_dims),
    Constraint("FA-13", "unknown sparse_mode", contract_rows.one_of("sparse_mode", 0, 1, 2, 3, 4)),
    Constraint("FA-13", "the mask does not go with sparse_mode", fia.mask_and_mode),
    Constraint("FA-13", "the product needs the mask that names the pattern", _triangle, DEVICES),
    Constraint("FA-14", "a TND or NTD layout has no full mask", fia.mask_of_packed),
    Constraint("FA-14", "the product does not know this pattern for TND and NTD", _packed_mode, DEVICES),
    Constraint("FA-14", "a single query token takes no notice of this sparse_mode", fia.mode_of_single),
    Constraint("FA-15", "pre_tokens and next_tokens leave a wrong band", fia.band),
    Constraint("FA-16", "a full mask has another shape", fia.mask_dims),
    Constraint("FA-18", "antiquant scales go with int8 keys and values", quant.narrow_scales),
    Constraint("FA-17", "the offsets come together, each like its scale", quant.offset_pairs),
    Constraint("FA-17", "an antiquant scale has another element type", quant.scale_types),
    Constraint("FA-17", "unknown antiquant modes", quant.scale_modes),
    Constraint("FA-17", "an antiquant scale has another shape", quant.scale_dims),
    Constraint("FA-19", "int8 queries and what belongs to them come together", quant.whole_int8),
    Constraint("FA-20", "learnable_sink must have an element for each query head", fia.sink),
    Constraint("FA-25", "scale must be finite", rules.finite("scale")),
    Constraint("FA-04", "the product does not take this head width", _device_width, DEVICES),
    Constraint("FA-07", "the product has fixed widths beside rope parts", _device_rope, DEVICES),
    Constraint("FA-06", "the product limits attention on a latent cache", _latent, DEVICES),
    Constraint("FA-08", "the product has page size limits", _device_page, DEVICES),
    Constraint("FA-10", "the product limits the rows of joined pages", _joined_pages, DEVICES),
    Constraint("FA-20", "the product has a sink for these widths only", _sink_width, DEVICES),
    Constraint("FA-21", "the product limits batch, heads and tokens", _limits, DEVICES),
    Constraint("FA-23", "the product limits int8 pages", _narrow_pages, ASCEND_2),
    Constraint("FA-11", "running sums of lengths must not fall and end inside the tokens", fia.sum_values),
    Constraint("FA-12", "a length is out of range", fia.length_values),
    Constraint("FA-09", "a page in use must exist", fia.page_values),
)
"""FA-24 and FA-25 are kvfuse's own numbers."""


def _out_type(specs: Mapping[str, TensorSpec]) -> str:
    query, rope = specs["query"].dtype, specs.get("query_rope")
    return query if query != "int8" else rope.dtype if rope is not None else "float16"


def _shapes(specs: Mapping[str, TensorSpec], attrs: Attrs) -> dict[str, TensorSpec]:
    shapes = call.results(specs, attrs)
    return {
        "attention_out": TensorSpec(_out_type(specs), shapes.attention_out),
        "softmax_lse": TensorSpec("float32", shapes.softmax_lse),
    }


def _compute(xp: Numeric, x: Mapping[str, Any], attrs: Mapping[str, Any]) -> dict[str, Any]:
    return attention(xp, x, attrs)


NOTES = (
    Note(
        "Layouts",
        (
            ("input_layout", "query", "contiguous key, value", "attention_out"),
            ("BSH", "[B, S, N*D]", "[B, Skv, Nkv*D]", "[B, S, N*Dv]"),
            ("BSND", "[B, S, N, D]", "[B, Skv, Nkv, D]", "[B, S, N, Dv]"),
            ("BNSD", "[B, N, S, D]", "[B, Nkv, Skv, D]", "[B, N, S, Dv]"),
            ("TND", "[T, N, D]", "[Tkv, Nkv, D]", "[T, N, Dv]"),
            ("NTD", "[N, T, D]", "[Nkv, Tkv, D]", "[N, T, Dv]"),
            ("X_Y", "as X", "as X", "as Y; NBSD is [N, B, S, Dv]"),
        ),
        (
            "softmax_lse is [T, N, 1] for TND and NTD, else [B, N, S, 1]; zeros unless softmax_lse_flag.",
            "actual_seq_lengths and actual_seq_lengths_kv are lengths by entry (one for all where there is one), with "
            "TND and NTD running sums; the key lengths of pages are always plain.",
            "One query token without rope parts in BSH, BSND or BNSD: actual_seq_lengths is not looked at.",
        ),
    ),
    Note(
        "Pages",
        (
            ("dims", "shape", "order"),
            ("3", "[block_num, block_size, Nkv*D]", "token, head, column"),
            ("4", "[block_num, Nkv, block_size, D]", "head, token, column"),
            ("5", "[block_num, Nkv, D/d0, block_size, d0]", "NZ: d0 is 32 bytes of the tensor's own type"),
        ),
        (
            "Token t of entry b is in page block_table[b, t / block_size], row t % block_size. Only the number of dims "
            "says how a page is ordered: a cache [block_num, block_size, Nkv, D] must be reshaped to three dims.",
            "Table entries behind the last page in use may be anything.",
        ),
    ),
    Note(
        "Masks",
        (
            ("sparse_mode", "atten_mask", "query i of S1 sees key j of S2"),
            ("0", "none, or full", "where the mask is 0"),
            ("1", "full", "where the mask is 0"),
            ("2", "triangle", "j <= i"),
            ("3", "triangle", "j <= i + S2 - S1"),
            ("4", "triangle", "i + S2 - S1 - pre_tokens <= j <= i + S2 - S1 + next_tokens"),
        ),
        (
            "A full mask is [B or 1, S, Skv] or [B or 1, 1, S, Skv] or [S, Skv], for one token [B, Skv]; the last two "
            "dims may be larger. The triangle is [2048, 2048] (or with ones in front), true above the diagonal; "
            "it only names the pattern and its content is not read.",
        ),
    ),
    Note(
        "int8 keys and values",
        (
            ("antiquant mode", "scale and offset"),
            ("0", "[1], or Nkv*D elements by head and column"),
            ("1", "[B, tokens] or [1, B, tokens], by logical token"),
            ("2", "[Nkv]"),
        ),
        (
            "x = (int8 + offset) * scale: the offset is added first, in fp32.",
            "int8 queries (query_quant_mode 3) come with int8 keys: s = (q*k + q_rope*k_rope) * dequant_scale_query * "
            "key_antiquant_scale * scale, y = sum(p * v) * value_antiquant_scale / sum(p).",
        ),
    ),
    Note(
        "Choices where the contract leaves room",
        items=(
            "`generic` takes float32 queries with keys of any float type (a cache may be kept narrower than the "
            "arithmetic), any head and rope widths, pages of any size, and patterns without the triangle. Products: "
            "16-bit queries, the widths of the contract, the triangle (export to GE supplies it).",
            "key and value are one tensor each, not lists. sparse_mode 9, antiquant modes 3 to 6, int4 and 8-bit "
            "float caches are not taken.",
            "Probabilities stay in fp32: the device rounds them to the query type, which its tolerances allow.",
            "sparse_mode 2 and 4 with one query token in BSH, BSND or BNSD, where the device ignores them, are "
            "refused: use a TND layout.",
            "pre_tokens and next_tokens beside a full mask must cut nothing.",
            "A key that the mask hides must not be NaN or infinite; keys behind the lengths may be anything.",
            "inner_precise changes nothing here.",
        ),
    ),
)


def _pattern(attrs: Attrs) -> Array | None:
    """The triangle that devices want beside the modes that it names."""
    if attrs["sparse_mode"] not in (2, 3, 4):
        return None
    return np.triu(np.ones((call.TRIANGLE, call.TRIANGLE), np.bool_), 1)


def _unused(name: str, kind: str) -> Input:
    return Input(name, kind, "", "not taken", True)


OPERATOR = Operator(
    name="FusedInferAttentionScore",
    doc=__doc__,
    types={
        "Q": (*FLOATS, "int8"),
        "K": (*FLOATS, "int8"),
        "M": ("bool", "int8", "uint8"),
        "L": ("int64",),
        "I": ("int32",),
        "S": FLOATS,
        "V": FLOATS,
        "R": FLOATS,
        "KR": FLOATS,
        "F": ("float32",),
        "O": FLOATS,
    },
    inputs=(
        Input("query", "Q", "by layout", "N heads of D columns"),
        Input("key", "K", "by layout, or pages", "Nkv heads of D columns"),
        Input("value", "K", "as key", "Nkv heads of Dv columns"),
        _unused("pse_shift", "O"),
        Input("atten_mask", "M", "by sparse_mode", "1 hides", True, constant=_pattern),
        Input(
            "actual_seq_lengths",
            "L",
            "[B] or [1]",
            "valid query tokens; running sums with TND and NTD",
            True,
            host=True,
        ),
        Input(
            "actual_seq_lengths_kv",
            "L",
            "[B] or [1]",
            "valid keys; running sums with contiguous TND and NTD",
            True,
            host=True,
        ),
        _unused("dequant_scale1", "F"),
        _unused("quant_scale1", "F"),
        _unused("dequant_scale2", "F"),
        _unused("quant_scale2", "F"),
        _unused("quant_offset2", "F"),
        _unused("antiquant_scale", "S"),
        _unused("antiquant_offset", "S"),
        Input("block_table", "I", "[B, W]", "pages of each entry", True),
        _unused("query_padding_size", "L"),
        _unused("kv_padding_size", "L"),
        Input("key_antiquant_scale", "S", "by key_antiquant_mode", "of int8 keys", True),
        Input("key_antiquant_offset", "S", "as the scale", "added before the multiplication", True),
        Input("value_antiquant_scale", "V", "by value_antiquant_mode", "of int8 values", True),
        Input("value_antiquant_offset", "V", "as the scale", "added before the multiplication", True),
        _unused("key_shared_prefix", "K"),
        _unused("value_shared_prefix", "K"),
        _unused("actual_shared_prefix_len", "L"),
        Input("query_rope", "R", "as query, R columns", "rotary part of the queries", True),
        Input("key_rope", "KR", "as key, R columns", "rotary part of the keys", True),
        Input("key_rope_antiquant_scale", "F", "", "without effect", True),
        Input("dequant_scale_query", "F", "query without D", "of int8 queries", True),
        Input("learnable_sink", "O", "[N]", "the score of a key without a value", True),
        _unused("q_start_idx", "L"),
        _unused("kv_start_idx", "L"),
    ),
    outputs=(
        Output("attention_out", "O", "by layout", "N heads of Dv columns"),
        Output("softmax_lse", "F", "[B, N, S, 1] or [T, N, 1]", "logarithm of the sum; zeros unless softmax_lse_flag"),
    ),
    attrs=(
        Attr("num_heads", "Int", None, "N"),
        Attr("scale", "Float", 1.0, "of the scores; never derived from D"),
        Attr("pre_tokens", "Int", call.UNBOUNDED, "keys before the diagonal, sparse_mode 4"),
        Attr("next_tokens", "Int", call.UNBOUNDED, "keys behind the diagonal, sparse_mode 4"),
        Attr("input_layout", "String", "BSH", "layouts of query and output", call.INPUT_LAYOUTS),
        Attr("num_key_value_heads", "Int", 0, "Nkv; 0 means N"),
        Attr("sparse_mode", "Int", 0, "which keys a query sees"),
        Attr("inner_precise", "Int", 0, "without effect here"),
        Attr("block_size", "Int", 0, "tokens of a page; 0 without pages"),
        Attr("antiquant_mode", "Int", 0, "of a use that is not taken"),
        Attr("softmax_lse_flag", "Bool", False, "deliver softmax_lse"),
        Attr("key_antiquant_mode", "Int", 0, "shape of key_antiquant_scale"),
        Attr("value_antiquant_mode", "Int", 0, "shape of value_antiquant_scale"),
        Attr("query_quant_mode", "Int", 0, "3 with int8 queries"),
        Attr("pse_type", "Int", 0, "of a use that is not taken"),
        Attr("out_dtype", "Int", 0, "of a use that is not taken"),
    ),
    constraints=CONSTRAINTS,
    notes=NOTES,
    shapes=_shapes,
    compute=_compute,
    combines=_combines,
    needs_rank=(
        "key",
        "value",
        "key_rope",
        "atten_mask",
        "key_antiquant_scale",
        "key_antiquant_offset",
        "value_antiquant_scale",
        "value_antiquant_offset",
    ),
)
