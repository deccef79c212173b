"""k_rope and c_kv: which values of the graph the operator delivers beside the caches, and in which shape."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import onnx_ir as ir

from fusion.candidate import Refused
from fusion.facts.caches.rows import Row, positions_in
from fusion.rules import _cache_op as common
from fusion.rules._kv_frame import Frame
from ir_ops.dtypes import Array

K_ROPE, C_KV = 2, 3
"""Numbers of the operator's outputs."""


@dataclass
class Delivered:
    """A value that the operator's output number ``place`` holds.

    Attributes:
        order: ``token`` for ``[T, N, D]``, ``head`` for ``[B, N, S, D]``.
    """

    row: Row
    value: ir.Value
    place: int
    order: str


def delivered_values(frame: Frame) -> list[Delivered]:
    """The earliest value of the operator's type for each kind of rows that it delivers."""
    found = []
    for row, place in zip(frame.inputs.rows, (K_ROPE, C_KV), strict=True):
        if place == C_KV and frame.inputs.separate:
            continue
        for item in common.delivered_candidates(frame.view, row, frame.kind):
            order = _order(frame, positions_in(frame.view, row, item))
            if order:
                found.append(Delivered(row, item, place, order))
                break
    return found


def reproduced(frame: Frame, item: Delivered, output: ir.Value) -> ir.Value:
    """The operator's output in the shape and order of the value it replaces."""
    emit, name, swap = frame.emit, f"delivered_{item.place}", {"perm": [0, 2, 1, 3]}
    if frame.heads > 1 and item.order == "token" and not frame.flat:
        output = emit.node("Transpose", [output], name + "_by_token", swap)
    elif frame.heads > 1 and item.order == "head" and frame.flat:
        width = item.row.write.probes[0].source.shape[2]
        dims = emit.shape_vector([frame.batch_dim(), -1, frame.heads, width], name + "_split_shape")
        output = emit.node("Transpose", [emit.reshape(output, dims, name + "_split")], name + "_by_head", swap)
    shapes = [entry.view.probe.shape(item.value) or () for entry in item.row.views]
    if shapes == [_output_shape(frame, number, item) for number in range(len(shapes))]:
        return output
    return emit.reshape(output, _target(frame, shapes, item.value), name)


def _order(frame: Frame, position: list[Array] | None) -> str:
    """The order all probes agree on, "" for none; the frame's own first."""
    orders = [_orders(frame, number, item) for number, item in enumerate(position or [])]
    for order in ("token", "head") if frame.flat else ("head", "token"):
        if orders and all(order in found for found in orders):
            return order
    return ""


def _orders(frame: Frame, number: int, position: Array) -> set[str]:
    count, heads, width = position.shape
    _, tokens = frame.split(number)
    found = set()
    if (position.reshape(-1) == np.arange(position.size)).all():
        found.add("token")
    token = np.arange(count)
    row = ((token // tokens)[:, None] * heads + np.arange(heads)) * tokens + (token % tokens)[:, None]
    if (position == row[:, :, None] * width + np.arange(width)).all():
        found.add("head")
    return found


def _output_shape(frame: Frame, number: int, item: Delivered) -> tuple[int, ...]:
    """The shape of the output once it is in the value's order."""
    batch, tokens = frame.split(number)
    width = item.row.write.probes[number].source.shape[2]
    if frame.flat and not (item.order == "head" and frame.heads > 1):
        return (batch * tokens, frame.heads, 1, width)
    by_token = item.order == "token" and frame.heads > 1
    return (batch, tokens, frame.heads, width) if by_token else (batch, frame.heads, tokens, width)


def _target(frame: Frame, shapes: list[tuple[int, ...]], value: ir.Value) -> ir.Value:
    """A Reshape target from numbers, one -1, and dims of the projected row."""
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
