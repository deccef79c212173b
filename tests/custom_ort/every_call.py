"""Random legal calls of every operator: the ``CALLS`` of all ``*calls.py`` beside this file."""

from __future__ import annotations

import importlib
from collections.abc import Callable, Iterable
from pathlib import Path

import numpy as np

from ir_ops.ops import OPS
from tests.custom_ort.calls import Call

Make = Callable[[np.random.Generator], Call]


def every_call() -> dict[str, Make]:
    """Operator -> generator of legal calls, in the order of their names."""
    found: dict[str, Make] = {}
    for path in Path(__file__).parent.glob("*calls.py"):
        found |= getattr(importlib.import_module(f"tests.custom_ort.{path.stem}"), "CALLS", {})
    return dict(sorted(found.items()))


def aliases(operator: str, inputs: Iterable[str]) -> dict[str, str]:
    """Input -> output of the pairs that share a buffer, for the inputs that are given."""
    given = set(inputs)
    return {entry.name: entry.onnx_name for entry in OPS[operator].outputs if entry.ref and entry.name in given}
