"""The row kernel variants that this CPU can run, as the library itself tells."""

from __future__ import annotations

import os

import onnxruntime

import custom_ort


def _runnable() -> list[str]:
    """Asks for a variant that does not exist: the refusal lists those that do."""
    before = os.environ.get("KVFUSE_ISA")
    os.environ["KVFUSE_ISA"] = "none"
    try:
        onnxruntime.SessionOptions().register_custom_ops_library(str(custom_ort.get_library_path()))
    except Exception as error:
        return str(error).rpartition("wanted ")[2].split(" | ")
    finally:
        os.environ.pop("KVFUSE_ISA")
        if before is not None:
            os.environ["KVFUSE_ISA"] = before
    raise AssertionError("KVFUSE_ISA=none was taken")


ISAS = _runnable()
