"""Function bodies: standard operators that compute what the reference computes, in ONNX Runtime without our library."""

from __future__ import annotations

import itertools

import numpy as np
import onnx
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ir_ops.declaration import TensorSpec
from ir_ops.dtypes import by_name, by_numpy
from ir_ops.errors import BadInput
from ir_ops.layout import KV_CACHE_MODES
from ir_ops.onnx_function import OPSETS, function_body, no_body_reason
from ir_ops.ops import OPS
from tests.custom_ort.calls import Call, random_call
from tests.golden import GoldenCase, cases
from tests.ir_ops import standard

OP = OPS["KvRmsNormRopeCache"]
SESSIONS = standard.Sessions()
GOLDEN = cases(OP.name)


def computable(call: Call) -> bool:
    return not any(by_name(str(array.dtype)).is_8bit_float for array in call.inputs.values())


def seeded(mode: str, separate: bool, seed: int) -> Call:
    """The first random call of a seed whose types ONNX can compute with."""
    rng = np.random.default_rng(seed)
    drawn = (random_call(rng, cache_mode=mode, separate=separate) for _ in itertools.count())
    return next(call for call in drawn if computable(call))


@pytest.mark.parametrize("case", GOLDEN, ids=str)
def test_published_vectors(case: GoldenCase) -> None:
    case.check(SESSIONS.run(case.operator, case.inputs, case.attrs))


@pytest.mark.parametrize("separate", [False, True], ids=["v1", "v2"])
@pytest.mark.parametrize("mode", KV_CACHE_MODES)
@settings(max_examples=30)
@given(seed=st.integers(0, 2**32 - 1))
def test_random_calls(mode: str, separate: bool, seed: int) -> None:
    """All types, quantisations, -1 patterns and sizes of one mode."""
    call = seeded(mode, separate, seed)
    expected = OP.reference(call.inputs, call.attrs)
    found = SESSIONS.run(OP.name, call.inputs, call.attrs)
    different = standard.assert_equal(found, expected, f"seed {seed} {call.attrs}")
    assert different <= max(1, 1e-2 * sum(array.size for array in expected.values()))


def _old_types(call: Call) -> bool:
    kinds = {by_numpy(array.dtype).name for array in call.inputs.values()}
    return call.inputs["kv"].dtype.itemsize == 4 and "bfloat16" not in kinds


@pytest.mark.parametrize("opset", OPSETS)
def test_every_opset(opset: int) -> None:
    """One plain, one quantised and one V2 call; the model passes the full check."""
    for mode, separate, seed in (("PA_BLK_NZ", False, 3), ("Norm", False, 4), ("PA", True, 5), ("PA_NZ", True, 6)):
        rng = np.random.default_rng(seed)
        drawn = (random_call(rng, cache_mode=mode, separate=separate) for _ in itertools.count())
        call = next(c for c in drawn if computable(c) and (opset >= 13 or _old_types(c)))
        model = standard.carrying(OP.name, call.inputs, call.attrs, opset)
        standard.declare_shapes(model, OP.name, call.inputs, call.attrs)
        onnx.checker.check_model(model, full_check=True)
        assert {(item.domain, item.version) for item in model.functions[0].opset_import} == {("", opset)}
        found = SESSIONS.run(OP.name, call.inputs, call.attrs, opset)
        standard.assert_equal(found, OP.reference(call.inputs, call.attrs), f"opset {opset} {mode}")


@pytest.mark.parametrize("special", [np.inf, -np.inf, np.nan, 1e38, 0.0])
def test_special_values(special: float) -> None:
    """NaN, infinities, overflowing squares and zero rows come out as in the reference; NaN is the int8 0."""
    for seed in range(6):
        call = seeded("PA_NZ", bool(seed % 2), seed)
        for name in ("kv", "cos"):
            flat = call.inputs[name].reshape(-1)
            with np.errstate(over="ignore"):
                flat[:: max(1, flat.size // 3)] = np.float32(special).astype(flat.dtype)
        expected = OP.reference(call.inputs, call.attrs)
        found = SESSIONS.run(OP.name, call.inputs, call.attrs)
        standard.assert_equal(found, expected, f"{special} seed {seed} {call.attrs}")


def test_no_token_is_valid() -> None:
    """Every index -1: the caches come back byte by byte, and their first row is not written by accident."""
    for mode in KV_CACHE_MODES:
        call = seeded(mode, False, 11)
        call.inputs["index"][:] = -1
        found = SESSIONS.run(OP.name, call.inputs, call.attrs)
        for name in ("k_cache", "ckv_cache"):
            assert found[name].tobytes() == call.inputs[name].tobytes()


def test_sizes_and_float_attributes_are_not_part_of_a_body() -> None:
    """Calls that differ in sizes, float types and epsilon have one body."""
    small = {
        "kv": TensorSpec("float16", (1, 1, 1, 24)), "gamma": TensorSpec("float16", (16,)),
        "cos": TensorSpec("float16", (1, 1, 1, 8)), "sin": TensorSpec("float16", (1, 1, 1, 8)),
        "index": TensorSpec("int64", (1, 1)), "k_cache": TensorSpec("float16", (1, 1, 4, 8)),
        "ckv_cache": TensorSpec("float16", (1, 1, 4, 16)),
    }  # fmt: skip
    unknown = {
        name: TensorSpec("int64" if name == "index" else "float32", (None,) * len(spec.shape or ()))
        for name, spec in small.items()
    }
    bodies = {
        function_body(OP, specs, {"epsilon": epsilon}, opset=18).SerializeToString(deterministic=True)
        for specs in (small, unknown)
        for epsilon in (1e-5, 1e-3)
    }
    assert len(bodies) == 1


def test_names_are_those_of_the_schema() -> None:
    """Formal inputs and outputs, attributes with their defaults, and a name for every node."""
    call = seeded("PA_NZ", False, 1)
    body = function_body(OP, standard.specs_of(call.inputs), call.attrs, opset=18, overload="2")
    assert (body.domain, body.name, body.overload) == ("ai.ascend", OP.name, "2")
    assert list(body.input) == [entry.name for entry in OP.inputs]
    assert list(body.output) == ["k_cache_out", "ckv_cache_out", "k_rope", "c_kv"]
    assert {proto.name for proto in body.attribute_proto} == {attr.name for attr in OP.attrs}
    assert len({node.name for node in body.node}) == len(body.node)
    assert {node.domain for node in body.node} == {""}
    assert "" not in {node.name for node in body.node}


def test_defaults_hold_where_a_node_has_no_attributes() -> None:
    call = seeded("Norm", False, 2)
    found = SESSIONS.run(OP.name, call.inputs, {})
    standard.assert_equal(found, OP.reference(call.inputs, {}), "defaults")


@pytest.mark.parametrize(
    ("change", "opset", "reason"),
    [
        ({}, 10, "opset 10, bodies exist for 11 to 24"),
        ({"k_cache": TensorSpec("float8_e5m2", (4, 16, 1, 32)), "k_rope_scale": TensorSpec("float32", (1,))}, 18,
         "ONNX has no arithmetic on k_cache float8_e5m2"),
        ({"k_cache": TensorSpec("float16", None)}, 18, "the rank of k_cache is not known"),
        ({"gamma": TensorSpec("", (64,))}, 18, "the element type of gamma is not known"),
        ({"gamma": TensorSpec("float16", (60,))}, 18, "KV-07"),
    ],
)  # fmt: skip
def test_configurations_without_a_body(change: dict[str, TensorSpec], opset: int, reason: str) -> None:
    specs = {
        "kv": TensorSpec("float16", (2, 1, 3, 96)), "gamma": TensorSpec("float16", (64,)),
        "cos": TensorSpec("float16", (2, 1, 3, 32)), "sin": TensorSpec("float16", (2, 1, 3, 32)),
        "index": TensorSpec("int64", (6,)), "k_cache": TensorSpec("float16", (4, 16, 1, 32)),
        "ckv_cache": TensorSpec("float16", (4, 16, 1, 64)),
    }  # fmt: skip
    attrs = {"cache_mode": "PA"}
    assert no_body_reason(OP, specs, attrs, 18) == ""
    assert no_body_reason(OP, specs | change, attrs, opset).startswith(reason)
    with pytest.raises(BadInput, match="KvRmsNormRopeCache: no function body; found "):
        function_body(OP, specs | change, attrs, opset=opset)


def test_bfloat16_needs_an_opset_that_casts_it() -> None:
    kinds = {"index": "int64"}
    specs = {
        name: TensorSpec(kinds.get(name, "bfloat16"), (None,) * rank)
        for name, rank in (
            ("kv", 4),
            ("gamma", 1),
            ("cos", 4),
            ("sin", 4),
            ("index", 2),
            ("k_cache", 4),
            ("ckv_cache", 4),
        )
    }
    assert no_body_reason(OP, specs, {}, 12) == "opset 12 casts no bfloat16, 13 does"
    assert no_body_reason(OP, specs, {}, 13) == ""
