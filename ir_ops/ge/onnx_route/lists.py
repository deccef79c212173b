"""Inputs that are lists of tensors in GE. The declarations have one tensor there."""

from __future__ import annotations

from ir_ops.declaration import Operator
from ir_ops.ge.prototypes import find


def list_slots(operator: Operator) -> dict[str, int]:
    """Name -> position of every input that is a list in GE's prototype."""
    prototype = find(operator.name)
    names = prototype.dynamic_inputs if prototype is not None else ()
    return {entry.name: i for i, entry in enumerate(operator.inputs) if entry.name in names}
