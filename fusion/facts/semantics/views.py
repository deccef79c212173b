"""Operators that rearrange whole axes: reshape, transpose, slice, split, concat, expand."""

from __future__ import annotations

import math
from typing import Any

import ml_dtypes
import numpy as np

from fusion.facts.semantics.table import (
    Attrs,
    Conflict,
    Unsupported,
    axes_of,
    broadcast_shape,
    computing,
    elementwise,
    ints,
    is_stand_in,
    movement,
    stand_in,
)
from ir_ops.dtypes import Array, by_onnx


@movement("Identity", (0,))
def identity(attrs: Attrs, x: Array) -> Array:
    return x


@movement("Dropout", (0,))
def dropout(attrs: Attrs, x: Array, *unused: Any) -> tuple[Array, Array]:
    return x, np.ones(x.shape, np.bool_)


@movement("Reshape", (0,))
def reshape(attrs: Attrs, x: Array, shape: Array | None = None) -> Array:
    wanted = list(attrs["shape"]) if "shape" in attrs else ints(shape)
    return x.reshape(resolve_shape(x.shape, wanted, bool(attrs.get("allowzero", 0))))


def resolve_shape(shape: tuple[int, ...], wanted: list[int], allowzero: bool) -> tuple[int, ...]:
    """The target of Reshape with 0 (keep) and -1 (infer) filled in. Raises Conflict when the element counts differ."""
    dims = [
        shape[axis] if size == 0 and not allowzero and axis < len(shape) else size for axis, size in enumerate(wanted)
    ]
    total = math.prod(shape)
    if -1 in dims:
        rest = math.prod(size for size in dims if size != -1)
        if rest == 0 or total % rest:
            raise Conflict(total, rest, divides=True)
        dims[dims.index(-1)] = total // rest
    elif math.prod(dims) != total:
        raise Conflict(total, math.prod(dims))
    return tuple(dims)


@movement("Flatten", (0,))
def flatten(attrs: Attrs, x: Array) -> Array:
    axis = int(attrs.get("axis", 1))
    axis = axis + x.ndim if axis < 0 else axis
    return x.reshape(math.prod(x.shape[:axis]), -1)


@movement("Transpose", (0,))
def transpose(attrs: Attrs, x: Array) -> Array:
    return np.transpose(x, attrs.get("perm"))


@movement("Squeeze", (0,))
def squeeze(attrs: Attrs, x: Array, axes: Array | None = None) -> Array:
    chosen = axes_of(attrs, axes, x.ndim)
    if chosen is None:
        chosen = [axis for axis, size in enumerate(x.shape) if size == 1]
    for axis in chosen:
        if x.shape[axis] != 1:
            raise Conflict(x.shape[axis], 1)
    return x.reshape([size for axis, size in enumerate(x.shape) if axis not in chosen])


@movement("Unsqueeze", (0,))
def unsqueeze(attrs: Attrs, x: Array, axes: Array | None = None) -> Array:
    given = list(attrs["axes"]) if "axes" in attrs else ints(axes)
    chosen = {axis % (x.ndim + len(given)) for axis in given}
    rest = iter(x.shape)
    return x.reshape([1 if axis in chosen else next(rest) for axis in range(x.ndim + len(given))])


@movement("Expand", (0,))
def expand(attrs: Attrs, x: Array, shape: Array) -> Array:
    return np.broadcast_to(x, broadcast_shape(x.shape, tuple(ints(shape))))


@movement("Tile", (0,))
def tile(attrs: Attrs, x: Array, repeats: Array) -> Array:
    times = ints(repeats)
    if is_stand_in(x):
        return stand_in(tuple(size * count for size, count in zip(x.shape, times, strict=True)))
    return np.tile(x, times)


@movement("Concat", (-1,))
def concat(attrs: Attrs, *parts: Array) -> Array:
    axis = int(attrs["axis"]) % parts[0].ndim
    first = parts[0].shape
    for part in parts[1:]:
        if part.ndim != len(first):
            raise Unsupported("Concat of different ranks")
        for position, (left, right) in enumerate(zip(first, part.shape, strict=True)):
            if position != axis and left != right:
                raise Conflict(left, right)
    if all(is_stand_in(part) for part in parts):
        return stand_in((*first[:axis], sum(part.shape[axis] for part in parts), *first[axis + 1 :]))
    return np.concatenate(parts, axis=axis)


@movement("Slice", (0,))
def slice_(
    attrs: Attrs,
    x: Array,
    starts: Array | None = None,
    ends: Array | None = None,
    axes: Array | None = None,
    steps: Array | None = None,
) -> Array:
    first = list(attrs["starts"]) if "starts" in attrs else ints(starts)
    last = list(attrs["ends"]) if "ends" in attrs else ints(ends)
    chosen = axes_of(attrs, axes, x.ndim) or list(range(len(first)))
    stride = [1] * len(first) if steps is None else ints(steps)
    index = [slice(None)] * x.ndim
    for axis, start, end, step in zip(chosen, first, last, stride, strict=True):
        if step == 0:
            raise Unsupported("a Slice with step 0")
        size = x.shape[axis]
        start = start + size if start < 0 else start
        end = end + size if end < 0 else end
        if step > 0:
            index[axis] = slice(min(max(start, 0), size), min(max(end, 0), size), step)
        else:
            end = min(end, size - 1)
            index[axis] = slice(min(max(start, 0), size - 1), None if end < 0 else end, step)
    return x[tuple(index)]


@movement("Split", (0,))
def split(attrs: Attrs, x: Array, sizes: Array | None = None) -> list[Array]:
    axis = int(attrs.get("axis", 0)) % x.ndim
    if "split" in attrs or sizes is not None:
        parts = list(attrs["split"]) if "split" in attrs else ints(sizes)
        if sum(parts) != x.shape[axis]:
            raise Conflict(sum(parts), x.shape[axis])
    else:
        count = int(attrs.get("num_outputs", attrs["@outputs"]))
        each = -(-x.shape[axis] // count)
        parts = [min(each, x.shape[axis] - each * part) for part in range(count)]
    return np.split(x, np.cumsum(parts)[:-1], axis=axis)


@movement("Trilu", (0,))
def trilu(attrs: Attrs, x: Array, k: Array | None = None) -> Array:
    diagonal = 0 if k is None else ints(k)[0]
    return np.triu(x, diagonal) if attrs.get("upper", 1) else np.tril(x, diagonal)


@movement("Pad", (0, 2))
def pad(attrs: Attrs, x: Array, pads: Array, value: Array | None = None, axes: Array | None = None) -> Array:
    mode = str(attrs.get("mode", "constant"))
    if mode != "constant":
        raise Unsupported("Pad in mode " + mode)
    amounts, rank = ints(pads), x.ndim
    chosen = list(range(rank)) if axes is None else [axis % rank for axis in ints(axes)]
    widths = [(0, 0)] * rank
    for place, axis in enumerate(chosen):
        widths[axis] = (amounts[place], amounts[place + len(chosen)])
    filler = np.zeros((), x.dtype) if value is None else value.reshape(())
    result = np.full([size + sum(width) for size, width in zip(x.shape, widths, strict=True)], filler, x.dtype)
    result[tuple(slice(low, low + size) for (low, _), size in zip(widths, x.shape, strict=True))] = x
    return result


@elementwise("Cast")
def cast(attrs: Attrs, x: Array) -> Any:
    target = by_onnx(int(attrs["to"]))
    if target.np is None:
        raise Unsupported("Cast to " + target.name)
    if attrs.get("@wide") and target.is_float and not target.is_8bit_float:
        return x.astype(np.float64)
    if target.is_8bit_float and attrs.get("saturate", 1):
        limit = float(ml_dtypes.finfo(target.np).max)  # type: ignore[no-untyped-call]
        return np.clip(x.astype(np.float64), -limit, limit).astype(target.np)
    with np.errstate(all="ignore"):
        return x.astype(target.np)


@computing("CastLike", lambda attrs, x: [x[0].shape])  # type: ignore[union-attr]
def cast_like(attrs: Attrs, x: Array, like: Array) -> Array:
    """As exports that are not optimised convert: to the type of another value."""
    with np.errstate(all="ignore"):
        return x.astype(like.dtype)


@computing("Shape", lambda attrs, x: [(len(x[0].shape[attrs.get("start", 0) : attrs.get("end")]),)])  # type: ignore[union-attr]
def shape_(attrs: Attrs, x: Array) -> Array:
    return np.array(x.shape[attrs.get("start", 0) : attrs.get("end")], np.int64)


@computing("Size", lambda attrs, x: [()])
def size(attrs: Attrs, x: Array) -> Array:
    return np.array(x.size, np.int64)


@computing("ConstantOfShape", lambda attrs, x: [tuple(ints(x[0]))])
def constant_of_shape(attrs: Attrs, shape: Array) -> Array:
    value = attrs.get("value")
    fill = np.zeros((), np.float32) if value is None else np.asarray(value).reshape(())
    return np.broadcast_to(fill, tuple(ints(shape)))  # no storage: exporters assemble whole caches from zeros


LONGEST = 1 << 26
"""Numbers of a Range: one up to trial data that is no length would take all memory."""


@computing("Range", lambda attrs, x: [range_(attrs, *x).shape])
def range_(attrs: Attrs, start: Array, limit: Array, delta: Array) -> Array:
    first, end, step = (item.reshape(()).item() for item in (start, limit, delta))
    if (end - first) / step > LONGEST:
        raise Unsupported(f"a Range from {first} to {end}")
    return np.arange(first, end, step, dtype=start.dtype)
