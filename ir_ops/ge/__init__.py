"""GE IR: the graph format of Ascend's graph mode (``.air`` files), without anything from Ascend.

``GraphBuilder`` builds graphs by hand, ``export`` converts ONNX models, ``read``/``write`` are the files, ``validate``
checks them against everything that GE takes, ``run`` executes them in numpy and ``show`` makes readable text of them.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from ir_ops.ge.air import read, write
    from ir_ops.ge.builder import GraphBuilder
    from ir_ops.ge.evaluator import execute, run
    from ir_ops.ge.exporter import ExportResult, export
    from ir_ops.ge.model import Model
    from ir_ops.ge.text import show
    from ir_ops.ge.validator import Finding, validate

__all__ = [
    "ExportResult",
    "Finding",
    "GraphBuilder",
    "Model",
    "execute",
    "export",
    "read",
    "run",
    "show",
    "validate",
    "write",
]

_HOMES = {
    "ExportResult": "exporter",
    "Finding": "validator",
    "GraphBuilder": "builder",
    "Model": "model",
    "execute": "evaluator",
    "export": "exporter",
    "read": "air",
    "run": "evaluator",
    "show": "text",
    "validate": "validator",
    "write": "air",
}


def __getattr__(name: str) -> Any:
    """Public names are loaded on first use: importing the package costs nothing, protobuf included."""
    import importlib

    if name in _HOMES:
        return getattr(importlib.import_module(f"{__name__}.{_HOMES[name]}"), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
