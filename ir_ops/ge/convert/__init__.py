"""ONNX -> GE: one file a family of operators, a registry, and the engine that walks a graph."""

from __future__ import annotations

import importlib
from functools import cache

_FAMILIES = ("elementwise", "reduce", "shapes", "padding", "indexing", "matmul", "norm", "attention", "quant", "fused")


@cache
def load_families() -> None:
    """Registers all converters."""
    for family in _FAMILIES:
        importlib.import_module(f"{__name__}.{family}")
