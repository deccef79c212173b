"""Reductions, softmax, cumulative sums."""

from __future__ import annotations

from ir_ops.ge.convert.call import NodeCall
from ir_ops.ge.convert.registry import Result, converts
from ir_ops.ge.convert.unsupported import Unsupported


@converts(
    "ReduceMean",
    "ReduceSum",
    "ReduceMax",
    "ReduceMin",
    "ReduceProd",
    dtypes="any number",
    ge="the same operator",
    note="axes become a Const, all of them where none are given; keep_dims is always written",
)
def reduce(n: NodeCall) -> Result:
    axes = n.axes(1)
    if not axes:
        if n.attr("noop_with_empty_axes", 0):
            return n.x(0)
        axes = list(range(n.rank(0)))
    attrs = {"keep_dims": n.attr("keepdims", 1) == 1}
    return n.emit(n.op_type, {"x": n.x(0), "axes": n.vector(axes)}, attrs)


@converts("Softmax", dtypes="float32, float16, bfloat16", ge="SoftmaxV2",
          note="opset < 13 flattens to 2-D: taken only where the axis is the last")  # fmt: skip
def softmax(n: NodeCall) -> Result:
    return n.emit("SoftmaxV2", {"x": n.x(0)}, {"axes": [_softmax_axis(n)]})


@converts("LogSoftmax", dtypes="float32, float16, bfloat16", ge="LogSoftmaxV2", note="as Softmax")
def log_softmax(n: NodeCall) -> Result:
    return n.emit("LogSoftmaxV2", {"logits": n.x(0)}, {"axes": [_softmax_axis(n)]})


def _softmax_axis(n: NodeCall) -> int:
    axis = int(n.attr("axis", -1 if n.version >= 13 else 1))
    if n.version < 13 and n.axis(axis, n.rank(0)) != n.rank(0) - 1:
        raise Unsupported(f"Softmax of opset {n.version} over several axes", "opset 13 or later")
    return axis


@converts("CumSum", dtypes="float32, float16, int32, int64", ge="Cumsum", note="the axis is a Const")
def cum_sum(n: NodeCall) -> Result:
    attrs = {"exclusive": bool(n.attr("exclusive", 0)), "reverse": bool(n.attr("reverse", 0))}
    return n.emit("Cumsum", {"x": n.x(0), "axis": n.scalar(n.ints(1)[0], "int32")}, attrs)


@converts(
    "ArgMax",
    dtypes="any number",
    ge="ArgMaxV2, ExpandDims",
    note="the first of equal values; select_last_index refused",
)
def arg_max(n: NodeCall) -> Result:
    if n.attr("select_last_index", 0):
        raise Unsupported("ArgMax with select_last_index", "select_last_index=0")
    axis, keep = n.axis(int(n.attr("axis", 0)), n.rank(0)), n.attr("keepdims", 1) == 1
    place = n.scalar(axis, "int32")
    result = n.emit("ArgMaxV2", {"x": n.x(0), "dimension": place}, part="argmax" if keep else "")
    return n.emit("ExpandDims", {"x": result, "axis": place}) if keep else result


@converts(
    "TopK",
    dtypes="float32, float16, int32, int64",
    ge="TopKV2, Cast",
    note="k and indices are int32 in GE; indices are cast back",
)
def top_k(n: NodeCall) -> Result:
    attrs = {"sorted": bool(n.attr("sorted", 1)), "dim": int(n.attr("axis", -1)), "largest": bool(n.attr("largest", 1))}
    known = n.arg(1).constant()
    if known is not None:
        k = n.builder.const(n.scalar(known.reshape(-1)[0], "int32"))
    else:
        narrow = n.cast(n.x(1), "int32", "k_int32")
        k = n.emit("Reshape", {"x": narrow, "shape": n.vector([])}, part="k")
    values, indices = n.emit_all("TopKV2", {"x": n.x(0), "k": k}, attrs).flat()
    wide = n.cast(indices, "int64", "indices") if len(n.used) > 1 and n.used[1] else None
    return [values, wide]
