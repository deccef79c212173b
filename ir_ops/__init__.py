"""What an operator is: declarations, checks, references, ONNX and GE faces."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from ir_ops.declaration import Operator, TensorSpec, Violation
    from ir_ops.onnx_schema import register_onnx_schemas
    from ir_ops.ops import OPS

__all__ = ["OPS", "Operator", "TensorSpec", "Violation", "register_onnx_schemas"]

_HOMES = {
    "OPS": "ir_ops.ops",
    "Operator": "ir_ops.declaration",
    "TensorSpec": "ir_ops.declaration",
    "Violation": "ir_ops.declaration",
    "register_onnx_schemas": "ir_ops.onnx_schema",
}


def __getattr__(name: str) -> Any:
    """Public names are loaded on first use, so that importing the package costs nothing."""
    import importlib

    if name in _HOMES:
        return getattr(importlib.import_module(_HOMES[name]), name)
    raise AttributeError(f"module 'ir_ops' has no attribute {name!r}")
