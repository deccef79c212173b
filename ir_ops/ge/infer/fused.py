"""Output types of the `ai.ascend` operators, from their declarations."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TypeVar

from ir_ops.declaration import TensorSpec
from ir_ops.dtypes import by_name
from ir_ops.errors import BadInput
from ir_ops.ge.infer.call import OpCall, Rule, infers
from ir_ops.ge.model import TensorType
from ir_ops.ops import OPS

T = TypeVar("T")


def to_spec(tensor: TensorType) -> TensorSpec:
    """A GE type as the declarations state it: unknown dims None instead of -1."""
    assert tensor.dtype is not None
    if tensor.shape is None:
        return TensorSpec(tensor.dtype.name, None)
    return TensorSpec(tensor.dtype.name, tuple(None if dim < 0 else dim for dim in tensor.shape))


def from_spec(spec: TensorSpec) -> TensorType:
    """The inverse of :func:`to_spec`."""
    shape = None if spec.shape is None else tuple(-1 if dim is None else dim for dim in spec.shape)
    return TensorType(by_name(spec.dtype), shape)


def declared_attrs(op_type: str, attrs: dict[str, object]) -> dict[str, object]:
    """The attributes among ``attrs`` that the declaration has, absent ones left out."""
    names = {attr.name for attr in OPS[op_type].attrs}
    return {name: value for name, value in attrs.items() if name in names and value is not None}


def single(tensors: Sequence[T], error: Callable[..., BadInput], name: str) -> T:
    """The one tensor of a list input: the declarations know no lists."""
    if len(tensors) != 1:
        raise error(f"{name} is a list of tensors", str(len(tensors)), "one tensor")
    return tensors[0]


def _declared(call: OpCall) -> dict[str, TensorType]:
    operator = OPS[call.op_type]
    lists = {name: single(tensors, call.error, name) for name, tensors in call.dynamic.items()}
    specs = {name: to_spec(tensor) for name, tensor in {**call.inputs, **lists}.items()}
    attrs = declared_attrs(call.op_type, dict(call.attrs))
    errors = [found for found in operator.check(specs, attrs) if found.severity == "error"]
    if errors:
        raise call.error(str(errors[0]))
    return {name: from_spec(spec) for name, spec in operator.infer(specs, attrs).items()}


_rule: Rule = _declared
infers(*OPS)(_rule)


@infers("RotaryMul")
def rotary_mul(call: OpCall) -> TensorType:
    return TensorType(call.dtype("x"), call.shape("x"))
