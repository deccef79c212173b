"""Shapes and movement of elements."""

from __future__ import annotations

import math

import numpy as np

from ir_ops.dtypes import Array
from ir_ops.ge.evaluator.registry import EvalCall, evaluates


@evaluates("Shape")
def shape(call: EvalCall) -> Array:
    return np.asarray(call.x("x").shape, dtype=call.dtype_attr("dtype"))


@evaluates("Size")
def size(call: EvalCall) -> Array:
    return np.asarray(call.x("x").size, dtype=call.dtype_attr("dtype"))


@evaluates("Reshape")
def reshape(call: EvalCall) -> Array:
    """A dim of -1 is what is left; a dim of 0 is empty (nothing is copied from the input)."""
    return call.x("x").reshape(call.ints("shape"))


@evaluates("Flatten")
def flatten(call: EvalCall) -> Array:
    x, axis = call.x("x"), int(call.attr("axis"))
    return x.reshape(math.prod(x.shape[: axis + x.ndim if axis < 0 else axis]), -1)


@evaluates("Transpose")
def transpose(call: EvalCall) -> Array:
    return np.array(np.transpose(call.x("x"), call.ints("perm")), order="C")


@evaluates("Unsqueeze")
def unsqueeze(call: EvalCall) -> Array:
    return np.expand_dims(call.x("x"), tuple(call.attr("axes")))


@evaluates("ExpandDims")
def expand_dims(call: EvalCall) -> Array:
    return np.expand_dims(call.x("x"), call.ints("axis")[0])


@evaluates("Squeeze")
def squeeze(call: EvalCall) -> Array:
    axes = tuple(call.attr("axis") or ())
    return np.squeeze(call.x("x"), axis=axes or None)


@evaluates("ConcatD")
def concat_d(call: EvalCall) -> Array:
    return np.concatenate(call.dynamic["x"], axis=int(call.attr("concat_dim")))


@evaluates("ConcatV2")
def concat_v2(call: EvalCall) -> Array:
    return np.concatenate(call.dynamic["x"], axis=call.ints("concat_dim")[0])


@evaluates("Pack")
def pack(call: EvalCall) -> Array:
    return np.stack(call.dynamic["x"], axis=int(call.attr("axis")))


@evaluates("SplitV")
def split_v(call: EvalCall) -> list[Array]:
    sizes, axis = call.ints("size_splits"), call.ints("split_dim")[0]
    whole = call.x("x").shape[axis]
    if -1 in sizes:
        sizes[sizes.index(-1)] = whole - sum(size for size in sizes if size >= 0)
    if sum(sizes) != whole:
        raise call.error("the parts do not add up", f"{sizes} of {whole}")
    return np.split(call.x("x"), np.cumsum(sizes)[:-1], axis=axis)


@evaluates("Split")
def split(call: EvalCall) -> list[Array]:
    count, axis = int(call.attr("num_split")), call.ints("split_dim")[0]
    if call.x("x").shape[axis] % count:
        raise call.error("a dim does not split evenly", f"{call.x('x').shape[axis]} into {count}")
    return np.split(call.x("x"), count, axis=axis)


@evaluates("StridedSliceV2")
def strided_slice(call: EvalCall) -> Array:
    """Bounds outside the tensor are clamped, negative ones count from the end; the masks are 0."""
    x, begins, ends = call.x("x"), call.ints("begin"), call.ints("end")
    axes = call.ints("axes") if call.get("axes") is not None else list(range(len(begins)))
    steps = call.ints("strides") if call.get("strides") is not None else [1] * len(begins)
    cut = [slice(None)] * x.ndim
    for begin, end, axis, step in zip(begins, ends, axes, steps, strict=True):
        cut[axis] = slice(begin, end, step)
    return np.ascontiguousarray(x[tuple(cut)]).reshape(x[tuple(cut)].shape)


@evaluates("BroadcastTo")
def broadcast_to(call: EvalCall) -> Array:
    """The target is the result's shape."""
    return np.array(np.broadcast_to(call.x("x"), call.ints("shape")))


@evaluates("Expand")
def expand(call: EvalCall) -> Array:
    """Both ways: a target dim of 1 keeps the input's dim."""
    x = call.x("x")
    return np.array(np.broadcast_to(x, np.broadcast_shapes(x.shape, tuple(call.ints("shape")))))


@evaluates("Tile")
def tile(call: EvalCall) -> Array:
    return np.tile(call.x("x"), call.ints("multiples"))


@evaluates("Tril", "Triu")
def triangle(call: EvalCall) -> Array:
    return (np.triu if call.node.type == "Triu" else np.tril)(call.x("x"), int(call.attr("diagonal")))


@evaluates("Trilu")
def trilu(call: EvalCall) -> Array:
    k = call.ints("k")[0] if call.get("k") is not None else 0
    return (np.triu if call.attr("upper") else np.tril)(call.x("x"), k)


@evaluates("PadV3")
def pad_v3(call: EvalCall) -> Array:
    """Constant mode; ``paddings_contiguous`` says whether both amounts of an axis are neighbours."""
    x, amounts = call.x("x"), np.asarray(call.ints("paddings"))
    if call.attr("mode") != "constant" or amounts.size != 2 * x.ndim or (amounts < 0).any():
        raise call.error("padding that is none", f"{call.attr('mode')} by {amounts.tolist()}")
    widths = amounts.reshape(-1, 2) if call.attr("paddings_contiguous") else amounts.reshape(2, -1).T
    value = call.get("constant_values")
    return np.pad(x, widths.tolist(), constant_values=0 if value is None else value.reshape(()))
