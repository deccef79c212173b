"""What a process that belongs to one command does without: it is short, and most of it would be starting up.

* The garbage collector, while it works and when it ends: what is garbage goes with the process. Python would look
  through all that is left of a large model once more before it exits.
* sympy, which `onnx_ir` brings for arithmetic on symbolic dims. Nothing here computes with these, and it takes longer
  to load than a small model to explain. It is loaded when somebody looks inside.
* Threads of numpy's matrix products: those of a proof are so small that handing them over costs more than it saves,
  ten times as much on a busy machine.
"""

from __future__ import annotations

import atexit
import gc
import os
import sys
from collections.abc import Sequence
from importlib.machinery import ModuleSpec, PathFinder
from importlib.util import LazyLoader
from types import ModuleType

POSTPONED = ("sympy", "onnx_ir._symbolic_shapes")
"""The second does nothing but look inside the first."""
_THREADS = ("OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS")


class Postponing:
    """A finder for :data:`sys.meta_path` by which modules are loaded late."""

    @staticmethod
    def find_spec(name: str, path: Sequence[str] | None = None, target: ModuleType | None = None) -> ModuleSpec | None:
        spec = PathFinder.find_spec(name, path, target) if name in POSTPONED else None
        if spec is not None and spec.loader is not None:
            spec.loader = LazyLoader(spec.loader)
        return spec


def prepare() -> None:
    """Sets the process up; before anything heavy is imported."""
    gc.disable()
    atexit.register(gc.freeze)
    sys.meta_path.insert(0, Postponing)
    for name in _THREADS:
        os.environ.setdefault(name, "1")
