"""The kernels of the building blocks: published vectors, random calls against the reference, thread counts."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import custom_ort
from ir_ops.dtypes import Array, by_numpy
from ir_ops.ops import OPS
from tests.custom_ort import one_node
from tests.custom_ort.block_calls import CALLS, MOVES
from tests.custom_ort.calls import Call, values
from tests.custom_ort.effort import how_many
from tests.custom_ort.isa import ISAS
from tests.custom_ort.test_kv_reference import differing
from tests.golden import BLOCKS, GoldenCase, cases

GOLDEN = [case for name in CALLS for case in cases(name, base=BLOCKS) if one_node.loads(case.attrs)]


def compared(found: Array, expected: Array, where: str) -> int:
    """Asserts that results are a step apart at most; counts the integers that differ."""
    if by_numpy(expected.dtype).name == "int4":
        expected = expected.astype(np.int8)  # as sessions give it back, see one_node
    return differing(found, expected, where) if expected.size else 0


def test_every_operator_has_vectors() -> None:
    assert {case.operator for case in GOLDEN} == set(CALLS) <= {path.name for path in BLOCKS.iterdir()}


@pytest.mark.parametrize("isa", [ISAS[0], ISAS[-1]])
@pytest.mark.parametrize("case", GOLDEN, ids=lambda case: f"{case.operator}-{case}")
def test_published_vectors(case: GoldenCase, isa: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("KVFUSE_ISA", isa)
    case.check(one_node.run(case.operator, case.inputs, case.attrs))


@pytest.mark.parametrize("name", CALLS)
def test_random_calls(name: str) -> None:
    """Hundreds of calls over all types, modes and sizes, empty tensors among them."""
    rng = np.random.default_rng(41)
    sessions = one_node.Sessions()
    different, elements = 0, 0
    for number in range(how_many(200)):
        call = CALLS[name](rng)
        expected = OPS[name].reference(call.inputs, call.attrs)
        found = sessions.run(name, call.inputs, call.attrs)
        assert found.keys() == expected.keys()
        for output, array in expected.items():
            where = f"call {number} {output} {call.attrs}"
            if name in MOVES:
                assert np.array_equal(one_node.bits(found[output]), one_node.bits(array)), where
                continue
            different += compared(found[output], array, where)
            elements += array.size if array.dtype.itemsize == 1 else 0
    assert different <= 1e-4 * elements, f"{different} of {elements} 8-bit elements differ"


@pytest.mark.parametrize("name", CALLS)
def test_same_bits_with_every_instruction_set(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    rng = np.random.default_rng(43)
    calls = [CALLS[name](rng) for _ in range(40)]
    results = []
    for isa in ISAS:
        monkeypatch.setenv("KVFUSE_ISA", isa)
        sessions = one_node.Sessions()
        results.append([sessions.run(name, call.inputs, call.attrs) for call in calls])
    for other in results[1:]:
        for first, second in zip(results[0], other, strict=True):
            assert all(np.array_equal(one_node.bits(first[key]), one_node.bits(second[key])) for key in first)


def many_rows(name: str, kind: str = "bfloat16") -> Call:
    """A call with enough rows for many chunks."""
    rng = np.random.default_rng(47)
    x, gamma = values(rng, (700, 96), kind), values(rng, (96,), kind)
    turned = values(rng, (350, 1, 96), kind)
    slots = rng.permutation(800)[:700]
    made: dict[str, dict[str, Array]] = {
        "RmsNorm": {"x": x, "gamma": gamma},
        "AddRmsNorm": {"x1": x, "x2": x[::-1].copy(), "gamma": gamma},
        "RotaryPositionEmbedding": {"x": x.reshape(350, 2, 96), "cos": turned, "sin": turned},
        "InterleaveRope": {"x": x.reshape(2, 2, 175, 96), "cos": turned.reshape(2, 1, 175, 96),
                           "sin": turned.reshape(2, 1, 175, 96)},
        "SwiGlu": {"x": x},
        "AscendQuantV2": {"x": x, "scale": gamma, "offset": gamma},
        "DynamicQuant": {"x": x, "smooth_scales": gamma},
        "ApplyRotaryPosEmb": {"query": x.reshape(1, 350, 2, 96), "key": x.reshape(1, 350, 2, 96)[:, :, :1].copy(),
                              "cos": turned[None], "sin": turned[None]},
        "ScatterPaKvCache": {"key": x[:, None], "key_cache": np.zeros((100, 8, 1, 96), x.dtype),
                             "slot_mapping": slots, "value": x[::-1, None].copy(),
                             "value_cache": np.zeros((100, 8, 1, 96), x.dtype)},
        "ScatterUpdate": {"var": np.zeros((800, 96), x.dtype), "indices": slots, "updates": x},
        "ScatterNdUpdate": {"var": np.zeros((100, 8, 96), x.dtype), "indices": np.stack(np.divmod(slots, 8), -1),
                            "updates": x},
        "TensorMove": {"x": x},
        "Quantize": {"x": x, "scales": gamma},
        "AscendDequant": {"x": rng.integers(-9999, 9999, (700, 96)).astype(np.int32),
                          "deq_scale": gamma.astype(np.float32).view(np.uint32).astype(np.uint64)},
        "RopeWithSinCosCache": {"queryIn": x, "keyIn": x[:, 32:].copy(), "cosSinCache": x[:90, :32].copy(),
                                "positions": rng.integers(0, 90, 700)},
        "DequantSwigluQuant": {"x": rng.integers(-999, 999, (700, 96)).astype(np.int32),
                               "weight_scale": np.abs(gamma.astype(np.float32)),
                               "quant_scale": np.ones(48, np.float32)},
    }  # fmt: skip
    attrs: dict[str, dict[str, Any]] = {
        "Quantize": {"dtype": "torch.qint8", "axis": -1},
        "AscendDequant": {"dtype": 1},
        "RopeWithSinCosCache": {"numQHeads": 3, "numKHeads": 2, "headSize": 32},
        "DequantSwigluQuant": {"quant_mode": "dynamic"},
    }
    return Call(made[name], attrs.get(name, {}))


@pytest.mark.parametrize("name", CALLS)
def test_same_bits_with_any_number_of_threads(name: str) -> None:
    call = many_rows(name)
    proto = one_node.model(name, one_node.types_of(call.inputs), call.attrs)
    single = custom_ort.run(one_node.session(proto), call.inputs)
    for threads in (2, 5):
        several = custom_ort.run(one_node.session(proto, threads=threads), call.inputs)
        assert all(np.array_equal(one_node.bits(several[key]), one_node.bits(single[key])) for key in single)


@pytest.mark.parametrize("name", CALLS)
def test_every_single_output(name: str) -> None:
    """A node that names one of its outputs only gets the same one."""
    call = many_rows(name)
    types = one_node.types_of(call.inputs)
    everything = one_node.run(name, call.inputs, call.attrs)
    for output in OPS[name].outputs:
        if not output.ref:
            session = one_node.session(one_node.model(name, types, call.attrs, outputs=[output.name]))
            found = custom_ort.run(session, call.inputs)
            assert np.array_equal(one_node.bits(found[output.onnx_name]), one_node.bits(everything[output.name]))


@pytest.mark.parametrize("name", CALLS)
def test_shapes_are_inferred_when_the_model_is_loaded(name: str) -> None:
    """Names of dims reach the outputs. Old runtimes infer none for operators with optional inputs."""
    call = many_rows(name)
    shapes = {key: [f"{key}{axis}" for axis in range(array.ndim)] for key, array in call.inputs.items()}
    session = one_node.session(one_node.model(name, one_node.types_of(call.inputs), call.attrs, shapes=shapes))
    expected = OPS[name].reference(call.inputs, call.attrs)
    for output, value in zip(OPS[name].outputs, session.get_outputs(), strict=True):
        if not one_node.CHOSEN_TYPES and any(entry.optional for entry in OPS[name].inputs):
            assert value.shape == []
            continue
        assert len(value.shape) == expected[output.name].ndim
        if name != "SwiGlu":
            like = output.name if output.ref else output.name.replace("Out", "In")
            assert value.shape[0] == f"{like if like in call.inputs else next(iter(call.inputs))}0"


@pytest.mark.parametrize("special", [np.nan, np.inf, -np.inf, 1e38, 1e-42, -0.0])
@pytest.mark.parametrize("name", CALLS)
def test_special_values(name: str, special: float) -> None:
    """NaN, infinities, overflow and subnormals come out as in the reference."""
    rng = np.random.default_rng(53)
    sessions = one_node.Sessions()
    for number in range(15):
        call = CALLS[name](rng)
        first = call.inputs[next(iter(call.inputs))]
        if first.size:
            with np.errstate(over="ignore", invalid="ignore"):
                first.reshape(-1)[rng.integers(0, first.size, 2)] = np.float32(special).astype(first.dtype)
        expected = OPS[name].reference(call.inputs, call.attrs)
        found = sessions.run(name, call.inputs, call.attrs)
        for output, array in expected.items():
            where = f"{special} call {number} {output} {call.attrs}"
            if name in MOVES:
                assert np.array_equal(one_node.bits(found[output]), one_node.bits(array)), where
            else:
                compared(found[output], array, where)
