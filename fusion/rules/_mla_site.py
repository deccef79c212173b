"""Building a MlaPrologV3 node from the facts that its rule has joined."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import onnx_ir as ir

from fusion.candidate import Candidate, EmitterFactory, Refused, evaluated
from fusion.facts.analysis import Facts
from fusion.facts.caches.rows import Row
from fusion.region import delivered_outside
from fusion.rules._cache_site import candidate
from fusion.rules._mla_frame import Frame, Site
from fusion.rules._mla_operands import NAMES, Operands, is_one_number
from fusion.rules._mla_outputs import normed_values, query_parts, reproduced, rope_parts
from ir_ops.declaration import Operator
from ir_ops.ops import DOMAIN

QUERY, QUERY_ROPE, QUERY_NORM = 0, 1, 5
"""Numbers of the operator's outputs; the caches are 2 and 3."""
CACHES = (2, 3)
CACHE_OPERANDS = (9, 10)


@evaluated
def build(facts: Facts, new_emitter: EmitterFactory, site: Site, operator: Operator) -> Candidate:
    """The fused node and all that goes with it; raises Refused with the first fact that does not fit."""
    layer = facts.layer(site.key.write)
    emit = new_emitter(f"{operator.name}_{'x' if layer is None else layer}")
    frame = Frame(facts.view, emit, site)
    normed = _normed(frame)
    made = Operands(frame)
    caches = [made.cache(row, name) for row, name in zip(site.rows, NAMES, strict=True)]
    operands = made.all([cache for cache, _ in caches])
    attrs = _attributes(frame, normed is not None)
    node, outputs = _node(frame, operator, operands, attrs)
    heads, _, width, rope = frame.sizes
    replaced = [
        (row.write.out, made.own_shape(row, outputs[number], name) if reshaped else outputs[number])
        for (_, reshaped), row, number, name in zip(caches, site.rows, CACHES, NAMES, strict=True)
    ]
    for item in query_parts(frame):
        replaced.append((item.value, reproduced(frame, item, outputs[QUERY], heads, width, "query_out")))
    for item in rope_parts(frame):
        replaced.append((item.value, reproduced(frame, item, outputs[QUERY_ROPE], heads, rope, "query_rope_out")))
    if normed is not None:
        replaced.append((normed, _normed_out(frame, normed, outputs[QUERY_NORM])))
    by_row = site.query.up.scale is not None
    return candidate(
        frame,
        node,
        site.query.contraction.out,
        layer,
        [site.tokens, frame.cos.value],
        replaced=replaced,
        probes=frame.trials,
        assumptions=_assumptions(frame),
        notes=made.notes,
        attrs=attrs,
        size=RULE_SIZE,
        slack=max(
            site.norm.slack(len(site.gamma_columns)),
            site.query.skeleton.norm.slack(len(frame.down_columns.columns[0])) + (ROUNDED if by_row else 0.0),
        ),
        reduction=frame.reduction(),
        zero_rows=not by_row,
        draws={} if site.query.up.scale is None else {id(site.query.up.scale): "scale"},
    )


RULE_SIZE = 40
ROUNDED = 1e-7
"""Relative error of 1 / 127 as a float32 constant."""


def _normed(frame: Frame) -> ir.Value | None:
    """The normed query, where somebody else reads it: the one inner value that the operator can deliver."""
    # of an int8 product the operator delivers the integers
    found = normed_values(frame)[:1] if frame.site.query.up.scale is None else []
    spine = {id(item) for row in frame.site.rows for item in row.write.spine.values}
    spine |= {id(value) for value in frame.query_values()}
    read = delivered_outside(frame.view, frame.region, frame.stops(), found, spine)
    return next((value for value in found if id(value) in read), None)


def _normed_out(frame: Frame, value: ir.Value, output: ir.Value) -> ir.Value:
    """query_norm ``[.., Hcq]`` in the shape of the value it replaces."""
    shapes = [probe.shape(value) or () for probe in frame.trials]
    lead = [(probe.shape(frame.site.tokens) or ())[:-1] for probe in frame.trials]
    if frame.flat:
        lead = [(int(np.prod(item)),) for item in lead]
    if [shape[:-1] for shape in shapes] == lead:
        return output
    varying = [axis for axis in range(len(shapes[0])) if len({shape[axis] for shape in shapes}) > 1]
    dims: list[int | ir.Value] = list(shapes[0])
    for axis in varying[:-1]:
        found = frame.dim([shape[axis] for shape in shapes], "query_norm")
        if found is None:
            raise Refused("delivered-shape", "the shape of a delivered value can be told", str(shapes[0]),
                          "dims of values in front of it", "", value)  # fmt: skip
        dims[axis] = found
    if varying:
        dims[varying[-1]] = -1
    return frame.emit.reshape(output, frame.emit.shape_vector(dims, "query_norm_shape"), "query_norm_out")


def _attributes(frame: Frame, normed: bool) -> dict[str, Any]:
    site = frame.site
    attrs: dict[str, Any] = {
        "rmsnorm_epsilon_cq": float(np.float32(site.query.skeleton.norm.epsilon)),
        "rmsnorm_epsilon_ckv": float(np.float32(site.norm.epsilon)),
        "cache_mode": site.mode,
    }
    if normed:
        attrs["query_norm_flag"] = 1
    if site.query.up.scale is not None:
        attrs["weight_quant_mode"] = 1
    quant = _cache_quant(site.value, site.key)
    if quant:
        attrs["kv_cache_quant_mode"] = quant
    if frame.q_scale != 1:
        attrs["qc_qr_scale"] = float(np.float32(frame.q_scale))
    if site.kc_scale != 1:
        attrs["kc_scale"] = float(np.float32(site.kc_scale))
    return attrs


def _cache_quant(value: Row, key: Row) -> int:
    """kv_cache_quant_mode.

    Raises:
        Refused: caches quantised in a way that no mode has.
    """
    for row in (value, key):
        if row.views[0].offset is not None:
            raise Refused(
                "mla-quant", "cache rows are scaled and rounded, without an offset", "an offset", "none", "", row.start
            )
        if row.peeled is not None and row.peeled.float8_cast == "nonsaturate":
            raise Refused("mla-quant", "values beyond float8 saturate", "a cast that does not", "saturate=1", "",
                          row.start)  # fmt: skip
    if value.peeled is None and key.peeled is None:
        return 0
    if value.peeled is not None and key.peeled is None and is_one_number(value):
        return 1
    if value.peeled is not None and key.peeled is not None and not value.peeled.float8_cast + key.peeled.float8_cast:
        return 2
    raise Refused(
        "mla-quant", "the caches are quantised as one of the operator's modes",
        "kv_cache by column and kr_cache plain" if key.peeled is None else "kr_cache quantised and kv_cache plain"
        if value.peeled is None else "float8 in both",
        "none, kv_cache by one scale, or both by column", "", value.write.out,
    )  # fmt: skip


def _node(
    frame: Frame, operator: Operator, operands: Sequence[ir.Value | None], attrs: dict[str, Any]
) -> tuple[ir.Node, list[ir.Value]]:
    name = frame.emit.name("node")
    like = {output: operands[number] for output, number in zip(NAMES, CACHE_OPERANDS, strict=True)}
    plain = frame.site.query.contraction.weight.type
    outputs = []
    for output in operator.outputs:
        cache = like.get(output.name)
        known = cache.type if cache is not None else plain
        if output.name.startswith("dequant_scale"):
            known = ir.TensorType(ir.DataType.FLOAT)
        if output.name == "query_norm" and frame.site.query.up.scale is not None:
            known = ir.TensorType(ir.DataType.INT8)
        outputs.append(ir.Value(name=frame.emit.name(output.onnx_name), type=known))
    node = ir.node(operator.name, operands, attrs, domain=DOMAIN, outputs=outputs, name=name)
    frame.emit.nodes.append(node)
    return node, outputs


def _assumptions(frame: Frame) -> list[str]:
    found = []
    if tuple(row.write.negative for row in frame.site.rows) != ("skips", "skips"):
        found.append("slots >= 0: the graph does not skip a slot of -1, the operator does")
    if frame.site.query.up.scale is not None:
        found.append("no normed row is all zeros: the graph divides by its largest value, the operator gives 0")
    return [*found, "slots are distinct"]
