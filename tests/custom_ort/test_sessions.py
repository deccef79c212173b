"""custom_ort.session, run, bind and the value helpers."""

from __future__ import annotations

from pathlib import Path

import ml_dtypes
import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper

import custom_ort
from ir_ops.dtypes import Array, by_numpy
from ir_ops.errors import BadInput, BadModel
from tests.custom_ort import one_node
from tests.custom_ort.calls import NAME, Call, contents, values

ALIASES = {"k_cache": "k_cache_out", "ckv_cache": "ckv_cache_out"}
TYPES = [np.float32, np.float16, np.float64, np.int8, np.uint8, np.int32, np.int64, np.bool_, ml_dtypes.bfloat16,
         ml_dtypes.float8_e4m3fn, ml_dtypes.float8_e5m2]  # fmt: skip


def decode(kind: str = "bfloat16", cache: str = "bfloat16", rows: int = 8) -> Call:
    rng = np.random.default_rng(21)
    inputs = {
        "kv": values(rng, (1, 1, 1, 96), kind),
        "gamma": values(rng, (64,), kind),
        "cos": values(rng, (1, 1, 1, 32), kind),
        "sin": values(rng, (1, 1, 1, 32), kind),
        "index": np.array([3], np.int64),
        "k_cache": contents(rng, (2, rows, 1, 32), cache),
        "ckv_cache": contents(rng, (2, rows, 1, 64), cache),
    }
    if cache != kind:
        inputs["k_rope_scale"], inputs["c_kv_scale"] = np.ones(1, np.float32), np.ones(64, np.float32)
    return Call(inputs, {"cache_mode": "PA", "is_output_kv": True})


def session_of(call: Call) -> object:
    return one_node.session(one_node.model(NAME, one_node.types_of(call.inputs), call.attrs))


@pytest.mark.parametrize("dtype", TYPES)
@pytest.mark.parametrize("shape", [(3, 4), (), (0, 2)])
def test_values_round_trip(dtype: type, shape: tuple[int, ...]) -> None:
    array = np.arange(int(np.prod(shape)), dtype=np.float32).reshape(shape).astype(dtype)
    back = custom_ort.from_ortvalue(custom_ort.to_ortvalue(array))
    assert (back.dtype, back.shape) == (array.dtype, shape)
    assert np.array_equal(back.astype(np.float64), array.astype(np.float64))


@pytest.mark.parametrize("shape", [(3, 5), (), (0,), (7, 1, 9)])
def test_aligned_arrays(shape: tuple[int, ...]) -> None:
    array = custom_ort.aligned_empty(shape, ml_dtypes.bfloat16)
    array[...] = 3
    assert (array.shape, array.dtype) == (shape, ml_dtypes.bfloat16)
    assert array.ctypes.data % 64 == 0 or not array.size
    assert array.flags.c_contiguous
    assert array.flags.writeable


def test_values_of_strided_arrays() -> None:
    array = np.arange(12, dtype=np.float32).reshape(3, 4).astype(ml_dtypes.bfloat16).T
    assert np.array_equal(custom_ort.from_ortvalue(custom_ort.to_ortvalue(array)), array)


@pytest.mark.parametrize("array", [np.array(["a"]), np.array([1], ml_dtypes.int4), np.array([None])])
def test_values_that_sessions_do_not_take(array: Array) -> None:
    with pytest.raises(BadInput, match="an array has an element type that sessions do not take"):
        custom_ort.to_ortvalue(array)


@pytest.mark.parametrize("cache", ["bfloat16", "float8_e4m3fn", "float8_e5m2", "int8"])
def test_run_takes_and_gives_every_type(cache: str) -> None:
    call = decode("bfloat16", cache)
    found = custom_ort.run(session_of(call), call.inputs)
    assert by_numpy(found["k_cache_out"].dtype).name == cache
    assert by_numpy(found["k_rope"].dtype).name == "bfloat16"
    assert not np.array_equal(
        found["k_cache_out"][0, 3].astype(np.float32), call.inputs["k_cache"][0, 3].astype(np.float32)
    )


def test_session_from_file_bytes_and_model(tmp_path: Path) -> None:
    call = decode()
    proto = one_node.model(NAME, one_node.types_of(call.inputs), call.attrs)
    onnx.save(proto, tmp_path / "model.onnx")
    expected = custom_ort.run(custom_ort.session(proto), call.inputs)
    for source in (tmp_path / "model.onnx", str(tmp_path / "model.onnx"), proto.SerializeToString()):
        found = custom_ort.run(custom_ort.session(source), call.inputs)
        assert all(np.array_equal(one_node.bits(found[name]), one_node.bits(expected[name])) for name in expected)


@pytest.mark.parametrize(
    ("content", "words"),
    [(None, "no such model file"), (b"no model", "this is no ONNX model"), (b"", "this is no ONNX model")],
)
def test_session_of_a_bad_file(content: bytes | None, words: str, tmp_path: Path) -> None:
    path = tmp_path / "bad.onnx"
    if content is not None:
        path.write_bytes(content)
    with pytest.raises(BadModel, match=words) as caught:
        custom_ort.session(path)
    assert str(path) in str(caught.value)
    assert "\n" not in str(caught.value)


def test_unknown_operator_of_our_domain() -> None:
    node = helper.make_node("NoSuchOp", ["x"], ["y"], domain="ai.ascend")
    x, y = (helper.make_tensor_value_info(name, TensorProto.FLOAT, [1]) for name in "xy")
    imports = [helper.make_opsetid("", 20), helper.make_opsetid("ai.ascend", 1)]
    proto = helper.make_model(helper.make_graph([node], "g", [x], [y]), opset_imports=imports, ir_version=10)
    with pytest.raises(BadModel, match="NoSuchOp"):
        custom_ort.session(proto)


def test_type_mix_is_explained() -> None:
    """onnxruntime says only that type inference failed; the message names the rule."""
    call = decode()
    call.inputs["sin"] = call.inputs["sin"].astype(np.float32)
    with pytest.raises(BadModel, match=r"node 'the node': KV-03: .*; found sin float32"):
        session_of(call)


@pytest.mark.parametrize(
    ("name", "array", "words"),
    [
        ("extra", np.zeros(1), "the model has no such input; found extra, wanted kv, gamma"),
        ("kv", None, "an input is missing; found no kv"),
        (
            "kv",
            np.zeros((1, 1, 1, 96), np.float64),
            "kv: an array has another element type; found float64, wanted bfloat16",
        ),
    ],
)
def test_feeds_that_do_not_fit(name: str, array: Array | None, words: str) -> None:
    call = decode()
    session = session_of(call)
    if array is None:
        del call.inputs[name]
    else:
        call.inputs[name] = array
    for action in (custom_ort.run, custom_ort.bind):
        with pytest.raises(BadInput, match=words):
            action(session, call.inputs)


def test_feed_of_another_shape() -> None:
    call = decode()
    shapes = {"kv": ["B", 1, 1, 96]}
    session = one_node.session(one_node.model(NAME, one_node.types_of(call.inputs), call.attrs, shapes=shapes))
    call.inputs["kv"] = np.zeros((1, 1, 1, 95), ml_dtypes.bfloat16)
    with pytest.raises(
        BadInput, match=r"kv: an array has another shape; found \[1, 1, 1, 95\], wanted \[B, 1, 1, 96\]"
    ):
        custom_ort.run(session, call.inputs)


def test_decode_loop_in_place() -> None:
    """Only what changes is bound again; rows gather in the caller's own arrays."""
    call = decode("float16", "int8")
    steps = custom_ort.session(one_node.model(NAME, one_node.types_of(call.inputs), call.attrs))
    k_cache, plain = call.inputs["k_cache"], {name: array.copy() for name, array in call.inputs.items()}
    binding = custom_ort.bind(steps, call.inputs, ALIASES)
    rng = np.random.default_rng(8)
    for slot in range(5):
        row = values(rng, (1, 1, 1, 96), "float16")
        binding["kv"], binding["index"] = row, np.array([slot], np.int64)
        in_place = binding.run()
        plain |= {"kv": row, "index": np.array([slot], np.int64)}
        copied = custom_ort.run(steps, plain)
        plain |= {"k_cache": copied["k_cache_out"], "ckv_cache": copied["ckv_cache_out"]}
        assert in_place["k_cache_out"] is k_cache
        assert all(np.array_equal(in_place[name], copied[name]) for name in copied)
    assert binding["k_cache"] is k_cache


def test_binding_keeps_its_arrays_alive() -> None:
    """onnxruntime holds pointers only: arrays that nobody else keeps must not go away."""
    call = decode("float32", "float32")
    session = session_of(call)
    expected = custom_ort.run(session, call.inputs)
    binding = custom_ort.bind(session, {name: array.copy() for name, array in call.inputs.items()}, ALIASES)
    junk = [np.full(array.shape, 7, array.dtype) for array in call.inputs.values() for _ in range(20)]
    found = binding.run()
    assert len(junk) == 140
    assert all(np.array_equal(found[name], expected[name]) for name in expected)


@pytest.mark.parametrize(
    ("aliases", "words"),
    [
        ({"k": "k_cache_out"}, "an alias names no input; found k,"),
        ({"k_cache": "k_out"}, "k_cache: an alias names no free output; found k_out, wanted k_cache_out, "),
        ({"k_cache": "k_cache_out", "ckv_cache": "k_cache_out"}, "ckv_cache: an alias names no free output"),
    ],
)
def test_aliases_that_do_not_fit(aliases: dict[str, str], words: str) -> None:
    call = decode()
    with pytest.raises(BadInput, match=words):
        custom_ort.bind(session_of(call), call.inputs, aliases)


def test_aliases_of_another_type_or_shape() -> None:
    call = decode("bfloat16", "int8")
    with pytest.raises(BadInput, match="kv as k_cache_out: an array has another element type; found bfloat16"):
        custom_ort.bind(session_of(call), call.inputs, {"kv": "k_cache_out"})
    shapes = {name: array.shape for name, array in call.inputs.items()}
    session = one_node.session(one_node.model(NAME, one_node.types_of(call.inputs), call.attrs, shapes=shapes))
    if session.get_outputs()[0].shape:  # old runtimes infer none
        with pytest.raises(
            BadInput, match=r"ckv_cache as k_cache_out: .* found \[2, 8, 1, 64\], wanted \[2, 8, 1, 32\]"
        ):
            custom_ort.bind(session, call.inputs, {"ckv_cache": "k_cache_out"})


def test_arrays_that_cannot_be_written_in_place() -> None:
    call = decode()
    session = session_of(call)
    strided = {**call.inputs, "k_cache": np.repeat(call.inputs["k_cache"], 2, axis=1)[:, ::2]}
    frozen = {**call.inputs, "k_cache": call.inputs["k_cache"].copy()}
    frozen["k_cache"].flags.writeable = False
    for feeds in (strided, frozen):
        with pytest.raises(BadInput, match="k_cache: this array cannot be written in place"):
            custom_ort.bind(session, feeds, ALIASES)
    assert custom_ort.bind(session, strided, {}).run().keys() == custom_ort.run(session, call.inputs).keys()
