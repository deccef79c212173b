"""The `ai.ascend` operators, through their reference."""

from __future__ import annotations

import numpy as np

from ir_ops.dtypes import Array
from ir_ops.ge.evaluator.registry import EvalCall, Evaluate, evaluates, narrow, wide
from ir_ops.ge.infer.fused import declared_attrs, single
from ir_ops.ops import OPS


def _declared(call: EvalCall) -> dict[str, Array]:
    """An operator's reference; outputs it leaves undefined in a mode are zeros here."""
    attrs = declared_attrs(call.node.type, {name: attr.value for name, attr in call.node.attrs.items()})
    lists = {name: single(arrays, call.error, name) for name, arrays in call.dynamic.items()}
    made = OPS[call.node.type].reference({**call.inputs, **lists}, attrs)
    for port in call.node.outputs:
        if port.name not in made and port.type.dtype is not None:
            made[port.name] = np.zeros([max(dim, 0) for dim in port.type.shape or ()], port.type.dtype.np)
    return made


_function: Evaluate = _declared
evaluates(*OPS)(_function)


def _rotated_half(x: Array) -> Array:
    first, second = np.split(x, 2, axis=-1)
    return np.concatenate([-second, first], axis=-1)


@evaluates("RotaryMul")
def rotary_mul(call: EvalCall) -> Array:
    """x * r1 + (rotated halves of x) * r2."""
    x = wide(call.x("x"))
    return narrow(x * wide(call.x("r1")) + _rotated_half(x) * wide(call.x("r2")), call.x("x").dtype)
