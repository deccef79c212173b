"""Gathers, scatters and selections by order. Indices a device would not take are refused."""

from __future__ import annotations

import numpy as np

from ir_ops.dtypes import Array
from ir_ops.ge.evaluator.registry import EvalCall, evaluates, wide


def _checked(call: EvalCall, indices: Array, dim: int, negative: bool) -> Array:
    """Indices along a dim of size ``dim``, non-negative."""
    low = -dim if negative else 0
    if indices.size and (indices.min() < low or indices.max() >= dim):
        raise call.error("an index is out of range", f"{indices.min()}..{indices.max()}", f"{low}..{dim - 1}")
    return np.where(indices < 0, indices + dim, indices)


@evaluates("GatherV2")
def gather(call: EvalCall) -> Array:
    x, axis = call.x("x"), call.ints("axis")[0]
    if call.attr("batch_dims"):
        raise call.error("batch_dims", str(call.attr("batch_dims")), "0")
    indices = _checked(call, call.x("indices"), x.shape[axis], bool(call.attr("negative_index_support")))
    return np.take(x, indices, axis=axis)


@evaluates("GatherElements")
def gather_elements(call: EvalCall) -> Array:
    """The index may be smaller than x: what lies behind it along the other axes is left out."""
    x, index = call.x("x"), call.x("index")
    axis = int(call.attr("dim")) % max(x.ndim, 1)
    places = _checked(call, index, x.shape[axis], False)
    part = tuple(slice(None) if i == axis else slice(size) for i, size in enumerate(index.shape))
    return np.take_along_axis(x[part], places, axis=axis)


def _tuples(call: EvalCall, indices: Array, shape: tuple[int, ...], negative: bool) -> tuple[Array, ...]:
    """Index tuples as one index array for each leading dim."""
    count = indices.shape[-1]
    return tuple(_checked(call, indices[..., i], shape[i], negative) for i in range(count))


@evaluates("GatherNd")
def gather_nd(call: EvalCall) -> Array:
    x = call.x("x")
    return np.asarray(x[_tuples(call, call.x("indices"), x.shape, bool(call.attr("negative_index_support")))])


@evaluates("TensorScatterUpdate")
def tensor_scatter_update(call: EvalCall) -> Array:
    y = np.array(call.x("x"))
    y[_tuples(call, call.x("indices"), y.shape, False)] = call.x("updates")
    return y


@evaluates("ScatterNdAdd")
def scatter_nd_add(call: EvalCall) -> Array:
    var = np.array(call.x("var"))
    np.add.at(var, _tuples(call, call.x("indices"), var.shape, False), call.x("updates"))
    return var


@evaluates("Scatter")
def scatter(call: EvalCall) -> Array:
    """reduce="update": block b of updates goes to batch row b from position indices[b] along the axis."""
    if call.attr("reduce") != "update":
        raise call.error("reduce", str(call.attr("reduce")), "update")
    var, updates = np.array(call.x("var")), call.x("updates")
    axis = int(call.attr("axis")) % var.ndim
    length = updates.shape[axis]
    starts = call.ints("indices")
    if len(starts) != var.shape[0]:
        raise call.error("a start for each entry of the batch", str(len(starts)), str(var.shape[0]))
    for row, start in enumerate(starts):
        if not 0 <= start <= var.shape[axis] - length:
            raise call.error("a block does not fit", f"start {start}, length {length}", f"0..{var.shape[axis]}")
        # a view with the updated axis first
        np.moveaxis(var[row], axis - 1, 0)[start : start + length] = np.moveaxis(updates[row], axis - 1, 0)
    return var


@evaluates("ScatterElements")
def scatter_elements(call: EvalCall) -> Array:
    data, updates, axis = np.array(call.x("data")), call.x("updates"), int(call.attr("axis"))
    indices = _checked(call, call.x("indices"), data.shape[axis], False)
    axis = axis % data.ndim
    grid = [indices if i == axis else grid for i, grid in enumerate(np.indices(indices.shape))]
    place, reduction = tuple(grid), call.attr("reduction")
    if reduction == "add":
        np.add.at(data, place, updates)
    elif reduction == "mul":
        np.multiply.at(data, place, updates)
    else:
        data[place] = updates
    return data


@evaluates("NonZero")
def non_zero(call: EvalCall) -> Array:
    places = np.stack(np.nonzero(call.x("x")), axis=0 if call.attr("transpose") else -1)
    return places.astype(call.dtype_attr("dtype"))


@evaluates("OneHot")
def one_hot(call: EvalCall) -> Array:
    x, depth, axis = call.x("x"), call.ints("depth")[0], int(call.attr("axis"))
    axis = axis + x.ndim + 1 if axis < 0 else axis
    hot = np.expand_dims(x, axis) == np.arange(depth).reshape([-1] + [1] * (x.ndim - axis))
    return np.where(hot, call.x("on_value"), call.x("off_value"))


@evaluates("TopK", "TopKV2")
def top_k(call: EvalCall) -> list[Array]:
    """Equal values: the smaller index first. k is int32, indices are int32."""
    x, k, axis = call.x("x"), call.x("k"), int(call.attr("dim"))
    if k.dtype != np.int32:
        raise call.error("k", str(k.dtype), "int32")
    keys, count = wide(x), int(k.reshape(()))
    if not 0 <= count <= x.shape[axis]:
        raise call.error("k", str(count), f"0 to {x.shape[axis]}")
    if call.attr("largest"):
        keys = ~keys if keys.dtype.kind in "iu" else -keys
    order = np.argsort(keys, axis=axis, kind="stable")
    places = np.take(order, np.arange(count), axis=axis)
    return [np.take_along_axis(x, places, axis=axis), places.astype(np.int32)]


@evaluates("ArgMaxV2")
def arg_max(call: EvalCall) -> Array:
    return np.asarray(np.argmax(wide(call.x("x")), axis=call.ints("dimension")[0])).astype(call.dtype_attr("dtype"))
