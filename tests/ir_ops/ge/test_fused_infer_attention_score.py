"""FusedInferAttentionScore as GE IR: exported, valid, evaluated."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from onnx import TensorProto, helper

from ir_ops.dtypes import by_numpy
from ir_ops.ge import execute, export, read
from ir_ops.ops import OPS
from tests.custom_ort.fia_breaches import legal
from tests.golden import BLOCKS, GoldenCase, cases
from tests.ir_ops.ge.onnx_models import make_model, tensor

OP = OPS["FusedInferAttentionScore"]


def model(inputs: dict[str, np.ndarray], attrs: dict[str, object], *, sums: bool = False) -> object:
    """One node; the triangle is a constant, everything else an input. With ``sums`` the lengths are computed."""
    given = [entry.name if entry.name in inputs else "" for entry in OP.inputs]
    while not given[-1]:
        given.pop()
    fixed = [name for name in given if name == "atten_mask"]
    nodes = []
    if sums:
        nodes.append(helper.make_node("CumSum", ["lengths", "axis"], ["actual_seq_lengths"], name="sums"))
    nodes.append(helper.make_node(OP.name, given, ["attention_out", "softmax_lse"], domain="ai.ascend", name="fused",
                                  **attrs))  # fmt: skip
    names = {name: "lengths" if sums and name == "actual_seq_lengths" else name for name in inputs}
    infos = [
        helper.make_tensor_value_info(names[name], by_numpy(array.dtype).onnx or 0, array.shape)
        for name, array in inputs.items()
        if name not in fixed
    ]
    constants = [tensor(name, inputs[name]) for name in fixed]
    constants += [helper.make_tensor("axis", TensorProto.INT64, [], [0])] if sums else []
    results = [helper.make_empty_tensor_value_info(name) for name in ("attention_out", "softmax_lse")]
    return make_model(helper.make_graph(nodes, "g", infos, results, constants))


@pytest.mark.parametrize("case", cases(OP.name, base=BLOCKS), ids=str)
def test_published_vectors(case: GoldenCase, tmp_path: Path) -> None:
    """Exported for a product, validated and evaluated; key and value are lists of one tensor."""
    result = export(model(case.inputs, case.attrs), tmp_path / "m.air", product="A2")
    assert {finding.severity for finding in result.findings} <= {"note"}
    made = read(tmp_path / "m.air")
    feeds = {name: array for name, array in case.inputs.items() if name != "atten_mask"}
    case.check(dict(execute(made, feeds).outputs))


def test_inner_precise_is_written(tmp_path: Path) -> None:
    """Its default is not the same in all versions."""
    call = legal("plain")
    assert "inner_precise" not in call.attrs
    result = export(model(call.inputs, call.attrs), tmp_path / "m.air", text=True)
    assert result.text is not None and "inner_precise" in result.text.read_text()


def test_computed_lengths_are_noted(tmp_path: Path) -> None:
    call = legal("tnd")
    result = export(model(call.inputs, call.attrs, sums=True), tmp_path / "m.air")
    assert any("actual_seq_lengths is computed; GE wants a graph input" in note for note in result.notes)


@pytest.mark.parametrize("product", ["generic", "A3"])
def test_the_triangle_that_products_need_is_supplied(product: str, tmp_path: Path) -> None:
    call = legal("plain")
    assert call.attrs["sparse_mode"] == 3 and "atten_mask" not in call.inputs
    export(model(call.inputs, call.attrs), tmp_path / "m.air", product=product)
    made = read(tmp_path / "m.air")
    (triangle,) = (node for node in made.root.of_type("Const") if "atten_mask" in node.name)
    assert str(triangle.outputs[0].type) == "bool[2048,2048]"
    (fused,) = made.root.of_type(OP.name)
    slot = fused.slot("atten_mask")
    assert slot is not None and slot.source is not None and slot.source.node == triangle.name
    wanted = OP.reference(call.inputs, OP.with_defaults(call.attrs))["attention_out"]
    np.testing.assert_array_equal(execute(made, call.inputs).outputs["attention_out"], wanted)


def test_all_nodes_share_one_triangle_and_modes_without_it_have_none() -> None:
    call = legal("plain")
    twice: Any = model(call.inputs, call.attrs)
    again = twice.graph.node.add()
    again.CopyFrom(twice.graph.node[0])
    again.name, again.output[:] = "again", ["second", "lse"]
    twice.graph.output.append(helper.make_empty_tensor_value_info("second"))
    assert sum("atten_mask" in node.name for node in export(twice).model.root.nodes) == 1
    plain = export(model(call.inputs, {**call.attrs, "sparse_mode": 0}))
    assert not any("atten_mask" in node.name for node in plain.model.root.nodes)
