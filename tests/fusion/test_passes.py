"""Fusing as an onnx_ir pass, alone and between others."""

from __future__ import annotations

import onnx
import onnx_ir as ir
import pytest
from onnx_ir.passes.common import RemoveUnusedOpsetsPass, ShapeInferencePass

from fusion import DefusePass, FusionPass
from ir_ops.errors import BadModel, BadUsage
from ir_ops.ops import DOMAIN
from tests.fusion.zoo.run import run, worst
from tests.fusion.zoo.spec import Spec, expected, feeds
from tests.fusion.zoo.spellings import Preamble

OP = "KvRmsNormRopeCache"
SPEC = Spec(layers=2, kv="matmul")


def model() -> ir.Model:
    return ir.from_proto(Preamble(SPEC).model())


def ours(model: ir.Model) -> list[str]:
    return [node.op_type for node in model.graph.all_nodes() if node.domain == DOMAIN]


def text(model: ir.Model) -> bytes:
    return ir.to_proto(model).SerializeToString(deterministic=True)


def test_a_pass_between_others_computes_the_same() -> None:
    given = model()
    chain = ir.passes.Sequential(ShapeInferencePass(), FusionPass(only=[OP]), RemoveUnusedOpsetsPass())
    result = chain(given)
    assert result.modified
    assert ours(result.model) == [OP, OP]
    proto = ir.to_proto(result.model)
    assert isinstance(proto, onnx.ModelProto)
    values = feeds(SPEC, 2, 3, 1)
    assert worst(run(proto, values), expected(SPEC, values), "float32") == ""


def test_the_input_of_the_pass_stays_as_it_was() -> None:
    given = model()
    before = text(given)
    fused = FusionPass()(given)
    assert fused.model is not given
    assert text(given) == before


def test_the_pass_keeps_its_report() -> None:
    step = FusionPass(only=[OP])
    assert step.result is None
    step(model())
    assert step.result is not None
    assert [site.op for site in step.result.sites] == [OP, OP]


def test_a_second_pass_changes_nothing() -> None:
    fused = FusionPass()(model()).model
    again = FusionPass()(fused)
    assert not again.modified
    assert text(again.model) == text(fused)


def test_defusing_is_a_pass_too() -> None:
    fused = FusionPass()(model()).model
    plain = DefusePass()(fused)
    assert plain.modified
    assert not ours(plain.model)
    assert not DefusePass()(plain.model).modified


def test_bad_options_are_refused_when_the_pass_is_made() -> None:
    with pytest.raises(BadUsage, match="unknown product"):
        FusionPass(product="A9")
    with pytest.raises(BadUsage, match="unknown operator"):
        FusionPass(only=["Softplus"])


def test_a_bad_model_is_refused() -> None:
    with pytest.raises(BadModel, match="empty"):
        FusionPass()(ir.Model(ir.Graph([], [], nodes=[]), ir_version=10))
