"""The operators, one file each. A file that defines ``OPERATOR`` is an operator; nothing lists them by hand."""

from __future__ import annotations

import importlib
import pkgutil

from ir_ops.declaration import Operator

DOMAIN = "ai.ascend"
"""ONNX domain of all our operators."""
DOMAIN_VERSION = 1


def _discover() -> dict[str, Operator]:
    found: dict[str, Operator] = {}
    for module in sorted(info.name for info in pkgutil.iter_modules(__path__) if not info.name.startswith("_")):
        operator: Operator = importlib.import_module(f"{__name__}.{module}").OPERATOR
        found[operator.name] = operator
    return found


OPS: dict[str, Operator] = _discover()
"""GE operator name -> declaration."""
