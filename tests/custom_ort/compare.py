"""Comparing results: bit for bit, or a rounding step apart."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from ir_ops.dtypes import Array, by_numpy
from tests.custom_ort import one_node

# One rounding step of the type; what fp32 leaves open (order of the sum) shows in a few last bits.
STEP = {"float32": 2.0**-19, "float16": 2.0**-10, "bfloat16": 2.0**-7}


def ordered(array: Array) -> Array:
    """8-bit values as integers in numerical order, neighbours one apart (NaN in one place)."""
    if array.dtype.kind in "iu":
        return array.astype(np.int32)
    code = one_node.bits(array).astype(np.int32)
    signed = np.where(code & 0x80, -(code & 0x7F), code)
    return np.where(np.isnan(array.astype(np.float32)), 1000, signed)


def differing(found: Array, expected: Array, where: str) -> int:
    """Asserts that two results are a rounding step apart at most; counts the elements of 8 bits that differ.

    Wider integers must be equal.
    """
    assert (found.dtype, found.shape) == (expected.dtype, expected.shape), where
    if found.dtype.itemsize == 1:
        step = np.abs(ordered(found) - ordered(expected))
        assert step.max() <= 1, f"{where}: off by {step.max()} codes"
        return int(np.count_nonzero(step))
    if expected.dtype.kind in "iu":
        assert np.array_equal(found, expected), where
        return 0
    step = STEP[by_numpy(found.dtype).name]
    a, b = found.astype(np.float64), expected.astype(np.float64)
    assert np.array_equal(np.isnan(a), np.isnan(b)), where
    np.testing.assert_allclose(a, b, rtol=step, atol=4e-6, err_msg=where)
    return 0


def assert_same_bits(found: Mapping[str, Array], expected: Mapping[str, Array], where: str) -> None:
    assert found.keys() == expected.keys()
    for name, array in expected.items():
        assert np.array_equal(one_node.bits(found[name]), one_node.bits(array)), f"{where}: {name}"
