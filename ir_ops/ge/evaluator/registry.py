"""What an evaluator function sees of a GE node, and how it registers."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from ir_ops.dtypes import Array, DType, by_ge_attr, by_numpy
from ir_ops.errors import BadInput
from ir_ops.ge.model import Node
from ir_ops.ge.prototypes import Prototype


@dataclass
class EvalCall:
    """One node with its input arrays."""

    node: Node
    prototype: Prototype
    inputs: Mapping[str, Array]
    dynamic: Mapping[str, Sequence[Array]]
    folder: Path | None = None

    def x(self, name: str) -> Array:
        """A required input."""
        return self.inputs[name]

    def get(self, name: str) -> Array | None:
        """An optional input, None when absent."""
        return self.inputs.get(name)

    def attr(self, name: str) -> Any:
        """An attribute, its prototype's default where it is not written."""
        return self.node.value(name)

    def dtype_attr(self, name: str) -> np.dtype[Any]:
        """An attribute that holds an element type, as numpy knows it."""
        value = self.attr(name)
        row: DType = value if isinstance(value, DType) else by_ge_attr(int(value))
        if row.np is None:
            raise self.error("numpy has no such element type", row.name)
        return row.np

    def ints(self, name: str) -> list[int]:
        """An integer input as a flat list."""
        return [int(item) for item in self.x(name).reshape(-1)]

    def error(self, what: str, found: str = "", wanted: str = "") -> BadInput:
        return BadInput(what, where=f"{self.node.name} ({self.node.type})", found=found, wanted=wanted)


Result = Array | Sequence[Array] | Mapping[str, Array]
Evaluate = Callable[[EvalCall], Result]
_EVALUATORS: dict[str, Evaluate] = {}


def evaluates(*op_types: str) -> Callable[[Evaluate], Evaluate]:
    """Registers the meaning of GE operators."""

    def register(function: Evaluate) -> Evaluate:
        for op_type in op_types:
            assert op_type not in _EVALUATORS, op_type
            _EVALUATORS[op_type] = function
        return function

    return register


def evaluators() -> Mapping[str, Evaluate]:
    return _EVALUATORS


def wide(x: Array) -> Array:
    """Half-precision and 8-bit floats as float32, in which the operators compute; everything else as it is."""
    row = by_numpy(x.dtype)
    return x.astype(np.float32) if row.is_float and row.bits < 32 else x


def narrow(y: Array, dtype: np.dtype[Any]) -> Array:
    """A float32 result rounded once to the operator's type."""
    return np.asarray(y).astype(dtype)
