"""The ``atc`` command line that compiles an exported file, and what has to be known before it runs."""

from __future__ import annotations

import shlex
from dataclasses import dataclass
from pathlib import Path

from ir_ops.ge.model import Model, inputs_of
from ir_ops.ge.products import EXAMPLE_SOC

LARGE = 2**30
"""Bytes of weights from which they should stay out of the compiled model."""


@dataclass(frozen=True)
class AtcCall:
    """How to compile a file.

    Attributes:
        command: the whole command line.
        remarks: what the user has to fill in or to provide.
    """

    command: str
    remarks: tuple[str, ...]


def atc_call(
    model: Model, path: Path, *, soc: str | None = None, product: str = "generic", weight_bytes: int = 0
) -> AtcCall:
    """The call for an ``.air`` file.

    Args:
        soc: the chip; without it the command has a placeholder.
        product: narrows the placeholder's example.
        weight_bytes: bytes of all weights, inside the file and beside it.
    """
    words = ["atc", "--mode=0", "--framework=1", f"--model={path}", f"--output={path.with_suffix('')}"]
    words.append(f"--soc_version={soc or '<soc>'}")
    remarks = [] if soc else [f"<soc>: the chip, e.g. {EXAMPLE_SOC.get(product, 'Ascend910B3')}"]
    return _finished(words, remarks, model, weight_bytes)


def onnx_call(model_path: Path, *, soc: str | None = None, product: str = "generic") -> AtcCall:
    """The call for an ONNX model with the parser plugin."""
    words = ["atc", "--mode=0", "--framework=5", f"--model={model_path}", f"--output={model_path.with_suffix('')}"]
    words += [f"--soc_version={soc or '<soc>'}", "--precision_mode_v2=origin"]
    remarks = [] if soc else [f"<soc>: the chip, e.g. {EXAMPLE_SOC.get(product, 'Ascend910B3')}"]
    return AtcCall(_joined(words), tuple(remarks))


def _finished(words: list[str], remarks: list[str], model: Model, weight_bytes: int) -> AtcCall:
    open_inputs = [entry for entry in inputs_of(model) if entry.type.shape is None or -1 in entry.type.shape]
    if open_inputs:
        shapes = ";".join(f"{entry.name}:{','.join(map(str, entry.type.shape or (-2,)))}" for entry in open_inputs)
        words.append(f"--input_shape={shapes}")
        remarks.append("--input_shape: write sizes or ranges (1~8) for -1; export with --input-shape folds more")
    # without this GE computes in float16 what the model says is float32
    words.append("--precision_mode_v2=origin")
    if weight_bytes >= LARGE:
        words.append("--external_weight=1")
        remarks.append(
            f"atc reads all weights into memory ({weight_bytes / 2**30:.0f} GiB); --external_weight=1 keeps them out "
            "of the .om, in weight/ beside it"
        )
    if any(node.type == "FileConstant" for node in model.root.nodes):
        remarks.append("the weight files must stay where they are: the .air refers to them by absolute path")
    elif any("location" in node.attrs for node in model.root.of_type("Const")):
        remarks.append("the folder of weights must stay beside the .air")
    if any(entry.is_ref for entry in inputs_of(model)):
        remarks.append("in-place inputs are RefData: pass the same device buffer at every step (see OUT.io.json)")
    return AtcCall(_joined(words), tuple(remarks))


def _joined(words: list[str]) -> str:
    return " ".join(word if "<soc>" in word else shlex.quote(word) for word in words)
