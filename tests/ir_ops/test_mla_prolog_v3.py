"""MlaPrologV3: what its reference computes, and its function body in standard operators."""

from __future__ import annotations

import itertools
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ir_ops.dtypes import Array
from ir_ops.errors import BadInput
from ir_ops.layout import MLA_CACHE_MODES, weight_from_nz, weight_to_nz
from ir_ops.numeric import NUMPY
from ir_ops.onnx_function import no_body_reason
from ir_ops.ops import OPS
from ir_ops.ops._mla_math import dynamic, mx_quantise, packed_rows
from tests.custom_ort import one_node
from tests.custom_ort.calls import Call
from tests.custom_ort.mla_calls import NAME, random_call, unpacked, without_fp8
from tests.custom_ort.mla_compare import assert_close
from tests.golden import GoldenCase, cases
from tests.ir_ops import standard

OP = OPS[NAME]
GOLDEN = cases(NAME)
SESSIONS = standard.Sessions()


@pytest.mark.parametrize("case", GOLDEN, ids=str)
def test_published_vectors(case: GoldenCase) -> None:
    case.check(OP.reference(case.inputs, case.attrs))


def test_all_24_published_vectors_are_here() -> None:
    assert len(GOLDEN) == 24


def test_dynamic_int8_by_hand() -> None:
    """Scale is the largest magnitude / 127, halves go to even, a zero row gives zeros and scale 0."""
    y = np.array([[127, -63.5, 0.5, 1.5], [0, 0, 0, 0]], np.float32)
    with np.errstate(invalid="ignore"):
        values, scale = dynamic(NUMPY, y, "int8")
    assert scale.ravel().tolist() == [1, 0]
    assert values.tolist() == [[127, -64, 0, 2], [0, 0, 0, 0]]


def test_mx_block_by_hand() -> None:
    """Largest 100: exponent floor(log2 100) - 8 = -2, code 125; 100 becomes 400, a tie that goes to 384."""
    block = np.zeros((1, 32), np.float32)
    block[0, :2] = 100, -0.5
    values, codes = mx_quantise(block, "uint8")
    assert codes.tolist() == [[125]]
    assert values[0, :2].astype(np.float32).tolist() == [384, -2]
    values, codes = mx_quantise(np.zeros((1, 32), np.float32), "float8_e8m0")
    assert (codes.view(np.uint8).tolist(), values.astype(np.float32).any()) == ([[0]], False)


@pytest.mark.parametrize(("alpha", "scale", "codes"), [(1.0, 0.02, [127, 50]), (0.5, 0.01, [127, 100])])
def test_packed_row_by_hand(alpha: float, scale: float, codes: list[int]) -> None:
    """512 values, 64 bfloat16 keys, 4 scales: 656 bytes; a tile is clipped at its share of the largest."""
    c = np.zeros((1, 512), np.float32)
    c[0, :2] = 2.54, 1.0
    k = np.arange(64, dtype=np.float32).reshape(1, 64)
    with np.errstate(invalid="ignore"):
        row = packed_rows(c, k, np.zeros(1, ml_dtypes.bfloat16), "int8", 128, np.array([alpha], np.float32))
    assert (row.shape, row.dtype) == ((1, 656), np.int8)
    assert row[0, :2].tolist() == codes
    assert np.array_equal(row[:, 512:640].copy().view(ml_dtypes.bfloat16).astype(np.float32), k)
    np.testing.assert_allclose(row[:, 640:].copy().view(np.float32), [[scale, 0, 0, 0]], rtol=1e-6)


def test_query_rope_shares_the_unit_of_the_quantised_query() -> None:
    """query_rope = rope * quant_scale_ckv / dequant_scale_q_nope; where that scale is 0 it is 0."""
    call = random_call(np.random.default_rng(2), weights=0, cache=1, plain="float32", query=1, mode="TND")
    plain = OP.reference(call.inputs, {**call.attrs, "query_quant_mode": 0})
    made = OP.reference(call.inputs, call.attrs)
    scale = made["dequant_scale_q_nope"]
    largest = np.abs(plain["query"].astype(np.float32)).max(axis=-1, keepdims=True)
    np.testing.assert_allclose(scale * (127 if made["query"].dtype == np.int8 else 448), largest, rtol=1e-6)
    ratio = call.inputs["quant_scale_ckv"].ravel()[0] / scale
    np.testing.assert_allclose(made["query_rope"], plain["query_rope"] * ratio, rtol=1e-6)
    call.inputs["weight_uk"][0] = 0
    zero = OP.reference(call.inputs, call.attrs)
    assert not zero["dequant_scale_q_nope"][:, 0].any()
    assert not zero["query"][:, 0].astype(np.float32).any()
    assert not zero["query_rope"][:, 0].any()
    assert np.isfinite(zero["query_rope"]).all()


def test_scale_corrections_multiply_the_normed_rows() -> None:
    call = random_call(np.random.default_rng(3), weights=0, cache=0, plain="float32", mode="TND")
    one = OP.reference(call.inputs, {**call.attrs, "qc_qr_scale": 1.0, "kc_scale": 1.0})
    two = OP.reference(call.inputs, {**call.attrs, "qc_qr_scale": 2.0, "kc_scale": 0.5})
    for name, factor in (("query", 2.0), ("query_rope", 2.0), ("kv_cache", 0.5), ("kr_cache", 1.0)):
        np.testing.assert_allclose(two[name], one[name] * np.float32(factor), rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("shape", [(0,), (0, 3), (2, 0)])
@pytest.mark.parametrize("weights", [0, 1, 2, 3, 4])
def test_no_tokens(shape: tuple[int, ...], weights: int) -> None:
    """Outputs without rows, caches as they were."""
    call = empty(shape, weights)
    assert OP.check(call.inputs, call.attrs) == []
    made = OP.reference(call.inputs, call.attrs)
    heads, _, kv = call.inputs["weight_uk"].shape
    assert made["query"].shape == (*shape, heads, kv)
    assert made["dequant_scale_q_nope"].shape == (0,)
    for name in ("kv_cache", "kr_cache"):
        assert made[name].tobytes() == call.inputs[name].tobytes()


def empty(shape: tuple[int, ...], weights: int) -> Call:
    call = random_call(np.random.default_rng(1), weights=weights, cache=0, plain="bfloat16", mode="PA_BSND")
    inputs = call.inputs
    for name in ("token_x", "rope_sin", "rope_cos"):
        inputs[name] = np.zeros((*shape, inputs[name].shape[-1]), inputs[name].dtype)
    inputs["cache_index"] = np.zeros(shape, np.int64)
    if "dequant_scale_x" in inputs:
        inputs["dequant_scale_x"] = inputs["dequant_scale_x"][:0]
    return call


@pytest.mark.parametrize("mode", [name for name, mode in MLA_CACHE_MODES.items() if mode.paged])
@pytest.mark.parametrize("axis", [0, 1])
def test_no_cache_rows(mode: str, axis: int) -> None:
    """query and query_rope are computed; the index is not looked at."""
    call = random_call(np.random.default_rng(4), weights=0, cache=0, mode=mode)
    expected = OP.reference(call.inputs, call.attrs)
    for name in ("kv_cache", "kr_cache"):
        shape = list(call.inputs[name].shape)
        shape[axis] = 0
        call.inputs[name] = np.zeros(shape, call.inputs[name].dtype)
    assert OP.check(call.inputs, call.attrs) == []
    made = OP.reference(call.inputs, call.attrs)
    assert np.array_equal(one_node.bits(made["query"]), one_node.bits(expected["query"]))
    assert made["kv_cache"].shape == call.inputs["kv_cache"].shape


def test_pages_are_numbers_of_blocks() -> None:
    """Page 2 for the first 16 tokens, page 0 for the next; token 17 is row 1 of page 0."""
    call = random_call(np.random.default_rng(5), weights=0, cache=0, plain="float32", mode="TND")
    inputs = dict(call.inputs)
    tokens = 20
    for name in ("token_x", "rope_sin", "rope_cos"):
        inputs[name] = np.resize(inputs[name], (1, tokens, inputs[name].shape[-1]))
    for name in ("kv_cache", "kr_cache"):
        inputs[name] = np.zeros((3, 16, 1, inputs[name].shape[-1]), np.float32)
    attrs = {**call.attrs, "cache_mode": "PA_BLK_BSND"}
    paged = OP.reference(inputs | {"cache_index": np.array([[2, 0]])}, attrs)["kv_cache"]
    slots = np.r_[32:48, 0:4].reshape(1, tokens)
    flat = OP.reference(inputs | {"cache_index": slots}, {**attrs, "cache_mode": "PA_BSND"})["kv_cache"]
    assert np.array_equal(paged, flat)
    assert paged[0, 1].any() and not paged[1].any()


@pytest.mark.parametrize(("dtype", "w0"), [(ml_dtypes.bfloat16, 16), (np.int8, 32)])
def test_weights_to_and_from_nz(dtype: type, w0: int) -> None:
    weight = np.arange(64 * 96).reshape(64, 96).astype(np.float32).astype(dtype)
    stored = weight_to_nz(weight)
    assert stored.shape == (96 // w0, 4, 16, w0)
    k, m = 17, 20
    assert stored.ravel()[((m // w0) * 4 + k // 16) * 16 * w0 + k % 16 * w0 + m % w0] == weight[k, m]
    assert np.array_equal(weight_from_nz(stored), weight)


@pytest.mark.parametrize("call", [lambda: weight_to_nz(np.zeros((15, 32), np.int8)),
                                  lambda: weight_from_nz(np.zeros((2, 4, 16, 16), np.int8))])  # fmt: skip
def test_weights_of_other_shapes(call: Any) -> None:
    with pytest.raises(BadInput, match="a weight (does not divide into|is not stored in) fractals"):
        call()


def spelled(case: GoldenCase) -> bool:
    return case.attrs["kv_cache_quant_mode"] != 3


@pytest.mark.parametrize("case", [case for case in GOLDEN if spelled(case)], ids=str)
def test_body_published_vectors(case: GoldenCase) -> None:
    case.check(SESSIONS.run(NAME, case.inputs, case.attrs))


def seeded(seed: int, **fixed: Any) -> Call:
    """The first random call of a seed that ONNX can spell."""
    rng = np.random.default_rng(seed)
    drawn = (random_call(rng, **fixed) for _ in itertools.count())
    return next(call for call in drawn if without_fp8(call) and call.attrs["kv_cache_quant_mode"] != 3)


@pytest.mark.parametrize("mode", MLA_CACHE_MODES)
@settings(max_examples=25)
@given(seed=st.integers(0, 2**32 - 1))
def test_body_random_calls(mode: str, seed: int) -> None:
    call = seeded(seed, mode=mode)
    assert_close(SESSIONS.run(NAME, call.inputs, call.attrs), OP.reference(call.inputs, call.attrs), call, f"{seed}")


@pytest.mark.parametrize("shape", [(0,), (0, 3), (2, 0)])
def test_body_without_tokens(shape: tuple[int, ...]) -> None:
    for weights in (0, 1, 2):
        call = empty(shape, weights)
        expected = OP.reference(call.inputs, call.attrs)
        for name, array in SESSIONS.run(NAME, call.inputs, call.attrs).items():
            assert array.shape == expected[name].shape
            assert array.tobytes() == expected[name].tobytes()


@pytest.mark.parametrize("opset", [11, 13, 14, 18, 20, 24])
def test_body_in_every_form_of_opset(opset: int) -> None:
    for weights, cache, mode in ((0, 0, "PA_BLK_NZ"), (1, 2, "PA_NZ"), (2, 1, "TND")):
        call = seeded(7, weights=weights, cache=cache, mode=mode, plain="float32", kv_type="int8")
        if cache == 0:
            call = seeded(7, weights=weights, cache=cache, mode=mode, plain="float32")
        found = SESSIONS.run(NAME, call.inputs, call.attrs, opset)
        assert_close(found, OP.reference(call.inputs, call.attrs), call, f"opset {opset} {mode}")


def test_configurations_without_a_body() -> None:
    packed = random_call(np.random.default_rng(1), cache=3, kv_type="int8", weights=0)
    specs = standard.specs_of(packed.inputs)
    assert no_body_reason(OP, specs, packed.attrs, 18).startswith("ONNX has no operator that packs")
    mx = random_call(np.random.default_rng(1), cache=0, weights=3)
    assert no_body_reason(OP, standard.specs_of(mx.inputs), mx.attrs, 18).startswith("ONNX has no arithmetic on")


def test_random_calls_are_legal_and_leave_their_inputs_alone() -> None:
    rng = np.random.default_rng(9)
    for _ in range(150):
        call = random_call(rng)
        assert OP.check(call.inputs, call.attrs) == []
        before = {name: array.tobytes() for name, array in call.inputs.items()}
        made = OP.reference(call.inputs, call.attrs)
        specs = standard.inferred(NAME, call.inputs, call.attrs)
        for name, array in made.items():
            assert (array.shape, str(array.dtype)) == (specs[name].shape, specs[name].dtype)
        assert all(call.inputs[name].tobytes() == data for name, data in before.items())


def test_untouched_rows_keep_their_bytes() -> None:
    call = random_call(np.random.default_rng(11), weights=0, cache=3, mode="PA_BSND", kv_type="int8", plain="bfloat16")
    made: Array = OP.reference(call.inputs, call.attrs)["kv_cache"]
    rows = made.reshape(-1, made.shape[-1])
    written = np.isin(np.arange(len(rows)), call.inputs["cache_index"])
    assert np.array_equal(rows[~written], call.inputs["kv_cache"].reshape(rows.shape)[~written])
    assert all(part.shape[-1] for part in unpacked(made, call))
