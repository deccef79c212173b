"""Runs a zoo model: ONNX Runtime with all optimisations off, or onnx's reference evaluator for bfloat16.

A fused model runs with the project's kernels; in the reference evaluator with the operator of ``zoo.operator``.
"""

from __future__ import annotations

import numpy as np
import onnx
import onnxruntime as ort
from onnx.reference import ReferenceEvaluator

import custom_ort
from tests.fusion.qkv.operator import QkvRmsNormRopeCache
from tests.fusion.zoo.graph import Array
from tests.fusion.zoo.operator import KvRmsNormRopeCache

TOLERANCE = {"float32": 2e-5, "float16": 6e-3, "bfloat16": 8e-2}
"""Largest absolute difference between a spelling and the definition; int8 may differ by one step."""


def run(
    model: onnx.ModelProto, feeds: dict[str, Array], dtype: str = "float32", *, optimised: bool = False
) -> dict[str, Array]:
    names = [entry.name for entry in model.graph.output]
    wanted = {entry.name for entry in model.graph.input}
    given = {name: value for name, value in feeds.items() if name in wanted}
    if dtype == "bfloat16":
        return evaluate(model, given)
    options = ort.SessionOptions()
    levels = ort.GraphOptimizationLevel
    options.graph_optimization_level = levels.ORT_ENABLE_ALL if optimised else levels.ORT_DISABLE_ALL
    options.intra_op_num_threads = 1
    options.log_severity_level = 4
    if any(entry.domain == "ai.ascend" for entry in model.opset_import):
        custom_ort.register(options)
    session = ort.InferenceSession(model.SerializeToString(), options, providers=["CPUExecutionProvider"])
    return dict(zip(names, session.run(names, given), strict=True))


def evaluate(model: onnx.ModelProto, feeds: dict[str, Array]) -> dict[str, Array]:
    """The model in onnx's reference evaluator; bodies that fused operators carry are not used."""
    bare = onnx.ModelProto()
    bare.CopyFrom(model)
    kept = [function for function in bare.functions if function.domain != "ai.ascend"]
    del bare.functions[:]
    bare.functions.extend(kept)
    results = ReferenceEvaluator(bare, new_ops=[KvRmsNormRopeCache, QkvRmsNormRopeCache]).run(None, feeds)
    return dict(zip([entry.name for entry in model.graph.output], results, strict=True))


def worst(got: dict[str, Array], wanted: dict[str, Array], dtype: str, steps: float = 1.0) -> str:
    """Empty when both agree within the tolerance (int8: within ``steps``), else what differs and by how much."""
    for name, value in wanted.items():
        if got[name].shape != value.shape:
            return f"{name}: shape {got[name].shape}, wanted {value.shape}"
        bound = steps if value.dtype == np.int8 else TOLERANCE[dtype]
        error = float(np.max(np.abs(got[name].astype(np.float64) - value.astype(np.float64))))
        if not error <= bound:
            return f"{name}: differs by {error:.3g}, bound {bound:.3g}"
    return ""
