"""Element types and shapes of GE operators' outputs, one function an operator, in files by family.

GE infers everything again when it compiles; these functions serve the builder (handles know their type), the
converter (ranks, static dims) and the validator. An unknown dim is -1, an unknown rank is shape None.
"""

from __future__ import annotations

import importlib
from functools import cache

from ir_ops.ge.infer.call import OpCall, Result, rules
from ir_ops.ge.model import TensorType

_FAMILIES = ("elementwise", "movement", "indexing", "reduction", "matmul", "fused")

__all__ = ["OpCall", "can_infer", "infer"]


@cache
def _load() -> None:
    for family in _FAMILIES:
        importlib.import_module(f"{__name__}.{family}")


def can_infer(op_type: str) -> bool:
    """Whether there is a rule for an operator type."""
    _load()
    return op_type in rules()


def infer(call: OpCall) -> dict[str, list[TensorType]]:
    """Output name -> its type (dynamic outputs: one for each).

    Raises:
        BadInput: inputs or attributes do not fit the operator.
        KeyError: there is no rule for the operator.
    """
    _load()
    result: Result = rules()[call.op_type](call)
    names = [port.name for port in call.prototype.outputs]
    if isinstance(result, TensorType):
        return {names[0]: [result]}
    if isinstance(result, list):
        return {names[0]: result}
    return {name: [result[name]] for name in names}
