"""QkvRmsNormRopeCache: the kernel computes what the declaration's reference computes."""

from __future__ import annotations

import numpy as np
import pytest

from ir_ops.dtypes import by_numpy
from ir_ops.ops import OPS
from tests.custom_ort import one_node
from tests.custom_ort.compare import differing
from tests.custom_ort.effort import how_many
from tests.custom_ort.isa import ISAS
from tests.custom_ort.qkv_calls import NAME, random_call


@pytest.mark.parametrize("isa", ISAS)
def test_random_calls(isa: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Calls over all types, quantisations, head counts, widths and page sizes."""
    monkeypatch.setenv("KVFUSE_ISA", isa)
    rng = np.random.default_rng(77 + ISAS.index(isa))
    different, elements = 0, 0
    for case in range(how_many(300) if isa == ISAS[-1] else how_many(60, share=0.1)):
        call = random_call(rng)
        expected = OPS[NAME].reference(call.inputs, call.attrs)
        found = one_node.run(NAME, call.inputs, call.attrs)
        for name, array in expected.items():
            different += differing(found[name], array, f"case {case} {name} {call.attrs}")
            elements += array.size if array.dtype.itemsize == 1 else 0
    assert different <= 1e-4 * elements, f"{different} of {elements} int8 elements differ"


@pytest.mark.parametrize("special", [np.inf, -np.inf, np.nan, 1e38, 0.0, 1e-42])
def test_special_values(special: float) -> None:
    """NaN, inf, overflowing squares and subnormals give NaN, inf and zero where the reference does."""
    rng = np.random.default_rng(5)
    seen = set()
    for _ in range(30):
        call = random_call(rng)
        seen.add(by_numpy(call.inputs["qkv"].dtype).name)
        for name in ("qkv", "cos", "k_offset"):
            if name in call.inputs:
                flat = call.inputs[name].reshape(-1)
                with np.errstate(over="ignore"):
                    flat[rng.integers(0, flat.size, 2)] = np.float32(special).astype(flat.dtype)
        expected = OPS[NAME].reference(call.inputs, call.attrs)
        found = one_node.run(NAME, call.inputs, call.attrs)
        for name, array in expected.items():
            differing(found[name], array, f"{special} {name} {call.attrs}")
    assert len(seen) == 3


def test_all_zero_row_without_epsilon_is_nan() -> None:
    """0 / sqrt(0): the reference says NaN, and so does the kernel; an int8 cache takes NaN for 0."""
    rng = np.random.default_rng(6)
    for _ in range(6):
        call = random_call(rng)
        call.inputs["qkv"][:] = 0
        call.attrs["epsilon"] = 0.0
        expected = OPS[NAME].reference(call.inputs, call.attrs)
        assert np.isnan(expected["q_out"].astype(np.float32)).all()
        found = one_node.run(NAME, call.inputs, call.attrs)
        for name, array in expected.items():
            differing(found[name], array, name)
