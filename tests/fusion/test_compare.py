"""Which differences between two results are rounding, and which are not."""

from __future__ import annotations

import ml_dtypes
import numpy as np
import pytest

from fusion.compare import compare
from fusion.result import Difference
from ir_ops.dtypes import Array


def judged(got: Array, want: Array) -> Difference:
    return compare("case", "y", got, want, "original")


def noise(dtype: str, units: float) -> tuple[Array, Array]:
    """Values, and values that many units in the last place away."""
    rng = np.random.default_rng(0)
    want = rng.standard_normal(1000)
    unit = float(ml_dtypes.finfo(dtype).eps)
    got = want * (1 + units * unit * rng.uniform(-1, 1, 1000))
    return got.astype(dtype), want.astype(dtype)


@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "float32", "float64"])
def test_a_few_units_in_the_last_place_are_rounding(dtype: str) -> None:
    np_dtype = np.dtype(getattr(ml_dtypes, dtype, dtype))
    assert judged(*noise(np_dtype, 4)).ok  # type: ignore[arg-type]


def test_two_sides_that_round_on_their_own_may_lie_twice_as_far_apart() -> None:
    want = np.ones((2, 8), np.float32)
    got = want + 12 * 2.0**-7 * 1.5
    assert not compare("case", "y", got, want, "original", kind="bfloat16").ok
    assert compare("case", "y", got, want, "original", kind="bfloat16", times=2.0).ok
    assert not compare("case", "y", want + 0.3, want, "original", kind="bfloat16", times=2.0).ok


@pytest.mark.parametrize("dtype", ["float16", "float32"])
def test_one_wrong_element_is_found_and_named(dtype: str) -> None:
    want = np.ones((2, 3, 4), dtype)
    got = want.copy()
    got[1, 0, 2] = 1.05
    result = judged(got, want)
    assert not result.ok
    assert result.first == (1, 0, 2)
    assert result.note == "first at [1, 0, 2]: 1.05, wanted 1" or result.note.startswith("first at [1, 0, 2]: 1.04")
    assert result.differing == pytest.approx(1 / 24)


def test_small_values_beside_large_ones_are_measured_by_the_tensor() -> None:
    want = np.asarray([100.0, 1e-6], np.float32)
    assert judged(want + np.asarray([0, 1e-4], np.float32), want).ok
    assert not judged(want + np.asarray([0, 0.1], np.float32), want).ok


@pytest.mark.parametrize(
    ("got", "want", "ok"),
    [
        ([np.nan, 1], [np.nan, 1], True),
        ([np.inf, 1], [np.inf, 1], True),
        ([-np.inf, 1], [np.inf, 1], False),
        ([1, 1], [np.nan, 1], False),
        ([np.nan, 1], [1, 1], False),
        ([np.nan], [np.nan], True),
    ],
)
def test_nan_and_infinity_stand_at_the_same_places(got: list[float], want: list[float], ok: bool) -> None:
    assert judged(np.asarray(got, np.float32), np.asarray(want, np.float32)).ok is ok


def test_one_quantisation_step_in_few_elements_is_rounding() -> None:
    want = np.zeros((8, 64), np.int8)
    got = want.copy()
    got[3, [5, 9, 11]] = 1
    assert judged(got, want).ok
    got[3, 12] = 2
    assert judged(got, want).note == "first at [3, 12]: 2, wanted 0"


def test_one_step_in_half_of_a_row_is_another_rounding_rule() -> None:
    """Truncation instead of rounding: every other element of the written rows, however large the cache."""
    want = np.zeros((1000, 64), np.int8)
    got = want.copy()
    got[7, ::2] = 1
    result = judged(got, want)
    assert not result.ok
    assert result.note.startswith("one step off in 50% of the touched rows, accepted 20%")


@pytest.mark.parametrize("name", ["float8_e4m3fn", "float8_e5m2"])
def test_float8_is_compared_in_its_own_steps(name: str) -> None:
    dtype = np.dtype(getattr(ml_dtypes, name))
    want = np.asarray([[1.0, -1.0, 0.5, 0.0] * 8], np.float32).astype(dtype)
    bits = want.view(np.uint8).copy()
    bits[0, 0] += 1
    bits[0, 1] += 1
    assert judged(bits.view(dtype), want).ok
    bits[0, 2] += 2
    assert judged(bits.view(dtype), want).first == (0, 2)


@pytest.mark.parametrize("dtype", [np.int64, np.int32, np.bool_, np.uint32])
def test_integers_and_booleans_are_equal_or_wrong(dtype: type) -> None:
    want = np.asarray([0, 1, 0, 1]).astype(dtype)
    assert judged(want.copy(), want).ok
    got = want.copy()
    got[2] = 1
    assert judged(got, want).first == (2,)


def test_shapes_types_and_strings() -> None:
    shape = judged(np.zeros((2, 3), np.float32), np.zeros((3, 2), np.float32))
    assert (shape.ok, shape.note) == (False, "shape [2, 3], wanted [3, 2]")
    assert judged(np.zeros((0, 4), np.float32), np.zeros((0, 4), np.float32)).ok
    assert judged(np.asarray(["a"], object), np.asarray(["a"], object)).ok
    assert not judged(np.asarray(["a"], object), np.asarray(["b"], object)).ok
    assert judged(np.asarray(2.5, np.float32), np.asarray(2.5, np.float32)).ok


def test_a_narrow_result_is_measured_by_its_own_precision() -> None:
    want = np.linspace(1, 2, 100, dtype=np.float32)
    assert judged(want.astype(ml_dtypes.bfloat16), want).ok
    assert not compare("c", "y", want * np.float32(1.01), want, "recorded").ok
    assert compare("c", "y", want * np.float32(1.01), want, "recorded", kind="bfloat16").ok
