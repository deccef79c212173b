"""What is not exported says so before anything is written: all of it, with counts and what to use instead."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper

from ir_ops.errors import BadModel, BadUsage, ExportError
from ir_ops.ge import export
from tests.ir_ops.ge.onnx_models import Case, Fixed, make_model

X = np.zeros((2, 3, 4), np.float32)
IDS = np.zeros((2, 3), np.int64)
SCALE = np.ones(4, np.float32)


def refusal(case: Case, **options: Any) -> str:
    with pytest.raises(ExportError) as raised:
        export(case.model(), **options)
    assert "\n" not in str(raised.value)
    return raised.value.found


@pytest.mark.parametrize(
    ("case", "text"),
    [
        (Case("Celu", [X]), "1 x Celu: no conversion"),
        (Case("Conv", [X, Fixed(np.zeros((3, 3, 2), np.float32))]), "Conv that mixes channels"),
        (Case("Pad", [X, Fixed(np.array([0, 0, 0, 0, 0, -1]))]), "Pad by a negative number, which cuts"),
        (Case("Pad", [X, Fixed(np.ones(6, np.int64))], {"mode": "edge"}), "Pad in mode edge"),
        (Case("Split", [X[0, 0, :1].repeat(5)], {"num_outputs": 4}, outputs=4), "a dim of 5 in 4 parts of 2, nearest"),
        (Case("GlobalMaxPool", [X]), "no conversion"),
        (Case("GatherND", [X, IDS], {"batch_dims": 1}), "GatherND with batch_dims, nearest: batch_dims=0"),
        (
            Case("ScatterND", [X, np.zeros((1, 1), np.int64), X[:1]], {"reduction": "max"}),
            "ScatterND with reduction max",
        ),
        (Case("ScatterElements", [X, IDS[..., None], X[:, :, :1]], {"reduction": "min"}), "with reduction min"),
        (Case("IsInf", [X], {"detect_negative": 0}, opset=20), "IsInf of one sign"),
        (Case("Softmax", [X], {"axis": 1}, opset=11), "Softmax of opset 11 over several axes"),
        (Case("ArgMax", [X], {"select_last_index": 1}), "select_last_index"),
        (Case("LayerNormalization", [X, Fixed(SCALE)], outputs=2), "mean or inv_std_dev"),
        (
            Case("RMSNormalization", [X, Fixed(SCALE)], {"axis": 1}, opset=23),
            "a norm over axes 1.. with a scale of rank 1",
        ),
        (Case("RMSNormalization", [X, Fixed(SCALE)], {"stash_type": 10}, opset=23), "stash_type 10"),
        (Case("Einsum", [X, X], {"equation": "...ij,...jk->...ik"}), "Einsum with an ellipsis"),
        (
            Case("QuantizeLinear", [X, Fixed(SCALE[0]), Fixed(np.array(0, np.uint16))], opset=21),
            "QuantizeLinear to uint16, nearest: int8 or uint8",
        ),
        (Case("Cast", [X], {"to": TensorProto.STRING}), "Cast to ONNX element type 8"),
        (Case("Cast", [X], {"to": TensorProto.FLOAT8E4M3FN, "saturate": 0}, opset=19), "float8 without saturation"),
        (Case("Unsqueeze", [X, np.zeros(1, np.int64)]), "input 1 is not constant, nearest: fix the input shapes"),
        (Case("TensorScatter", [X, X], {"mode": "circular"}, opset=24), "TensorScatter in circular mode"),
        (Case("RotaryEmbedding", [X, X, X], opset=23), "a 3-D x without num_heads"),
        (Case("MatMul", [X.astype(np.float64), X.astype(np.float64).reshape(2, 4, 3)]), "element type float64"),
        (
            Case("GroupQueryAttention", [X, X, X], domain="com.microsoft"),
            "com.microsoft.GroupQueryAttention: packed attention",
        ),
        (
            Case("MatMulNBits", [X, X, X], {"bits": 3, "block_size": 16, "K": 1, "N": 1}, domain="com.microsoft"),
            "3 bits",
        ),
    ],
    ids=lambda value: f"{value.op}" if isinstance(value, Case) else "",
)
def test_unsupported(case: Case, text: str) -> None:
    assert text in refusal(case)


def test_attention_with_softcap_or_past() -> None:
    q = np.zeros((1, 2, 3, 8), np.float32)
    assert "a past key or value alone" in refusal(Case("Attention", [q, q, q, None, q], opset=23))
    assert "3-D inputs of unknown width" in refusal(Case("Attention", [X, X, X], opset=23))


def test_all_failures_are_listed_with_counts(tmp_path: Path) -> None:
    x = helper.make_tensor_value_info("x", TensorProto.FLOAT, [2])
    nodes = [helper.make_node("Celu", ["x" if i == 0 else f"y{i - 1}"], [f"y{i}"], name=f"c{i}") for i in range(3)]
    nodes.append(helper.make_node("Sqrtt", ["x"], ["z"], name="typo"))
    nodes.append(helper.make_node("IsInf", ["x"], ["w"], name="inf", detect_negative=0))
    outs = [helper.make_empty_tensor_value_info(name) for name in ("y2", "z", "w")]
    target = tmp_path / "out.air"
    with pytest.raises(ExportError) as raised:
        export(make_model(helper.make_graph(nodes, "net", [x], outs), 20), target)
    assert str(raised.value) == (
        "net: the model cannot be exported to GE; found 3 x Celu: no conversion, nearest: Relu, Gelu (first: c0); "
        "1 x Sqrtt: no conversion, nearest: Sqrt (first: typo); "
        "1 x IsInf: IsInf of one sign, nearest: Equal to a constant infinity (first: inf)"
    )
    assert list(tmp_path.iterdir()) == []


def test_an_existing_file_survives_a_failed_export(tmp_path: Path) -> None:
    target = tmp_path / "out.air"
    target.write_bytes(b"older")
    with pytest.raises(ExportError):
        export(Case("Celu", [X]).model(), target)
    assert target.read_bytes() == b"older"


def test_control_flow() -> None:
    branch = helper.make_graph(
        [helper.make_node("Neg", ["x"], ["b"])], "b", [], [helper.make_empty_tensor_value_info("b")]
    )
    node = helper.make_node("If", ["c"], ["y"], then_branch=branch, else_branch=branch, name="if")
    infos = [helper.make_tensor_value_info("x", 1, [2]), helper.make_tensor_value_info("c", 9, [])]
    model = make_model(helper.make_graph([node], "g", infos, [helper.make_empty_tensor_value_info("y")]))
    with pytest.raises(ExportError, match="1 x If: a branch that is chosen at run time"):
        export(model)


def test_onnx_only_attributes_must_have_their_default(tmp_path: Path) -> None:
    names = ("kv", "gamma", "cos", "sin", "index", "k_cache", "ckv_cache")
    shapes = ((1, 1, 1, 576), (512,), (1, 1, 1, 64), (1, 1, 1, 64), (1, 1), (1, 1, 8, 64), (1, 1, 8, 512))
    infos = [helper.make_tensor_value_info(n, 7 if n == "index" else 10, s) for n, s in zip(names, shapes, strict=True)]
    outs = ["a", "b", "c", "d"]

    def model(**attrs: Any) -> onnx.ModelProto:
        node = helper.make_node("KvRmsNormRopeCache", list(names), outs, domain="ai.ascend", name="kv", **attrs)
        graph = helper.make_graph([node], "g", infos, [helper.make_empty_tensor_value_info(name) for name in outs])
        return make_model(graph)

    assert export(model(float8_cast="saturate")).ops_after["KvRmsNormRopeCache"] == 1
    with pytest.raises(ExportError, match="float8_cast=integer, which GE does not have, nearest: float8_cast=saturate"):
        export(model(float8_cast="integer"))


def test_product_limits_are_checked() -> None:
    kv = np.zeros((2, 1, 3, 40), np.float16)
    cases = [kv, np.ones(32, np.float16), kv[..., :8], kv[..., :8], np.zeros((2, 3), np.int64)]
    caches = [np.zeros((2, 1, 8, 8), np.float16), np.zeros((2, 1, 8, 32), np.float16)]
    case = Case("KvRmsNormRopeCache", [*cases, *caches], outputs=4, domain="ai.ascend")
    assert export(case.model()).ops_after["KvRmsNormRopeCache"] == 1
    assert "nearest: product generic instead of A3" in refusal(case, product="A3")


class TestBadArguments:
    def test_options(self) -> None:
        model = Case("Neg", [X]).model()
        with pytest.raises(BadUsage, match="unknown product; found A9"):
            export(model, product="A9")
        with pytest.raises(BadUsage, match="unknown cache form; found inplace, wanted ref | copy"):
            export(model, cache="inplace")
        with pytest.raises(BadUsage, match="unknown place for weights; found nowhere"):
            export(model, weights="nowhere")

    def test_files(self, tmp_path: Path) -> None:
        with pytest.raises(BadModel, match="no such file"):
            export(tmp_path / "none.onnx")
        (tmp_path / "bad.onnx").write_bytes(b"nonsense")
        with pytest.raises(BadModel, match="not an ONNX model"):
            export(tmp_path / "bad.onnx")

    @pytest.mark.parametrize("opset", [7, 99])
    def test_opsets_nobody_knows(self, opset: int) -> None:
        with pytest.raises(BadModel, match=f"the model's opset is not known; found {opset}, wanted 11 to"):
            export(Case("Neg", [X], opset=opset).model())

    def test_functions_that_are_no_functions(self) -> None:
        model = Case("Neg", [X]).model()
        body = [helper.make_node("Neg", ["x"], ["elsewhere"])]
        opsets = [helper.make_opsetid("", 18)]
        model.functions.append(helper.make_function("mine", "F", ["x"], ["y"], body, opsets))
        with pytest.raises(BadModel, match="not a valid ONNX model"):
            export(model)

    def test_missing_external_data(self, tmp_path: Path) -> None:
        model = Case("Add", [X, Fixed(np.ones((3, 4), np.float32))]).model()
        path = tmp_path / "m.onnx"
        onnx.save(model, path, save_as_external_data=True, location="m.data", size_threshold=0)
        (tmp_path / "m.data").unlink()
        with pytest.raises(BadModel, match="external data cannot be read"):
            export(path)

    @pytest.mark.parametrize(
        ("shapes", "text"),
        [
            ({"y": (1,)}, "no such graph input; found y, wanted in0, in1"),
            ({"in0": (2, 3)}, "another rank"),
            ({"in0": (2, "b", 4)}, "input_shapes in0: a shape is not a list of dims"),
            ({"in0": 7}, "input_shapes in0: a shape is not a list of dims"),
            ({"in0": (2, -3, 4)}, "a dim that is none"),
            ({"in0": (0, 3, 4), "in1": (1, 1, 1)}, "GE takes no empty input"),
        ],
    )
    def test_input_shapes(self, shapes: Any, text: str) -> None:
        with pytest.raises(BadUsage, match=text):
            export(Case("Add", [X, X]).model(dynamic=True), input_shapes=shapes)

    def test_input_shapes_against_fixed_or_shared_dims(self) -> None:
        with pytest.raises(BadUsage, match="another dim than the model fixes; found 5, wanted 2"):
            export(Case("Neg", [X]).model(), input_shapes={"in0": (5, 3, 4)})
        infos = [helper.make_tensor_value_info(name, 1, ["n"]) for name in ("a", "b")]
        node = helper.make_node("Add", ["a", "b"], ["y"])
        model = make_model(helper.make_graph([node], "g", infos, [helper.make_empty_tensor_value_info("y")]))
        assert [str(e.outputs[0].type) for e in export(model, input_shapes={"a": (7,)}).model.root.of_type("Data")] == [
            "float32[7]", "float32[7]",
        ]  # fmt: skip
        with pytest.raises(BadUsage, match="dim n has two values; found 7 and 8"):
            export(model, input_shapes={"a": (7,), "b": (8,)})
