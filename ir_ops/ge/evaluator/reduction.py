"""Reductions, softmax, norms. Half-precision floats are accumulated in float32."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from ir_ops.dtypes import Array
from ir_ops.ge.evaluator.registry import EvalCall, evaluates, narrow, wide

_REDUCE: dict[str, Callable[..., Any]] = {
    "ReduceMean": np.mean, "ReduceSum": np.sum, "ReduceMax": np.max, "ReduceMin": np.min, "ReduceProd": np.prod,
    "ReduceAll": np.all, "ReduceAny": np.any,
}  # fmt: skip


@evaluates(*_REDUCE)
def reduce(call: EvalCall) -> Array:
    x, axes = call.x("x"), tuple(call.ints("axes"))
    return narrow(_REDUCE[call.node.type](wide(x), axis=axes, keepdims=bool(call.attr("keep_dims"))), x.dtype)


@evaluates("Cumsum")
def cumsum(call: EvalCall) -> Array:
    x, axis = call.x("x"), call.ints("axis")[0]
    values = np.flip(wide(x), axis) if call.attr("reverse") else wide(x)
    if call.attr("exclusive"):  # the sum of what is in front
        first = np.zeros_like(np.take(values, [0], axis=axis)) if values.shape[axis] else values
        values = np.concatenate([first, np.take(values, range(values.shape[axis] - 1), axis=axis)], axis=axis)
    total = np.cumsum(values, axis=axis, dtype=values.dtype)
    return narrow(np.flip(total, axis) if call.attr("reverse") else total, x.dtype)


def softmax(x: Array, axes: tuple[int, ...]) -> Array:
    """exp(x - max) / sum over ``axes``."""
    powers = np.exp(x - np.max(x, axis=axes, keepdims=True, initial=-np.inf))
    return np.asarray(powers / np.sum(powers, axis=axes, keepdims=True))


@evaluates("SoftmaxV2")
def softmax_v2(call: EvalCall) -> Array:
    x = call.x("x")
    y = softmax(wide(x), tuple(call.attr("axes")))
    return narrow(y, np.dtype(np.float32) if call.attr("half_to_float") else x.dtype)


@evaluates("LogSoftmaxV2")
def log_softmax(call: EvalCall) -> Array:
    x, axes = call.x("logits"), tuple(call.attr("axes"))
    lowered = wide(x) - np.max(wide(x), axis=axes, keepdims=True, initial=-np.inf)
    return narrow(lowered - np.log(np.sum(np.exp(lowered), axis=axes, keepdims=True)), x.dtype)


@evaluates("LayerNorm")
def layer_norm(call: EvalCall) -> dict[str, Array]:
    """Third output: the variance."""
    x = wide(call.x("x"))
    axes = tuple(range(int(call.attr("begin_norm_axis")) % x.ndim, x.ndim))
    mean = np.mean(x, axis=axes, keepdims=True)
    variance = np.mean(np.square(x - mean), axis=axes, keepdims=True)
    y = (x - mean) / np.sqrt(variance + np.float32(call.attr("epsilon"))) * wide(call.x("gamma")) + wide(call.x("beta"))
    return {
        name: narrow(value, call.x("x").dtype) for name, value in (("y", y), ("mean", mean), ("variance", variance))
    }
