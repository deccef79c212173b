"""``verify`` on a converted decoder: random prompts beside the export it came from."""

from __future__ import annotations

from pathlib import Path

import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

import fusion
from ir_ops.errors import BadInput, BadUsage
from tests.conftest import DATA

EXPORT = DATA / "decoders" / "qwen3_dynamo.onnx"


@pytest.fixture(scope="module")
def decoder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("decoder") / "decoder.onnx"
    fusion.fuse(EXPORT, path, cache="auto", block_size=16)
    return path


def test_equal_logits_are_equal(decoder: Path) -> None:
    result = fusion.verify(EXPORT, decoder, cases=2)
    assert result.ok
    assert len(result.differences) == 2 * 4
    assert "one sequence at a time" in result.how


def test_wide_logits_of_narrow_caches_are_as_precise_as_these() -> None:
    model = onnx.load(DATA / "graphs" / "qwen3_dynamo23_bf16_dyncache.onnx")
    model.graph.node[-1].output[0] = "narrow"
    model.graph.node.append(helper.make_node("Cast", ["narrow"], ["logits"], to=TensorProto.FLOAT))
    model.graph.output[0].type.tensor_type.elem_type = TensorProto.FLOAT
    result = fusion.verify(model, fusion.fuse(model, cache="auto", block_size=16).model, cases=1)
    assert result.ok
    assert {item.dtype for item in result.differences} == {"bfloat16"}


def test_another_weight_is_noticed(decoder: Path) -> None:
    model = onnx.load(decoder)
    weight = next(item for item in model.graph.initializer if len(item.dims) == 2 and item.dims[0] == 64)
    weight.CopyFrom(numpy_helper.from_array(numpy_helper.to_array(weight) * 1.01, weight.name))
    assert not fusion.verify(EXPORT, model, cases=1).ok


def test_what_it_cannot_do_is_said(decoder: Path) -> None:
    with pytest.raises(BadUsage, match="random prompts"):
        fusion.verify(EXPORT, decoder, kernel=False)
    with pytest.raises(BadInput, match="no decoder with growing caches"):
        fusion.verify(DATA / "graphs" / "hand_kvrrc_norm_dynamo18_fp16.onnx", decoder)
