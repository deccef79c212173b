"""Operators that move elements by index: gathers, scatters, Where."""

from __future__ import annotations

from typing import Any

import numpy as np

from fusion.facts.semantics.table import (
    Attrs,
    Conflict,
    Operands,
    OutOfRange,
    Unsupported,
    broadcast_shape,
    computing,
    is_stand_in,
    movement,
    stand_in,
)
from ir_ops.dtypes import Array


def checked(index: Array, size: int) -> Array:
    """Indices with negative ones wrapped. Raises OutOfRange when one points outside."""
    wrapped = np.where(index < 0, index + size, index)
    if index.size and ((wrapped < 0).any() or (wrapped >= size).any()):
        raise OutOfRange(f"{index.min()}..{index.max()} of {size}")
    return wrapped


@movement("Gather", (0,))
def gather(attrs: Attrs, x: Array, index: Array) -> Array:
    axis = int(attrs.get("axis", 0)) % x.ndim
    places = checked(index, x.shape[axis])
    if is_stand_in(x):
        return stand_in(x.shape[:axis] + index.shape + x.shape[axis + 1 :])
    return np.take(x, places, axis=axis)


@movement("GatherElements", (0,))
def gather_elements(attrs: Attrs, x: Array, index: Array) -> Array:
    axis = int(attrs.get("axis", 0)) % x.ndim
    for position, (have, want) in enumerate(zip(x.shape, index.shape, strict=True)):
        if position != axis and want > have:
            raise Conflict(have, want)
    if is_stand_in(x):
        checked(index, x.shape[axis])
        return stand_in(index.shape)
    trimmed = x[tuple(slice(None) if position == axis else slice(size) for position, size in enumerate(index.shape))]
    return np.take_along_axis(trimmed, checked(index, x.shape[axis]), axis)


def _index_tuple(x: Array, index: Array, batch: int) -> tuple[Any, ...]:
    depth = index.shape[-1]
    if depth + batch > x.ndim:
        raise Unsupported("an index deeper than the data")
    parts = [checked(index[..., level], x.shape[batch + level]) for level in range(depth)]
    lead = np.meshgrid(*(np.arange(size) for size in index.shape[:batch]), indexing="ij") if batch else []
    spread = [item.reshape(item.shape + (1,) * (index.ndim - 1 - batch)) for item in lead]
    return tuple(spread + parts)


@movement("GatherND", (0,))
def gather_nd(attrs: Attrs, x: Array, index: Array) -> Array:
    batch = int(attrs.get("batch_dims", 0))
    for axis in range(batch):
        if x.shape[axis] != index.shape[axis]:
            raise Conflict(x.shape[axis], index.shape[axis])
    places = _index_tuple(x, index, batch)
    if is_stand_in(x):
        return stand_in(index.shape[:-1] + x.shape[batch + index.shape[-1] :])
    return np.asarray(x[places])


def _written(x: Array, places: tuple[Any, ...], updates: Array) -> Array:
    if is_stand_in(x):
        return x
    result: Array = x.copy()
    result[places] = updates
    return result


def _plain(attrs: Attrs) -> None:
    reduction = attrs.get("reduction", "none")
    if reduction not in ("none", ""):
        raise Unsupported(f"a scatter that combines ({reduction})")


@movement("ScatterND", (0, 2))
def scatter_nd(attrs: Attrs, x: Array, index: Array, updates: Array) -> Array:
    _plain(attrs)
    wanted = index.shape[:-1] + x.shape[index.shape[-1] :]
    if len(wanted) != updates.ndim:
        raise Unsupported("ScatterND updates of another rank")
    for left, right in zip(wanted, updates.shape, strict=True):
        if left != right:
            raise Conflict(left, right)
    return _written(x, _index_tuple(x, index, 0), updates)


@movement("ScatterElements Scatter", (0, 2))
def scatter_elements(attrs: Attrs, x: Array, index: Array, updates: Array) -> Array:
    _plain(attrs)
    axis = int(attrs.get("axis", 0)) % x.ndim
    for left, right in zip(index.shape, updates.shape, strict=True):
        if left != right:
            raise Conflict(left, right)
    for position, (have, want) in enumerate(zip(x.shape, index.shape, strict=True)):
        if position != axis and want > have:
            raise Conflict(have, want)
    places: list[Array] = list(np.indices(index.shape, sparse=True))
    places[axis] = checked(index, x.shape[axis])
    return _written(x, tuple(places), updates)


@movement("TensorScatter", (0, 1))
def tensor_scatter(attrs: Attrs, x: Array, updates: Array, start: Array | None = None) -> Array:
    axis = int(attrs.get("axis", -2)) % x.ndim
    if axis == 0:
        raise Unsupported("TensorScatter along the batch axis")
    for position, (have, want) in enumerate(zip(x.shape, updates.shape, strict=True)):
        if position != axis and have != want:
            raise Conflict(have, want)
    first = np.zeros(x.shape[0], np.int64) if start is None else start.reshape(-1)
    if len(first) != x.shape[0]:
        raise Conflict(len(first), x.shape[0])
    rows = first[:, None] + np.arange(updates.shape[axis])
    if attrs.get("mode", "linear") == "circular":
        rows = rows % x.shape[axis]
    elif rows.size and (rows.min() < 0 or rows.max() >= x.shape[axis]):
        raise OutOfRange("TensorScatter past the end of the cache")
    if is_stand_in(x):
        return x
    result: Array = x.copy()
    for batch in range(x.shape[0]):
        moved = np.moveaxis(result[batch], axis - 1, 0)
        moved[rows[batch]] = np.moveaxis(updates[batch], axis - 1, 0)
    return result


@movement("Where", (1, 2))
def where(attrs: Attrs, condition: Array, x: Array, y: Array) -> Array:
    shape = broadcast_shape(condition.shape, x.shape, y.shape)
    if is_stand_in(x) or is_stand_in(y):
        return stand_in(shape)
    return np.where(condition, x, y)


def _counted(attrs: Attrs, operands: Operands) -> list[tuple[int, ...]]:
    """As many as the data say: ``@some`` stands for it where they are not known."""
    if operands[0] is None or not operands[0].ndim or "@some" not in attrs:
        raise Unsupported("NonZero of data that are not known")
    return [(operands[0].ndim, int(attrs["@some"]))]


@computing("NonZero", _counted)
def non_zero(attrs: Attrs, x: Array) -> Array:
    return np.array(np.nonzero(x), np.int64)


@computing("CumSum", lambda attrs, x: [x[0].shape])  # type: ignore[union-attr]
def cum_sum(attrs: Attrs, x: Array, axis: Array) -> Array:
    along = int(axis.reshape(()))
    if attrs.get("reverse"):
        return np.flip(cum_sum({**attrs, "reverse": 0}, np.flip(x, along), axis), along)
    total = np.cumsum(x, axis=along, dtype=x.dtype)
    return total - x if attrs.get("exclusive") else total


def _hot(attrs: Attrs, operands: Operands) -> list[tuple[int, ...]]:
    index, depth = operands[0], operands[1]
    if index is None or depth is None or is_stand_in(depth):
        raise Unsupported("OneHot of an unknown depth")
    axis = int(attrs.get("axis", -1)) % (index.ndim + 1)
    return [(*index.shape[:axis], int(depth.reshape(-1)[0]), *index.shape[axis:])]


@computing("OneHot", _hot)
def one_hot(attrs: Attrs, index: Array, depth: Array, values: Array) -> Array:
    size = int(depth.reshape(-1)[0])
    axis = int(attrs.get("axis", -1)) % (index.ndim + 1)
    hot = np.where(index < 0, index + size, index)[..., None] == np.arange(size)
    return np.moveaxis(np.where(hot, values[1], values[0]), -1, axis)
