"""KvRmsNormRopeCache: what its reference computes and what it leaves alone."""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ir_ops.declaration import TensorSpec
from ir_ops.dtypes import Array, by_name
from ir_ops.errors import BadInput
from ir_ops.layout import nz_block
from ir_ops.ops import OPS
from tests.custom_ort.calls import Call, random_call
from tests.golden import GoldenCase, cases

OP = OPS["KvRmsNormRopeCache"]
GOLDEN = cases(OP.name)
EIGHT_BIT_FLOATS = {"float8_e4m3fn": 448.0, "float8_e5m2": 57344.0}

calls = st.integers(0, 2**32 - 1).map(lambda seed: random_call(np.random.default_rng(seed)))


def bits(array: Array) -> Array:
    return np.ascontiguousarray(array).view(np.uint8)


def one_row(kv: Any, width: int, *, cache: str = "float32", mode: str = "Norm", **scales: Any) -> dict[str, Array]:
    """A V1 call of one token: ``width`` normalised columns, the rest rotated by the identity into slot 0."""
    row = np.asarray(kv, np.float32)
    rope = row.size - width
    kind = by_name(cache).np
    inputs = {
        "kv": row.reshape(1, 1, 1, -1),
        "gamma": np.ones(width, np.float32),
        "cos": np.ones((1, 1, 1, rope), np.float32),
        "sin": np.zeros((1, 1, 1, rope), np.float32),
        "index": np.zeros((1, 1), np.int64),
        "k_cache": np.zeros((1, 1, 1, rope), kind),
        "ckv_cache": np.zeros((1, 1, 1, width), np.float32),
    }
    return inputs | {name: np.asarray(value, np.float32) for name, value in scales.items()}


@pytest.mark.parametrize("case", GOLDEN, ids=str)
def test_published_vectors(case: GoldenCase) -> None:
    case.check(OP.reference(case.inputs, case.attrs))


def test_all_29_published_vectors_are_here() -> None:
    assert len(GOLDEN) == 29


def test_rotation_by_hand() -> None:
    """Operator contract, section 7: pairs in, halves out."""
    inputs = one_row([5, 1, 2, 3, 4], 1)
    inputs["cos"] = np.array([0.5, 1, 0.5, 1], np.float32).reshape(1, 1, 1, 4)
    inputs["sin"] = np.array([1, 0, 1, 0], np.float32).reshape(1, 1, 1, 4)
    assert OP.reference(inputs, {})["k_cache"].ravel().tolist() == [-1.5, 3, 2, 4]
    inputs |= {"k_cache": np.zeros((1, 1, 1, 4), np.int8), "k_rope_scale": np.ones(4, np.float32)}
    assert OP.reference(inputs, {})["k_cache"].ravel().tolist() == [-2, 3, 2, 4]


def test_int8_saturates_and_takes_nan_for_zero() -> None:
    """Rounds half to even after scale and offset, then clamps; NaN is 0, infinities are the ends."""
    inputs = one_row([1, 300, -129.4, 0.5, 1.5, -2.5, np.nan, np.inf, -np.inf], 1, cache="int8", k_rope_scale=[1])
    inputs["sin"][:] = 0
    with np.errstate(invalid="ignore"):
        rotated = OP.reference(inputs, {"is_output_kv": True})["k_rope"].ravel()
    quantised = OP.reference(inputs, {})["k_cache"].ravel()
    expected = np.where(np.isnan(rotated), 0, np.clip(np.rint(rotated), -128, 127)).astype(np.int8)
    assert quantised.tolist() == expected.tolist()
    assert {127, -128, 0} <= set(quantised.tolist())


def test_scale_multiplies_then_offset_adds() -> None:
    inputs = one_row([1, 3, 5], 1, cache="int8", k_rope_scale=[2, 4], k_rope_offset=[0.5, -1])
    assert OP.reference(inputs, {})["k_cache"].ravel().tolist() == [6, 19]  # 6.5 half to even


def test_norm_divides_before_it_multiplies() -> None:
    """``x / sqrt(mean(x^2) + epsilon) * gamma`` in float32, each step rounded."""
    rng = np.random.default_rng(0)
    inputs = one_row(rng.standard_normal(34), 32)
    inputs["gamma"] = rng.standard_normal(32).astype(np.float32)
    x = inputs["kv"][..., :32]
    mean = (x * x).sum(axis=-1, keepdims=True, dtype=np.float32) * np.float32(1 / 32)
    expected = x / np.sqrt(mean + np.float32(1e-3)) * inputs["gamma"]
    assert np.array_equal(OP.reference(inputs, {"epsilon": 1e-3})["ckv_cache"], expected)


@pytest.mark.parametrize("name", EIGHT_BIT_FLOATS)
@pytest.mark.parametrize("cast", ["saturate", "nonsaturate", "integer"])
def test_float8_casts(name: str, cast: str) -> None:
    """A direct cast that saturates, one that does not, and the literal reading: integers of -128..127."""
    values = [0.3, 1.5, -2.5, 130.0, 1e6, -1e6]
    inputs = one_row([1, *values], 1, cache=name, k_rope_scale=[1])
    found = OP.reference(inputs, {"float8_cast": cast})["k_cache"].ravel()
    rotated = np.array([*values[0::2], *values[1::2]], np.float32)
    limit = EIGHT_BIT_FLOATS[name]
    wanted = {
        "saturate": np.clip(rotated, -limit, limit),
        "nonsaturate": rotated,
        "integer": np.clip(np.rint(rotated), -128, 127),
    }[cast].astype(by_name(name).np)
    assert np.array_equal(bits(found), bits(wanted))
    overflow = ~np.isfinite(found.astype(np.float32))
    assert overflow.any() == (cast == "nonsaturate")


def test_v_is_copied_bit_by_bit() -> None:
    """NaN payloads and signed zeros of v arrive in ckv_cache as they are."""
    v = np.array([0x7FC1, 0x8000, 0x0001, 0x3F80], np.uint16).view(ml_dtypes.bfloat16).reshape(1, 1, 1, 4)
    ones = np.ones((1, 1, 1, 2), v.dtype)
    inputs = {
        "kv": ones, "gamma": np.ones(2, v.dtype), "cos": ones, "sin": ones, "index": np.zeros((1, 1), np.int64),
        "k_cache": ones, "ckv_cache": np.zeros((1, 1, 1, 4), v.dtype), "v": v,
    }  # fmt: skip
    assert np.array_equal(bits(OP.reference(inputs, {})["ckv_cache"]), bits(inputs["v"]))


def test_block_index_names_the_page() -> None:
    """Operator contract, section 7: pages of 16, 20 tokens, index [32, 0]: tokens 0..15 in page 2, 16..19 in page 0."""
    kv = np.ones((1, 1, 20, 3), np.float32)
    kv[..., 1] = np.arange(20)
    inputs = {
        "kv": kv, "gamma": np.ones(1, np.float32), "cos": np.ones((1, 1, 1, 2), np.float32),
        "sin": np.zeros((1, 1, 1, 2), np.float32), "index": np.array([32, 0]),
        "k_cache": np.full((3, 16, 1, 2), -1, np.float32), "ckv_cache": np.full((3, 16, 1, 1), -1, np.float32),
    }  # fmt: skip
    cache = OP.reference(inputs, {"cache_mode": "PA_BLK_BNSD"})["k_cache"][..., 0, 0]
    assert cache[2].tolist() == list(range(16))
    assert cache[0].tolist() == [16, 17, 18, 19, *[-1] * 12]
    assert (cache[1] == -1).all()
    inputs["index"] = np.array([-1, 0])
    cache = OP.reference(inputs, {"cache_mode": "PA_BLK_BNSD"})["k_cache"][..., 0, 0]
    assert (cache[1:] == -1).all()


def test_both_names_of_the_page_mode_are_one_layout() -> None:
    call = random_call(np.random.default_rng(4), cache_mode="PA")
    one, other = (OP.reference(call.inputs, call.attrs | {"cache_mode": mode}) for mode in ("PA", "PA_BNSD"))
    for name in one:
        assert np.array_equal(bits(one[name]), bits(other[name]))


@settings(max_examples=200)
@given(calls)
def test_nothing_but_the_slots_changes(call: Call) -> None:
    """Inputs keep every byte; so does each cache outside the rows that the index names, addressed here by hand."""
    before = {name: bits(array).copy() for name, array in call.inputs.items()}
    results = OP.reference(call.inputs, call.attrs)
    for name, array in call.inputs.items():
        assert np.array_equal(bits(array), before[name]), f"{name} was written"
    for name in ("k_cache", "ckv_cache"):
        old, new = tokens_first(call, call.inputs[name]), tokens_first(call, results[name])
        touched = np.zeros(old.shape[:2], bool)
        for page, row in written(call):
            touched[page, row] = True
        assert np.array_equal(bits(old[~touched]), bits(new[~touched])), f"{name} changed elsewhere"


def tokens_first(call: Call, cache: Array) -> Array:
    """The cache as ``[pages, rows, ...]``."""
    order = call.mode.order
    if order == "NZ":
        pages, rows, heads, width = cache.shape
        d0 = nz_block(str(cache.dtype))
        return cache.reshape(pages, heads, width // d0, rows, d0).transpose(0, 3, 1, 2, 4)
    return cache.transpose(0, 2, 1, 3) if order == "BNSD" else cache


def written(call: Call) -> list[tuple[int, int]]:
    """Page and row of every token that is not skipped."""
    batch, _, tokens, _ = call.inputs["kv"].shape
    rows = call.inputs["k_cache"].shape[1 if call.mode.paged else 2]
    index = call.inputs["index"].reshape(batch, -1)
    places = []
    for b in range(batch):
        for s in range(tokens):
            slot = int(index[b, s // rows if call.mode.slot == "block" else s])
            if slot >= 0:
                place = (b, slot) if call.mode.slot == "row" else (slot // rows, slot % rows)
                places.append((place[0], s % rows) if call.mode.slot == "block" else place)
    return places


@settings(max_examples=100)
@given(calls)
def test_results_have_the_inferred_types_and_shapes(call: Call) -> None:
    specs = {name: TensorSpec(str(array.dtype), array.shape) for name, array in call.inputs.items()}
    inferred = OP.infer(specs, call.attrs)
    assert list(inferred) == [output.name for output in OP.outputs]
    for name, array in OP.reference(call.inputs, call.attrs).items():
        assert inferred[name] == TensorSpec(str(array.dtype), array.shape)


def test_skipped_tokens_are_still_delivered() -> None:
    call = random_call(np.random.default_rng(7), cache_mode="PA_NZ")
    call.attrs["is_output_kv"] = True
    delivered = OP.reference(call.inputs, call.attrs)
    call.inputs["index"][:] = -1
    skipped = OP.reference(call.inputs, call.attrs)
    for name in ("k_rope", "c_kv"):
        assert np.array_equal(bits(skipped[name]), bits(delivered[name]))
        assert np.array_equal(bits(skipped["k_cache"]), bits(call.inputs["k_cache"]))


def test_outputs_that_are_not_asked_for_are_zeros() -> None:
    call = random_call(np.random.default_rng(8))
    results = OP.reference(call.inputs, call.attrs | {"is_output_kv": False})
    assert not results["k_rope"].any()
    assert not results["c_kv"].any()


def test_breach_is_an_error_of_one_line() -> None:
    inputs = one_row([1, 2, 3], 1)
    inputs["index"][:] = 5
    with pytest.raises(BadInput) as caught:
        OP.reference(inputs, {})
    rule = "KV-19: an index is out of range or written twice"
    assert str(caught.value) == f"KvRmsNormRopeCache: {rule}; found index[0] = 5, wanted -1 (skip) to 0"
