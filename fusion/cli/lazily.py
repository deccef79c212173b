"""Modules that others load and no command needs: they are loaded when somebody looks inside.

`onnx_ir` brings sympy for arithmetic on symbolic dims. Nothing here computes with these, and sympy takes longer to load
than a small model to explain.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from importlib.machinery import ModuleSpec, PathFinder
from importlib.util import LazyLoader
from types import ModuleType

POSTPONED = ("sympy", "onnx_ir._symbolic_shapes")
"""The second does nothing but look inside the first."""


class Postponing:
    """A finder for :data:`sys.meta_path`."""

    @staticmethod
    def find_spec(name: str, path: Sequence[str] | None = None, target: ModuleType | None = None) -> ModuleSpec | None:
        spec = PathFinder.find_spec(name, path, target) if name in POSTPONED else None
        if spec is not None and spec.loader is not None:
            spec.loader = LazyLoader(spec.loader)
        return spec


def postpone() -> None:
    """From now on these modules are loaded late. For processes that belong to one command."""
    if Postponing not in sys.meta_path:
        sys.meta_path.insert(0, Postponing)
