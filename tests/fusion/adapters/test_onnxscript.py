"""kvfuse inside onnxscript: a rule set for its rewriter, an opset for its functions."""

from __future__ import annotations

import numpy as np
import onnx
import onnx_ir as ir
import pytest
from onnx import TensorProto, helper
from onnxscript import FLOAT, script
from onnxscript import opset18 as op
from onnxscript.rewriter import RewritePass, RewriteRuleSet, rewrite

import custom_ort
from fusion.adapters.onnxscript import FusionRules, ascend
from ir_ops.errors import BadModel, BadUsage
from ir_ops.ops import DOMAIN, OPS
from tests.fusion.zoo.run import run, worst
from tests.fusion.zoo.spec import Spec, expected, feeds
from tests.fusion.zoo.spellings import Preamble

OP = "KvRmsNormRopeCache"
SPEC = Spec(layers=2, kv="matmul")


@script(default_opset=op)
def normed(x: FLOAT[5, 64], gamma: FLOAT[64]) -> FLOAT[5, 64]:
    y, _rstd = ascend.RmsNorm(x, gamma, epsilon=1e-5)
    return y


def test_the_rewriter_fuses_with_our_rules() -> None:
    rules = FusionRules(only=[OP])
    assert isinstance(rules, RewriteRuleSet)
    fused = rewrite(Preamble(SPEC).model(), rules)
    assert isinstance(fused, onnx.ModelProto)
    assert [node.op_type for node in fused.graph.node if node.domain == DOMAIN] == [OP, OP]
    assert [site.op for site in rules.sites] == [OP, OP]
    values = feeds(SPEC, 2, 3, 1)
    assert worst(run(fused, values), expected(SPEC, values), "float32") == ""


def test_a_model_without_sites_stays_as_it_is() -> None:
    value = helper.make_tensor_value_info
    graph = helper.make_graph([helper.make_node("Relu", ["x"], ["y"])], "g", [value("x", TensorProto.FLOAT, [3])],
                              [value("y", TensorProto.FLOAT, [3])])  # fmt: skip
    model = ir.from_proto(helper.make_model(graph))
    rules = FusionRules()
    result = RewritePass(rules)(model)
    assert (result.model is model, result.modified, rules.sites) == (True, False, [])


def test_bad_use_is_refused() -> None:
    with pytest.raises(BadUsage, match="unknown product"):
        FusionRules(product="A9")
    with pytest.raises(BadUsage, match="traced"):
        FusionRules().apply_to_model(ir.from_proto(Preamble(SPEC).model()), tracer=object())
    with pytest.raises(BadModel, match="empty"):
        FusionRules().apply_to_model(ir.Model(ir.Graph([], [], nodes=[]), ir_version=10))


def test_our_operators_can_be_called_in_onnxscript_functions() -> None:
    model = normed.to_model_proto()
    rng = np.random.default_rng(3)
    x, gamma = rng.standard_normal((5, 64)).astype(np.float32), rng.standard_normal(64).astype(np.float32)
    names = [value.name for value in model.graph.input]
    result = custom_ort.run(custom_ort.session(model), dict(zip(names, (x, gamma), strict=True)))
    wanted = OPS["RmsNorm"].reference({"x": x, "gamma": gamma}, {"epsilon": 1e-5})["y"]
    assert np.allclose(next(iter(result.values())), wanted, rtol=1e-5, atol=1e-6)
