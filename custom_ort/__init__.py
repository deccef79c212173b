"""Running fused models in ONNX Runtime on the CPU.

session = custom_ort.session("model.fused.onnx")
outputs = custom_ort.run(session, {"kv": kv, "k_cache": k_cache, ...})            # caches are copied
binding = custom_ort.bind(session, feeds, aliases={"k_cache": "k_cache_out"})     # caches are written in place
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from custom_ort.binding import Binding, bind
    from custom_ort.decode.session import DecodeSession
    from custom_ort.library import get_library_path, register
    from custom_ort.sessions import run, session
    from custom_ort.values import aligned_empty, from_ortvalue, to_ortvalue

__all__ = [
    "Binding",
    "DecodeSession",
    "aligned_empty",
    "bind",
    "from_ortvalue",
    "get_library_path",
    "register",
    "run",
    "session",
    "to_ortvalue",
]

_HOMES = {
    "Binding": "binding",
    "DecodeSession": "decode.session",
    "aligned_empty": "values",
    "bind": "binding",
    "from_ortvalue": "values",
    "get_library_path": "library",
    "register": "library",
    "run": "sessions",
    "session": "sessions",
    "to_ortvalue": "values",
}


def __getattr__(name: str) -> Any:
    """Public names are loaded on first use: importing the package does not import onnxruntime."""
    import importlib

    if name not in _HOMES:
        raise AttributeError(f"module 'custom_ort' has no attribute {name!r}")
    value = getattr(importlib.import_module(f"custom_ort.{_HOMES[name]}"), name)
    globals()[name] = value
    return value
