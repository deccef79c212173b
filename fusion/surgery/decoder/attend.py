"""Attention over caches in pages: FusedInferAttentionScore in place of what was proven to be attention."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
import onnx_ir as ir

from fusion.candidate import Refused
from fusion.emit import Emitter
from fusion.facts.attention.attention import Attention, scalar_factors
from fusion.facts.attention.latent import Latent
from fusion.facts.graph import GraphView, dtype_name
from fusion.surgery.decoder.absorb import query_parts, result
from fusion.surgery.decoder.layout import Cached, NewInputs, Pages
from fusion.surgery.decoder.roles import Trial
from ir_ops.ops import DOMAIN

_PLACES = {
    "actual_seq_lengths": 5, "actual_seq_lengths_kv": 6, "block_table": 14, "key_antiquant_scale": 17,
    "value_antiquant_scale": 19, "query_rope": 24, "key_rope": 25,
}  # fmt: skip


def attend(
    emit: Emitter, view: GraphView, attention: Attention, latent: Latent | None, trial: Trial, scale: float,
    pages: Pages, new: NewInputs, cached: Sequence[Cached], caches: Sequence[ir.Value], ids: ir.Value,
) -> ir.Value:  # fmt: skip
    """The attention's result, in the shape of ``attention.out``.

    Args:
        latent: how keys and values come from latents, where these are cached.
        cached, caches: keys and values, or latents and rotated rows; the caches after the write.

    Raises:
        Refused: heads and batch are joined in a way that cannot be told apart, or values are scaled.
    """
    query, factor = scalar_factors(view, attention.query)
    if attention.value.factor != 1.0 and latent is None:
        raise Refused("attention-form", "values as they are cached", f"values times {attention.value.factor:g}", "1")
    kind = cached[0].own_dtype
    query = emit.cast(_by_head(emit, query, attention, trial), kind, "query")
    read = [emit.reshape(cache, pages.read_shape(item.heads, item.columns, item.dtype), f"{item.part}_pages")
            for item, cache in zip(cached, caches, strict=True)]  # fmt: skip
    named = {"actual_seq_lengths": new.query_lengths, "actual_seq_lengths_kv": new.kv_lengths,
             "block_table": new.block_table}  # fmt: skip
    if cached[0].scale is not None:
        named |= {f"{item.part}_antiquant_scale": item.scale_constant(emit) for item in cached}
    if latent is None:
        first, kv_heads = [query, *read], cached[0].heads
    else:
        absorbed, rope = query_parts(emit, view, trial.probe, query, latent, kind)
        first, kv_heads = [absorbed, read[0], read[0]], 1
        named |= {"query_rope": cached[1].ordered(emit, rope), "key_rope": read[1]}
    attrs: dict[str, int | float | str] = {
        "num_heads": attention.heads,
        "num_key_value_heads": kv_heads,
        "scale": float(np.float32(scale * factor)),
        "input_layout": "BNSD",
        "sparse_mode": 3,
        "block_size": pages.block_size,
    }
    attended = fused_attention(emit, first, named, attrs)
    if latent is not None:
        attended = result(emit, attended, latent, kind)
    return _as_it_was(emit, attended, attention, trial, ids)


def fused_attention(
    emit: Emitter, first: Sequence[ir.Value], named: Mapping[str, ir.Value], attrs: Mapping[str, int | float | str]
) -> ir.Value:
    """The operator on query, key and value, and other inputs by name; its logarithms of sums are not asked for."""
    operands: list[ir.Value | None] = [*first]
    for name, value in named.items():
        operands += [None] * (_PLACES[name] + 1 - len(operands))
        operands[_PLACES[name]] = value
    outputs = [ir.Value(name=emit.name("attention"), type=first[0].type),
               ir.Value(name=emit.name("lse"), type=ir.TensorType(ir.DataType.FLOAT))]  # fmt: skip
    node = ir.node("FusedInferAttentionScore", operands, attrs, domain=DOMAIN, outputs=outputs, name=emit.name("node"))
    emit.nodes.append(node)
    return outputs[0]


def _by_head(emit: Emitter, query: ir.Value, attention: Attention, trial: Trial) -> ir.Value:
    shape = trial.probe.shape(query)
    if shape == (trial.batch, attention.heads, trial.tokens, attention.width):
        return query
    if shape == _packed(attention, trial, attention.width):
        return emit.reshape(query, [-1, attention.heads, 1, attention.width], "query_by_head")
    if shape != (trial.batch * attention.heads, trial.tokens, attention.width):
        raise Refused("attention-form", "queries [B, N, S, D]", str(shape), "B and N apart, or joined", "", query)
    dims = emit.shape_vector([-1, attention.heads, emit.dim(query, 1, "query_tokens"), attention.width], "query")
    return emit.reshape(query, dims, "query_by_head")


def _packed(attention: Attention, trial: Trial, columns: int) -> tuple[int, ...] | None:
    """The shape of one token's heads that stand where tokens would; None where a call may have several tokens."""
    groups = attention.key.groups
    return (trial.batch, attention.heads // groups, groups, columns) if trial.tokens == 1 else None


def _as_it_was(emit: Emitter, out: ir.Value, attention: Attention, trial: Trial, ids: ir.Value) -> ir.Value:
    columns = attention.value_width
    kind = dtype_name(attention.out)
    out = emit.cast(out, kind, "attention_typed") if kind else out
    shape = trial.probe.shape(attention.out)
    if shape == (trial.batch, attention.heads, trial.tokens, columns):
        return out
    if shape is not None and shape == _packed(attention, trial, columns):
        return emit.reshape(out, [-1, *shape[1:]], "out_packed")
    if shape != (trial.batch * attention.heads, trial.tokens, columns):
        raise Refused(
            "attention-form", "results [B, N, S, D]", str(shape), "B and N apart, or joined", "", attention.out
        )
    return emit.reshape(out, emit.shape_vector([-1, emit.dim(ids, 1, "out_tokens"), columns], "out"), "out_joined")
