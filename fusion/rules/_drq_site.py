"""Building a DequantRopeQuantKvcache node from the facts that its rule has joined."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import onnx_ir as ir

from fusion.candidate import Candidate, EmitterFactory, Refused
from fusion.facts.analysis import Facts
from fusion.facts.caches.rows import Row, positions_in
from fusion.facts.graph import dtype_name
from fusion.facts.rotary.rotated import rows_in
from fusion.region import delivered_outside
from fusion.rules import _cache_op as common
from fusion.rules._cache_site import candidate, written_caches
from fusion.rules._drq_frame import CONTIGUOUS, Frame, Inputs
from fusion.rules._drq_operands import Operands, original
from ir_ops.declaration import Operator
from ir_ops.dtypes import Array, by_name
from ir_ops.ops import DOMAIN

QUERY, KEY, VALUE = 0, 1, 2
"""Numbers of the operator's outputs."""


@dataclass(frozen=True)
class Delivered:
    """A value that the operator's output number ``place`` holds; ``order`` as in :mod:`fusion.facts.rotary.rotated`."""

    value: ir.Value
    place: int
    order: str


def build(facts: Facts, new_emitter: EmitterFactory, inputs: Inputs, operator: Operator, size: int) -> Candidate:
    """The fused node and all that goes with it; raises Refused with the first fact that does not fit."""
    layer = facts.layer(inputs.key.write)
    emit = new_emitter(f"{operator.name}_{'x' if layer is None else layer}")
    frame = Frame(facts.view, emit, inputs)
    delivered = _delivered(frame)
    made = Operands(frame)
    caches = [made.cache(row, name) for row, name in zip(inputs.rows, ("k_cache", "v_cache"), strict=True)]
    operands = made.all([cache for cache, _ in caches])
    attrs = _attributes(frame, any(item.place != QUERY for item in delivered))
    node, outputs = _node(frame, operator, operands, attrs)
    replaced = written_caches(frame, inputs.rows, caches, outputs[3:], original)
    replaced += [(item.value, _reproduced(frame, item, outputs[item.place])) for item in delivered]
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
        size=size,
        draws=frame.draws(),
        joins=made.x_rows.joins,
    )


def _delivered(frame: Frame) -> list[Delivered]:
    """The queries, and those of keys and values before quantisation that are read outside the region."""
    queries = frame.inputs.queries
    found = [Delivered(queries.value, QUERY, queries.order)]
    both = [_before_quantising(frame, row, place) for row, place in zip(frame.inputs.rows, (KEY, VALUE), strict=True)]
    # who reads a cache while it is being written is the alias check's business
    kept = {id(item) for row in frame.inputs.rows for item in row.write.spine.values}
    kept.add(id(queries.value))
    shaped = [_in_own_shape(frame, items) for items in both]
    try:
        possible, read = _read_outside(frame, shaped, kept)
    except Refused:
        # the earliest values serve every reader
        possible, read = _read_outside(frame, [items[0] for items in both if items], kept)
    return found + [item for item in possible if id(item.value) in read]


def _read_outside(frame: Frame, items: Sequence[Delivered | None], kept: set[int]) -> tuple[list[Delivered], set[int]]:
    possible = [item for item in items if item is not None]
    values = [item.value for item in possible]
    return possible, delivered_outside(frame.view, frame.region, frame.stops(), values, kept)


def _in_own_shape(frame: Frame, items: Sequence[Delivered]) -> Delivered | None:
    """The value that has the shape of the operator's output, else the earliest."""
    numbers = range(len(frame.inputs.key.views))
    probes, wanted = frame.own_probes(), [_own_shape(frame, number, frame.heads) for number in numbers]
    same = (item for item in items if [probe.shape(item.value) for probe in probes] == wanted)
    return next(same, items[0] if items else None)


def _before_quantising(frame: Frame, row: Row, place: int) -> list[Delivered]:
    """The values of the operator's type that hold all rows, the earliest first."""
    found = []
    for item in common.delivered_candidates(frame.view, row, frame.kind):
        positions = positions_in(frame.view, row, item)
        shapes = [entry.view.probe.shape(item) or () for entry in row.views]
        for order in ("token", "head") if positions else ():
            pairs = list(zip(shapes, positions or [], strict=True))
            if all(_holds(shape, order, frame.width, own) for shape, own in pairs):
                found.append(Delivered(item, place, order))
                break
    return found


def _holds(shape: tuple[int, ...], order: str, width: int, position: Array) -> bool:
    """Whether a value of that shape holds the rows in that order."""
    expected = rows_in(shape, order, width, len(position))
    return expected is not None and np.array_equal(expected, position)


def _reproduced(frame: Frame, item: Delivered, output: ir.Value) -> ir.Value:
    """The operator's output in the shape, order and type of the value it replaces."""
    emit, name = frame.emit, f"delivered_{item.place}"
    heads = frame.query_heads if item.place == QUERY else frame.heads
    shapes = [entry.view.probe.shape(item.value) or () for entry in frame.inputs.key.views]
    flat = frame.flat
    if item.order == "head":
        if flat:
            dims = emit.shape_vector([frame.batch_dim(), -1, heads, frame.width], name + "_split_shape")
            output = emit.reshape(output, dims, name + "_split")
        output = emit.node("Transpose", [output], name + "_by_head", {"perm": [0, 2, 1, 3]})
    elif shapes != [_own_shape(frame, number, heads) for number in range(len(shapes))]:
        output = emit.reshape(output, _target(frame, shapes, item.value), name)
    return emit.cast(output, dtype_name(item.value) or frame.kind, name + "_type")


def _own_shape(frame: Frame, number: int, heads: int) -> tuple[int, ...]:
    batch, tokens = frame.split(number)
    return (batch * tokens, heads, frame.width) if frame.flat else (batch, tokens, heads, frame.width)


def _target(frame: Frame, shapes: list[tuple[int, ...]], value: ir.Value) -> ir.Value:
    """A Reshape target from numbers, one -1, and dims of the sources."""
    varying = [axis for axis in range(len(shapes[0])) if len({shape[axis] for shape in shapes}) > 1]
    dims: list[int | ir.Value] = list(shapes[0])
    for axis in varying[:-1]:
        found = frame.dim([shape[axis] for shape in shapes], "delivered")
        if found is None:
            text = "the shape of a delivered value can be told"
            raise Refused("delivered-shape", text, str(shapes[0]), "dims of values in front of it", "", value)
        dims[axis] = found
    if varying:
        dims[varying[-1]] = -1
    return frame.emit.shape_vector(dims, "delivered_shape")


def _attributes(frame: Frame, delivers: bool) -> dict[str, Any]:
    own = frame.heads * frame.width
    attrs: dict[str, Any] = {
        "size_splits": [frame.query_heads * frame.width, own, own],
        "cache_mode": frame.inputs.mode,
    }
    if delivers:
        attrs["kv_output"] = 1
    return attrs


def _node(
    frame: Frame, operator: Operator, operands: Sequence[ir.Value | None], attrs: dict[str, Any]
) -> tuple[ir.Node, list[ir.Value]]:
    number = by_name(frame.kind).onnx
    assert number is not None
    kinds = {"k_cache": ir.DataType.INT8, "v_cache": ir.DataType.INT8}
    outputs = [
        ir.Value(
            name=frame.emit.name(output.onnx_name),
            type=ir.TensorType(kinds.get(output.name, ir.DataType(number))),
        )
        for output in operator.outputs
    ]
    node = ir.node(operator.name, operands, attrs, domain=DOMAIN, outputs=outputs, name=frame.emit.name("node"))
    frame.emit.nodes.append(node)
    return node, outputs


def _assumptions(frame: Frame) -> list[str]:
    key, value = (row.write for row in frame.inputs.rows)
    found = ["slots >= 0: the operator refuses a negative slot"]
    if frame.inputs.mode != CONTIGUOUS:
        found.append("slots are distinct")
    if _dims(key.cache) != _dims(value.cache):
        found.append("k_cache and v_cache have one shape")
    return found


def _dims(value: ir.Value) -> list[Any]:
    return [] if value.shape is None else list(value.shape)
