"""Building a QkvRmsNormRopeCache node from the facts that its rule has joined."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import onnx_ir as ir

from fusion.candidate import Candidate, EmitterFactory, Refused
from fusion.facts.analysis import Facts
from fusion.facts.caches.rows import Row, positions_in
from fusion.facts.graph import dtype_name, uses
from fusion.facts.rotary.heads import HeadAxis, Heads, head_axes, moved_on
from fusion.region import delivered_outside
from fusion.rules import _cache_op as common
from fusion.rules._cache_site import candidate, written_caches
from fusion.rules._qkv_frame import Frame, Turned, turned
from fusion.rules._qkv_operands import Operands
from ir_ops.declaration import Operator
from ir_ops.dtypes import Array, by_name
from ir_ops.ops import DOMAIN

Q_OUT, K_CACHE, V_CACHE, Q_RAW, K_RAW = range(5)
"""Numbers of the operator's outputs."""
K_OPERAND, V_OPERAND = 7, 8


@dataclass
class Delivered:
    """A value of the graph that an output holds, how its heads lie in it, and how many dims it has."""

    value: ir.Value
    place: int
    layout: HeadAxis
    rank: int

    @property
    def is_flat(self) -> bool:
        """Whether the value has the operator's own form ``[T, N * D]``."""
        return self.layout.joined and self.layout.axis == -2 and self.rank == 2


def build(facts: Facts, new_emitter: EmitterFactory, key: Row, value: Row, queries: Heads, operator: Operator,
          size: int) -> Candidate:  # fmt: skip
    """The fused node and all that goes with it; raises Refused with the first fact that does not fit."""
    view, layer = facts.view, facts.layer(key.write)
    k, q = _turned_keys(facts, key), _turned_queries(facts, queries)
    emit = new_emitter(f"{operator.name}_{'x' if layer is None else layer}")
    frame = Frame(view, emit, key, value, queries, k, q)
    query = _query(frame)
    frame.deliver(query.value)
    _refuse_loops(frame)
    needed = [query, *_needed(frame, query)]
    made = Operands(frame)
    caches = [made.cache(row, name) for row, name in zip(frame.rows, ("k_cache", "v_cache"), strict=True)]
    operands = made.all([cache for cache, _ in caches])
    attrs = _attributes(frame, len(needed) > 1)
    node, outputs = _node(frame, operator, operands, attrs)
    replaced = written_caches(frame, frame.rows, caches, outputs[K_CACHE:Q_RAW])
    replaced += [(item.value, reproduced(frame, item, outputs[item.place])) for item in needed]
    return candidate(
        frame,
        node,
        key.write.out,
        layer,
        [frame.key_columns.value, frame.value_columns.value, frame.cos.value],
        replaced=replaced,
        probes=frame.own_probes(),
        assumptions=_assumptions(frame),
        notes=made.notes,
        attrs=attrs,
        joins=made.joins,
        size=size,
        slack=max(part.norm.slack(frame.width) for part in (k, q)),
        draws={id(item): "scale" for row in frame.rows for item in _factors(row)},
    )


def _factors(row: Row) -> list[ir.Value]:
    """The values behind the scale of a quantised row."""
    scale = row.views[0].scale
    return [] if scale is None else [part.value for part, _ in scale.parts]


def _turned_keys(facts: Facts, key: Row) -> Turned:
    assert key.norm is not None
    rotations = [entry.rotation for entry in key.views if entry.rotation is not None]
    probes = [entry.view.probe for entry in key.views]
    return turned(facts.view, key.norm, probes, rotations, "key", key.start)


def _turned_queries(facts: Facts, queries: Heads) -> Turned:
    return turned(facts.view, queries.norm, queries.probes, queries.rotations, "query", queries.value)


# what is delivered ------------------------------------------------------------------------------------------------


def _query(frame: Frame) -> Delivered:
    """The earliest value of the operator's type that holds the rotated queries.

    Where nobody reads it but for the rows as the operator delivers them, these.
    """
    queries = frame.queries
    positions = [queries.layout.positions(probe.shape(queries.value) or (), frame.width) for probe in queries.probes]
    earliest: Delivered | None = None
    for value, found in moved_on(frame.view, queries.value, queries.probes, positions):
        if dtype_name(value) != frame.kind:
            continue
        shapes = [probe.shape(value) or () for probe in queries.probes]
        layout = _layout(frame, shapes, found)
        if layout is None:
            continue
        own = Delivered(value, Q_OUT, layout, len(shapes[0]))
        if earliest is None:
            earliest = own
        if own.is_flat and _only_way(earliest.value, value):
            return own
    if earliest is None:
        raise Refused(
            "mixed-types", "the rotated queries have the operator's type", dtype_name(queries.value), frame.kind,
            f"cast them to {frame.kind}", queries.value,
        )  # fmt: skip
    return earliest


def _only_way(start: ir.Value, end: ir.Value) -> bool:
    """Whether all that is read of a value is read through another one behind it."""
    while start is not end:
        readers = uses(start)
        if len(readers) != 1 or start.is_graph_output():
            return False
        start = readers[0][0].outputs[0]
    return True


def _layout(frame: Frame, shapes: Sequence[tuple[int, ...]], positions: Sequence[Array]) -> HeadAxis | None:
    """The layout under which all trial sizes find the rows where they are."""
    counts = [len(position) for position in positions]
    for layout in head_axes(shapes[0], frame.width, counts[0]):
        if all(
            layout in head_axes(shape, frame.width, count)
            and np.array_equal(layout.positions(shape, frame.width), position)
            for shape, position, count in zip(shapes, positions, counts, strict=True)
        ):
            return layout
    return None


def _needed(frame: Frame, query: Delivered) -> list[Delivered]:
    """What the operator can deliver beside the queries and is read outside the region: keys before quantisation.

    Values are views of a source; whoever reads them keeps reading the source.
    """
    keys = _raw(frame, frame.key, K_RAW)
    delivered = [] if keys is None else [keys]
    # who reads a cache while it is being written is the alias check's business
    replaced = {id(item) for row in frame.rows for item in row.write.spine.values}
    replaced.add(id(query.value))
    values = [query.value, *(item.value for item in delivered)]
    stops = {id(item) for item in frame.feeds()}
    read = delivered_outside(frame.view, frame.region, stops, values, replaced)
    return [item for item in delivered if id(item.value) in read]


def _raw(frame: Frame, row: Row, place: int) -> Delivered | None:
    """The earliest value of the operator's type with the rows before quantisation."""
    for value in common.delivered_candidates(frame.view, row, frame.kind):
        positions = positions_in(frame.view, row, value)
        if positions is None:
            continue
        shapes = [entry.view.probe.shape(value) or () for entry in row.views]
        layout = _layout(frame, shapes, positions)
        if layout is not None:
            return Delivered(value, place, layout, len(shapes[0]))
    return None


def reproduced(frame: Frame, item: Delivered, output: ir.Value) -> ir.Value:
    """The operator's output ``[T, N * D]`` in the shape and order of the value it replaces."""
    emit, name = frame.emit, f"delivered_{item.place}"
    shapes = [probe.shape(item.value) or () for probe in frame.own_probes()]
    if item.is_flat:
        return output
    if item.layout.axis == -2:
        return emit.reshape(output, _target(frame, item, shapes), name)
    rank = len(shapes[0])
    heads_at = rank + item.layout.axis
    order = [axis for axis in range(rank - 1) if axis != heads_at]
    by_token = [(*(shape[axis] for axis in order), shape[heads_at], shape[-1]) for shape in shapes]
    split = emit.reshape(output, _target(frame, item, by_token), name + "_split")
    perm = [0] * rank
    for place, axis in enumerate([*order, heads_at, rank - 1]):
        perm[axis] = place
    return emit.node("Transpose", [split], name, {"perm": perm})


def _target(frame: Frame, item: Delivered, shapes: Sequence[tuple[int, ...]]) -> ir.Value:
    """A Reshape target from numbers, one -1, and dims of sources."""
    varying = [axis for axis in range(len(shapes[0])) if len({shape[axis] for shape in shapes}) > 1]
    dims: list[int | ir.Value] = list(shapes[0])
    for axis in varying[:-1]:
        found = frame.dim([shape[axis] for shape in shapes], "delivered")
        if found is None:
            text = "the shape of a delivered value can be told"
            raise Refused("delivered-shape", text, str(shapes[0]), "dims of values in front of it", "", item.value)
        dims[axis] = found
    if varying:
        dims[varying[-1]] = -1
    return frame.emit.shape_vector(dims, "delivered_shape")


# node ---------------------------------------------------------------------------------------------------------------


def _attributes(frame: Frame, delivers: bool) -> dict[str, Any]:
    batch, tokens = _static_split(frame)
    attrs: dict[str, Any] = {
        "qkv_size": [batch, tokens, sum(frame.heads), frame.width],
        "head_nums": frame.heads,
        "epsilon": float(np.float32(frame.k.norm.epsilon)),
        "cache_mode": "PA_NZ",
    }
    if delivers:
        attrs["is_output_qkv"] = 1
    return attrs


def _static_split(frame: Frame) -> tuple[int, int]:
    """B and S where the graph declares them, -1 for what is open."""
    columns = frame.k.columns
    probes = range(len(frame.own_probes()))
    lead = [frame.split(number) for number in probes]
    shown = len(columns.shape) == (4 if columns.by_head else 3)
    found = [size if shown and all(other[place] == size for other in lead) else -1
             for place, size in enumerate(lead[0])]  # fmt: skip
    return found[0], found[1]


def _node(
    frame: Frame, operator: Operator, operands: Sequence[ir.Value | None], attrs: dict[str, Any]
) -> tuple[ir.Node, list[ir.Value]]:
    name = frame.emit.name("node")
    kind = by_name(frame.kind).onnx
    assert kind is not None
    caches = {"k_cache": operands[K_OPERAND], "v_cache": operands[V_OPERAND]}
    outputs = []
    for output in operator.outputs:
        like = caches.get(output.name)
        known = None if like is None else like.type
        outputs.append(ir.Value(name=frame.emit.name(output.onnx_name), type=known or ir.TensorType(ir.DataType(kind))))
    node = ir.node(operator.name, operands, attrs, domain=DOMAIN, outputs=outputs, name=name)
    frame.emit.nodes.append(node)
    return node, outputs


def _assumptions(frame: Frame) -> list[str]:
    found = []
    if any(row.write.negative != "skips" for row in frame.rows):
        found.append("slots >= 0: the graph does not skip a slot of -1, the operator does")
    return [*found, "slots are distinct"]


def _refuse_loops(frame: Frame) -> None:
    """No source may be computed from a result: rows of two layers do not belong together."""
    view = frame.view
    results = {id(item.producer()) for item in (*(row.write.out for row in frame.rows), frame.delivered)}
    first = min((view.order(node) for node in frame.region), default=0)
    pending = [item.producer() for item in frame.feeds()]
    seen: set[int] = set()
    while pending:
        node = pending.pop()
        if node is None or id(node) in seen or node.graph is not view.graph or view.order(node) < first:
            continue
        if id(node) in results:
            raise Refused(
                "qkv-loop", "queries, keys and values are computed before the caches are written",
                f"{node.outputs[0].name} is computed from a result", "one layer", "", node.outputs[0],
            )  # fmt: skip
        seen.add(id(node))
        pending += [item.producer() for item in node.inputs if item is not None]
