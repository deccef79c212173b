"""Where integers go that inputs hold: token ids, positions, and what is computed from them before it is a float."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

import onnx_ir as ir

from fusion.facts.graph import dtype_name, uses

SIZES = ("Shape", "Size")
"""Operators that look at dims only."""


def readers_of_integers(values: Iterable[ir.Value]) -> Iterator[tuple[ir.Node, int]]:
    """Readers, with the place, of these values and of all integers and booleans that follow from their content."""
    pending = list(values)
    seen = {id(value) for value in pending}
    while pending:
        for node, place in uses(pending.pop()):
            if node.op_type in SIZES:
                continue
            yield node, place
            for out in node.outputs:
                if dtype_name(out).startswith(("int", "uint", "bool")) and id(out) not in seen:
                    seen.add(id(out))
                    pending.append(out)
