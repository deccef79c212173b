"""Fused graphs on their way to Ascend: caches in place, valid, and still what PyTorch computed."""

from __future__ import annotations

from pathlib import Path

import pytest

import fusion
from ir_ops.ge import execute, export, read
from ir_ops.ge.model import inputs_of
from tests.ir_ops.ge.recorded import assert_recorded, feeds, recorded

GRAPHS = (
    "hand_kvrrc_norm_dynamo18_fp16",
    "hand_kvrrc_pa_quant_dynamo20_fp16",
    "hand_kvrrc_pa_ts17_fp32",
    "hand_kvrrc_v2_dynamo18_fp32",
    "dsv3_il_dynamo18_fp16_staticcache",
)


@pytest.mark.parametrize("name", GRAPHS)
def test_fused_graphs(name: str, graphs: Path, tmp_path: Path) -> None:
    fused = fusion.fuse(graphs / f"{name}.onnx", tmp_path / "fused.onnx")
    assert [site.op for site in fused.sites if site.op == "KvRmsNormRopeCache"] == ["KvRmsNormRopeCache"]
    result = export(tmp_path / "fused.onnx", tmp_path / "fused.air")
    assert result.ops_after["KvRmsNormRopeCache"] == 1
    assert result.ops_after["TensorMove"] == 0
    assert {finding.severity for finding in result.findings} <= {"note"}
    model = read(tmp_path / "fused.air")
    assert sum(entry.is_ref for entry in inputs_of(model)) == 2
    for inputs, outputs in recorded(graphs / f"{name}.onnx"):
        execution = execute(model, feeds(model, inputs))
        assert_recorded(execution.outputs, outputs)
        assert len(execution.caches) == 2
