"""Output types of gathers, scatters and selections by order."""

from __future__ import annotations

from ir_ops.ge.infer.call import INT32, OpCall, attr_dtype, dim_or_unknown, infers
from ir_ops.ge.model import TensorType


@infers("GatherV2")
def gather(call: OpCall) -> TensorType:
    x, indices, axis = call.shape("x"), call.shape("indices"), call.scalar("axis")
    if x is None or indices is None:
        return TensorType(call.dtype("x"))
    if int(call.attr("batch_dims")):
        raise call.error("batch_dims is not supported", str(call.attr("batch_dims")), "0")
    if axis is None:
        return TensorType(call.dtype("x"), (-1,) * (len(x) + len(indices) - 1))
    axis = call.norm_axis(axis, len(x))
    return TensorType(call.dtype("x"), (*x[:axis], *indices, *x[axis + 1 :]))


@infers("GatherElements")
def gather_elements(call: OpCall) -> TensorType:
    return TensorType(call.dtype("x"), call.shape("index"))


@infers("GatherNd")
def gather_nd(call: OpCall) -> TensorType:
    x, indices = call.shape("x"), call.shape("indices")
    if x is None or indices is None or not indices or indices[-1] < 0:
        return TensorType(call.dtype("x"))
    if indices[-1] > len(x):
        raise call.error("index tuples longer than the rank", str(indices[-1]), f"at most {len(x)}")
    return TensorType(call.dtype("x"), (*indices[:-1], *x[indices[-1] :]))


@infers("TensorScatterUpdate")
def tensor_scatter(call: OpCall) -> TensorType:
    return TensorType(call.dtype("x"), call.shape("x"))


@infers("ScatterNdAdd", "Scatter")
def ref_scatter(call: OpCall) -> TensorType:
    if call.dtype("var") != call.dtype("updates"):
        raise call.error("updates of another element type", call.dtype("updates").name, call.dtype("var").name)
    return TensorType(call.dtype("var"), call.shape("var"))


@infers("ScatterElements")
def scatter_elements(call: OpCall) -> TensorType:
    return TensorType(call.dtype("data"), call.shape("data"))


@infers("TopK", "TopKV2")
def top_k(call: OpCall) -> dict[str, TensorType]:
    shape = call.shape("x")
    if shape is not None:
        axis = call.axis("dim", len(shape))
        shape = (*shape[:axis], dim_or_unknown(call.scalar("k")), *shape[axis + 1 :])
    return {"values": TensorType(call.dtype("x"), shape), "indices": TensorType(INT32, shape)}


@infers("ArgMaxV2")
def arg_max(call: OpCall) -> TensorType:
    shape, axis = call.shape("x"), call.scalar("dimension")
    if shape is None or axis is None:
        return TensorType(attr_dtype(call, "dtype"), None if shape is None else (-1,) * (len(shape) - 1))
    axis = call.norm_axis(axis, len(shape))
    return TensorType(attr_dtype(call, "dtype"), (*shape[:axis], *shape[axis + 1 :]))
