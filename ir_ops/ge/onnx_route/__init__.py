"""The other way into Ascend's tools: ``atc --framework=5`` on an ONNX model, with a parser plugin for our domain.

:func:`plugin_files` gives the plugin's sources (Python for recent toolkits, C++ for all), :func:`ir_ops.ge.onnx_route.
model.lower` the model in an opset that ATC's parser knows. The ``.air`` route (``ir_ops.ge.export``) needs neither.
"""

from __future__ import annotations

from ir_ops.ge.onnx_route.cpp_plugin import cmake_text, cpp_text
from ir_ops.ge.onnx_route.python_plugin import python_text
from ir_ops.ge.prototypes import find
from ir_ops.ops import OPS

__all__ = ["plugin_files", "plugin_operators"]


def plugin_operators() -> tuple[str, ...]:
    """The declared operators that GE has: a plugin maps all of them."""
    return tuple(name for name in OPS if find(name) is not None)


def plugin_files() -> dict[str, str]:
    """Relative path -> text of the plugin's files, the same for every model."""
    operators = [OPS[name] for name in plugin_operators()]
    return {
        "python/kvfuse_onnx_plugin.py": python_text(operators),
        "cpp/kvfuse_onnx_plugin.cc": cpp_text(operators),
        "cpp/CMakeLists.txt": cmake_text(),
    }
