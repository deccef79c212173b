"""What an inference rule sees, and shape arithmetic with unknown dims."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ir_ops.dtypes import DType, by_ge_attr, by_name
from ir_ops.errors import BadInput
from ir_ops.ge.model import Shape, TensorType
from ir_ops.ge.prototypes import Prototype

Known = NDArray[Any]
"""What is known of a small tensor's content: an array whose unknown elements are None (dtype object then)."""


@dataclass
class OpCall:
    """One use of an operator: input types and contents by GE input name, attributes with defaults filled in."""

    op_type: str
    prototype: Prototype
    inputs: Mapping[str, TensorType]
    dynamic: Mapping[str, Sequence[TensorType]] = field(default_factory=dict)
    attrs: Mapping[str, Any] = field(default_factory=dict)
    known: Mapping[str, Known] = field(default_factory=dict)
    where: str = ""

    def shape(self, name: str) -> Shape | None:
        return self.inputs[name].shape

    def dtype(self, name: str) -> DType:
        found = self.inputs[name].dtype
        if found is None:
            raise self.error(f"input {name} has no element type")
        return found

    def has(self, name: str) -> bool:
        return name in self.inputs

    def attr(self, name: str) -> Any:
        return self.attrs[name]

    def ints(self, name: str) -> list[int | None] | None:
        """The content of an integer input as a flat list with None for unknown elements; None when all unknown.

        An unknown content with a known length gives that many Nones.
        """
        if name in self.known:
            return [
                None if item is None else int(item) for item in np.asarray(self.known[name], dtype=object).reshape(-1)
            ]
        shape = self.shape(name)
        if shape is not None and len(shape) <= 1 and all(dim >= 0 for dim in shape):
            return [None] * (shape[0] if shape else 1)
        return None

    def scalar(self, name: str) -> int | None:
        """The content of a one-element integer input, None when unknown."""
        values = self.ints(name)
        return values[0] if values is not None and len(values) == 1 else None

    def axis(self, name: str, rank: int) -> int:
        """An Int attribute as a non-negative axis."""
        return self.norm_axis(int(self.attr(name)), rank)

    def norm_axis(self, axis: int, rank: int) -> int:
        if not -rank <= axis < max(rank, 1):
            raise self.error("an axis is out of range", str(axis), f"-{rank}..{rank - 1}")
        return axis % rank if rank else 0

    def error(self, what: str, found: str = "", wanted: str = "") -> BadInput:
        return BadInput(what, where=self.where or self.op_type, found=found, wanted=wanted)


Result = TensorType | list[TensorType] | dict[str, TensorType]
Rule = Callable[[OpCall], Result]
_RULES: dict[str, Rule] = {}


def infers(*op_types: str) -> Callable[[Rule], Rule]:
    """Registers an inference rule for operator types."""

    def register(rule: Rule) -> Rule:
        for op_type in op_types:
            assert op_type not in _RULES, op_type
            _RULES[op_type] = rule
        return rule

    return register


def rules() -> Mapping[str, Rule]:
    return _RULES


BOOL, INT32, INT64, FLOAT = by_name("bool"), by_name("int32"), by_name("int64"), by_name("float32")


def attr_dtype(call: OpCall, name: str) -> DType:
    """An Int attribute that holds an element type (GE C++ enum) or a Type attribute."""
    value = call.attr(name)
    if isinstance(value, DType):
        return value
    try:
        return by_ge_attr(value)
    except KeyError:
        raise call.error(f"attribute {name} is no element type", str(value), "a number of GE's C++ enum") from None


def merge_dim(call: OpCall, a: int, b: int) -> int:
    """One dim of a broadcast."""
    if a == b or b == 1:
        return a
    if a == 1:
        return b
    if a < 0 or b < 0:
        return max(a, b)
    raise call.error("shapes do not broadcast", f"{a} against {b}", "equal dims or 1")


def broadcast(call: OpCall, *shapes: Shape | None) -> Shape | None:
    """The numpy broadcast of shapes with unknown dims; None when a rank is unknown."""
    result: Shape = ()
    for shape in shapes:
        if shape is None:
            return None
        rank = max(len(result), len(shape))
        left = (1,) * (rank - len(result)) + result
        right = (1,) * (rank - len(shape)) + shape
        result = tuple(merge_dim(call, a, b) for a, b in zip(left, right, strict=True))
    return result


def dim_or_unknown(value: int | None) -> int:
    """A computed dim; what is not known or negative is -1."""
    return -1 if value is None or value < 0 else value
