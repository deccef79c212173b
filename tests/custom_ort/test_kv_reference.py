"""The kernel computes what the declaration's reference computes."""

from __future__ import annotations

from collections import Counter

import numpy as np
import pytest

from ir_ops.dtypes import by_numpy
from ir_ops.ops import OPS
from tests.custom_ort import one_node
from tests.custom_ort.calls import NAME, random_call
from tests.custom_ort.compare import differing
from tests.custom_ort.effort import how_many
from tests.custom_ort.isa import ISAS


@pytest.mark.parametrize("isa", ISAS)
def test_random_calls(isa: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Thousands of calls over all modes, types, quantisations, cache layouts and widths."""
    monkeypatch.setenv("KVFUSE_ISA", isa)
    rng = np.random.default_rng(2024 + ISAS.index(isa))
    sessions = one_node.Sessions()
    different, elements, seen = 0, 0, Counter[str]()
    for case in range(how_many(1000) if isa == ISAS[-1] else how_many(150, share=0.1)):
        call = random_call(rng)
        expected = OPS[NAME].reference(call.inputs, call.attrs)
        found = sessions.run(NAME, call.inputs, call.attrs)
        for name, array in expected.items():
            different += differing(found[name], array, f"case {case} {name} {call.attrs}")
            elements += array.size if array.dtype.itemsize == 1 else 0
        seen[call.attrs["cache_mode"]] += 1
    assert len(seen) == 6 or sum(seen.values()) < 100
    assert different <= 1e-4 * elements, f"{different} of {elements} 8-bit elements differ"


@pytest.mark.parametrize("special", [np.inf, -np.inf, np.nan, 1e38, 0.0, 1e-42])
@pytest.mark.parametrize("kind", ["float32", "float16", "bfloat16"])
def test_special_values(special: float, kind: str) -> None:
    """NaN, inf, overflowing squares and subnormals give NaN, inf and zero where the reference does."""
    rng = np.random.default_rng(5)
    for _ in range(40):
        call = random_call(rng)
        if by_numpy(call.inputs["kv"].dtype).name != kind:
            continue
        for name in ("kv", "cos", "v"):
            if name in call.inputs:
                flat = call.inputs[name].reshape(-1)
                with np.errstate(over="ignore"):
                    flat[rng.integers(0, flat.size, 2)] = np.float32(special).astype(flat.dtype)
        expected = OPS[NAME].reference(call.inputs, call.attrs)
        found = one_node.run(NAME, call.inputs, call.attrs)
        for name, array in expected.items():
            differing(found[name], array, f"{special} {kind} {name} {call.attrs}")


def test_all_zero_row_without_epsilon_is_nan() -> None:
    """0 / sqrt(0): the reference says NaN, and so does the kernel; an int8 cache takes NaN for 0."""
    rng = np.random.default_rng(6)
    call = random_call(rng, cache_mode="Norm", separate=False)
    call.inputs["kv"][:] = 0
    call.attrs["epsilon"] = 0.0
    expected = OPS[NAME].reference(call.inputs, call.attrs)
    found = one_node.run(NAME, call.inputs, call.attrs)
    for name, array in expected.items():
        differing(found[name], array, name)


def test_negative_zero_keeps_its_sign() -> None:
    kv = np.full((1, 1, 1, 18), -0.0, np.float32)
    inputs = {
        "kv": kv,
        "gamma": np.ones(16, np.float32),
        "cos": np.ones((1, 1, 1, 2), np.float32),
        "sin": np.zeros((1, 1, 1, 2), np.float32),
        "index": np.zeros((1, 1), np.int64),
        "k_cache": np.ones((1, 1, 1, 2), np.float32),
        "ckv_cache": np.ones((1, 1, 1, 16), np.float32),
    }
    for constants in ((), ("gamma",)):
        ckv = one_node.run(NAME, inputs, {}, constants=constants)["ckv_cache"]
        assert np.signbit(ckv).all()
