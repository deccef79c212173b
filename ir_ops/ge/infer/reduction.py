"""Output types of reductions, softmax and norms."""

from __future__ import annotations

from ir_ops.ge.infer.call import FLOAT, OpCall, infers
from ir_ops.ge.model import Shape, TensorType


@infers("ReduceMean", "ReduceSum", "ReduceMax", "ReduceMin", "ReduceProd", "ReduceAll", "ReduceAny")
def reduce(call: OpCall) -> TensorType:
    shape, axes = call.shape("x"), call.ints("axes")
    keep = bool(call.attr("keep_dims"))
    if shape is None or axes is None or None in axes:
        return TensorType(call.dtype("x"), (-1,) * len(shape) if shape is not None and keep else None)
    places = {call.norm_axis(axis, len(shape)) for axis in axes if axis is not None}
    if keep:
        return TensorType(call.dtype("x"), tuple(1 if i in places else dim for i, dim in enumerate(shape)))
    return TensorType(call.dtype("x"), tuple(dim for i, dim in enumerate(shape) if i not in places))


@infers("SoftmaxV2")
def softmax(call: OpCall) -> TensorType:
    _check_axes(call, "x")
    return TensorType(FLOAT if call.attr("half_to_float") else call.dtype("x"), call.shape("x"))


@infers("LogSoftmaxV2")
def log_softmax(call: OpCall) -> TensorType:
    _check_axes(call, "logits")
    return TensorType(call.dtype("logits"), call.shape("logits"))


def _check_axes(call: OpCall, name: str) -> None:
    shape = call.shape(name)
    if shape is not None:
        for axis in call.attr("axes"):
            call.norm_axis(int(axis), len(shape))


def _row_shape(call: OpCall, x: str, gamma: str) -> Shape | None:
    """Shape of a statistic: the normalised trailing dims (as many as gamma has) become 1."""
    shape, weight = call.shape(x), call.shape(gamma)
    if shape is None or weight is None:
        return None
    kept = len(shape) - len(weight)
    if kept < 0 or any(a >= 0 and b >= 0 and a != b for a, b in zip(shape[kept:], weight, strict=True)):
        raise call.error("gamma does not fit the trailing dims", str(list(weight)), f"the end of {list(shape)}")
    return (*shape[:kept], *([1] * len(weight)))


def _one_dtype(call: OpCall, *names: str) -> None:
    if len({call.dtype(name) for name in names}) != 1:
        found = ", ".join(f"{name} {call.dtype(name).name}" for name in names)
        raise call.error("inputs of different element types", found, "one element type")


@infers("LayerNorm")
def layer_norm(call: OpCall) -> dict[str, TensorType]:
    _one_dtype(call, "x", "gamma", "beta")
    y, shape = TensorType(call.dtype("x"), call.shape("x")), call.shape("x")
    if shape is not None:
        begin = call.axis("begin_norm_axis", len(shape))
        shape = (*shape[:begin], *([1] * (len(shape) - begin)))
    row = TensorType(call.dtype("x"), shape)
    return {"y": y, "mean": row, "variance": row}
