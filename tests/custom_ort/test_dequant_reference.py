"""DequantRopeQuantKvcache: the kernel computes what the declaration's reference computes, bit for bit."""

from __future__ import annotations

import numpy as np
import pytest

from ir_ops.ops import OPS
from tests.custom_ort import one_node
from tests.custom_ort.compare import assert_same_bits, differing
from tests.custom_ort.dequant_calls import NAME, random_call
from tests.custom_ort.effort import how_many
from tests.custom_ort.isa import ISAS


@pytest.mark.parametrize("isa", ISAS)
def test_random_calls(isa: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing here is summed, so every instruction set gives the reference's own bits."""
    monkeypatch.setenv("KVFUSE_ISA", isa)
    rng = np.random.default_rng(31 + ISAS.index(isa))
    for case in range(how_many(300) if isa == ISAS[-1] else how_many(60, share=0.1)):
        call = random_call(rng)
        expected = OPS[NAME].reference(call.inputs, call.attrs)
        assert_same_bits(one_node.run(NAME, call.inputs, call.attrs), expected, f"case {case} {call.attrs}")


@pytest.mark.parametrize("special", [np.inf, -np.inf, np.nan, 65504.0, 1e38, 0.0, 1e-42])
def test_special_values(special: float) -> None:
    """NaN, inf, overflow of fp16 and subnormals give NaN, inf and zero where the reference does."""
    rng = np.random.default_rng(5)
    for _ in range(30):
        call = random_call(rng)
        for name in ("x", "cos", "offset_k", "weight_scale", "activation_scale", "bias"):
            if name in call.inputs and call.inputs[name].dtype != np.int32:
                flat = call.inputs[name].reshape(-1)
                with np.errstate(over="ignore"):
                    flat[rng.integers(0, flat.size, 2)] = np.float32(special).astype(flat.dtype)
        expected = OPS[NAME].reference(call.inputs, call.attrs)
        found = one_node.run(NAME, call.inputs, call.attrs)
        for name, array in expected.items():
            assert differing(found[name], array, f"{special} {name} {call.attrs}") == 0 if array.size else True
