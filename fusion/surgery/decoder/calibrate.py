"""Scales for int8 caches, measured: the largest magnitude of every head and column over given inputs."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import onnx
import onnx_ir as ir

from fusion.facts.caches.growth import Growth
from fusion.model_io import to_proto
from fusion.runtime import open_model
from fusion.verification import Arrays, read_feeds
from ir_ops.dtypes import Array
from ir_ops.errors import BadInput

LARGEST = 127.0


@dataclass(frozen=True)
class Measured:
    """A growing cache on the given inputs.

    Attributes:
        scale: ``[N, D]`` float32: a cached number is ``round(x / scale)``.
        error: root mean square of what quantising changes, relative to the rows' own.
    """

    scale: Array
    error: float


def measure(
    model: ir.Model, growths: Sequence[Growth], inputs: Arrays, folder: Path | None = None
) -> dict[str, Measured]:
    """Runs the original model on the inputs and looks at the rows it would cache; keys are names of ``past`` inputs.

    Args:
        inputs: name -> array, or an npz file, plain or recorded (``CASE/in/NAME``), of the original's inputs.

    Raises:
        BadInput: the inputs do not fit the model, or rows are not finite.
        BadModel: onnxruntime does not take the model.
    """
    proto = to_proto(model)
    present = {value.name for value in proto.graph.output}
    for growth in growths:
        if growth.new.name not in present:
            proto.graph.output.append(onnx.ValueInfoProto(name=growth.new.name))
    runner = open_model(proto, kernels=False, folder=folder)
    rows: dict[str, list[Array]] = {str(growth.past.name): [] for growth in growths}
    for feed, _ in read_feeds(inputs):
        results = runner.run(runner.prepare(feed.inputs))
        for growth in growths:
            new = results[str(growth.new.name)].astype(np.float64)  # [B, N, S, D]
            rows[str(growth.past.name)].append(new.transpose(0, 2, 1, 3).reshape(-1, new.shape[1], new.shape[3]))
    return {name: _measured(name, np.concatenate(parts)) for name, parts in rows.items()}


def _measured(name: str, rows: Array) -> Measured:
    largest = np.abs(rows).max(axis=0)
    if not np.isfinite(largest).all():
        raise BadInput("rows to be cached are not finite on these inputs", where=name, found="inf or NaN")
    scale = np.where(largest > 0, largest / LARGEST, 1.0).astype(np.float32)
    kept = np.clip(np.rint(rows / scale), -128, 127) * scale
    size = float(np.sqrt((rows**2).mean()))
    return Measured(scale, float(np.sqrt(((kept - rows) ** 2).mean())) / size if size else 0.0)
