"""QkvRmsNormRopeCache: one call has one result, and it lies where ir_ops.layout says."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import pytest

import custom_ort
from ir_ops.dtypes import Array
from ir_ops.layout import address, nz_block
from tests.custom_ort import one_node
from tests.custom_ort.compare import assert_same_bits
from tests.custom_ort.isa import ISAS
from tests.custom_ort.qkv_calls import ALIASES, NAME, prefill, random_call


def test_same_bits_with_every_instruction_set(monkeypatch: pytest.MonkeyPatch) -> None:
    rng = np.random.default_rng(7)
    calls = [random_call(rng) for _ in range(100)]
    results: dict[str, list[dict[str, Array]]] = {}
    for isa in ISAS:
        monkeypatch.setenv("KVFUSE_ISA", isa)
        results[isa] = [one_node.run(NAME, call.inputs, call.attrs) for call in calls]
    for isa in ISAS[1:]:
        for number, call in enumerate(calls):
            assert_same_bits(results[isa][number], results[ISAS[0]][number], f"{isa} call {number} {call.attrs}")


@pytest.mark.parametrize(("kind", "cache"), [("float32", "float32"), ("bfloat16", "int8"), ("float16", "float16")])
def test_same_bits_with_any_number_of_threads(kind: str, cache: str) -> None:
    call = prefill(kind, cache)
    proto = one_node.model(NAME, one_node.types_of(call.inputs), call.attrs)
    single = custom_ort.run(one_node.session(proto, threads=1), call.inputs)
    for threads in (2, 3, 5):
        several = custom_ort.run(one_node.session(proto, threads=threads), call.inputs)
        assert_same_bits(several, single, f"{threads} threads")


def test_in_place_equals_copied() -> None:
    """What is bound as input and output gets the same rows as a copy, and the copied one's input is untouched."""
    rng = np.random.default_rng(11)
    for _ in range(30):
        call = random_call(rng)
        aliases = {name: output for name, output in ALIASES.items() if name in call.inputs}
        session = one_node.session(one_node.model(NAME, one_node.types_of(call.inputs), call.attrs))
        before = {name: one_node.bits(call.inputs[name]).copy() for name in aliases}
        copied = custom_ort.run(session, call.inputs)
        for name, kept in before.items():
            assert np.array_equal(one_node.bits(call.inputs[name]), kept)
        bound = custom_ort.bind(session, call.inputs, aliases).run()
        assert_same_bits(bound, copied, str(call.attrs))
        for name, output in aliases.items():
            assert bound[output] is call.inputs[name]


def test_contents_of_the_q_buffer_do_not_matter() -> None:
    call = prefill("float16", "float16", 5)
    full = one_node.run(NAME, call.inputs, call.attrs)
    call.inputs["q_out"][:] = np.nan
    assert_same_bits(one_node.run(NAME, call.inputs, call.attrs), full, "NaN in q_out")
    del call.inputs["q_out"]
    assert_same_bits(one_node.run(NAME, call.inputs, call.attrs), full, "no q_out")


def test_constant_parameters_give_the_same_bits() -> None:
    """gammas, scales and offsets as initializers are converted once, when the kernel is made."""
    rng = np.random.default_rng(13)
    names = ("q_gamma", "k_gamma", "k_scale", "v_scale", "k_offset", "v_offset")
    for _ in range(12):
        call = random_call(rng)
        constants = [name for name in names if name in call.inputs]
        fixed = one_node.run(NAME, call.inputs, call.attrs, constants=constants)
        assert_same_bits(fixed, one_node.run(NAME, call.inputs, call.attrs), str(call.attrs))


@pytest.mark.parametrize(
    "wanted",
    [("q_out", "k_cache", "v_cache"), ("q_out", "k_cache", "v_cache", "k_out_before_quant"), tuple(ALIASES)[:3]],
)
def test_outputs_that_are_not_asked_for(wanted: tuple[str, ...]) -> None:
    call = prefill("float16", "int8", rows := 20)
    assert call.inputs["qkv"].shape[0] == rows
    everything = one_node.run(NAME, call.inputs, call.attrs)
    session = one_node.session(one_node.model(NAME, one_node.types_of(call.inputs), call.attrs, outputs=wanted))
    found = one_node.results(custom_ort.run(session, call.inputs))
    assert_same_bits(found, {name: everything[name] for name in wanted}, str(wanted))


def test_threads_running_one_session() -> None:
    call = prefill("bfloat16", "int8", 60)
    session = one_node.session(one_node.model(NAME, one_node.types_of(call.inputs), call.attrs))
    expected = custom_ort.run(session, call.inputs)
    with ThreadPoolExecutor(4) as pool:
        for found in pool.map(lambda _: custom_ort.run(session, call.inputs), range(20)):
            assert_same_bits(found, expected, "threads")


@pytest.mark.parametrize("kind", ["float32", "float16"])
def test_addresses(kind: str) -> None:
    """Every element of v lands where ir_ops.layout says, and nothing else is written."""
    call = prefill(kind, kind, 40)
    call.inputs["index"][::7] = -1
    call.inputs["v_cache"][:] = -1
    heads, width, rows, d0 = 2, 128, 16, nz_block(kind)
    numbers = np.arange(40 * heads * width, dtype=np.float32).reshape(40, heads, width).astype(kind) % 1000
    call.inputs["qkv"][:, -heads * width :] = numbers.reshape(40, -1)
    found = one_node.run(NAME, call.inputs, call.attrs)["v_cache"].reshape(-1)
    expected = call.inputs["v_cache"].reshape(-1).copy()
    for t, n, c in np.ndindex(40, heads, width):
        slot = int(call.inputs["index"][t])
        if slot >= 0:
            page, row = divmod(slot, rows)
            place = address("NZ", page, row, n, c, rows=rows, heads=heads, columns=width, d0=d0)
            expected[place] = numbers[t, n, c]
    assert np.array_equal(found, expected)


@pytest.mark.parametrize("delivered", [False, True])
@pytest.mark.parametrize("buffer", [False, True])
def test_inferred_shapes(delivered: bool, buffer: bool) -> None:
    """Known sizes and names of dims go from the inputs to the outputs."""
    shapes: dict[str, Any] = {
        "qkv": ["T", 8 * 64], "q_gamma": [64], "k_gamma": [64], "cos": ["T", 64], "sin": ["T", 64], "index": ["T"],
        "k_cache": ["pages", 8, 16, 16], "v_cache": ["pages", 8, 16, 16],
    }  # fmt: skip
    if buffer:
        shapes["q_out"] = ["T", 256]
    types = {name: "int64" if name == "index" else "float16" for name in shapes}
    attrs = {"qkv_size": [-1, -1, 8, 64], "head_nums": [4, 2, 2], "is_output_qkv": delivered}
    session = one_node.session(one_node.model(NAME, types, attrs, shapes=shapes))
    found = {output.name: output.shape for output in session.get_outputs()}
    if not one_node.INFERS:
        assert not any(found.values())
        return
    assert found == {
        "q_out_out": ["T", 256],
        "k_cache_out": shapes["k_cache"],
        "v_cache_out": shapes["v_cache"],
        "q_out_before_quant": ["T", 256] if delivered else [0],
        "k_out_before_quant": ["T", 128] if delivered else [0],
        "v_out_before_quant": ["T", 128] if delivered else [0],
    }
