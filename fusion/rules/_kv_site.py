"""Building a KvRmsNormRopeCache node from the facts that its rule has joined."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import onnx_ir as ir

from fusion.candidate import Candidate, EmitterFactory, Refused, evaluated
from fusion.facts.analysis import Facts
from fusion.region import delivered_outside
from fusion.rules import _cache_op as common
from fusion.rules._cache_site import candidate, written_caches
from fusion.rules._kv_delivered import Delivered, delivered_values, reproduced
from fusion.rules._kv_frame import Frame, Inputs
from fusion.rules._kv_operands import Operands
from ir_ops.declaration import Operator
from ir_ops.dtypes import by_name
from ir_ops.ops import DOMAIN

K_CACHE, CKV_CACHE = 5, 6
"""Numbers of the operator's cache operands."""


@evaluated
def build(facts: Facts, new_emitter: EmitterFactory, inputs: Inputs, operator: Operator) -> Candidate:
    """The fused node and all that goes with it; raises Refused with the first fact that does not fit."""
    layer = facts.layer(inputs.key.write)
    emit = new_emitter(f"{operator.name}_{'x' if layer is None else layer}")
    frame = Frame(facts.view, emit, inputs)
    needed = _needed(frame)
    made = Operands(frame)
    caches = [made.cache(row, name) for row, name in zip(inputs.rows, ("k_cache", "ckv_cache"), strict=True)]
    operands = made.all([cache for cache, _ in caches])
    attrs = _attributes(inputs, bool(needed))
    node, outputs = _node(frame, operator, operands, attrs)
    replaced = written_caches(frame, inputs.rows, caches, outputs[:2])
    replaced += [(item.value, reproduced(frame, item, outputs[item.place])) for item in needed]
    return candidate(
        frame,
        node,
        inputs.key.write.out,
        layer,
        [frame.key_columns.value, frame.value_columns.value, frame.cos.value],
        replaced=replaced,
        probes=frame.probes(),
        assumptions=_assumptions(frame),
        notes=made.notes,
        attrs=attrs,
        slack=inputs.norm.slack(len(inputs.gamma_columns)),
    )


def _needed(frame: Frame) -> list[Delivered]:
    """What the operator can deliver and is read outside the region."""
    delivered = delivered_values(frame)
    # who reads a cache while it is being written is the alias check's business
    spine = {id(item) for row in frame.inputs.rows for item in row.write.spine.values}
    values = [item.value for item in delivered]
    read = delivered_outside(frame.view, frame.region, frame.stops(), values, spine)
    return [item for item in delivered if id(item.value) in read]


def _attributes(inputs: Inputs, delivers: bool) -> dict[str, Any]:
    attrs: dict[str, Any] = {"epsilon": float(np.float32(inputs.norm.epsilon)), "cache_mode": inputs.mode}
    if delivers:
        attrs["is_output_kv"] = 1
    modes = {row.peeled.float8_cast for row in inputs.rows if row.peeled} - {""}
    if len(modes) > 1:
        raise Refused("quant-form", "both caches are cast to float8 alike", " and ".join(sorted(modes)), "one mode")
    if modes - {"saturate"}:
        attrs["float8_cast"] = modes.pop()
    return attrs


def _node(
    frame: Frame, operator: Operator, operands: Sequence[ir.Value | None], attrs: dict[str, Any]
) -> tuple[ir.Node, list[ir.Value]]:
    name = frame.emit.name("node")
    kind = by_name(frame.kind).onnx
    assert kind is not None
    caches = {"k_cache": operands[K_CACHE], "ckv_cache": operands[CKV_CACHE]}
    outputs = []
    for output in operator.outputs:
        like = caches.get(output.name, operands[0])
        known = None if like is None else like.type
        outputs.append(ir.Value(name=frame.emit.name(output.onnx_name), type=known or ir.TensorType(ir.DataType(kind))))
    node = ir.node(operator.name, operands, attrs, domain=DOMAIN, outputs=outputs, name=name)
    frame.emit.nodes.append(node)
    return node, outputs


def _assumptions(frame: Frame) -> list[str]:
    key, value = (row.write for row in frame.inputs.rows)
    by_batch = frame.inputs.mode == "Norm"
    found = []
    if (key.negative, value.negative) != ("skips", "skips"):
        found.append("slots >= 0: the graph does not skip a slot of -1, the operator does")
    found.append("slots are distinct in a batch entry" if key.slots.form == "row" else "slots are distinct")
    lead = common.static_dims(key.cache)[:1]
    if by_batch and lead != common.static_dims(frame.key_columns.value)[:1]:
        found.append("the cache holds exactly the batch of the call")
    return found
