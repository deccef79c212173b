"""DequantRopeQuantKvcache: what its reference, its function body and its export to GE compute."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from onnx.reference import ReferenceEvaluator

from ir_ops.declaration import TensorSpec
from ir_ops.dtypes import Array, by_name
from ir_ops.ge import execute, export
from ir_ops.onnx_function import OPSETS, no_body_reason
from ir_ops.onnx_reference import reference_ops
from ir_ops.ops import OPS
from tests.custom_ort import one_node
from tests.custom_ort.dequant_calls import prefill, random_call
from tests.golden import COUNTS, GoldenCase, cases
from tests.ir_ops import standard

OP = OPS["DequantRopeQuantKvcache"]
GOLDEN = cases(OP.name)
SESSIONS = standard.Sessions()
seeds = st.integers(0, 2**32 - 1)


def one_head(row: Any, *, kind: str = "float32", **others: Any) -> dict[str, Array]:
    """One token of three heads (q, k, v) of four columns that hold ``row``, into row 0 of a cache of one row."""
    dtype = by_name(kind).np
    inputs = {
        "x": np.tile(np.asarray(row), 3).reshape(1, -1),
        "cos": np.array([[0.5, 1, 0.5, 1]], dtype),
        "sin": np.array([[1, 0, 1, 0]], dtype),
        "k_cache": np.zeros((1, 1, 1, 4), np.int8),
        "v_cache": np.zeros((1, 1, 1, 4), np.int8),
        "indices": np.zeros(1, np.int32),
        "scale_k": np.full((1, 4), 0.5, np.float32),
        "scale_v": np.ones((1, 4), np.float32),
    }
    inputs["x"] = inputs["x"].astype(np.int32 if "weight_scale" in others else dtype)
    return inputs | {name: np.asarray(value) for name, value in others.items()}


def run(inputs: dict[str, Array], **attrs: Any) -> dict[str, Array]:
    return OP.reference(inputs, {"size_splits": [4, 4, 4], "kv_output": True, **attrs})


def test_all_published_vectors_are_here() -> None:
    assert len(GOLDEN) == COUNTS[OP.name] == 15


@pytest.mark.parametrize("case", GOLDEN, ids=str)
def test_published_vectors(case: GoldenCase) -> None:
    """The reference, the function body in a stock runtime, and onnx.reference."""
    case.check(OP.reference(case.inputs, case.attrs))
    case.check(SESSIONS.run(case.operator, case.inputs, case.attrs))
    model = one_node.model(OP.name, one_node.types_of(case.inputs), case.attrs)
    results = ReferenceEvaluator(model, new_ops=reference_ops()).run(None, case.inputs)
    case.check({entry.name: array for entry, array in zip(OP.outputs, results, strict=True)})


def test_by_hand() -> None:
    """Operator contract, section 7: the rotation, and int8 by division."""
    found = run(one_head([1, 2, 3, 4]))
    assert found["q"].tolist() == found["k"].tolist() == [[[-2.5, 2, 2.5, 4]]]
    assert found["v"].tolist() == [[[1, 2, 3, 4]]]
    assert found["k_cache"].ravel().tolist() == [-5, 4, 5, 8]
    assert found["v_cache"].ravel().tolist() == [1, 2, 3, 4]


@pytest.mark.parametrize(
    ("bias", "expected"),
    [
        (np.full(12, 2, np.int32), 1.5),
        (np.full(12, 2, np.float32), 3.25),
        (np.full(12, 2, np.float16), 3.25),
        (None, 1.25),
        (np.full(12, 2**31 - 5, np.int32), float(np.float32(-(2**31) + 5)) / 8),
    ],
    ids=["int32", "float32", "float16", "none", "an int32 sum that wraps"],
)
def test_dequantisation_by_hand(bias: Array | None, expected: float) -> None:
    """Operator contract, section 7: x 10, weight_scale 0.5, activation_scale 0.25, bias 2."""
    scales = {"weight_scale": np.full(12, 0.5, np.float32), "activation_scale": np.full(1, 0.25, np.float32)}
    others = scales if bias is None else {**scales, "bias": bias}
    assert run(one_head([10] * 4, **others))["v"].ravel().tolist() == [expected] * 4


def test_rounding_points() -> None:
    """fp16 rotates a rounded row in fp16 and quantises that; v is quantised before it is rounded."""
    weight = np.full(12, 1.0 / 4096, np.float32)
    row = [2049 * 64, 0, 0, 0]  # 32.015625, which fp16 has as 32
    exact = one_head(row, kind="float32", weight_scale=weight, scale_v=np.full((1, 4), 1.0 / 16, np.float32))
    half = one_head(row, kind="float16", weight_scale=weight, scale_v=np.full((1, 4), 1.0 / 16, np.float32))
    for inputs in (exact, half):
        inputs["cos"][:], inputs["sin"][:] = 1, 0
        inputs["scale_k"][:] = inputs["scale_v"][:] = 2**-1
        inputs["offset_k"] = inputs["offset_v"] = np.full((1, 4), 0.47, np.float32)
    found = {name: run(inputs) for name, inputs in (("exact", exact), ("half", half))}
    assert found["half"]["k"].ravel()[0] == found["half"]["v"].ravel()[0] == 32
    assert found["exact"]["k_cache"].ravel()[0] == found["exact"]["v_cache"].ravel()[0] == 65  # 64.50125
    assert found["half"]["k_cache"].ravel()[0] == 64  # 64.47
    assert found["half"]["v_cache"].ravel()[0] == 65


def test_offsets_count_one_by_one() -> None:
    plain = run(one_head([1, 2, 3, 4]))
    shifted = run(one_head([1, 2, 3, 4], offset_v=np.full((1, 4), 10, np.float32)))
    assert np.array_equal(shifted["k_cache"], plain["k_cache"])
    assert np.array_equal(shifted["v_cache"], plain["v_cache"] + 10)


@settings(max_examples=100)
@given(seeds)
def test_results_have_the_inferred_types_and_shapes(seed: int) -> None:
    call = random_call(np.random.default_rng(seed))
    before = {name: one_node.bits(array).copy() for name, array in call.inputs.items()}
    inferred = OP.infer(standard.specs_of(call.inputs), call.attrs)
    assert list(inferred) == [output.name for output in OP.outputs]
    for name, array in OP.reference(call.inputs, call.attrs).items():
        assert inferred[name] == TensorSpec(str(array.dtype), array.shape)
    for name, array in call.inputs.items():
        assert np.array_equal(one_node.bits(array), before[name]), f"{name} was written"


@settings(max_examples=150)
@given(seeds)
def test_function_body(seed: int) -> None:
    """Standard operators in a stock runtime give the reference's results, fp16 rounding included."""
    call = random_call(np.random.default_rng(seed))
    found = standard.Sessions().run(OP.name, call.inputs, call.attrs)
    expected = OP.reference(call.inputs, call.attrs)
    assert standard.assert_equal(found, expected, f"seed {seed} {call.attrs}") == 0


@pytest.mark.parametrize("opset", OPSETS)
def test_every_opset(opset: int) -> None:
    for kind, mode, quantised in (
        ("float32", "page", False),
        ("bfloat16" if opset >= 13 else "float16", "contiguous", True),
    ):
        call = prefill(kind, mode, quantised=quantised, length=4)
        model = standard.carrying(OP.name, call.inputs, call.attrs, opset)
        standard.declare_shapes(model, OP.name, call.inputs, call.attrs)
        onnx.checker.check_model(model, full_check=True)
        found = SESSIONS.run(OP.name, call.inputs, call.attrs, opset)
        standard.assert_equal(found, OP.reference(call.inputs, call.attrs), f"opset {opset}")


def test_a_body_needs_the_rank_of_x() -> None:
    call = prefill("float16", "page", length=2)
    specs = standard.specs_of(call.inputs)
    assert no_body_reason(OP, specs, call.attrs, 18) == ""
    specs["x"] = TensorSpec("float16", None)
    assert no_body_reason(OP, specs, call.attrs, 18) == "the rank of x is not known"


@pytest.mark.parametrize("dynamic", [False, True], ids=["static", "dynamic"])
@pytest.mark.parametrize("case", GOLDEN, ids=str)
def test_export(case: GoldenCase, dynamic: bool) -> None:
    inputs = case.inputs
    dims = {
        name: [f"{name}_{axis}" if dynamic and axis < array.ndim - 1 else size for axis, size in enumerate(array.shape)]
        for name, array in inputs.items()
    }
    model = one_node.model(OP.name, one_node.types_of(inputs), case.attrs, shapes=dims)
    result = export(model, product="generic" if dynamic else "A2")
    assert result.model is not None
    case.check(one_node.results(dict(execute(result.model, inputs).outputs)))
    assert result.ops_after["TensorMove"] == 0


def test_attributes_are_exported() -> None:
    """The cache mode too, which an exporter of the device's own stack forgets."""
    call = prefill("float16", "page", length=2)
    shapes = {name: array.shape for name, array in call.inputs.items()}
    result = export(one_node.model(OP.name, one_node.types_of(call.inputs), call.attrs, shapes=shapes))
    assert result.model is not None
    node = next(node for node in result.model.root.nodes if node.type == OP.name)
    assert {name: node.attrs[name].value for name in call.attrs} == {
        "size_splits": (256, 128, 128), "kv_output": True, "cache_mode": "page",
    }  # fmt: skip
