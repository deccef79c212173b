"""DequantRopeQuantKvcache as a rule, on exported graphs: which operands it builds, and that recorded results stay."""

from __future__ import annotations

from functools import cache

import numpy as np
import onnx
import pytest

import fusion
from fusion import FusionResult
from ir_ops.npz import load_npz
from ir_ops.ops import OPS
from tests.conftest import DATA
from tests.fusion.zoo.run import run, worst

OP = "DequantRopeQuantKvcache"
GRAPHS = {"hand_drqk_contiguous_dynamo18_fp16": "contiguous", "hand_drqk_page_ts17_fp16": "page"}
"""Graph -> the cache_mode of its site."""


def model_of(name: str) -> onnx.ModelProto:
    return onnx.load_model(DATA / "graphs" / f"{name}.onnx")


@cache
def fused(name: str) -> FusionResult:
    return fusion.fuse(model_of(name))


@pytest.mark.parametrize(("name", "mode"), GRAPHS.items())
def test_the_whole_graph_becomes_one_node(name: str, mode: str) -> None:
    """int32 sums, scales and bias go in as they are; only the slot numbers are converted."""
    result = fused(name)
    (site,) = result.sites
    assert dict(site.attrs) == {"size_splits": [512, 256, 256], "cache_mode": mode, "kv_output": 1}
    assert result.ops_after == {f"ai.ascend::{OP}": 1, "Cast": 1}
    assert not result.refusals
    operands = dict(zip([entry.name for entry in OPS[OP].inputs], site.inputs, strict=True))
    assert {name: operands[name] for name in ("x", "cos", "sin", "k_cache", "v_cache", "activation_scale", "bias")} == {
        "x": "x", "cos": "cos", "sin": "sin", "k_cache": "k_cache", "v_cache": "v_cache",
        "activation_scale": "activation_scale", "bias": "bias",
    }  # fmt: skip
    assert [operands[name] for name in ("scale_k", "scale_v", "offset_k", "offset_v")] == [
        "scale_k", "scale_v", "off_k", "off_v",
    ]  # fmt: skip


@pytest.mark.parametrize("name", GRAPHS)
@pytest.mark.parametrize("kernel", [True, False], ids=["kernel", "body"])
def test_recorded_outputs_are_met(name: str, kernel: bool) -> None:
    record = load_npz(DATA / "graphs" / f"{name}.npz")
    verified = fusion.verify(model_of(name), fused(name).model, inputs=record, kernel=kernel)
    assert verified.ok, verified.differences


@pytest.mark.parametrize("name", GRAPHS)
def test_fusing_again_changes_nothing(name: str) -> None:
    again = fusion.fuse(fused(name).model)
    assert not again.sites and again.ops_before == again.ops_after


@pytest.mark.parametrize("name", GRAPHS)
def test_defused_it_computes_the_same(name: str) -> None:
    record = load_npz(DATA / "graphs" / f"{name}.npz")
    plain = fusion.defuse(fused(name).model).model
    assert not any(node.domain == "ai.ascend" for node in plain.graph.node)
    assert fusion.verify(model_of(name), plain, inputs=record).ok


@pytest.mark.parametrize("name", GRAPHS)
def test_it_relies_on_slots_that_are_not_negative(name: str) -> None:
    assert any(text.startswith("slots >= 0") for text in fused(name).sites[0].assumptions)
    strict = fusion.fuse(model_of(name), strict_slots=True)
    assert strict.count(OP) == 0 and "slots-negative" in [refusal.code for refusal in strict.refusals]


@pytest.mark.parametrize("product", ["A2", "A3", "950"])
def test_limits_of_products(product: str) -> None:
    result = fusion.fuse(model_of("hand_drqk_page_ts17_fp16"), product=product)
    assert result.count(OP) == (0 if product == "950" else 1)
    assert [refusal.code for refusal in result.refusals if refusal.rule == OP] == (
        ["DRQ-23"] if product == "950" else []
    )


@pytest.mark.parametrize("exporter", ["dynamo18", "ts17"])
def test_an_attention_quantised_by_quantize_dynamic(exporter: str) -> None:
    """torch's own export with contiguous int8 caches, three MatMulInteger of one quantised value in front."""
    model = model_of(f"attention_int8cache_{exporter}_ortdynint8")
    result = fusion.fuse(model)
    (site,) = result.sites
    operands = dict(zip([entry.name for entry in OPS[OP].inputs], site.inputs, strict=True))
    assert site.attrs["cache_mode"] == "contiguous" and all(operands[name] for name in ("weight_scale", "bias"))
    assert result.ops_after["MatMulInteger"] == result.ops_before["MatMulInteger"] - 2
    rng = np.random.default_rng(0)
    batch, tokens = 3, 2
    caches = {name: rng.integers(-90, 90, (batch, 12, 2, 16)).astype(np.int8) for name in ("kc", "vc")}
    rows = rng.standard_normal((batch, tokens, 64)).astype(np.float32)
    positions, starts = np.tile(np.arange(tokens), (batch, 1)), rng.integers(0, 12 - tokens, batch)
    given = {"h": rows, "pos": positions, "start": starts, **caches}
    assert worst(run(result.model, given), run(model, given), "float32") == ""
