"""``fuse`` and ``explain`` as callers see them."""

from __future__ import annotations

from pathlib import Path

import onnx
import onnx_ir as ir
import pytest
from onnx import helper

import fusion
from ir_ops.errors import BadModel, BadUsage
from tests.fusion.zoo.run import run, worst
from tests.fusion.zoo.spec import Spec, expected, feeds
from tests.fusion.zoo.spellings import Preamble

OP = "KvRmsNormRopeCache"
SPEC = Spec(layers=2, kv="matmul")


def proto() -> onnx.ModelProto:
    return Preamble(SPEC).model()


def test_a_model_comes_back_in_the_form_it_was_given(tmp_path: Path) -> None:
    onnx.save(proto(), tmp_path / "in.onnx")
    assert isinstance(fusion.fuse(proto()).model, onnx.ModelProto)
    assert isinstance(fusion.fuse(tmp_path / "in.onnx").model, onnx.ModelProto)
    assert isinstance(fusion.fuse(ir.from_proto(proto())).model, ir.Model)


def test_a_given_ir_model_is_not_changed() -> None:
    model = ir.from_proto(proto())
    before = ir.to_proto(model).SerializeToString(deterministic=True)
    fusion.fuse(model)
    fusion.explain(model)
    assert ir.to_proto(model).SerializeToString(deterministic=True) == before


def test_the_written_file_is_the_fused_model(tmp_path: Path) -> None:
    result = fusion.fuse(proto(), tmp_path / "out.onnx")
    written = onnx.load(tmp_path / "out.onnx")
    assert sum(node.op_type == OP for node in written.graph.node) == result.count(OP) == 2
    given = feeds(SPEC, 2, 3, seed=1)
    assert worst(run(written, given), expected(SPEC, given), "float32") == ""
    assert "save" in result.timings


@pytest.mark.parametrize(
    ("arguments", "text"),
    [({"product": "A9"}, "generic | 950"), ({"only": ["Rope"]}, "KvRmsNormRopeCache")],
)
def test_unknown_choices_name_the_known_ones(arguments: dict[str, object], text: str) -> None:
    with pytest.raises(BadUsage, match="unknown") as caught:
        fusion.fuse(proto(), **arguments)  # type: ignore[arg-type]
    assert text in str(caught.value)


def test_an_invalid_model_is_refused_in_one_line() -> None:
    model = proto()
    del model.graph.node[3]
    with pytest.raises(BadModel) as caught:
        fusion.fuse(model)
    assert "\n" not in str(caught.value)


def test_explain_filters_by_layer_and_operator() -> None:
    model = proto()
    for node in model.graph.node:
        for names in (node.input, node.output):
            names[:] = [name.replace("k_cache_1", "layers.1.cache").replace("k_cache_0", "layers.0.cache")
                        for name in names]  # fmt: skip
    for entry in (*model.graph.input, *model.graph.output):
        entry.name = entry.name.replace("k_cache_1", "layers.1.cache").replace("k_cache_0", "layers.0.cache")
    everything = fusion.explain(model)
    assert {site.layer for site in everything.sites} == {0, 1}
    assert [site.layer for site in fusion.explain(model, layer=1).sites] == [1]
    assert len(fusion.explain(model, op=OP).sites) == 2


def test_local_functions_are_looked_into() -> None:
    """The whole preamble as one function call."""
    model = proto()
    graph = model.graph
    inputs, outputs = [item.name for item in graph.input], [item.name for item in graph.output]
    constants = [helper.make_node("Constant", [], [tensor.name], value=tensor) for tensor in graph.initializer]
    body = helper.make_function("local", "Preamble", inputs, outputs, [*constants, *graph.node], model.opset_import)
    call = helper.make_node("Preamble", inputs, outputs, domain="local")
    outer = helper.make_graph([call], "outer", list(graph.input), list(graph.output))
    wrapped = helper.make_model(
        outer, functions=[body], opset_imports=[*model.opset_import, helper.make_opsetid("local", 1)]
    )
    result = fusion.fuse(wrapped)
    assert result.count(OP) == 2
    given = feeds(SPEC, 2, 3, seed=1)
    assert worst(run(result.model, given), expected(SPEC, given), "float32") == ""


def test_time_is_told_by_phase() -> None:
    timings = fusion.fuse(proto()).timings
    assert {"load", "facts", "match", "prove", "rewrite"} <= set(timings)
    assert all(seconds >= 0 for seconds in timings.values())
