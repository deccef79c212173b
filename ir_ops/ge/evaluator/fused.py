"""Fused operators: the declared ones through their reference, small ones here until they are declared."""

from __future__ import annotations

import numpy as np

from ir_ops.dtypes import Array
from ir_ops.ge.evaluator.registry import EvalCall, Evaluate, evaluates, evaluators, narrow, wide
from ir_ops.ge.infer.fused import declared_attrs
from ir_ops.ops import OPS


def _declared(call: EvalCall) -> dict[str, Array]:
    """An operator's reference; outputs it leaves undefined in a mode are zeros here."""
    attrs = declared_attrs(call.node.type, {name: attr.value for name, attr in call.node.attrs.items()})
    made = OPS[call.node.type].reference(dict(call.inputs), attrs)
    for port in call.node.outputs:
        if port.name not in made and port.type.dtype is not None:
            made[port.name] = np.zeros([max(dim, 0) for dim in port.type.shape or ()], port.type.dtype.np)
    return made


for _name in OPS:
    if _name not in evaluators():
        _function: Evaluate = _declared
        evaluates(_name)(_function)


def _rotated_half(x: Array) -> Array:
    first, second = np.split(x, 2, axis=-1)
    return np.concatenate([-second, first], axis=-1)


def _rotated_pairs(x: Array) -> Array:
    return np.stack([-x[..., 1::2], x[..., 0::2]], axis=-1).reshape(x.shape)


def rotary_position_embedding(call: EvalCall) -> Array:
    """x * cos + rotate(x) * sin. Mode 0 turns the two halves, 1 neighbouring pairs."""
    modes = {0: _rotated_half, 1: _rotated_pairs}
    if call.attr("mode") not in modes or call.get("rotate") is not None:
        raise call.error("mode or rotate", str(call.attr("mode")), "mode 0 or 1")
    x = wide(call.x("x"))
    return narrow(x * wide(call.x("cos")) + modes[call.attr("mode")](x) * wide(call.x("sin")), call.x("x").dtype)


def rotary_mul(call: EvalCall) -> Array:
    """x * r1 + (rotated halves of x) * r2."""
    x = wide(call.x("x"))
    return narrow(x * wide(call.x("r1")) + _rotated_half(x) * wide(call.x("r2")), call.x("x").dtype)


def interleave_rope(call: EvalCall) -> Array:
    """Even columns, then odd ones, then the rotation of halves."""
    x = wide(call.x("x"))
    x = np.concatenate([x[..., 0::2], x[..., 1::2]], axis=-1)
    return narrow(x * wide(call.x("cos")) + _rotated_half(x) * wide(call.x("sin")), call.x("x").dtype)


def swi_glu(call: EvalCall) -> Array:
    """silu(first half) * second half."""
    a, b = np.split(wide(call.x("x")), 2, axis=int(call.attr("dim")))
    return narrow(a / (1 + np.exp(-a)) * b, call.x("x").dtype)


_SMALL: dict[str, Evaluate] = {
    "RotaryPositionEmbedding": rotary_position_embedding,
    "RotaryMul": rotary_mul,
    "InterleaveRope": interleave_rope,
    "SwiGlu": swi_glu,
}
for _name, _function in _SMALL.items():
    if _name not in OPS:
        evaluates(_name)(_function)
