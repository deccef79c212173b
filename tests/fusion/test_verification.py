"""Verification finds what is wrong and accepts what is right: here without fusion, on edited copies of real graphs."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import ml_dtypes
import numpy as np
import onnx
import onnx_ir as ir
import pytest
from onnx import TensorProto, helper, numpy_helper

import models
from fusion import fuse, verify
from fusion.runtime import open_model
from fusion.verification import read_feeds
from fusion.widen import has_bfloat16, widened
from ir_ops.errors import BadInput, BadModel
from ir_ops.npz import load_npz, save_npz
from tests.conftest import DATA

DEMO, RECORD = models.demo_graph(), models.demo_record()


def edited(change: Callable[[onnx.GraphProto], None]) -> onnx.ModelProto:
    model = onnx.load_model(DEMO)
    change(model.graph)
    return model


def scale_one_weight(graph: onnx.GraphProto) -> None:
    tensor = next(t for t in graph.initializer if t.name == "m.model.layers.0.self_attn.kv_a_layernorm.weight")
    tensor.CopyFrom(numpy_helper.from_array(numpy_helper.to_array(tensor) * np.float16(1.02), tensor.name))


def swap_rotation(graph: onnx.GraphProto) -> None:
    node = next(node for node in graph.node if node.name == "node_sub_73")
    node.op_type = "Add"


def drop_output(graph: onnx.GraphProto) -> None:
    del graph.output[2]


def rename_input(graph: onnx.GraphProto) -> None:
    graph.input[0].name = "tokens"
    for node in graph.node:
        node.input[:] = ["tokens" if name == "input_ids" else name for name in node.input]


def test_a_model_equals_itself_however_it_is_given() -> None:
    proto = onnx.load_model(DEMO)
    for other in (DEMO, str(DEMO), proto, ir.serde.deserialize_model(proto)):
        result = verify(DEMO, other, cases=1)
        assert result.ok
        assert [item.output for item in result.differences] == ["logits", "key_cache_out.0", "value_cache_out.0"]
        assert result.differences[0].max_abs == 0


def test_recorded_values_are_compared_too() -> None:
    result = verify(DEMO, DEMO, inputs=RECORD)
    assert result.ok
    assert result.cases == ["case0", "case1"]
    assert [item.against for item in result.differences] == ["original", "recorded"] * 6
    assert 0 < max(item.max_abs for item in result.differences) < 0.01


@pytest.mark.parametrize(
    ("change", "wrong"),
    [
        (scale_one_weight, {"logits", "key_cache_out.0"}),
        (swap_rotation, {"logits", "value_cache_out.0"}),
    ],
)
def test_a_wrong_model_is_found_and_the_wrong_outputs_named(
    change: Callable[[onnx.GraphProto], None], wrong: set[str]
) -> None:
    result = verify(DEMO, edited(change), cases=2)
    assert not result.ok
    assert {item.output for item in result.differences if not item.ok} <= wrong
    first = next(item for item in result.differences if not item.ok)
    assert first.first is not None
    assert first.note.startswith("first at [")


def test_a_missing_output_is_no_agreement() -> None:
    result = verify(DEMO, edited(drop_output), cases=1)
    assert not result.ok
    assert [item.note for item in result.differences if not item.ok] == ["the fused model has no such output"]
    extra = verify(edited(drop_output), DEMO, cases=1)
    assert extra.ok
    assert "further outputs that were not compared: value_cache_out.0" in extra.notes[0]


def test_a_model_that_fails_at_run_time_is_reported_not_raised() -> None:
    def break_indices(graph: onnx.GraphProto) -> None:
        tensor = next(t for t in graph.initializer if t.name == "val_195")
        tensor.CopyFrom(numpy_helper.from_array(numpy_helper.to_array(tensor) + 10**6, tensor.name))

    result = verify(DEMO, edited(break_indices), cases=1)
    assert not result.ok
    assert all(item.note.startswith("the fused model does not run: ") for item in result.differences)


def test_different_inputs_are_an_error() -> None:
    with pytest.raises(BadInput, match="the models have different inputs; found input_ids"):
        verify(DEMO, edited(rename_input))


def test_a_file_that_is_no_model(tmp_path: Path) -> None:
    path = tmp_path / "bad.onnx"
    path.write_bytes(b"nonsense")
    with pytest.raises(BadModel, match="bad.onnx: not an ONNX model"):
        verify(DEMO, path)


def test_a_model_the_runtime_refuses() -> None:
    def mix_types(graph: onnx.GraphProto) -> None:
        next(node for node in graph.node if node.name == "node__to_copy_9").attribute[0].i = TensorProto.DOUBLE

    with pytest.raises(BadModel, match="the model: ONNX Runtime does not load the model; found .*node__to_copy_9"):
        verify(DEMO, edited(mix_types))


def case(number: int) -> tuple[dict[str, np.ndarray], dict[str, np.ndarray]]:
    feed, outputs = read_feeds(RECORD)[number]
    return feed.inputs, outputs


def test_plain_inputs_and_expected_outputs(tmp_path: Path) -> None:
    inputs, outputs = case(1)
    save_npz(tmp_path / "in.npz", inputs)
    save_npz(tmp_path / "out.npz", outputs)
    result = verify(DEMO, DEMO, inputs=tmp_path / "in.npz", expected=tmp_path / "out.npz")
    assert result.ok
    assert [item.against for item in result.differences] == ["original", "recorded"] * 3
    outputs["logits"] = outputs["logits"] + np.float16(0.5)
    wrong = verify(DEMO, DEMO, inputs=inputs, expected=outputs)
    assert [(item.output, item.against) for item in wrong.differences if not item.ok] == [("logits", "recorded")]


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (lambda feed: feed.pop("input_ids"), "the inputs do not fit the model; found no input_ids"),
        (lambda feed: feed.update(extra=np.zeros(1)), "found unknown extra"),
        (
            lambda feed: feed.update(input_ids=np.zeros((3, 1), np.int64)),
            r"input_ids: an input has a wrong shape; found \[3, 1\]",
        ),
        (lambda feed: feed.update(input_ids=np.zeros(2, np.int64)), "an input has a wrong shape"),
        (lambda feed: feed.update(input_ids=np.zeros((2, 1), np.int32)), "a wrong type; found int32, wanted int64"),
        (
            lambda feed: feed.update({"key_cache.0": np.full((2, 1, 16, 512), 1 / 3)}),
            "a wrong type; found float64, wanted float16",
        ),
        (
            lambda feed: feed.update(input_ids=np.full((2, 1), 10**6)),
            "case: the original model does not run on these inputs",
        ),
    ],
)
def test_inputs_that_do_not_fit(change: Callable[[dict[str, np.ndarray]], object], words: str) -> None:
    inputs = dict(case(1)[0])
    change(inputs)
    with pytest.raises(BadInput, match=words):
        verify(DEMO, DEMO, inputs={f"case/in/{name}": array for name, array in inputs.items()})


def test_floats_are_converted_where_nothing_is_lost() -> None:
    inputs = {
        name: array.astype(np.float64) if array.dtype == np.float16 else array for name, array in case(1)[0].items()
    }
    assert verify(DEMO, DEMO, inputs=inputs).ok


def test_npz_files_of_the_wrong_kind(tmp_path: Path) -> None:
    save_npz(tmp_path / "mixed.npz", {"case0/in/x": np.zeros(1), "y": np.zeros(1)})
    save_npz(tmp_path / "none.npz", {})
    save_npz(tmp_path / "good.npz", dict(case(1)[0]))
    (tmp_path / "text.npz").write_text("text")
    for name, words in (
        ("mixed.npz", "plain and recorded names are mixed; found y"),
        ("none.npz", "no arrays in it"),
        ("text.npz", "not a readable npz file"),
        ("absent.npz", "no such file"),
    ):
        with pytest.raises(BadInput, match=words):
            verify(DEMO, DEMO, inputs=tmp_path / name)
    with pytest.raises(BadInput, match="expected values of an unknown output; found other"):
        verify(DEMO, DEMO, inputs=tmp_path / "good.npz", expected={"other": np.zeros(1)})
    with pytest.raises(BadInput, match="expected outputs without inputs"):
        verify(DEMO, DEMO, expected=tmp_path / "good.npz")
    with pytest.raises(BadInput, match="expected outputs beside recorded ones"):
        verify(DEMO, DEMO, inputs=RECORD, expected=tmp_path / "good.npz")


def bfloat16_model(factor: float = 1.0) -> onnx.ModelProto:
    """y = cast(x) * w + If(c, x, -x) in bfloat16, which ONNX Runtime's CPU provider cannot compute."""
    half = TensorProto.BFLOAT16
    value = helper.make_tensor_value_info
    weight = numpy_helper.from_array((np.arange(1, 5) * factor).astype(ml_dtypes.bfloat16), "w")

    def branch(name: str, op: str) -> onnx.GraphProto:
        return helper.make_graph([helper.make_node(op, ["x"], [name])], name, [], [value(name, half, None)])

    nodes = [
        helper.make_node("Cast", ["x"], ["wide"], to=TensorProto.FLOAT),
        helper.make_node("Cast", ["wide"], ["narrow"], to=half),
        helper.make_node("Mul", ["narrow", "w"], ["m"]),
        helper.make_node("If", ["c"], ["b"], then_branch=branch("t", "Identity"), else_branch=branch("e", "Neg")),
        helper.make_node("Add", ["m", "b"], ["y"]),
    ]
    graph = helper.make_graph(
        nodes,
        "g",
        [value("x", half, ["N", 4]), value("c", TensorProto.BOOL, [])],
        [value("y", half, ["N", 4])],
        [weight],
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=10)


def test_bfloat16_models_are_compared_in_float32_and_that_is_said() -> None:
    result = verify(bfloat16_model(), bfloat16_model())
    assert result.ok
    assert "every bfloat16 widened to float32 on both sides" in result.how
    assert not verify(bfloat16_model(), bfloat16_model(1.5)).ok


def test_bfloat16_models_are_compared_rounded_on_request() -> None:
    result = verify(bfloat16_model(), bfloat16_model(), bf16="round")
    assert result.ok
    assert "computed in float32 and rounded" in result.how
    assert not verify(bfloat16_model(), bfloat16_model(1.5), bf16="round").ok


def test_bfloat16_recordings_are_judged_by_bfloat16() -> None:
    x = np.linspace(-2, 2, 8).reshape(2, 4).astype(ml_dtypes.bfloat16)
    weight = np.arange(1, 5).astype(ml_dtypes.bfloat16)
    y = (x * weight).astype(ml_dtypes.bfloat16) + x
    inputs = {"a/in/x": x.astype(np.float32), "a/in/c": np.asarray(True), "a/out/y": y.astype(np.float32)}
    assert verify(bfloat16_model(), bfloat16_model(), inputs=inputs).ok
    inputs["a/out/y"] = (y + 1).astype(np.float32)
    result = verify(bfloat16_model(), bfloat16_model(), inputs=inputs)
    assert [(item.against, item.ok) for item in result.differences] == [("original", True), ("recorded", False)]


def test_widening_leaves_no_bfloat16_and_nothing_else_changed() -> None:
    wide = widened(bfloat16_model())
    assert has_bfloat16(bfloat16_model())
    assert not has_bfloat16(wide)
    assert [node.op_type for node in wide.graph.node] == ["Cast", "Cast", "Mul", "If", "Add"]
    assert numpy_helper.to_array(wide.graph.initializer[0]).tolist() == [1, 2, 3, 4]
    assert not has_bfloat16(onnx.load_model(DEMO))
    onnx.checker.check_model(wide, full_check=True)


def test_external_weights_of_an_ir_model_are_found(tmp_path: Path) -> None:
    onnx.save_model(
        onnx.load_model(DEMO), tmp_path / "m.onnx", save_as_external_data=True, location="w.bin", size_threshold=1024
    )
    assert verify(DEMO, ir.load(tmp_path / "m.onnx"), cases=1).ok
    assert verify(tmp_path / "m.onnx", DEMO, cases=1).ok
    assert open_model(onnx.load_model(tmp_path / "m.onnx", load_external_data=False), kernels=False, folder=tmp_path)


def test_a_result_can_be_written_and_read_back(tmp_path: Path) -> None:
    save_npz(tmp_path / "x.npz", {"x": np.ones(3, ml_dtypes.bfloat16)})
    assert load_npz(tmp_path / "x.npz")["x"].dtype == ml_dtypes.bfloat16


def test_products_that_round_activations_are_compared_without_on_made_up_inputs() -> None:
    """The last bit of a float decides between two of 8-bit steps: that would say nothing about a fusion."""
    path = DATA / "graphs" / "qwen3_genai_int4.onnx"
    fused = fuse(path).model
    made, given = verify(path, fused, cases=2), verify(path, fused, inputs=path.with_suffix(".npz"))
    assert made.ok, made.differences
    assert "MatMulNBits takes the activations as they are" in made.how
    assert "MatMulNBits" not in given.how
