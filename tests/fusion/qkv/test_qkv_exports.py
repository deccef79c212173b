"""Recorded graphs with torch's results: fused completely, equal, stable, and safe to save.

``qwen3attn_nz_*``: attention as in Qwen3 with three projections (one with a bias) and NZ pages, exported by torch 2.13.
"""

from __future__ import annotations

from functools import cache
from pathlib import Path

import onnx
import pytest

import fusion
from fusion import FusionResult
from ir_ops.npz import load_npz
from tests.conftest import DATA

OP = "QkvRmsNormRopeCache"
PACKED = ("qwen3attn_nz_dynamo18_fp32", "qwen3attn_nz_ts17_fp16")
GRAPHS = ("hand_qkvrrc_nz_dynamo18_fp16", "hand_qkvrrc_nz_quant_ts17_fp16", *PACKED)


@cache
def fused(name: str) -> FusionResult:
    return fusion.fuse(onnx.load_model(DATA / "graphs" / f"{name}.onnx"))


@pytest.mark.parametrize("name", GRAPHS)
def test_one_site_and_nothing_left(name: str) -> None:
    result = fused(name)
    assert [site.op for site in result.sites] == [OP] and not result.refusals
    assert not {"ScatterND", "ScatterElements", "ReduceMean"} & set(result.ops_after)


@pytest.mark.parametrize("name", [*GRAPHS, "hand_qkvrrc_bsnd_dynamo23_bf16"])
def test_recorded_outputs_are_met_and_again_after_defusing(name: str) -> None:
    record = load_npz(DATA / "graphs" / f"{name}.npz")
    original = onnx.load_model(DATA / "graphs" / f"{name}.onnx")
    for model in (fused(name).model, fusion.defuse(fused(name).model).model):
        verified = fusion.verify(original, model, inputs=record)
        assert verified.ok, verified.differences


@pytest.mark.parametrize("name", GRAPHS)
def test_fusing_again_changes_nothing(name: str) -> None:
    again = fusion.fuse(fused(name).model)
    assert not again.sites and again.ops_before == again.ops_after


def test_pages_of_rows_are_refused_by_name_and_taken_by_the_sibling() -> None:
    result = fused("hand_qkvrrc_bsnd_dynamo23_bf16")
    (refusal,) = [refusal for refusal in result.refusals if refusal.rule == OP]
    assert refusal.code == "qkv-layout" and "BSND" in refusal.found
    assert result.count("KvRmsNormRopeCache") == 1


@pytest.mark.parametrize("name", PACKED)
def test_three_projections_become_one(name: str) -> None:
    (site,) = fused(name).sites
    assert any("packed into one MatMul" in note for note in site.notes)
    whole = onnx.load_model(DATA / "graphs" / f"{name}.onnx")
    never = fusion.fuse(whole, pack="never")
    assert fused(name).ops_after["MatMul"] == never.ops_after["MatMul"] - 2
    assert any("switched off" in note for note in never.sites[0].notes)


@pytest.mark.parametrize("where", ["over", "beside", "elsewhere"])
def test_saving_packed_weights_never_harms_the_input(where: str, tmp_path: Path) -> None:
    name = PACKED[0]
    model = onnx.load_model(DATA / "graphs" / f"{name}.onnx")
    folder = tmp_path / "in"
    folder.mkdir()
    path = folder / "m.onnx"
    onnx.save_model(model, path, save_as_external_data=True, location="m.onnx.data", size_threshold=1024)
    weights = (folder / "m.onnx.data").read_bytes()
    out = {"over": path, "beside": folder / "o.onnx", "elsewhere": tmp_path / "o.onnx"}[where]
    result = fusion.fuse(path, out, weights="copy" if where == "elsewhere" else "share")
    assert result.count(OP) == 1
    assert (folder / "m.onnx.data").read_bytes() == weights
    record = load_npz(DATA / "graphs" / f"{name}.npz")
    verified = fusion.verify(onnx.load_model(DATA / "graphs" / f"{name}.onnx"), out, inputs=record)
    assert verified.ok, verified.differences
