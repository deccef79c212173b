"""Finding the custom-op library and telling ONNX Runtime about it."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Any

import custom_ort
from ir_ops.errors import KvfuseError

LIBRARY_VARIABLE = "KVFUSE_LIBRARY"
"""Environment variable: another library file to load, a sanitised build for example."""
OLDEST_RUNTIME = (1, 20)
"""The oldest ONNX Runtime whose Python side can make bfloat16 and float8 values."""

_NAMES = {"win32": "kvfuse_ort.dll", "darwin": "libkvfuse_ort.dylib"}
_REGISTERED = "kvfuse.registered"


def get_library_path() -> Path:
    """The custom-op library, for ``SessionOptions.register_custom_ops_library``.

    Looks at the environment variable ``KVFUSE_LIBRARY`` first, then in all folders of the package (an editable install
    keeps its Python files and its built library in two).

    Raises:
        KvfuseError: there is no such file.
    """
    override = os.environ.get(LIBRARY_VARIABLE)
    if override:
        if not Path(override).is_file():
            raise KvfuseError(f"{LIBRARY_VARIABLE} names no file", found=override)
        return Path(override).absolute()
    name = _NAMES.get(sys.platform, "libkvfuse_ort.so")
    for folder in custom_ort.__path__:
        if (path := Path(folder) / name).is_file():
            return path
    raise KvfuseError(
        "the custom-op library is not built",
        found=f"no {name} in {', '.join(custom_ort.__path__)}",
        hint="install kvfuse with: pip install .",
    )


def runtime() -> Any:
    """The onnxruntime module.

    Raises:
        KvfuseError: it is not installed, or older than :data:`OLDEST_RUNTIME`.
    """
    wanted = ".".join(map(str, OLDEST_RUNTIME)) + " or newer"
    try:
        import onnxruntime
    except ImportError as error:
        raise KvfuseError("onnxruntime cannot be imported", found=str(error), wanted=wanted) from None
    version = tuple(int(part) for part in onnxruntime.__version__.split(".")[:2])
    if version < OLDEST_RUNTIME:
        raise KvfuseError("onnxruntime is too old", found=onnxruntime.__version__, wanted=wanted)
    return onnxruntime


def register(session_options: Any) -> None:
    """Makes the operators of domain ``ai.ascend`` known to sessions made with these ``SessionOptions``.

    A second call with the same options does nothing (ONNX Runtime itself would fail at session creation). The session
    keeps working when the options are gone.

    Raises:
        KvfuseError: the library is missing or does not load, or onnxruntime is too old.
    """
    runtime()
    path = get_library_path()
    try:
        session_options.get_session_config_entry(_REGISTERED)
    except RuntimeError:  # the options carry the mark themselves: an object's id may be used again
        pass
    else:
        return
    try:
        session_options.register_custom_ops_library(str(path))
    except Exception as error:  # onnxruntime's exception classes have no common base of their own
        raise KvfuseError("the custom-op library does not load", where=str(path), found=str(error)) from None
    session_options.add_session_config_entry(_REGISTERED, str(path))
