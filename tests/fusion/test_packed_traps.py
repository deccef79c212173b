"""Graphs that nearly are a DequantRopeQuantKvcache: none is fused to it, refusals say what was found and wanted."""

from __future__ import annotations

from functools import cache

import numpy as np
import onnx
import pytest

import fusion
from fusion import FusionResult
from tests.fusion.packed_traps import TRAPS
from tests.fusion.zoo.graph import Array
from tests.fusion.zoo.packed import Packed, expected, feeds
from tests.fusion.zoo.run import run, worst

OP = "DequantRopeQuantKvcache"


def trap_feeds(model: onnx.ModelProto, spec: Packed) -> dict[str, Array]:
    """The spec's feeds, and random values of the right kind for inputs of the trap's own."""
    rng = np.random.default_rng(3)
    batch, length = 2, 3
    given = feeds(spec, batch, length, seed=3)
    sizes = {"B": batch, "S": length, "T": batch * length, "C": batch + 1}
    for entry in model.graph.input:
        kind = entry.type.tensor_type
        wanted = onnx.helper.tensor_dtype_to_np_dtype(kind.elem_type)
        shape = [sizes.get(dim.dim_param, 9) if dim.dim_param else dim.dim_value for dim in kind.shape.dim]
        if entry.name not in given or list(given[entry.name].shape) != shape:
            low, high = (0, 4) if wanted == np.int64 else (0.1, 1.0)
            given[entry.name] = rng.uniform(low, high, shape)
        given[entry.name] = given[entry.name].astype(wanted)
    return given


@cache
def fused(name: str) -> tuple[onnx.ModelProto, FusionResult]:
    model = TRAPS[name].preamble(TRAPS[name].spec).model()
    return model, fusion.fuse(model)


def test_there_are_enough_traps() -> None:
    assert len(TRAPS) >= 40


@pytest.mark.parametrize("name", TRAPS)
def test_near_miss_is_not_fused(name: str) -> None:
    """Other operators may stand in it; whatever stands there computes the same."""
    model, result = fused(name)
    assert result.count(OP) == 0
    given = trap_feeds(model, TRAPS[name].spec)
    before = run(model, given, TRAPS[name].spec.dtype)
    assert worst(run(result.model, given, TRAPS[name].spec.dtype), before, TRAPS[name].spec.dtype) == ""


@pytest.mark.parametrize("name", TRAPS)
def test_refusal_says_what_was_found_and_what_was_wanted(name: str) -> None:
    _, result = fused(name)
    assert result.refusals
    for refusal in result.refusals:
        assert refusal.code and refusal.place and refusal.fact and refusal.found and refusal.wanted
    if TRAPS[name].code:
        assert TRAPS[name].code in [refusal.code for refusal in result.refusals]


RARELY = ("HalfUpForHalfEven", "SymmetricLimits", "ValuesNarrower")
"""Traps that differ at ties or at -128 only, or in shape."""


@pytest.mark.parametrize("name", [name for name, item in TRAPS.items() if not item.choices and name not in RARELY])
def test_trap_computes_something_else(name: str) -> None:
    model, _ = fused(name)
    given = trap_feeds(model, TRAPS[name].spec)
    got, wanted = run(model, given), expected(TRAPS[name].spec, given)
    shapes = all(got[key].shape == value.shape for key, value in wanted.items())
    seen = set(got) - set(wanted)
    assert seen or not shapes or worst(got, wanted, "float32", steps=0) != ""
