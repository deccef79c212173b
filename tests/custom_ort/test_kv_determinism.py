"""One call has one result: whatever the CPU's vectors, the number of threads, and where the cache lies."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import custom_ort
from ir_ops.dtypes import Array
from ir_ops.layout import KV_CACHE_MODES
from ir_ops.ops import OPS
from tests.custom_ort import one_node
from tests.custom_ort.calls import NAME, Call, contents, random_call, values
from tests.custom_ort.compare import assert_same_bits
from tests.custom_ort.isa import ISAS

ALIASES = {"k_cache": "k_cache_out", "ckv_cache": "ckv_cache_out"}


def prefill(kind: str, cache: str, rows: int = 700) -> Call:
    """Enough rows for many chunks, in random order of slots."""
    rng = np.random.default_rng(3)
    inputs = {
        "kv": values(rng, (1, 1, rows, 576), kind),
        "gamma": values(rng, (512,), kind),
        "cos": values(rng, (1, 1, rows, 64), kind),
        "sin": values(rng, (1, 1, rows, 64), kind),
        "index": rng.permutation(rows + 20)[:rows].astype(np.int64),
        "k_cache": contents(rng, (rows + 20, 1, 1, 64), cache),
        "ckv_cache": contents(rng, (rows + 20, 1, 1, 512), cache),
    }
    if cache != kind:
        inputs["k_rope_scale"] = values(rng, (64,), "float32", 40)
        inputs["c_kv_scale"] = values(rng, (512,), "float32", 40)
    return Call(inputs, {"cache_mode": "PA", "is_output_kv": True})


def test_same_bits_with_every_instruction_set(monkeypatch: pytest.MonkeyPatch) -> None:
    """Portable C++, AVX2 and AVX-512 add in one order and fuse the same products."""
    rng = np.random.default_rng(7)
    calls = [random_call(rng) for _ in range(250)]
    results: dict[str, list[dict[str, Array]]] = {}
    for isa in ISAS:
        monkeypatch.setenv("KVFUSE_ISA", isa)
        sessions = one_node.Sessions()
        results[isa] = [sessions.run(NAME, call.inputs, call.attrs) for call in calls]
    for isa in ISAS[1:]:
        for number, call in enumerate(calls):
            assert_same_bits(results[isa][number], results[ISAS[0]][number], f"{isa} call {number} {call.attrs}")


@pytest.mark.parametrize(("kind", "cache"), [("float32", "float32"), ("bfloat16", "int8"), ("float16", "float8_e5m2")])
def test_same_bits_with_any_number_of_threads(kind: str, cache: str) -> None:
    call = prefill(kind, cache)
    proto = one_node.model(NAME, one_node.types_of(call.inputs), call.attrs)
    single = custom_ort.run(one_node.session(proto, threads=1), call.inputs)
    for threads in (2, 3, 5):
        several = custom_ort.run(one_node.session(proto, threads=threads), call.inputs)
        assert_same_bits(several, single, f"{threads} threads")


@pytest.mark.parametrize("mode", KV_CACHE_MODES)
def test_in_place_equals_copied(mode: str) -> None:
    """A cache bound as input and output gets the same rows as a copied one, and the copied one's input is untouched."""
    rng = np.random.default_rng(11)
    for _ in range(8):
        call = random_call(rng, cache_mode=mode)
        session = one_node.session(one_node.model(NAME, one_node.types_of(call.inputs), call.attrs))
        before = {name: one_node.bits(call.inputs[name]).copy() for name in ALIASES}
        copied = custom_ort.run(session, call.inputs)
        for name, kept in before.items():
            assert np.array_equal(one_node.bits(call.inputs[name]), kept)
        bound = custom_ort.bind(session, call.inputs, ALIASES).run()
        assert_same_bits(bound, copied, mode)
        for name, output in ALIASES.items():
            assert bound[output] is call.inputs[name]


def test_internal_cache_is_not_written_while_others_read_it() -> None:
    """A cache made by a node and read by a second node keeps its value for that reader."""
    from onnx import TensorProto, helper

    call = prefill("float32", "float32", rows=4)
    proto = one_node.model(NAME, one_node.types_of(call.inputs), call.attrs)
    graph = proto.graph
    graph.node.insert(0, helper.make_node("Neg", ["k_cache"], ["negated"]))
    graph.node[1].input[5] = "negated"
    graph.node.append(helper.make_node("Identity", ["negated"], ["reader"]))
    graph.node.append(helper.make_node("Neg", ["k_cache_out"], ["k_result"]))
    del graph.output[:]
    for name in ("reader", "k_result"):
        graph.output.append(helper.make_tensor_value_info(name, TensorProto.FLOAT, None))
    found = custom_ort.run(one_node.session(proto), call.inputs)
    assert np.array_equal(found["reader"], -call.inputs["k_cache"])
    negated = {**call.inputs, "k_cache": -call.inputs["k_cache"]}
    expected = OPS[NAME].reference(negated, call.attrs)["k_cache"]
    np.testing.assert_allclose(found["k_result"], -expected, atol=1e-5)


@pytest.mark.parametrize("kind", ["float32", "float16", "bfloat16"])
def test_constant_parameters_give_the_same_bits(kind: str) -> None:
    """gamma, scales and offsets as initializers are converted once, when the kernel is made."""
    rng = np.random.default_rng(13)
    names = ("gamma", "k_rope_scale", "c_kv_scale", "k_rope_offset", "c_kv_offset")
    for _ in range(12):
        call = random_call(rng)
        constants = [name for name in names if name in call.inputs]
        fixed = one_node.run(NAME, call.inputs, call.attrs, constants=constants)
        assert_same_bits(fixed, one_node.run(NAME, call.inputs, call.attrs), f"{kind} {call.attrs}")


@pytest.mark.parametrize("wanted", [("k_cache", "ckv_cache"), ("k_cache", "ckv_cache", "c_kv")])
def test_outputs_that_are_not_asked_for(wanted: tuple[str, ...]) -> None:
    """k_rope and c_kv may be left out of the node; the rest stays the same."""
    call = prefill("float16", "int8", rows=70)
    types = one_node.types_of(call.inputs)
    everything: dict[str, Any] = one_node.run(NAME, call.inputs, call.attrs)
    session = one_node.session(one_node.model(NAME, types, call.attrs, outputs=wanted))
    found = one_node.results(custom_ort.run(session, call.inputs))
    assert_same_bits(found, {name: everything[name] for name in wanted}, str(wanted))


def test_threads_running_one_session() -> None:
    """A kernel keeps no state between runs: several threads may run one session."""
    from concurrent.futures import ThreadPoolExecutor

    call = prefill("bfloat16", "int8", rows=100)
    session = one_node.session(one_node.model(NAME, one_node.types_of(call.inputs), call.attrs))
    expected = custom_ort.run(session, call.inputs)
    with ThreadPoolExecutor(4) as pool:
        for found in pool.map(lambda _: custom_ort.run(session, call.inputs), range(40)):
            assert_same_bits(found, expected, "threads")
