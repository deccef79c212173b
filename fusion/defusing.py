"""``defuse``: a fused model back in standard operators."""

from __future__ import annotations

import os
import time

from fusion.engine import count_ops
from fusion.model_io import ModelLike, Weights, load, save
from fusion.result import FusionResult
from ir_ops.onnx_carry import inline_functions


def defuse(model: ModelLike, out: str | os.PathLike[str] | None = None, *, weights: Weights = "share") -> FusionResult:
    """Replaces fused operators by their bodies in standard ONNX operators.

    Args:
        model: a path, ``onnx.ModelProto`` or ``onnx_ir.Model``; it is not changed. It need not carry function bodies:
            they are made from the declarations.
        out: where to write the result; complete or not at all.
        weights: where external weights go when ``out`` is in another folder.

    Returns:
        The model without fused operators (an ``onnx_ir.Model`` for one, else a ``ModelProto``) and operator counts; a
        note for each node that has no body (ONNX has no arithmetic on float8) and stays.

    Raises:
        BadModel: the model cannot be read or is not valid.
    """
    started = time.perf_counter()
    loaded = load(model)
    before = count_ops(loaded.model)
    timings = {"load": time.perf_counter() - started}
    started = time.perf_counter()
    stayed = inline_functions(loaded.model)
    timings["rewrite"] = time.perf_counter() - started
    notes = [*loaded.notes, *(f"{node} stays fused: {reason}" for node, reason in stayed.items())]
    made = loaded.as_given()
    if out is not None:
        saved = save(loaded.model, out, folder=loaded.folder, weights=weights)
        made = made if loaded.kind == "ir" else saved.proto
        notes += saved.notes
    return FusionResult(
        model=made, timings=timings, ops_before=before, ops_after=count_ops(loaded.model), notes=tuple(notes)
    )
