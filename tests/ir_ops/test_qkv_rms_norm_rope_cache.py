"""QkvRmsNormRopeCache: what its reference, its function body and its export to GE compute."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from onnx.reference import ReferenceEvaluator

from ir_ops.declaration import TensorSpec
from ir_ops.dtypes import Array
from ir_ops.errors import ExportError
from ir_ops.ge import execute, export
from ir_ops.layout import address
from ir_ops.onnx_function import OPSETS
from ir_ops.onnx_reference import reference_ops
from ir_ops.ops import OPS
from tests.custom_ort import one_node
from tests.custom_ort.calls import Call
from tests.custom_ort.qkv_calls import prefill, random_call
from tests.golden import COUNTS, GoldenCase, cases
from tests.ir_ops import standard

OP = OPS["QkvRmsNormRopeCache"]
GOLDEN = cases(OP.name)
SESSIONS = standard.Sessions()
seeds = st.integers(0, 2**32 - 1)


def one_head(row: Any, *, cos: Any, sin: Any, cache: str = "float32", **scales: Any) -> dict[str, Array]:
    """One token of three heads (q, k, v) that hold ``row``, normalised by the identity, into slot 0."""
    x = np.asarray(row, np.float32)
    width, d0 = x.size, 32 if cache == "int8" else 8
    inputs = {
        "qkv": np.tile(x, 3).reshape(1, -1),
        "q_gamma": np.full(width, np.sqrt(np.mean(x * x)), np.float32),
        "k_gamma": np.full(width, np.sqrt(np.mean(x * x)), np.float32),
        "cos": np.asarray(cos, np.float32).reshape(1, -1),
        "sin": np.asarray(sin, np.float32).reshape(1, -1),
        "index": np.zeros(1, np.int64),
        "k_cache": np.zeros((1, width // d0, 1, d0), cache),
        "v_cache": np.zeros((1, width // d0, 1, d0), cache),
    }
    return inputs | {name: np.full((1, width), value, np.float32) for name, value in scales.items()}


def attrs_of(inputs: dict[str, Array]) -> dict[str, Any]:
    return {"qkv_size": [1, 1, 3, inputs["cos"].shape[1]], "head_nums": [1, 1, 1], "epsilon": 0.0}


def test_all_published_vectors_are_here() -> None:
    assert len(GOLDEN) == COUNTS[OP.name] == 16


@pytest.mark.parametrize("case", GOLDEN, ids=str)
def test_published_vectors(case: GoldenCase) -> None:
    """The reference, the function body in a stock runtime, and onnx.reference."""
    case.check(OP.reference(case.inputs, case.attrs))
    case.check(SESSIONS.run(case.operator, case.inputs, case.attrs))
    model = one_node.model(OP.name, one_node.types_of(case.inputs), case.attrs)
    results = ReferenceEvaluator(model, new_ops=reference_ops()).run(None, case.inputs)
    case.check({entry.name: array for entry, array in zip(OP.outputs, results, strict=True)})


def test_rotation_by_hand() -> None:
    """Operator contract, section 7: halves in, halves out; four times the four columns of the example."""
    row = np.repeat([1, 2, 3, 4], 2)
    inputs = one_head(row, cos=np.repeat([0.5, 1, 0.5, 1], 2), sin=np.repeat([1, 0, 1, 0], 2))
    result = OP.reference(inputs, attrs_of(inputs))
    expected = np.repeat([-2.5, 2, 2.5, 4], 2)
    np.testing.assert_allclose(result["q_out"][0], expected, rtol=1e-6)
    np.testing.assert_allclose(result["k_cache"].ravel(), expected, rtol=1e-6)
    assert np.array_equal(result["v_cache"].ravel(), row)


def test_quantisation_by_hand() -> None:
    """Divides, adds, rounds half to even, saturates; NaN is 0."""
    row = np.resize([1.25, 2.5, 1.75, -100, 0.25], 32)
    inputs = one_head(row, cos=np.ones(32), sin=np.zeros(32), cache="int8", k_scale=1, v_scale=0.5, v_offset=3)
    inputs["qkv"][0, 64] = np.nan
    found = OP.reference(inputs, attrs_of(inputs))["v_cache"].ravel()
    expected = np.resize([6, 8, 6, -128, 4], 32)  # 5.5, 8, 6.5, -197, 3.5
    expected[0] = 0
    assert np.array_equal(found, expected)


def test_address_by_hand() -> None:
    """Operator contract, section 7."""
    assert address("NZ", 1, 1, 1, 70, rows=32, heads=2, columns=128, d0=32) == 14374


@settings(max_examples=120)
@given(seeds)
def test_nothing_but_the_slots_changes(seed: int) -> None:
    """Inputs keep every byte, and so does each cache outside the rows that the index names."""
    call = random_call(np.random.default_rng(seed))
    before = {name: one_node.bits(array).copy() for name, array in call.inputs.items()}
    results = OP.reference(call.inputs, call.attrs)
    for name, array in call.inputs.items():
        assert np.array_equal(one_node.bits(array), before[name]), f"{name} was written"
    slots = call.inputs["index"][call.inputs["index"] >= 0]
    for name in ("k_cache", "v_cache"):
        old, new = (np.moveaxis(cache, 2, 1).copy() for cache in (call.inputs[name], results[name]))
        flat = [one_node.bits(cache).reshape(cache.shape[0] * cache.shape[1], -1) for cache in (old, new)]
        kept = np.setdiff1d(np.arange(flat[0].shape[0]), slots)
        assert np.array_equal(flat[0][kept], flat[1][kept])


@settings(max_examples=100)
@given(seeds)
def test_results_have_the_inferred_types_and_shapes(seed: int) -> None:
    call = random_call(np.random.default_rng(seed))
    inferred = OP.infer(standard.specs_of(call.inputs), call.attrs)
    assert list(inferred) == [output.name for output in OP.outputs]
    for name, array in OP.reference(call.inputs, call.attrs).items():
        assert inferred[name] == TensorSpec(str(array.dtype), array.shape)


def test_skipped_tokens_are_still_delivered() -> None:
    call = prefill("float16", "int8", 20)
    delivered = OP.reference(call.inputs, call.attrs)
    call.inputs["index"][:] = -1
    skipped = OP.reference(call.inputs, call.attrs)
    for name in ("q_out", "q_out_before_quant", "k_out_before_quant", "v_out_before_quant"):
        assert np.array_equal(skipped[name], delivered[name])
    assert np.array_equal(skipped["k_cache"], call.inputs["k_cache"])


@settings(max_examples=120)
@given(seeds)
def test_function_body(seed: int) -> None:
    """Standard operators in a stock runtime: all types, quantisations, -1 patterns, with and without q_out."""
    call = random_call(np.random.default_rng(seed))
    found = standard.Sessions().run(OP.name, call.inputs, call.attrs)
    expected = OP.reference(call.inputs, call.attrs)
    different = standard.assert_equal(found, expected, f"seed {seed} {call.attrs}")
    assert different <= max(1, 1e-2 * sum(array.size for array in expected.values()))


@pytest.mark.parametrize("opset", OPSETS)
def test_every_opset(opset: int) -> None:
    for kind, cache in (("float32", "float32"), ("bfloat16" if opset >= 13 else "float16", "int8")):
        call = prefill(kind, cache, 9)
        model = standard.carrying(OP.name, call.inputs, call.attrs, opset)
        standard.declare_shapes(model, OP.name, call.inputs, call.attrs)
        onnx.checker.check_model(model, full_check=True)
        found = SESSIONS.run(OP.name, call.inputs, call.attrs, opset)
        standard.assert_equal(found, OP.reference(call.inputs, call.attrs), f"opset {opset}")


def exported(call: Call, dynamic: bool, product: str = "generic") -> tuple[dict[str, Array], dict[str, int]]:
    """Results of the exported one-node model, caches included, and its operators."""
    dims = {
        name: [f"{name}_{axis}" if dynamic and axis != 1 else size for axis, size in enumerate(array.shape)]
        for name, array in call.inputs.items()
    }
    model = one_node.model(OP.name, one_node.types_of(call.inputs), call.attrs, shapes=dims)
    result = export(model, product=product)
    assert result.model is not None
    execution = execute(result.model, call.inputs)
    return one_node.results(dict(execution.outputs)), dict(result.ops_after)


@pytest.mark.parametrize("dynamic", [False, True], ids=["static", "dynamic"])
@pytest.mark.parametrize("buffer", [False, True], ids=["supplied", "given"])
@pytest.mark.parametrize("case", GOLDEN, ids=str)
def test_export(case: GoldenCase, buffer: bool, dynamic: bool) -> None:
    """GE requires q_out: where the ONNX node leaves it out, the exported graph makes the buffer."""
    inputs = case.inputs
    if not buffer:
        del inputs["q_out"]
    found, operators = exported(Call(inputs, case.attrs), dynamic)
    case.check(found)
    assert operators.get("Fill", 0) == (0 if buffer else 1)
    assert operators[OP.name] == 1


def test_open_sizes_are_filled_in_by_export() -> None:
    call = prefill("float16", "float16", 12)
    call.attrs["qkv_size"] = [-1, -1, 12, 128]
    found, _ = exported(call, dynamic=False, product="A2")
    standard.assert_equal(found, OP.reference(call.inputs, call.attrs), "export")
    with pytest.raises(ExportError, match="sizes in qkv_size that are not known before the run, nearest: give the"):
        exported(call, dynamic=True)
