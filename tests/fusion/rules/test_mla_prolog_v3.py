"""MlaPrologV3 in exported graphs with recorded results."""

from __future__ import annotations

from functools import cache

import onnx
import pytest

import fusion
from fusion import FusionResult
from ir_ops.npz import load_npz
from tests.conftest import DATA

OP = "MlaPrologV3"
GRAPHS = ("hand_mlaprolog_dynamo18_fp16", "hand_mlaprolog_attn_dynamo18_fp32")


def model_of(name: str) -> onnx.ModelProto:
    return onnx.load_model(DATA / "graphs" / f"{name}.onnx")


@cache
def fused(name: str) -> FusionResult:
    return fusion.fuse(model_of(name))


@pytest.mark.parametrize("name", GRAPHS)
def test_one_site_stands_for_the_whole_preamble(name: str) -> None:
    result = fused(name)
    assert [(site.op, site.attrs["cache_mode"]) for site in result.sites] == [(OP, "PA_BSND")]
    assert not result.refusals
    assert result.sites[0].attrs["rmsnorm_epsilon_cq"] == result.sites[0].attrs["rmsnorm_epsilon_ckv"]
    assert result.sites[0].removed >= 45


@pytest.mark.parametrize("name", GRAPHS)
@pytest.mark.parametrize("kernel", [True, False], ids=["kernel", "body"])
def test_recorded_outputs_are_met(name: str, kernel: bool) -> None:
    record = load_npz(DATA / "graphs" / f"{name}.npz")
    verified = fusion.verify(model_of(name), fused(name).model, inputs=record, kernel=kernel)
    assert verified.ok, verified.differences


@pytest.mark.parametrize("name", GRAPHS)
def test_fusing_again_changes_nothing_and_defusing_goes_back(name: str) -> None:
    once = fused(name).model
    assert not fusion.fuse(once).sites
    back = fusion.defuse(once).model
    assert not any(node.op_type == OP for node in back.graph.node)
    assert fusion.verify(model_of(name), back, inputs=load_npz(DATA / "graphs" / f"{name}.npz")).ok


def test_the_smaller_operator_stands_where_only_it_is_asked_for() -> None:
    result = fusion.fuse(model_of(GRAPHS[0]), only=["KvRmsNormRopeCache"])
    assert [site.op for site in result.sites] == ["KvRmsNormRopeCache"]


def test_a_product_refuses_by_its_own_rule_and_the_smaller_operator_follows() -> None:
    result = fusion.fuse(model_of(GRAPHS[0]), product="A3")
    assert OP not in {site.op for site in result.sites}
    assert any(refusal.rule == OP and refusal.code.startswith("MLA-") for refusal in result.refusals)


EXPORTS = ("batch_einsum_kv_b_dynamo23_fp32", "batch_matmul_joint_dynamo18_fp32", "tokens_bmm_kv_b_ts17_fp32")
"""Modules exported by torch 2.13, recorded outputs are PyTorch's: static caches by batch with the attention behind
them, a joint down-projection, paged caches by token; absorbed by Einsum, MatMul and bmm; kv_b_proj cut on the fly."""


@pytest.mark.parametrize("name", EXPORTS)
def test_torch_modules_fuse_and_give_what_torch_gives(name: str) -> None:
    model = onnx.load_model(DATA / "mla" / f"{name}.onnx")
    result = fusion.fuse(model)
    assert [site.op for site in result.sites] == [OP]
    verified = fusion.verify(model, result.model, inputs=load_npz(DATA / "mla" / f"{name}.npz"))
    assert verified.ok, verified.differences
