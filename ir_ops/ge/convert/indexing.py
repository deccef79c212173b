"""Gathers, scatters and what makes indices.

GE's scatters do not take negative indices and its gathers want to be told; ONNX allows them everywhere. Indices that
are not known to be non-negative are therefore normalised (gathers: flagged).
"""

from __future__ import annotations

from typing import Any

import numpy as np

from ir_ops.ge.convert.call import NodeCall
from ir_ops.ge.convert.registry import Result, converts
from ir_ops.ge.convert.unsupported import Unsupported
from ir_ops.ge.tensor import Tensor


@converts(
    "Gather",
    dtypes="any",
    ge="GatherV2",
    note="the axis is a Const; negative_index_support where an index may be negative",
)
def gather(n: NodeCall) -> Result:
    axis = n.axis(int(n.attr("axis", 0)), n.rank(0))
    indices, negative = _gather_indices(n, axis)
    return _gathered(n, "GatherV2", {"indices": indices, "axis": n.scalar(axis, "int64")}, negative)


def _gathered(n: NodeCall, ge: str, inputs: dict[str, Any], negative: bool) -> Tensor:
    """A gather of input 0; bool, which the prototypes do not list, passes int8."""
    attrs = {"negative_index_support": negative}
    if n.dtype(0).name != "bool":
        return n.emit(ge, {"x": n.x(0), **inputs}, attrs)
    bytes_ = n.emit(ge, {"x": n.cast(n.x(0), "int8", "as_int8"), **inputs}, attrs, "gathered")
    return n.emit("Cast", {"x": bytes_}, {"dst_type": n.dtype(0)})


def _gather_indices(n: NodeCall, axis: int) -> tuple[Any, bool]:
    """The indices, and whether they may be negative. Constant ones are normalised where the dim is known."""
    values = n.arg(1).constant() if n.arg(1).is_constant else None
    if values is None:
        return n.x(1), not n.arg(1).nonneg
    dim = n.shape(0)[axis]
    if values.size and dim >= 0 and not -dim <= values.min() <= values.max() < dim:
        raise Unsupported(f"indices {values.min()} to {values.max()} into a dim of {dim}", f"{-dim} to {dim - 1}")
    if dim >= 0:
        return np.where(values < 0, values + dim, values).astype(values.dtype), False
    return n.x(1), bool((values < 0).any())


@converts("GatherElements", dtypes="any but float64", ge="GatherElements", note="negative indices are normalised")
def gather_elements(n: NodeCall) -> Result:
    axis = n.axis(int(n.attr("axis", 0)), n.rank(0))
    return n.emit("GatherElements", {"x": n.x(0), "index": _along_axis(n, 1, axis)}, {"dim": axis})


@converts("GatherND", dtypes="any", ge="GatherNd", note="batch_dims=0 only")
def gather_nd(n: NodeCall) -> Result:
    if n.attr("batch_dims", 0):
        raise Unsupported("GatherND with batch_dims", "batch_dims=0 with full index tuples")
    return _gathered(n, "GatherNd", {"indices": n.x(1)}, not n.arg(1).nonneg)


def _dims(n: NodeCall, count: int) -> Any:
    """The first ``count`` dims of input 0, from the type or at run time."""
    dims = n.shape(0)[:count]
    if all(dim >= 0 for dim in dims):
        return n.vector(dims)
    whole = n.emit("Shape", {"x": n.x(0)}, {"dtype": 9}, part="shape")
    parts = {"begin": n.vector([0]), "end": n.vector([count]), "axes": n.vector([0]), "strides": n.vector([1])}
    return n.emit("StridedSliceV2", {"x": whole, **parts}, part="dims")


def _shifted(n: NodeCall, indices: Tensor, dims: Any) -> Tensor:
    """``indices + dims`` where negative, unchanged elsewhere."""
    dims = dims if isinstance(dims, Tensor) else n.builder.const(np.asarray(dims), name=f"{n.name}/dims")
    zero = n.scalar(0, indices.dtype)
    negative = n.emit("Less", {"x1": indices, "x2": zero}, part="is_negative")
    moved = n.emit("Add", {"x1": indices, "x2": n.cast(dims, indices.dtype, "dims_cast")}, part="from_end")
    return n.emit("SelectV2", {"condition": negative, "then": moved, "else": indices}, part="indices")


def _along_axis(n: NodeCall, index: int, axis: int) -> Tensor:
    """Indices along one axis without negative ones."""
    if n.arg(index).nonneg:
        return n.x(index)
    dim = n.shape(0)[axis]
    if dim >= 0:
        return _shifted(n, n.x(index), n.scalar(dim, n.dtype(index)))
    whole = n.emit("Shape", {"x": n.x(0)}, {"dtype": 9}, part="shape")
    inputs = {"x": whole, "indices": n.scalar(axis, "int64"), "axis": n.scalar(0, "int64")}
    return _shifted(n, n.x(index), n.emit("GatherV2", inputs, part="dim"))


def _index_tuples(n: NodeCall) -> Tensor:
    """ScatterND's index tuples without negative elements."""
    if n.arg(1).nonneg:
        return n.x(1)
    count = n.shape(1)[-1]
    if count < 0:
        raise Unsupported("ScatterND with index tuples of unknown length", "a static last dim of indices")
    return _shifted(n, n.x(1), _dims(n, count))


_ND_REFS = {"none": "ScatterNdUpdate", "add": "ScatterNdAdd"}


@converts("ScatterND", dtypes="any", ge="TensorScatterUpdate; ScatterNdUpdate, ScatterNdAdd",
          note="a cache that is graph input and output is updated in place by ScatterNdUpdate; "
               "negative indices are normalised; reduction none, add; order of duplicates undefined")  # fmt: skip
def scatter_nd(n: NodeCall) -> Result:
    reduction = n.attr("reduction", "none")
    if reduction not in _ND_REFS:
        raise Unsupported(f"ScatterND with reduction {reduction}", "reduction none or add")
    if not n.arg(1).nonneg and n.arg(1).type.numel != 0:
        n.note(f"{n.name}: negative indices count from the end, as in ONNX (GE itself would not take them)")
    if reduction == "add":
        n.require("float32", "float16", "bfloat16", "int32", "int8", "uint8")
    inputs: dict[str, Any] = {"indices": _index_tuples(n), "updates": n.x(2)}
    if 0 in n.in_place:
        return n.emit(_ND_REFS[reduction], {"var": n.x(0), **inputs})
    if reduction == "none":
        return n.emit("TensorScatterUpdate", {"x": n.x(0), **inputs})
    copy = n.emit("TensorMove", {"x": n.x(0)}, part="copy")
    return n.emit(_ND_REFS[reduction], {"var": copy, **inputs})


@converts(
    "ScatterElements",
    dtypes="any",
    ge="ScatterElements",
    note="reduction none, add, mul; negative indices are normalised",
)
def scatter_elements(n: NodeCall) -> Result:
    reduction = n.attr("reduction", "none")
    if reduction not in ("none", "add", "mul"):
        raise Unsupported(f"ScatterElements with reduction {reduction}", "reduction none, add or mul")
    axis = n.axis(int(n.attr("axis", 0)), n.rank(0))
    inputs = {"data": n.x(0), "indices": _along_axis(n, 1, axis), "updates": n.x(2)}
    return n.emit("ScatterElements", inputs, {"axis": axis, "reduction": reduction})


@converts(
    "TensorScatter",
    since=24,
    dtypes="any",
    ge="Scatter, TensorMove",
    note="linear mode; write_indices [B] are starts along the axis; in place where the cache is graph input and output",
)
def tensor_scatter(n: NodeCall) -> Result:
    if n.attr("mode", "linear") != "linear":
        raise Unsupported("TensorScatter in circular mode", "mode=linear")
    axis = n.axis(int(n.attr("axis", -2)), n.rank(0))
    var = n.x(0) if 0 in n.in_place else n.emit("TensorMove", {"x": n.x(0)}, part="copy")
    starts = n.x(2) if n.has(2) else _first_places(n, var)
    return n.emit("Scatter", {"var": var, "indices": starts, "updates": n.x(1)}, {"reduce": "update", "axis": axis})


def _first_places(n: NodeCall, var: Tensor) -> Tensor:
    """A start of 0 for every entry of the batch."""
    batch = n.shape(0)[0]
    if batch >= 0:
        return n.builder.const(np.zeros(batch, np.int64))
    return n.emit("Fill", {"dims": n.dims([(var, 0)], "batch"), "value": n.scalar(0, "int64")}, part="starts")


@converts(
    "NonZero",
    dtypes="any",
    ge="NonZero",
    note="the result's shape depends on data: needs a dynamic-shape compilation",
)
def non_zero(n: NodeCall) -> Result:
    n.note(f"{n.name}: the shape of NonZero depends on data")
    return n.emit("NonZero", {"x": n.x(0)}, {"transpose": True})


@converts("OneHot", dtypes="any", ge="OneHot", note="values [off, on] are split; negative indices are normalised")
def one_hot(n: NodeCall) -> Result:
    values = n.constant(2).reshape(-1)
    depth = n.ints(1)[0]
    indices = n.cast(n.x(0), "int64", "indices_int64")
    if not n.arg(0).nonneg:
        indices = _shifted(n, indices, n.scalar(depth, "int64"))
    inputs = {"x": indices, "depth": n.scalar(depth, "int32"), "on_value": values[1], "off_value": values[0]}
    return n.emit("OneHot", inputs, {"axis": int(n.attr("axis", -1))})


@converts("Trilu", dtypes="any", ge="Trilu", note="upper is always written")
def trilu(n: NodeCall) -> Result:
    k = n.scalar(n.ints(1)[0], "int64") if n.has(1) else None
    return n.emit("Trilu", {"x": n.x(0), "k": k}, {"upper": int(n.attr("upper", 1))})
