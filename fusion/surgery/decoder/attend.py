"""Attention over caches in pages: FusedInferAttentionScore in place of what was proven to be attention."""

from __future__ import annotations

import numpy as np
import onnx_ir as ir

from fusion.candidate import Refused
from fusion.emit import Emitter
from fusion.facts.attention import Attention, scalar_factors
from fusion.facts.graph import GraphView, dtype_name
from fusion.surgery.decoder.layout import NewInputs, Pages
from fusion.surgery.decoder.roles import Trial
from ir_ops.ops import DOMAIN

_PLACES = {"actual_seq_lengths": 5, "actual_seq_lengths_kv": 6, "block_table": 14}


def attend(
    emit: Emitter, view: GraphView, attention: Attention, trial: Trial, scale: float, pages: Pages, new: NewInputs,
    caches: tuple[ir.Value, ir.Value], ids: ir.Value,
) -> ir.Value:  # fmt: skip
    """The attention's result, in the shape of ``attention.out``.

    Raises:
        Refused: heads and batch are joined in a way that cannot be told apart, or values are scaled.
    """
    query, factor = scalar_factors(view, attention.query)
    if attention.value.factor != 1.0:
        raise Refused("attention-form", "values as they are cached", f"values times {attention.value.factor:g}", "1")
    kind = dtype_name(attention.key.growth.past)
    query = emit.cast(_by_head(emit, query, attention, trial), kind, "query")
    operands: list[ir.Value | None] = [None] * (max(_PLACES.values()) + 1)
    operands[0] = query
    for place, (operand, cache) in enumerate(zip((attention.key, attention.value), caches, strict=True), 1):
        heads, columns = operand.heads // operand.groups, operand.columns
        operands[place] = emit.reshape(cache, pages.read_shape(heads, columns, kind), f"pages_{place}")
    for name, value in (("actual_seq_lengths", new.query_lengths), ("actual_seq_lengths_kv", new.kv_lengths),
                        ("block_table", new.block_table)):  # fmt: skip
        operands[_PLACES[name]] = value
    attrs: dict[str, int | float | str] = {
        "num_heads": attention.key.heads,
        "num_key_value_heads": attention.key.heads // attention.key.groups,
        "scale": float(np.float32(scale * factor)),
        "input_layout": "BNSD",
        "sparse_mode": 3,
        "block_size": pages.block_size,
    }
    outputs = [ir.Value(name=emit.name("attention"), type=query.type),
               ir.Value(name=emit.name("lse"), type=ir.TensorType(ir.DataType.FLOAT))]  # fmt: skip
    node = ir.node("FusedInferAttentionScore", operands, attrs, domain=DOMAIN, outputs=outputs, name=emit.name("node"))
    emit.nodes.append(node)
    return _as_it_was(emit, outputs[0], attention, trial, ids)


def _by_head(emit: Emitter, query: ir.Value, attention: Attention, trial: Trial) -> ir.Value:
    shape = trial.probe.shape(query)
    if shape == (trial.batch, attention.key.heads, trial.tokens, attention.key.columns):
        return query
    if shape != (trial.batch * attention.key.heads, trial.tokens, attention.key.columns):
        raise Refused("attention-form", "queries [B, N, S, D]", str(shape), "B and N apart, or joined", "", query)
    dims = emit.shape_vector(
        [-1, attention.key.heads, emit.dim(query, 1, "query_tokens"), attention.key.columns], "query"
    )
    return emit.reshape(query, dims, "query_by_head")


def _as_it_was(emit: Emitter, out: ir.Value, attention: Attention, trial: Trial, ids: ir.Value) -> ir.Value:
    columns = attention.value.columns
    kind = dtype_name(attention.out)
    out = emit.cast(out, kind, "attention_typed") if kind else out
    shape = trial.probe.shape(attention.out)
    if shape == (trial.batch, attention.key.heads, trial.tokens, columns):
        return out
    if shape != (trial.batch * attention.key.heads, trial.tokens, columns):
        raise Refused(
            "attention-form", "results [B, N, S, D]", str(shape), "B and N apart, or joined", "", attention.out
        )
    return emit.reshape(out, emit.shape_vector([-1, emit.dim(ids, 1, "out_tokens"), columns], "out"), "out_joined")
