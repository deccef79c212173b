"""Small graphs around one building block, and what they should compute."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import onnx

import fusion
from fusion import FusionResult
from ir_ops.onnx_reference import reference_ops
from tests.fusion.zoo.graph import NUMPY, Array, Graph
from tests.fusion.zoo.run import run

TOLERANCE = {"float32": 2e-5, "float16": 8e-3, "bfloat16": 8e-2}
"""Largest difference accepted, relative to 1 + the magnitude."""


def model_of(
    build: Callable[[Graph], dict[str, str]],
    inputs: dict[str, Sequence[int | str | None]],
    *,
    opset: int = 18,
    dtype: str = "float32",
    style: str = "dynamo",
    kinds: dict[str, str] | None = None,
) -> onnx.ModelProto:
    """A graph with the given inputs; ``build`` gives output name -> value. ``kinds`` are types other than ``dtype``."""
    g = Graph(opset, dtype, style)
    known = kinds or {}
    for name, shape in inputs.items():
        g.input(name, known.get(name, dtype), list(shape))
    for name, value in build(g).items():
        g.outputs.append(onnx.helper.make_tensor_value_info(name, onnx.TensorProto.UNDEFINED, None))
        g.nodes.append(onnx.helper.make_node("Identity", [value], [name], name=f"out_{name}"))
        kind = known.get(name, dtype)
        g.outputs[-1].CopyFrom(onnx.helper.make_tensor_value_info(name, onnx_type(kind), None))
    return g.model("block")


def onnx_type(kind: str) -> int:
    return int(onnx.helper.np_dtype_to_tensor_dtype(np.dtype(NUMPY[kind])))


def random(shape: Sequence[int], dtype: str = "float32", seed: int = 0) -> Array:
    return np.random.default_rng(seed).standard_normal(tuple(shape)).astype(NUMPY[dtype])


def counts(result: FusionResult) -> dict[str, int]:
    """Operator -> number of sites."""
    return {op: result.count(op) for op in dict.fromkeys(site.op for site in result.sites)}


def close(got: Array, wanted: Array, dtype: str = "float32") -> None:
    assert got.shape == wanted.shape, (got.shape, wanted.shape)
    if got.dtype == np.int8:
        steps = np.abs(got.astype(int) - wanted.astype(int))
        assert steps.max(initial=0) <= 1 and (steps > 0).mean() <= 0.06, steps.max(initial=0)
        return
    a, b = got.astype(np.float64), wanted.astype(np.float64)
    np.testing.assert_array_less(np.abs(a - b), TOLERANCE[dtype] * (1 + np.abs(b)))


def check(
    model: onnx.ModelProto, feeds: dict[str, Array], wanted: dict[str, int], dtype: str = "float32", **how: Any
) -> FusionResult:
    """Fuses: exactly the ``wanted`` operators, the results stay, with kernels and with bodies; once is enough."""
    original = _run(model, feeds, dtype)
    result = fusion.fuse(model, **how)
    assert counts(result) == wanted, [refusal.to_json() for refusal in result.refusals]
    fused = _run(result.model, feeds, dtype)
    for name, value in original.items():
        close(fused[name], value, dtype)
    again = fusion.fuse(result.model, **how)
    assert not again.sites, counts(again)
    if dtype != "bfloat16":
        plain = _run(fusion.defuse(result.model).model, feeds, dtype)
        for name, value in original.items():
            close(plain[name], value, dtype)
    return result


def _run(model: onnx.ModelProto, feeds: dict[str, Array], dtype: str) -> dict[str, Array]:
    if dtype != "bfloat16":
        return run(model, feeds, dtype)
    bare = onnx.ModelProto()
    bare.CopyFrom(model)
    del bare.functions[:]
    session = onnx.reference.ReferenceEvaluator(bare, new_ops=reference_ops())
    return dict(zip([entry.name for entry in model.graph.output], session.run(None, feeds), strict=True))


def codes(result: FusionResult, op: str) -> set[str]:
    """Codes of an operator's refusals."""
    return {refusal.code for refusal in result.refusals if refusal.rule == op}
