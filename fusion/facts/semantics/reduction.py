"""Reductions."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from fusion.facts.semantics.table import Attrs, Operands, Unsupported, axes_of, computing, is_stand_in
from ir_ops.dtypes import Array


def _axes(attrs: Attrs, operands: Operands) -> tuple[int, ...]:
    x, axes = operands[0], operands[1] if len(operands) > 1 else None
    assert x is not None
    chosen = axes_of(attrs, axes, x.ndim)
    if not chosen:
        return () if attrs.get("noop_with_empty_axes") else tuple(range(x.ndim))
    return tuple(chosen)


def _shape(attrs: Attrs, operands: Operands) -> list[tuple[int, ...]]:
    x, axes = operands[0], _axes(attrs, operands)
    assert x is not None
    if attrs.get("keepdims", 1) == 1:
        return [tuple(1 if axis in axes else size for axis, size in enumerate(x.shape))]
    return [tuple(size for axis, size in enumerate(x.shape) if axis not in axes)]


def _reduction(name: str, function: Callable[..., Any]) -> None:
    @computing(name, _shape, "reduce")
    def run(attrs: Attrs, *operands: Array) -> Any:
        x, axes = operands[0], _axes(attrs, operands)
        result = function(x, axis=axes, keepdims=attrs.get("keepdims", 1) == 1)
        return np.asarray(result).astype(x.dtype)


_REDUCTIONS: dict[str, Callable[..., Any]] = {
    "ReduceSum": np.sum, "ReduceMean": np.mean, "ReduceMax": np.max, "ReduceMin": np.min, "ReduceProd": np.prod,
    "ReduceSumSquare": lambda x, **kw: np.sum(x * x, **kw),
    "ReduceL2": lambda x, **kw: np.sqrt(np.sum(x * x, **kw)),
    "ReduceL1": lambda x, **kw: np.sum(np.abs(x), **kw),
}  # fmt: skip

for _name, _function in _REDUCTIONS.items():
    _reduction(_name, _function)


def _arg_shape(attrs: Attrs, operands: Operands) -> list[tuple[int, ...]]:
    return _shape({"axes": [attrs.get("axis", 0)], "keepdims": attrs.get("keepdims", 1)}, operands[:1])


@computing("ArgMax", _arg_shape)
def arg_max(attrs: Attrs, x: Array) -> Array:
    axis = int(attrs.get("axis", 0))
    best = np.argmax(x, axis=axis)
    return (np.expand_dims(best, axis) if attrs.get("keepdims", 1) == 1 else best).astype(np.int64)


def _top_shape(attrs: Attrs, operands: Operands) -> list[tuple[int, ...]]:
    x, count = operands[0], operands[1]
    assert x is not None
    if count is None or is_stand_in(count):
        raise Unsupported("TopK of an unknown number")
    axis = int(attrs.get("axis", -1)) % x.ndim
    shape = (*x.shape[:axis], int(count.reshape(-1)[0]), *x.shape[axis + 1 :])
    return [shape, shape]


@computing("TopK", _top_shape)
def top_k(attrs: Attrs, x: Array, count: Array) -> tuple[Array, Array]:
    axis, number = int(attrs.get("axis", -1)), int(count.reshape(-1)[0])
    if attrs.get("largest", 1):  # the first of equal numbers comes first
        order = x.shape[axis] - 1 - np.flip(np.argsort(np.flip(x, axis), axis, kind="stable"), axis)
    else:
        order = np.argsort(x, axis, kind="stable")
    chosen = order.take(range(min(number, x.shape[axis])), axis)
    return np.take_along_axis(x, chosen, axis), chosen.astype(np.int64)
