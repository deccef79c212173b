"""Exports whose caches grow: every norm, rotation and gated activation fuses, and the results stay."""

from __future__ import annotations

from functools import cache

import pytest

import fusion
from fusion import FusionResult
from ir_ops.npz import load_npz
from tests.conftest import DATA
from tests.machine import skip_where_products_saturate

GRAPHS = {
    "dsv2_hfexporter18_fp32_latentcache": {"AddRmsNorm": 2, "RmsNorm": 3, "ApplyRotaryPosEmb": 1, "SwiGlu": 1},
    "dsv3_optimum_fp32_expandedcache": {"AddRmsNorm": 2, "RmsNorm": 3, "InterleaveRope": 2, "SwiGlu": 1},
    "qwen2_ts17_ortdynint8_dyncache": {"AddRmsNorm": 2, "RmsNorm": 1, "ApplyRotaryPosEmb": 1, "SwiGlu": 1},
    "qwen3_dynamo23_bf16_dyncache": {"AddRmsNorm": 2, "RmsNorm": 3, "ApplyRotaryPosEmb": 1, "SwiGlu": 1},
    "qwen3_dynamo23_fp32_dyncache": {"AddRmsNorm": 2, "RmsNorm": 3, "ApplyRotaryPosEmb": 1, "SwiGlu": 1},
    "qwen3_genai_int4": {"AddRmsNorm": 2, "RmsNorm": 3, "SwiGlu": 1},
    "qwen3_hfexporter_ortfusions_cpu_fp32": {"AddRmsNorm": 2, "RmsNorm": 3, "RotaryPositionEmbedding": 2, "SwiGlu": 1},
    "qwen3_ts17_fp32_dyncache": {"AddRmsNorm": 2, "RmsNorm": 3, "ApplyRotaryPosEmb": 1, "SwiGlu": 1},
    "qwen3moe_hfexporter20_fp32_dyncache": {"AddRmsNorm": 2, "RmsNorm": 3, "ApplyRotaryPosEmb": 1, "SwiGlu": 1},
}
"""Graph -> sites by operator. A norm counts in RmsNorm or AddRmsNorm, two rotations in ApplyRotaryPosEmb."""
BLOCKS = ("RmsNorm", "AddRmsNorm", "RotaryPositionEmbedding", "ApplyRotaryPosEmb", "InterleaveRope")


@cache
def fused(name: str) -> FusionResult:
    return fusion.fuse(DATA / "graphs" / f"{name}.onnx")


@pytest.mark.parametrize("name", GRAPHS)
def test_every_block_is_found(name: str) -> None:
    result = fused(name)
    assert {op: result.count(op) for op in {site.op for site in result.sites}} == GRAPHS[name]
    assert not [refusal for refusal in result.refusals if refusal.rule in BLOCKS]
    left = {
        op for op in result.ops_after if op in ("RMSNormalization", "SimplifiedLayerNormalization", "RotaryEmbedding")
    }
    assert not left


@pytest.mark.parametrize("name", GRAPHS)
@pytest.mark.parametrize("kernel", [True, False], ids=["kernel", "body"])
def test_recorded_outputs_are_met(name: str, kernel: bool) -> None:
    skip_where_products_saturate(name)
    record = load_npz(DATA / "graphs" / f"{name}.npz")
    verified = fusion.verify(DATA / "graphs" / f"{name}.onnx", fused(name).model, inputs=record, kernel=kernel)
    assert verified.ok, verified.differences


@pytest.mark.parametrize("name", GRAPHS)
def test_fusing_again_changes_nothing(name: str) -> None:
    again = fusion.fuse(fused(name).model)
    assert not again.sites
    assert again.ops_before == again.ops_after


@pytest.mark.parametrize("name", ["dsv3_optimum_fp32_expandedcache", "qwen3_ts17_fp32_dyncache"])
def test_turned_back_it_is_the_same_model(name: str) -> None:
    record = load_npz(DATA / "graphs" / f"{name}.npz")
    plain = fusion.defuse(fused(name).model)
    assert not [op for op in plain.ops_after if "::" in op]
    assert fusion.verify(DATA / "graphs" / f"{name}.onnx", plain.model, inputs=record).ok


@pytest.mark.parametrize("name", GRAPHS)
def test_one_body_per_operator(name: str) -> None:
    """Several would need overloads, which runtimes before 1.27 refuse."""
    names = [function.name for function in fused(name).model.functions]
    assert len(names) == len(set(names))
