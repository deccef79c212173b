"""Exported graphs with recorded results: what fuses in them, how the choices of ``fuse`` act, and that results stay."""

from __future__ import annotations

from functools import cache

import numpy as np
import onnx
import pytest

import fusion
import models
from fusion import FusionResult
from ir_ops.errors import BadUsage
from ir_ops.npz import load_npz
from tests.conftest import DATA

OP = "KvRmsNormRopeCache"
GRAPHS = {
    "hand_kvrrc_norm_dynamo18_fp16": "Norm",
    "hand_kvrrc_pa_quant_dynamo20_fp16": "PA",
    "hand_kvrrc_pa_ts17_fp32": "PA",
    "hand_kvrrc_v2_dynamo18_fp32": "PA",
    "dsv3_il_dynamo18_fp16_staticcache": "Norm",
}
"""Graph -> the cache_mode of its site."""


def model_of(name: str) -> onnx.ModelProto:
    path = models.demo_graph() if name.startswith("dsv3") else DATA / "graphs" / f"{name}.onnx"
    return onnx.load_model(path)


@cache
def fused(name: str) -> FusionResult:
    return fusion.fuse(model_of(name))


@pytest.mark.parametrize(("name", "mode"), GRAPHS.items())
def test_one_site_in_its_mode(name: str, mode: str) -> None:
    result = fused(name)
    assert [site.attrs["cache_mode"] for site in result.sites if site.op == OP] == [mode]
    assert result.ops_after[f"ai.ascend::{OP}"] == 1
    assert sum(result.ops_after.values()) < sum(result.ops_before.values())
    # the larger operator is told why it does not stand where this one does
    assert {refusal.code for refusal in result.refusals} <= {"mla-not-absorbed"}
    assert bool(result.refusals) == name.startswith("dsv3")
    assert result.sites[0].proof.cases >= 2


def test_a_quantised_cache_takes_a_scale_and_version_2_takes_v() -> None:
    quantised = fused("hand_kvrrc_pa_quant_dynamo20_fp16").sites[0]
    assert quantised.inputs[7:9] == ("", "KvRmsNormRopeCache_x/c_kv_scale")
    separate = fused("hand_kvrrc_v2_dynamo18_fp32").sites[0]
    assert len(separate.inputs) == 12 and separate.inputs[11]


@pytest.mark.parametrize("name", GRAPHS)
@pytest.mark.parametrize("kernel", [True, False], ids=["kernel", "body"])
def test_recorded_outputs_are_met(name: str, kernel: bool) -> None:
    record = load_npz(models.demo_record() if name.startswith("dsv3") else DATA / "graphs" / f"{name}.npz")
    verified = fusion.verify(model_of(name), fused(name).model, inputs=record, kernel=kernel)
    assert verified.ok, verified.differences
    cases = {key.split("/")[0] for key in record}
    outputs = {key for key in record if key.split("/")[1] == "out"}
    # each output of each case beside the original's and beside the recorded one
    assert len(verified.differences) == 2 * len(outputs) and len(cases) == 2


@pytest.mark.parametrize("name", GRAPHS)
def test_fusing_again_changes_nothing(name: str) -> None:
    once = fused(name).model
    again = fusion.fuse(once)
    assert not again.sites
    assert [node.op_type for node in again.model.graph.node] == [node.op_type for node in once.graph.node]
    assert again.ops_before == again.ops_after


@pytest.mark.parametrize("name", GRAPHS)
def test_explain_finds_what_fuse_does(name: str) -> None:
    model = model_of(name)
    before = model.SerializeToString(deterministic=True)
    explained = fusion.explain(model)
    assert model.SerializeToString(deterministic=True) == before
    assert [(site.op, site.place, site.attrs) for site in explained.sites] == [
        (site.op, site.place, site.attrs) for site in fused(name).sites
    ]
    assert explained.ops_after == explained.ops_before


def test_results_do_not_depend_on_how_the_model_is_given() -> None:
    name = "hand_kvrrc_v2_dynamo18_fp32"
    from_path = fusion.fuse(DATA / "graphs" / f"{name}.onnx")
    assert [node.op_type for node in from_path.model.graph.node] == [
        node.op_type for node in fused(name).model.graph.node
    ]


def test_only_restricts_the_operators() -> None:
    model = model_of("hand_kvrrc_pa_ts17_fp32")
    assert fusion.fuse(model, only=[OP]).count(OP) == 1
    assert fusion.fuse(model, only=()).count(OP) == 1
    with pytest.raises(BadUsage, match="unknown operator"):
        fusion.fuse(model, only=["NoSuchOp"])


@pytest.mark.parametrize("name", GRAPHS)
def test_strict_slots_refuses_what_relies_on_slots(name: str) -> None:
    relies = any(text.startswith("slots >= 0") for text in fused(name).sites[0].assumptions)
    strict = fusion.fuse(model_of(name), strict_slots=True)
    assert strict.count(OP) == (0 if relies else 1)
    refused = [refusal.code for refusal in strict.refusals if refusal.rule == OP]
    assert refused == (["slots-negative"] if relies else [])


@pytest.mark.parametrize(
    ("name", "product"),
    [("hand_kvrrc_v2_dynamo18_fp32", "950"), ("hand_kvrrc_pa_ts17_fp32", "A3"), ("hand_kvrrc_v2_dynamo18_fp32", "A3")],
)
def test_limits_of_a_product_refuse_with_their_rule(name: str, product: str) -> None:
    result = fusion.fuse(model_of(name), product=product, only=[OP])
    assert not result.sites
    refusal = result.refusals[0]
    assert refusal.code.startswith("KV-") and product in refusal.suggestion
    assert refusal.found and refusal.wanted


def test_without_functions_only_the_kernel_can_run_it() -> None:
    model = model_of("hand_kvrrc_v2_dynamo18_fp32")
    assert not fusion.fuse(model, functions=False).model.functions
    assert [function.name for function in fused("hand_kvrrc_v2_dynamo18_fp32").model.functions] == [OP]


SCATTERS = ("ScatterPaKvCache", "ScatterUpdate", "ScatterNdUpdate")
WRITTEN = {
    "dsv3_il_dynamo18_fp16_staticcache": {"ScatterNdUpdate": 2},
    "hand_drqk_contiguous_dynamo18_fp16": {"ScatterNdUpdate": 2},
    "hand_drqk_page_ts17_fp16": {"ScatterPaKvCache": 1},
    "hand_kvrrc_pa_quant_dynamo20_fp16": {"ScatterNdUpdate": 2},
    "hand_kvrrc_pa_ts17_fp32": {"ScatterPaKvCache": 1},
    "hand_kvrrc_v2_dynamo18_fp32": {"ScatterPaKvCache": 1},
    "hand_mlaprolog_attn_dynamo18_fp32": {"ScatterPaKvCache": 1},
    "hand_mlaprolog_dynamo18_fp16": {"ScatterPaKvCache": 1},
    "hand_qkvrrc_bsnd_dynamo23_bf16": {"ScatterPaKvCache": 1},
    "hand_qkvrrc_nz_dynamo18_fp16": {"ScatterPaKvCache": 1},
    "hand_qkvrrc_nz_quant_ts17_fp16": {"ScatterPaKvCache": 1},
    "qwen3_dynamo18_fp32_staticcache": {"ScatterNdUpdate": 2},
}
"""Graphs with explicit caches -> what writes them where no larger operator may."""


@pytest.mark.parametrize("name", WRITTEN)
def test_every_write_is_a_scatter_where_no_larger_operator_may_stand(name: str) -> None:
    model = model_of(name)
    alone = fusion.fuse(model, only=SCATTERS)
    assert {op: alone.count(op) for op in SCATTERS if alone.count(op)} == WRITTEN[name]
    assert not [refusal for refusal in alone.refusals if refusal.rule in SCATTERS]
    record = load_npz(models.demo_record() if name.startswith("dsv3") else DATA / "graphs" / f"{name}.npz")
    verified = fusion.verify(model, alone.model, inputs=record)
    assert verified.ok, verified.differences
    assert not any(fusion.fuse(model).count(op) for op in SCATTERS), "larger operators come first"


def test_a_batch_of_one_that_is_written_at_the_slots_of_several_is_no_scatter_of_its_own() -> None:
    """Index and rows have batches of different names: with one row and three lists of slots the graph writes entry 0
    three times, a scatter by entry would not. The larger operator refuses such a call."""
    alone = fusion.fuse(model_of("hand_kvrrc_norm_dynamo18_fp16"), only=SCATTERS)
    assert not alone.sites
    assert {(refusal.rule, refusal.code) for refusal in alone.refusals} == {("ScatterNdUpdate", "proof-failed")}
    assert {refusal.suggestion for refusal in alone.refusals} == {
        "give both dims one name, or a number, if they are always the same"
    }


def test_parameters_are_taken_over_unchanged() -> None:
    result = fused("hand_kvrrc_norm_dynamo18_fp16")
    initializers = {tensor.name: tensor for tensor in result.model.graph.initializer}
    before = {tensor.name: tensor for tensor in model_of("hand_kvrrc_norm_dynamo18_fp16").graph.initializer}
    gamma = initializers[result.sites[0].inputs[1]]
    numbers = onnx.numpy_helper.to_array(gamma)
    assert any(np.array_equal(numbers, onnx.numpy_helper.to_array(tensor)) for tensor in before.values())
