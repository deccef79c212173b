"""What a MlaPrologV3 node delivers, in the shape and order in which the graph has it."""

from __future__ import annotations

import math
from dataclasses import dataclass
from itertools import permutations

import numpy as np
import onnx_ir as ir

from fusion.candidate import Refused
from fusion.facts.graph import dtype_name
from fusion.rules._mla_frame import Frame
from fusion.rules._mla_product import moved_operand
from ir_ops.dtypes import Array


@dataclass
class Delivered:
    """A value of the graph that an output of the operator holds.

    Attributes:
        start, width: which of the output's columns.
        positions: per probe, where each element lies in those columns ``[T, N, width]``.
    """

    value: ir.Value
    start: int
    width: int
    positions: list[Array]


def query_parts(frame: Frame) -> list[Delivered]:
    """The absorbed query."""
    made = frame.absorbed[0]
    return [Delivered(made.contraction.out, 0, made.sizes[2], [item.position for item in frame.absorbed])]


def rope_parts(frame: Frame) -> list[Delivered]:
    """The rotated query: one value or its halves."""
    whole = len(frame.rope[0].columns)
    found = []
    for number, piece in enumerate(frame.rope[0].pieces):
        positions = []
        for rope in frame.rope:
            place = rope.pieces[number].position
            kept = frame.view.kept.setdefault(("mla piece", id(place), piece.start), [])
            if not kept:
                # the arrays of equal layers are the same, and so are these
                kept += [place, place // whole * piece.width + place % whole - piece.start]
            positions.append(kept[1])
        found.append(Delivered(piece.value, piece.start, piece.width, positions))
    return found


def normed_values(frame: Frame) -> list[ir.Value]:
    """Values of the operator's type that hold the normed query as it is projected, the earliest first."""
    query = frame.site.query
    found: list[ir.Value] = []
    value: ir.Value | None = query.up.x
    while value is not None:
        if dtype_name(value) == frame.kind:
            found.append(value)
        node = value.producer()
        if value is query.skeleton.norm.y or node is None:
            break
        value = moved_operand(frame.view, node)
    return found[::-1]


def reproduced(frame: Frame, item: Delivered, output: ir.Value, heads: int, width: int, name: str) -> ir.Value:
    """An output ``[.., N, width]`` as the value it replaces.

    Raises:
        Refused: the value's elements are in an order that no Transpose makes, or its shape cannot be told.
    """
    emit = frame.emit
    if (item.start, item.width) != (0, width):
        bounds = [
            emit.ints([number], f"{name}_{end}")
            for number, end in ((item.start, "from"), (item.start + item.width, "to"), (-1, "axis"))
        ]
        output = emit.node("Slice", [output, *bounds], name + "_half")
    perm, dims, split = _order(frame, item, heads)
    if split:
        batch = frame.dim([size[0] for size in dims], "batch")
        if batch is None:
            raise _unordered(item.value)
        shape = emit.shape_vector([batch, -1, heads, item.width], name + "_split_shape")
        output = emit.reshape(output, shape, name + "_split")
    if perm != sorted(perm):
        output = emit.node("Transpose", [output], name + "_order", {"perm": perm})
    shapes = [tuple(size[axis] for axis in perm) for size in dims]
    targets = [position.shape for position in item.positions]
    if shapes == targets:
        return output
    return emit.reshape(output, _target(frame, targets, item.value), name)


Dims = list[tuple[int, ...]]


def _order(frame: Frame, item: Delivered, heads: int) -> tuple[list[int], Dims, bool]:
    """The axis order of the value in terms of the output's axes, the same under all probes, and the output's shapes.

    The last part tells whether rows ``[T, ..]`` have to be split into batch and tokens for it.
    """
    leads = [(probe.shape(frame.site.tokens) or ())[:-1] for probe in frame.trials]
    if not frame.flat:
        return *_permuted(frame, item, [(*lead, heads, item.width) for lead in leads]), False
    totals = [math.prod(lead) for lead in leads]
    try:
        return *_permuted(frame, item, [(total, heads, item.width) for total in totals]), False
    except Refused:
        pass
    axes = range(len(item.positions[0].shape))
    for axis in axes:
        batches = [position.shape[axis] for position in item.positions]
        if all(1 < batch < total and total % batch == 0 for batch, total in zip(batches, totals, strict=True)):
            dims: Dims = [(b, total // b, heads, item.width) for b, total in zip(batches, totals, strict=True)]
            try:
                return *_permuted(frame, item, dims), True
            except Refused:
                continue
    raise _unordered(item.value)


def _permuted(frame: Frame, item: Delivered, dims: Dims) -> tuple[list[int], Dims]:
    """The order of axes that all probes agree on; looked for once for the same arrays."""
    key = ("mla order", tuple(map(id, item.positions)), tuple(dims))
    if key not in frame.view.kept:
        frame.view.kept[key] = item.positions, _search(item, dims)
    perm: list[int] | None = frame.view.kept[key][1]
    if perm is None:
        raise _unordered(item.value)
    return perm, dims


def _search(item: Delivered, dims: Dims) -> list[int] | None:
    for perm in permutations(range(len(dims[0]))):
        if all(_is_order(size, perm, position) for size, position in zip(dims, item.positions, strict=True)):
            return list(perm)
    return None


def _unordered(value: ir.Value) -> Refused:
    return Refused(
        "mla-order", "the query comes by token and head", f"{value.name} in another order", "an order of the axes", "",
        value,
    )  # fmt: skip


def _is_order(dims: tuple[int, ...], perm: tuple[int, ...], position: Array) -> bool:
    moved = np.arange(int(np.prod(dims))).reshape(dims).transpose(perm)
    # most orders differ within a few elements of the ends
    flat = position.reshape(-1)
    step = max(1, len(flat) // 97)
    return len(flat) == moved.size and np.array_equal(moved.reshape(-1)[::step], flat[::step]) and np.array_equal(
        moved.reshape(-1), flat
    )  # fmt: skip


def _target(frame: Frame, shapes: list[tuple[int, ...]], value: ir.Value) -> ir.Value:
    """A Reshape target from numbers, one -1, and dims of values in front of the site."""
    varying = [axis for axis in range(len(shapes[0])) if len({shape[axis] for shape in shapes}) > 1]
    dims: list[int | ir.Value] = list(shapes[0])
    for axis in varying[:-1]:
        found = frame.dim([shape[axis] for shape in shapes], "delivered")
        if found is None:
            raise Refused(
                "delivered-shape", "the shape of a delivered value can be told", str(shapes[0]),
                "dims of values in front of it", "", value,
            )  # fmt: skip
        dims[axis] = found
    if varying:
        dims[varying[-1]] = -1
    return frame.emit.shape_vector(dims, "delivered_shape")
