"""DequantRopeQuantKvcache: one call has one result, and it lies where the contract says."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import pytest

import custom_ort
from tests.custom_ort import one_node
from tests.custom_ort.compare import assert_same_bits
from tests.custom_ort.dequant_calls import ALIASES, MODES, NAME, prefill, random_call


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize(("kind", "quantised"), [("float32", False), ("bfloat16", True), ("float16", True)])
def test_same_bits_with_any_number_of_threads(kind: str, quantised: bool, mode: str) -> None:
    call = prefill(kind, mode, quantised=quantised)
    proto = one_node.model(NAME, one_node.types_of(call.inputs), call.attrs)
    single = custom_ort.run(one_node.session(proto, threads=1), call.inputs)
    for threads in (2, 3, 5):
        several = custom_ort.run(one_node.session(proto, threads=threads), call.inputs)
        assert_same_bits(several, single, f"{threads} threads")


@pytest.mark.parametrize("mode", MODES)
def test_in_place_equals_copied(mode: str) -> None:
    """What is bound as input and output gets the same rows as a copy, and the copied one's input is untouched."""
    rng = np.random.default_rng(11)
    for _ in range(15):
        call = random_call(rng, cache_mode=mode)
        session = one_node.session(one_node.model(NAME, one_node.types_of(call.inputs), call.attrs))
        before = {name: one_node.bits(call.inputs[name]).copy() for name in ALIASES}
        copied = custom_ort.run(session, call.inputs)
        for name, kept in before.items():
            assert np.array_equal(one_node.bits(call.inputs[name]), kept)
        bound = custom_ort.bind(session, call.inputs, ALIASES).run()
        assert_same_bits(bound, copied, str(call.attrs))
        for name, output in ALIASES.items():
            assert bound[output] is call.inputs[name]


def test_constant_parameters_give_the_same_bits() -> None:
    rng = np.random.default_rng(13)
    names = ("scale_k", "scale_v", "offset_k", "offset_v", "weight_scale", "bias")
    for _ in range(12):
        call = random_call(rng)
        constants = [name for name in names if name in call.inputs]
        fixed = one_node.run(NAME, call.inputs, call.attrs, constants=constants)
        assert_same_bits(fixed, one_node.run(NAME, call.inputs, call.attrs), str(call.attrs))


@pytest.mark.parametrize("wanted", [("k_cache", "v_cache"), ("q", "k_cache", "v_cache"), ("v", "k_cache", "v_cache")])
def test_outputs_that_are_not_asked_for(wanted: tuple[str, ...]) -> None:
    call = prefill("float16", "page", length=10)
    everything = one_node.run(NAME, call.inputs, call.attrs)
    session = one_node.session(one_node.model(NAME, one_node.types_of(call.inputs), call.attrs, outputs=wanted))
    found = one_node.results(custom_ort.run(session, call.inputs))
    assert_same_bits(found, {name: everything[name] for name in wanted}, str(wanted))


def test_threads_running_one_session() -> None:
    call = prefill("bfloat16", "contiguous", quantised=True, length=40)
    session = one_node.session(one_node.model(NAME, one_node.types_of(call.inputs), call.attrs))
    expected = custom_ort.run(session, call.inputs)
    with ThreadPoolExecutor(4) as pool:
        for found in pool.map(lambda _: custom_ort.run(session, call.inputs), range(20)):
            assert_same_bits(found, expected, "threads")


@pytest.mark.parametrize("mode", MODES)
def test_addresses(mode: str) -> None:
    """Every element of v lands where the contract's section 3 says, and nothing else is written."""
    call = prefill("float32", mode, length=20)
    call.inputs["scale_v"][:] = 1
    numbers = np.random.default_rng(2).integers(-100, 100, (2, 20, 2, 64)).astype(np.float32)
    call.inputs["x"][..., 384:] = numbers.reshape(2, 20, 128)
    found = one_node.run(NAME, call.inputs, call.attrs)["v_cache"].reshape(-1)
    expected, rows = call.inputs["v_cache"].reshape(-1).copy(), call.inputs["v_cache"].shape[1]
    index = call.inputs["indices"]
    for b, s, n, d in np.ndindex(2, 20, 2, 64):
        slot = int(index[b * 20 + s]) if mode == "page" else b * rows + int(index[b]) + s
        expected[(slot * 2 + n) * 64 + d] = numbers[b, s, n, d]
    assert np.array_equal(found, expected)


@pytest.mark.parametrize("delivered", [False, True])
@pytest.mark.parametrize("flat", [False, True])
def test_inferred_shapes(delivered: bool, flat: bool) -> None:
    """Known sizes and names of dims go from the inputs to the outputs."""
    lead = ["B"] if flat else ["B", "S"]
    shapes: dict[str, Any] = {
        "x": [*lead, 512], "cos": [*lead, 64] if flat else [*lead, 1, 64], "indices": ["B"],
        "k_cache": ["C1", "C2", 2, 64], "v_cache": ["C1", "C2", 2, 64], "scale_k": [2, 64], "scale_v": [2, 64],
    }  # fmt: skip
    shapes["sin"] = shapes["cos"]
    types = dict.fromkeys(shapes, "float16") | {"indices": "int32"}
    types |= dict.fromkeys(("k_cache", "v_cache"), "int8") | dict.fromkeys(("scale_k", "scale_v"), "float32")
    attrs = {"size_splits": [256, 128, 128], "kv_output": delivered}
    session = one_node.session(one_node.model(NAME, types, attrs, shapes=shapes))
    found = {output.name: output.shape for output in session.get_outputs()}
    if not one_node.INFERS:
        assert not any(found.values())
        return
    assert found == {
        "q": [*lead, 4, 64],
        "k": [*lead, 2, 64] if delivered else [0],
        "v": [*lead, 2, 64] if delivered else [0],
        "k_cache_out": shapes["k_cache"],
        "v_cache_out": shapes["v_cache"],
    }
