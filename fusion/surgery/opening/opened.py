"""What stands for an operator that was opened."""

from __future__ import annotations

from dataclasses import dataclass, field

import onnx_ir as ir


@dataclass(frozen=True)
class Opened:
    """The steps of one node.

    Attributes:
        results: a result of the node that somebody reads, and what stands for it.
        shapes: graph inputs with the dims that the operator wants of them.
    """

    results: list[tuple[ir.Value, ir.Value]]
    shapes: list[tuple[ir.Value, ir.Shape]] = field(default_factory=list)
