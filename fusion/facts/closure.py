"""The nodes between values."""

from __future__ import annotations

from collections.abc import Iterable

import onnx_ir as ir


def closure(outputs: Iterable[ir.Value], stops: set[int]) -> list[ir.Node]:
    """Nodes that compute ``outputs`` from the values whose ids are in ``stops``; a Shape is not followed further."""
    found: dict[int, ir.Node] = {}
    pending = [value for value in outputs if id(value) not in stops]
    while pending:
        node = pending.pop().producer()
        if node is None or id(node) in found:
            continue
        found[id(node)] = node
        if node.op_type in ("Shape", "Size"):
            continue
        pending.extend(item for item in node.inputs if item is not None and id(item) not in stops)
    return list(found.values())
