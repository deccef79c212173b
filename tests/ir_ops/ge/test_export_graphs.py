"""Graphs of real exporters: exported, validated, executed, equal to what PyTorch computed."""

from __future__ import annotations

from pathlib import Path

import pytest

from ir_ops.errors import ExportError
from ir_ops.ge import execute, export, read, run, validate
from ir_ops.ge.model import inputs_of
from tests.ir_ops.ge.recorded import assert_recorded, feeds, recorded

GRAPHS = (
    "hand_kvrrc_norm_dynamo18_fp16",
    "hand_kvrrc_pa_quant_dynamo20_fp16",
    "hand_kvrrc_pa_ts17_fp32",
    "hand_kvrrc_v2_dynamo18_fp32",
    "dsv3_il_dynamo18_fp16_staticcache",
    "qwen3_dynamo18_fp32_staticcache",
    "hand_mlaprolog_attn_dynamo18_fp32",  # Einsum
    "qwen2_ts17_ortdynint8_dyncache",  # DynamicQuantizeLinear, MatMulInteger
    "qwen3_dynamo23_fp32_dyncache",  # RMSNormalization, RotaryEmbedding, Attention
    "qwen3_dynamo23_bf16_dyncache",
    "qwen3_hfexporter_ortfusions_cpu_fp32",  # SimplifiedLayerNormalization, com.microsoft.RotaryEmbedding
    "qwen3moe_hfexporter20_fp32_dyncache",  # TopK, CumSum, ScatterElements add
)


@pytest.mark.parametrize("name", GRAPHS)
def test_results_equal_the_recorded_ones(name: str, graphs: Path, tmp_path: Path) -> None:
    result = export(graphs / f"{name}.onnx", tmp_path / "m.air")
    assert {f.severity for f in result.findings if f.rule != 26} <= {"note"}
    # what is run is the file, not the model in memory
    model = read(tmp_path / "m.air")
    assert model == result.model
    for inputs, outputs in recorded(graphs / f"{name}.onnx"):
        assert_recorded(run(model, feeds(model, inputs)), outputs)


@pytest.mark.parametrize(
    "name", ["hand_kvrrc_pa_ts17_fp32", "qwen3_dynamo18_fp32_staticcache", "qwen3_dynamo23_fp32_dyncache"]
)
def test_fixed_input_shapes_leave_no_shape_arithmetic(name: str, graphs: Path) -> None:
    inputs, outputs = recorded(graphs / f"{name}.onnx")[0]
    shapes = {key: array.shape for key, array in inputs.items()}
    result = export(graphs / f"{name}.onnx", input_shapes=shapes)
    assert result.ops_after["Shape"] == 0
    assert [f for f in result.findings if f.rule == 22] == []
    assert all(-1 not in (entry.type.shape or (-1,)) for entry in inputs_of(result.model))
    assert_recorded(run(result.model, feeds(result.model, inputs)), outputs)


def test_caches_that_go_in_and_out_are_updated_in_place(graphs: Path) -> None:
    path = graphs / "hand_kvrrc_v2_dynamo18_fp32.onnx"
    result = export(path)
    refs = [entry.name for entry in inputs_of(result.model) if entry.is_ref]
    assert refs == ["k_cache", "v_cache"]
    assert (result.ops_after["ScatterNdUpdate"], result.ops_after["TensorScatterUpdate"]) == (2, 0)
    inputs, outputs = recorded(path)[0]
    caches = execute(result.model, feeds(result.model, inputs)).caches
    assert_recorded({f"{name}_out": array for name, array in caches.items()}, outputs)


def test_the_same_model_without_in_place_updates(graphs: Path) -> None:
    path = graphs / "hand_kvrrc_v2_dynamo18_fp32.onnx"
    result = export(path, cache="copy")
    assert not any(entry.is_ref for entry in inputs_of(result.model))
    assert (result.ops_after["ScatterNdUpdate"], result.ops_after["TensorScatterUpdate"]) == (0, 2)
    inputs, outputs = recorded(path)[0]
    assert_recorded(run(result.model, feeds(result.model, inputs)), outputs)


def test_export_is_deterministic(graphs: Path, tmp_path: Path) -> None:
    path = graphs / "dsv3_il_dynamo18_fp16_staticcache.onnx"
    files = [export(path, tmp_path / folder / "m.air", text=True) for folder in _folders(tmp_path)]
    for suffix in (".air", ".io.json", ".txt"):
        first, second = (result.path.with_suffix(suffix).read_bytes() for result in files if result.path)
        assert first == second


def _folders(tmp_path: Path) -> list[str]:
    for name in ("a", "b"):
        (tmp_path / name).mkdir()
    return ["a", "b"]


def test_a_refused_graph_names_what_is_missing(graphs: Path) -> None:
    with pytest.raises(ExportError) as raised:
        export(graphs / "qwen3_genai_int4.onnx")
    text = str(raised.value)
    assert "1 x com.microsoft.GroupQueryAttention" in text


def test_an_exported_file_validates_on_its_own(graphs: Path, tmp_path: Path) -> None:
    export(graphs / "hand_kvrrc_norm_dynamo18_fp16.onnx", tmp_path / "m.air")
    assert {finding.severity for finding in validate(tmp_path / "m.air")} <= {"note"}
