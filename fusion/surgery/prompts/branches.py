"""The nodes of a first prompt: its tokens projected to keys and values of each head, and attention over these."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
import onnx_ir as ir

from fusion.emit import Emitter
from fusion.facts.graph import dtype_name
from fusion.surgery.decoder.attend import fused_attention
from fusion.surgery.prompts.sites import LatentAttention, LatentCache, Query, dims_of_weight
from ir_ops.decode_plan import DecodePlan
from ir_ops.layout import nz_block


@dataclass(frozen=True)
class Expanded:
    """The branch of one layer.

    Attributes:
        emit: nodes and constants.
        out: the result, in the form of :attr:`LatentAttention.out`.
        page: the constant that names the tokens of a page.
    """

    emit: Emitter
    out: ir.Value
    page: ir.Value


@dataclass(frozen=True)
class Condition:
    """Whether a call is a first prompt that is long enough: a scalar, and the constant that says what is too short."""

    value: ir.Value
    short: ir.Value


def is_first_prompt(emit: Emitter, inputs: Mapping[str, ir.Value], least: int) -> Condition:
    """A call of ``least`` tokens a row or more, with nothing cached of any of its sequences."""
    tokens = emit.reshape(emit.dim(inputs["ids"], 1, "tokens"), emit.ints([], "scalar"), "count")
    short = emit.constant(np.array(least - 1), "short")
    many = emit.node("Greater", [tokens, short], "many", dtype=ir.DataType.BOOL)
    cached = emit.node("Sub", [inputs["kv_lengths"], inputs["query_lengths"]], "cached")
    longest = emit.node("ReduceMax", [cached], "longest", {"keepdims": 0})
    empty = emit.node("Less", [longest, emit.constant(np.array(1), "one")], "empty", dtype=ir.DataType.BOOL)
    return Condition(emit.node("And", [many, empty], "first_prompt"), short)


def expanded(emit: Emitter, site: LatentAttention, plan: DecodePlan, inputs: Mapping[str, ir.Value]) -> Expanded:
    """Attention over the keys and values of a call's own tokens."""
    kind = site.dtype
    made = _Rows(emit, plan.block_size, inputs)
    latents, ropes = (emit.cast(made.of(cache), kind, f"{cache.port.part}_typed")
                      for cache in (site.latents, site.ropes))  # fmt: skip
    w_k = emit.node("Transpose", [site.query.w_uk], "w_k", {"perm": [0, 2, 1]})
    keys = emit.node("MatMul", [latents, w_k], "keys")
    values = emit.node("MatMul", [latents, site.w_uv], "values")
    key_rope = emit.node("Expand", [ropes, emit.ints([1, site.heads, 1, 1], "heads")], "key_rope")
    named = {"actual_seq_lengths": inputs["query_lengths"], "actual_seq_lengths_kv": inputs["query_lengths"],
             "query_rope": site.rope, "key_rope": key_rope}  # fmt: skip
    attrs: dict[str, int | float | str] = {
        "num_heads": site.heads,
        "num_key_value_heads": site.heads,
        "scale": site.node.attributes["scale"].as_float(),
        "input_layout": "BNSD",
        "sparse_mode": 3,
    }
    query = emit.cast(_query(emit, site.query, site.heads, made.batch), kind, "query_typed")
    for value in (query, keys, values, key_rope):  # a function body is made for a rank
        value.shape = value.shape or ir.Shape([None, site.heads, None, None])
    out = fused_attention(emit, [query, keys, values], named, attrs)
    out.type, out.shape = site.out.type, site.out.shape
    return Expanded(emit, out, made.page)


def _query(emit: Emitter, query: Query, heads: int, batch: ir.Value) -> ir.Value:
    """``[B, N, S, D]``. W_uq stays where it is: a runtime cuts the constant when it loads the model."""
    if query.nope is not None:
        return query.nope
    assert query.prolog is not None
    weight, normed = query.prolog.inputs[2], query.prolog.outputs[5]
    assert weight is not None
    by_head = emit.node("Reshape", [weight, emit.ints([0, heads, -1], "by_head")], "w_uq_by_head")
    bounds = [emit.ints([number], "bound") for number in (0, dims_of_weight(query.w_uk)[1], 2)]
    nope = emit.node("Slice", [by_head, *bounds], "w_uq_nope")
    w_q = emit.node("Transpose", [nope], "w_q", {"perm": [1, 0, 2]})
    rows = emit.shape_vector([batch, 1, -1, emit.dim(normed, 2, "rank")], "query_rows")
    return emit.node("MatMul", [emit.reshape(normed, rows, "query_norm"), w_q], "query")


class _Rows:
    """The new tokens' rows out of written caches; rows of the padding are any."""

    def __init__(self, emit: Emitter, page: int, inputs: Mapping[str, ir.Value]) -> None:
        self._emit, self.page = emit, emit.constant(np.array(page), "page")
        slots, zero = inputs["slots"], emit.constant(np.array(0), "zero")
        padding = emit.node("Less", [slots, zero], "padding", dtype=ir.DataType.BOOL)
        self._slots = emit.node("Where", [padding, zero, slots], "slots", dtype=ir.DataType.INT64)
        self.batch = emit.dim(inputs["ids"], 0, "batch")

    def of(self, cache: LatentCache) -> ir.Value:
        """``[B, 1, S, D]``, in the cache's type."""
        emit, columns, part = self._emit, cache.port.columns, cache.port.part
        width = nz_block(dtype_name(cache.value)) if cache.port.order == "NZ" else columns
        places = self._slots if width == columns else self._fractals(columns // width, part)
        flat = emit.reshape(cache.value, [-1, width], f"{part}_flat")
        picked = emit.node("Gather", [flat, places], f"{part}_new", {"axis": 0})
        return emit.reshape(picked, emit.shape_vector([self.batch, 1, -1, columns], part), f"{part}_rows")

    def _fractals(self, count: int, part: str) -> ir.Value:
        """The fractals of each row in an NZ cache, ``[T, count]``: a page has them column of columns by column."""
        emit = self._emit
        row = emit.node("Mod", [self._slots, self.page], f"{part}_row")
        start = emit.node("Sub", [self._slots, row], f"{part}_page")
        first = emit.node("Mul", [start, emit.constant(np.array(count), f"{part}_count")], f"{part}_start")
        column = emit.reshape(emit.node("Add", [first, row], f"{part}_first"), [-1, 1], f"{part}_column")
        steps = emit.node("Mul", [emit.constant(np.arange(count)[None], f"{part}_places"), self.page], f"{part}_steps")
        return emit.node("Add", [column, steps], f"{part}_fractals")
