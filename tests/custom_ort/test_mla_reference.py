"""The MlaPrologV3 kernel computes what the reference computes, and computes it once."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from typing import Any

import numpy as np
import pytest

import custom_ort
from ir_ops.dtypes import Array, by_name
from ir_ops.ops import OPS
from tests.custom_ort import one_node
from tests.custom_ort.calls import Call, contents, values
from tests.custom_ort.effort import how_many
from tests.custom_ort.isa import ISAS
from tests.custom_ort.mla_calls import ALIASES, NAME, QUERY_TYPES, WEIGHTS, random_call
from tests.custom_ort.mla_compare import assert_close

OP = OPS[NAME]


def assert_same_bits(found: Mapping[str, Array], expected: Mapping[str, Array], where: str) -> None:
    assert found.keys() == expected.keys()
    for name, array in expected.items():
        assert np.array_equal(one_node.bits(found[name]), one_node.bits(array)), f"{where}: {name}"


@pytest.mark.parametrize("isa", ISAS)
def test_random_calls(isa: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Every weight, cache and query mode, every layout, ragged sizes; some weights constant, some computed."""
    monkeypatch.setenv("KVFUSE_ISA", isa)
    rng = np.random.default_rng(100 + ISAS.index(isa))
    seen = Counter[tuple[Any, ...]]()
    for case in range(how_many(300) if isa == ISAS[-1] else how_many(60, share=0.1)):
        call = random_call(rng)
        constants = [name for name in call.inputs if "weight" in name or "_w_" in name] if case % 3 else []
        expected = OP.reference(call.inputs, call.attrs)
        found = one_node.run(NAME, call.inputs, call.attrs, constants=constants)
        assert_close(found, expected, call, f"case {case}")
        seen[tuple(call.attrs[f"{name}_quant_mode"] for name in ("weight", "kv_cache", "query"))] += 1
    assert len(seen) == (25 if QUERY_TYPES else 20) or sum(seen.values()) < 300


def large(kind: str, tokens: int = 150, weights: int = 0) -> Call:
    """Enough tokens for several blocks and tiles of rows, and panels that are not full."""
    rng = np.random.default_rng(3)
    plain = by_name(kind).np
    sizes = {"weight_dq": (257, 100), "weight_uq_qr": (100, 3 * 56), "weight_dkv_kr": (257, 96)}
    inputs = {name: values(rng, shape, kind, shape[0] ** -0.5) for name, shape in sizes.items()}
    inputs |= {
        "weight_uk": values(rng, (3, 40, 80), kind, 40**-0.5),
        "rmsnorm_gamma_cq": values(rng, (100,), kind),
        "rmsnorm_gamma_ckv": values(rng, (80,), kind),
        "token_x": values(rng, (tokens, 257), kind),
        "rope_sin": values(rng, (tokens, 16), kind),
        "rope_cos": values(rng, (tokens, 16), kind),
        "kv_cache": contents(rng, (2, tokens, 1, 80), kind),
        "kr_cache": contents(rng, (2, tokens, 1, 16), kind),
        "cache_index": rng.permutation(2 * tokens)[:tokens],
    }
    if weights == 2:
        for name in ("token_x", *sizes):
            inputs[name] = rng.integers(-127, 128, inputs[name].shape).astype(np.int8)
            scale = (1, inputs[name].shape[1]) if name in sizes else (tokens, 1)
            short = name.replace("weight", "w").replace("token_x", "x")
            inputs[f"dequant_scale_{short}"] = rng.uniform(0.5, 1, scale).astype(np.float32) / 1000
    assert plain is not None
    return Call(inputs, {"cache_mode": "PA_BSND", "weight_quant_mode": weights, "query_norm_flag": True})


LARGE = [("float32", 0), ("float16", 0), ("bfloat16", 0), ("bfloat16", 2)]


@pytest.mark.parametrize("isa", ISAS)
@pytest.mark.parametrize(("kind", "weights"), LARGE)
def test_many_rows(kind: str, weights: int, isa: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("KVFUSE_ISA", isa)
    call = large(kind, weights=weights)
    found = one_node.run(NAME, call.inputs, call.attrs, constants=WEIGHTS)
    assert_close(found, OP.reference(call.inputs, call.attrs), call, isa)


def test_token_rows_do_not_depend_on_their_number() -> None:
    """One token alone, in few and in many: the same bits, for every number of rows of a tile."""
    for kind, weights in LARGE:
        call = large(kind, 300, weights)
        whole = one_node.run(NAME, call.inputs, call.attrs)
        for count in (1, 2, 5, 11, 13, 64, 70):
            part = Call(dict(call.inputs), call.attrs)
            for name in ("token_x", "rope_sin", "rope_cos", "cache_index", "dequant_scale_x"):
                if name in part.inputs:
                    part.inputs[name] = part.inputs[name][:count]
            found = one_node.run(NAME, part.inputs, part.attrs)
            for name in ("query", "query_rope", "query_norm"):
                assert np.array_equal(one_node.bits(found[name]), one_node.bits(whole[name][:count])), (kind, name)


@pytest.mark.parametrize(("kind", "weights"), LARGE)
def test_same_bits_with_any_number_of_threads(kind: str, weights: int) -> None:
    call = large(kind, 300, weights)
    fixed = {name: call.inputs[name] for name in WEIGHTS}
    feeds = {name: array for name, array in call.inputs.items() if name not in fixed}
    proto = one_node.model(NAME, one_node.types_of(call.inputs), call.attrs, constants=fixed)
    single = custom_ort.run(one_node.session(proto, threads=1), feeds)
    for threads in (2, 3, 5):
        several = custom_ort.run(one_node.session(proto, threads=threads), feeds)
        assert_same_bits(several, single, f"{threads} threads")


def test_constant_weights_give_the_same_bits() -> None:
    rng = np.random.default_rng(13)
    for _ in range(40):
        call = random_call(rng)
        names = [name for name in call.inputs if "cache" not in name and name not in ("token_x", "actual_seq_len")]
        fixed = one_node.run(NAME, call.inputs, call.attrs, constants=names)
        assert_same_bits(fixed, one_node.run(NAME, call.inputs, call.attrs), str(call.attrs))


def test_int8_products_are_exact_with_every_instruction_set(monkeypatch: pytest.MonkeyPatch) -> None:
    """Extreme values in long sums: no instruction set saturates on the way, and all give the same bits."""
    call = large("float32", 20, weights=2)
    depth = 7001
    rng = np.random.default_rng(1)
    call.inputs["token_x"] = rng.choice([-128, 127], (20, depth)).astype(np.int8)
    for name, columns in (("weight_dq", 100), ("weight_dkv_kr", 96)):
        call.inputs[name] = rng.choice([-128, 127], (depth, columns)).astype(np.int8)
    call.inputs["token_x"][0], call.inputs["weight_dkv_kr"][:, 90] = -128, -128
    results = []
    for isa in ISAS:
        monkeypatch.setenv("KVFUSE_ISA", isa)
        results.append(one_node.run(NAME, call.inputs, call.attrs))
        assert np.array_equal(results[-1]["query_norm"], results[0]["query_norm"])
        assert np.array_equal(results[-1]["kr_cache"], results[0]["kr_cache"])
    assert_close(results[0], OP.reference(call.inputs, call.attrs), call, "extremes")


def test_in_place_equals_copied() -> None:
    rng = np.random.default_rng(11)
    for _ in range(40):
        call = random_call(rng)
        session = one_node.session(one_node.model(NAME, one_node.types_of(call.inputs), call.attrs))
        before = {name: one_node.bits(call.inputs[name]).copy() for name in ALIASES}
        copied = custom_ort.run(session, call.inputs)
        for name, kept in before.items():
            assert np.array_equal(one_node.bits(call.inputs[name]), kept)
        bound = custom_ort.bind(session, call.inputs, ALIASES).run()
        assert_same_bits(bound, copied, str(call.attrs))
        assert all(bound[output] is call.inputs[name] for name, output in ALIASES.items())


@pytest.mark.parametrize("shape", [(0,), (0, 3), (2, 0)])
@pytest.mark.parametrize("weights", [0, 1, 2, 3, 4])
def test_no_tokens(shape: tuple[int, ...], weights: int) -> None:
    from tests.ir_ops.test_mla_prolog_v3 import empty

    call = empty(shape, weights)
    for constants in ((), WEIGHTS):
        found = one_node.run(NAME, call.inputs, call.attrs, constants=constants)
        assert_same_bits(found, OP.reference(call.inputs, call.attrs), str(shape))


@pytest.mark.parametrize("mode", ["PA_BSND", "PA_NZ", "PA_BLK_BSND", "PA_BLK_NZ"])
@pytest.mark.parametrize("axis", [0, 1])
def test_no_cache_rows(mode: str, axis: int) -> None:
    call = random_call(np.random.default_rng(4), weights=0, cache=0, mode=mode)
    for name in ("kv_cache", "kr_cache"):
        shape = list(call.inputs[name].shape)
        shape[axis] = 0
        call.inputs[name] = np.zeros(shape, call.inputs[name].dtype)
    assert_close(one_node.run(NAME, call.inputs, call.attrs), OP.reference(call.inputs, call.attrs), call, mode)


@pytest.mark.parametrize("special", [np.nan, np.inf, 0.0])
def test_special_values(special: float) -> None:
    """A row of NaN, infinities or zeros gives what the reference gives; other rows are not touched by it."""
    rng = np.random.default_rng(17)
    for weights in (0, 1):
        for cache in (0, 1, 2, 3):
            call = random_call(rng, weights=weights, cache=cache, mode="TND", plain="float32")
            call.inputs["token_x"][0] = special
            assert_close(
                one_node.run(NAME, call.inputs, call.attrs), OP.reference(call.inputs, call.attrs), call, f"{special}"
            )


def test_outputs_that_are_not_asked_for() -> None:
    call = large("bfloat16")
    everything = one_node.run(NAME, call.inputs, call.attrs)
    for wanted in (("kv_cache", "kr_cache"), ("query", "kv_cache", "kr_cache"), ("kv_cache", "kr_cache", "query_norm")):
        proto = one_node.model(NAME, one_node.types_of(call.inputs), call.attrs, outputs=wanted)
        found = one_node.results(custom_ort.run(one_node.session(proto), call.inputs))
        assert_same_bits(found, {name: everything[name] for name in wanted}, str(wanted))


def test_kernels_that_name_one_weight_share_its_panels() -> None:
    """Two nodes with the same constants, and a second session after the first is gone: each computes with its own."""
    import gc

    import onnx

    for seed in range(3):
        rng = np.random.default_rng(seed)
        call = random_call(rng, weights=0, cache=0, mode="TND", plain="float32")
        fixed = {name: call.inputs[name] for name in WEIGHTS}
        feeds = {name: array for name, array in call.inputs.items() if name not in fixed}
        proto = one_node.model(NAME, one_node.types_of(call.inputs), call.attrs, constants=fixed)
        second = onnx.NodeProto()
        second.CopyFrom(proto.graph.node[0])
        second.name = "another"
        second.output[:] = [f"{name}_again" for name in second.output]
        proto.graph.node.append(second)
        again = onnx.ValueInfoProto()
        again.CopyFrom(next(entry for entry in proto.graph.output if entry.name == "query"))
        again.name = "query_again"
        proto.graph.output.append(again)
        session = one_node.session(proto)
        found = custom_ort.run(session, feeds)
        assert np.array_equal(found["query"], found["query_again"])
        assert_close(
            {"query": found["query"]}, {"query": OP.reference(call.inputs, call.attrs)["query"]}, call, f"{seed}"
        )
        del session
        gc.collect()
