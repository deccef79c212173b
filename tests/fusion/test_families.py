"""Exports of other model families (torch.onnx.export at opset 18, tiny random weights, PyTorch's results recorded).

Each fixture has something of its own: MLA whose caches have lengths of two names (GLM-4-MoE-Lite), norms
with ``1 + w`` and a sliding window (Gemma 3), interleaved pairs in half of the columns and norms behind attention
(GLM-4), packed projections (Phi-3), a gated attention and a rotation of a quarter of the columns (Qwen3-Next), cosines
of three grids (Qwen3.5), a layer norm that is none of ours (Cohere).
"""

from __future__ import annotations

from functools import cache

import numpy as np
import onnx
import pytest

import fusion
from custom_ort import DecodeSession
from fusion import FusionResult
from ir_ops.errors import BadModel
from ir_ops.npz import load_npz
from tests.conftest import DATA
from tests.fusion.surgery.decoding import recorded_steps

FOLDER = DATA / "families"
NORMS = {"glm4_moe_lite": 5, "gemma3": 13, "glm4": 5, "phi3": 3, "qwen3_next": 5, "qwen3_5": 5, "cohere": 0}
"""Root mean square norms in the source, the last one too."""
ROTATIONS = {"glm4_moe_lite": 2, "gemma3": 4, "glm4": 2, "phi3": 2, "qwen3_next": 2, "qwen3_5": 2, "cohere": 2}
"""Rotations of queries and of keys in the source."""
WINDOWS = ("gemma3",)
CONVERTED = {
    "glm4_moe_lite": {"MlaPrologV3": 1, "FusedInferAttentionScore": 1},
    "glm4": {"ApplyRotaryPosEmb": 1, "FusedInferAttentionScore": 1},
    "phi3": {"ApplyRotaryPosEmb": 1, "FusedInferAttentionScore": 1},
    "qwen3_next": {"KvRmsNormRopeCache": 1, "RotaryPositionEmbedding": 1, "FusedInferAttentionScore": 1},
    "qwen3_5": {"KvRmsNormRopeCache": 1, "RotaryPositionEmbedding": 1, "FusedInferAttentionScore": 1},
    "cohere": {"ApplyRotaryPosEmb": 1, "FusedInferAttentionScore": 1},
}


@cache
def fused(name: str) -> FusionResult:
    return fusion.fuse(FOLDER / f"{name}.onnx")


@cache
def converted(name: str) -> FusionResult:
    return fusion.fuse(FOLDER / f"{name}.onnx", cache="auto", block_size=16)


@pytest.mark.parametrize("name", NORMS)
def test_every_norm_and_every_rotation_is_found(name: str) -> None:
    result = fused(name)
    assert result.count("RmsNorm") + result.count("AddRmsNorm") == NORMS[name]
    single = result.count("RotaryPositionEmbedding") + result.count("InterleaveRope")
    assert 2 * result.count("ApplyRotaryPosEmb") + single == ROTATIONS[name]


@pytest.mark.parametrize("name", NORMS)
def test_results_of_the_source_are_met(name: str) -> None:
    record = load_npz(FOLDER / f"{name}.npz")
    verified = fusion.verify(FOLDER / f"{name}.onnx", fused(name).model, inputs=record)
    assert verified.ok, verified.differences
    assert {item.against for item in verified.differences} == {"original", "recorded"}


@pytest.mark.parametrize("name", NORMS)
def test_the_cache_is_the_reason_for_the_rest(name: str) -> None:
    growing = [refusal for refusal in fused(name).refusals if refusal.code == "cache-grows"]
    layers = 2 if name == "gemma3" else 1
    assert len(growing) == 2 * layers
    others = {refusal.code for refusal in fused(name).refusals} - {"cache-grows"}
    assert others == ({"norm-centred"} if name == "cohere" else set())


@pytest.mark.parametrize("name", CONVERTED)
def test_with_caches_in_place_it_decodes_the_same(name: str) -> None:
    result = converted(name)
    assert {op: result.count(op) for op in CONVERTED[name]} == CONVERTED[name]
    pairs = recorded_steps(FOLDER / f"{name}.npz", DecodeSession(result.model, capacity=64))
    assert len(pairs) == 10
    assert max(np.abs(got - wanted).max() for got, wanted in pairs) <= 1e-5


@pytest.mark.parametrize("name", WINDOWS)
def test_a_sliding_window_is_not_converted(name: str) -> None:
    with pytest.raises(BadModel, match="windows, biases and other masks are not converted"):
        converted(name)


def test_a_part_of_the_columns_is_rotated_as_the_source_says() -> None:
    """No operator that rotates whole rows stands where a quarter is rotated."""
    codes = {(item.rule, item.code) for item in converted("qwen3_next").refusals}
    assert ("QkvRmsNormRopeCache", "rope-columns") in codes


def test_attention_that_keeps_its_caches_is_told_as_the_reason() -> None:
    path = DATA / "graphs" / "qwen3_genai_int4.onnx"
    refusals = [item for item in fusion.explain(path).refusals if item.code == "cache-in-operator"]
    assert [item.fact.split()[0] for item in refusals] == ["present.0.key", "present.0.value"]
    assert all(item.found.startswith("GroupQueryAttention") for item in refusals)
    assert {item.suggestion for item in refusals} == {"fuse with --cache auto, which takes the operator apart"}


def test_attention_that_is_not_taken_apart_is_told_as_the_reason() -> None:
    model = onnx.load_model(DATA / "graphs" / "qwen3_genai_int4.onnx")
    node = next(node for node in model.graph.node if node.op_type == "GroupQueryAttention")
    node.op_type = "MultiHeadAttention"
    suggestions = {item.suggestion for item in fusion.explain(model).refusals if item.code == "cache-in-operator"}
    assert suggestions == {"export with standard operators"}
    with pytest.raises(BadModel, match="MultiHeadAttention, which keeps its caches itself"):
        fusion.fuse(model, cache="auto")


def test_caches_of_one_length_may_have_dims_of_other_names() -> None:
    model = onnx.load_model(FOLDER / "glm4_moe_lite.onnx")
    names = {
        value.type.tensor_type.shape.dim[2].dim_param for value in model.graph.input if value.name.startswith("past")
    }
    assert len(names) == 2
    assert converted("glm4_moe_lite").count("MlaPrologV3") == 1
