"""Exports whose caches grow become decoders with caches in place that compute the same."""

from __future__ import annotations

from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest

import fusion
from custom_ort import DecodeSession
from fusion import FusionResult
from ir_ops.decode_plan import KEY, read_plan
from ir_ops.dtypes import Array
from ir_ops.errors import BadModel, BadUsage
from tests.conftest import DATA
from tests.fusion.surgery.decoding import Original, recorded_steps

PAIRS = "dsv2_hfexporter18_fp32_latentcache"
"""Rotates complex numbers: its rows keep pairs of neighbours."""
GRAPHS = {
    "qwen3_dynamo18_fp32_dyncache": {"QkvRmsNormRopeCache": 2, "FusedInferAttentionScore": 2},
    "qwen3_dynamo20_fp16_dyncache": {"QkvRmsNormRopeCache": 1, "FusedInferAttentionScore": 1},
    "qwen3_dynamo23_fp32_dyncache": {"QkvRmsNormRopeCache": 1, "FusedInferAttentionScore": 1},
    "qwen3_dynamo23_bf16_dyncache": {"QkvRmsNormRopeCache": 1, "FusedInferAttentionScore": 1},
    "qwen3_ts17_fp32_dyncache": {"QkvRmsNormRopeCache": 1, "FusedInferAttentionScore": 1},
    "qwen3_optimum_fp32_dyncache": {"QkvRmsNormRopeCache": 1, "FusedInferAttentionScore": 1},
    "qwen3_hfexporter_ortfusions_cpu_fp32": {"FusedInferAttentionScore": 1},
    "qwen3moe_hfexporter20_fp32_dyncache": {"QkvRmsNormRopeCache": 1, "FusedInferAttentionScore": 1},
    "qwen2_dynamo18_fp16_eager_dyncache": {"FusedInferAttentionScore": 1},
    "dsv3_il_dynamo18_fp32_latentcache": {"MlaPrologV3": 1, "FusedInferAttentionScore": 1},
    "dsv3_noil_yarn_hfexporter20_fp16_latentcache": {"MlaPrologV3": 2, "FusedInferAttentionScore": 2},
    "dsv3_optimum_fp32_expandedcache": {"MlaPrologV3": 1, "FusedInferAttentionScore": 1},
    PAIRS: {"MlaPrologV3": 1, "FusedInferAttentionScore": 1},
    "qwen3_genai_int4": {"QkvRmsNormRopeCache": 1, "FusedInferAttentionScore": 1},
}
EXPANDED = "dsv3_optimum_fp32_expandedcache"
"""Its recorded caches hold keys and values of every head; a converted decoder has latents, and starts empty."""
BOUNDS = {"fp32": 2e-5, "fp16": 0.02, "bf16": 0.15, "int4": 0.1}
"""Largest difference of a logit; they are about 1 in size. Products with int4 weights round activations to 8 bits."""


def bound(name: str) -> float:
    return next((limit for kind, limit in BOUNDS.items() if kind in name), BOUNDS["fp32"])


def original(name: str) -> onnx.ModelProto:
    return onnx.load_model(DATA / "graphs" / f"{name}.onnx")


@cache
def converted(name: str, form: str = "auto", size: int = 16) -> FusionResult:
    sizes = {"capacity": 64} if form == "contiguous" else {"block_size": size}
    return fusion.fuse(original(name), cache=form, **sizes)  # type: ignore[arg-type]


@pytest.mark.parametrize("name", GRAPHS)
def test_fused_operators_take_the_place_of_growing_caches(name: str) -> None:
    result = converted(name)
    counts = {op: result.count(op) for op in GRAPHS[name]}
    assert counts == GRAPHS[name], [str(refusal) for refusal in result.refusals]
    assert not [node for node in result.model.graph.node if node.op_type in ("Softmax", "Attention")] or "moe" in name
    names = {value.name for value in result.model.graph.input}
    assert "attention_mask" not in names
    assert {"slot_mapping", "block_table", "query_lengths", "kv_lengths", "position_ids", "input_ids"} <= names


@pytest.mark.parametrize("name", [name for name in GRAPHS if name != EXPANDED])
def test_recorded_results_come_out_token_by_token(name: str) -> None:
    session = DecodeSession(converted(name).model, capacity=64)
    pairs = recorded_steps(DATA / "graphs" / f"{name}.npz", session)
    assert len(pairs) >= 4
    worst = max(np.abs(got - wanted).max() for got, wanted in pairs)
    assert worst <= bound(name)


@pytest.mark.parametrize("form", ["auto", "contiguous"])
@pytest.mark.parametrize(
    "name",
    ["qwen3_dynamo18_fp32_dyncache", "qwen2_dynamo18_fp16_eager_dyncache", EXPANDED,
     "dsv3_il_dynamo18_fp32_latentcache", PAIRS],
)  # fmt: skip
def test_ragged_prompts_in_chunks_and_steps_equal_each_sequence_alone(name: str, form: str) -> None:
    rng = np.random.default_rng(3)
    prompts = [rng.integers(0, 64, length).tolist() for length in (7, 1, 20)]
    alone = Original(original(name))
    states = [alone.new() for _ in prompts]
    session = DecodeSession(converted(name, form).model, capacity=64, max_sequences=4)
    sequences, logits = session.prefill(prompts, chunk=8)
    wanted = [alone.run(state, prompt) for state, prompt in zip(states, prompts, strict=True)]
    assert np.abs(logits - wanted).max() <= bound(name)
    for _ in range(4):
        ids = rng.integers(0, 64, len(prompts))
        logits = session.step(ids, sequences)
        wanted = [alone.run(state, [int(number)]) for state, number in zip(states, ids, strict=True)]
        assert np.abs(logits - wanted).max() <= bound(name)


def test_latents_are_cached_in_place_of_keys_and_values_of_every_head() -> None:
    model = converted(EXPANDED).model
    plan = read_plan({item.key: item.value for item in model.metadata_props}, "model")
    assert [(port.part, port.heads, port.columns) for port in plan.caches] == [("latent", 1, 512), ("rope", 1, 64)]
    assert any("no latents" in note for note in converted(EXPANDED).notes)


def test_pairs_are_cached_as_halves_and_come_out_as_pairs() -> None:
    model = converted(PAIRS).model
    session, alone = DecodeSession(model, capacity=64), Original(original(PAIRS))
    assert [(port.part, port.halves) for port in session.plan.caches] == [("latent", False), ("rope", True)]
    (sequence,), _ = session.prefill([[3, 1, 4, 1, 5]])
    state = alone.new()
    alone.run(state, [3, 1, 4, 1, 5])
    for name, rows in session.export(sequence).items():
        assert np.abs(rows - state.caches[name][0].transpose(1, 0, 2)).max() < 1e-5


@pytest.mark.parametrize("name", [EXPANDED, "dsv3_il_dynamo18_fp32_latentcache", "dsv2_hfexporter18_fp32_latentcache"])
def test_contiguous_latents_are_written_by_the_same_operator(name: str) -> None:
    result = converted(name, "contiguous")
    assert (result.count("MlaPrologV3"), result.refusals) == (1, [])
    plan = read_plan({item.key: item.value for item in result.model.metadata_props}, "model")
    assert [(port.order, port.shape) for port in plan.caches] == [
        ("BSND", (-1, 64, 1, port.columns)) for port in plan.caches
    ]


def test_the_model_carries_its_plan() -> None:
    model = converted("qwen3_dynamo18_fp32_dyncache").model
    plan = read_plan({item.key: item.value for item in model.metadata_props}, "model")
    assert KEY in {item.key for item in model.metadata_props}
    assert (plan.paged, plan.block_size, plan.logits) == (True, 16, "logits")
    assert [(port.layer, port.part, port.order, port.heads) for port in plan.caches] == [
        (0, "key", "NZ", 2), (0, "value", "NZ", 2), (1, "key", "NZ", 2), (1, "value", "NZ", 2),
    ]  # fmt: skip
    declared = {value.name: [dim.dim_value for dim in value.type.tensor_type.shape.dim] for value in model.graph.input}
    assert declared[plan.caches[0].input] == [0, 2 * 128 // 8, 16, 8]


def test_without_kernels_the_function_bodies_decode() -> None:
    """A converted model runs in any ONNX Runtime: the same calls, no library."""
    import onnxruntime

    name = "qwen3_dynamo18_fp32_dyncache"
    model = converted(name).model
    plain = onnxruntime.InferenceSession(model.SerializeToString(), providers=["CPUExecutionProvider"])
    session = DecodeSession(model, capacity=32)
    sequences, logits = session.prefill([[5, 6, 7]])
    pages = session.pages_of(sequences[0])
    feeds = {
        "input_ids": np.array([[5, 6, 7]]), "position_ids": np.array([[0, 1, 2]]),
        "slot_mapping": np.arange(3) + 16 * pages[0], "block_table": np.array([pages], np.int32),
        "query_lengths": np.array([3]), "kv_lengths": np.array([3]),
    }  # fmt: skip
    for item in plain.get_inputs():
        if item.name not in feeds:
            feeds[item.name] = np.zeros([len(session.sequences) + max(pages), *item.shape[1:]], np.float32)
    got = plain.run(["logits"], feeds)[0][0, -1]
    assert np.abs(got - logits[0]).max() < 1e-5


def test_the_original_is_not_changed() -> None:
    proto = original("qwen3_dynamo23_fp32_dyncache")
    before = proto.SerializeToString(deterministic=True)
    fusion.fuse(proto, cache="paged")
    assert proto.SerializeToString(deterministic=True) == before


def calibration() -> dict[str, Array]:
    """One prompt that has every token of the vocabulary."""
    ids = np.random.default_rng(1).permutation(96)[None] % 64
    empty = {f"past_key_values.{layer}.{part}": np.zeros((1, 2, 0, 128), np.float32)
             for layer in range(2) for part in ("key", "value")}  # fmt: skip
    return {"input_ids": ids, "attention_mask": np.ones_like(ids), "position_ids": np.arange(96)[None], **empty}


def test_int8_caches_with_measured_scales() -> None:
    """The scores of these random weights are sharp: half a percent in a key shows in logits of size 1."""
    name = "qwen3_dynamo18_fp32_dyncache"
    options: dict[str, Any] = {"cache": "auto", "block_size": 16, "kv_quant": "int8", "calibrate": calibration()}
    result = fusion.fuse(original(name), **options)
    assert (result.count("QkvRmsNormRopeCache"), result.count("FusedInferAttentionScore")) == (2, 2)
    notes = [note for site in result.sites for note in site.notes if note.startswith("int8")]
    assert len(notes) == 4
    assert all(0.3 < float(note.split("by ")[1].split("%")[0]) < 1 for note in notes)
    session = DecodeSession(result.model, capacity=32)
    assert {str(session.cache_type(port.input)) for port in session.plan.caches} == {"int8"}
    pairs = recorded_tokens_alone(session, original(name))
    assert 1e-4 < max(np.abs(got - wanted).max() for got, wanted in pairs) < 0.3
    apart = fusion.fuse(
        original(name), only=["RmsNorm"], **options
    )  # quantised by plain operators, written by themselves
    others = recorded_tokens_alone(DecodeSession(apart.model, capacity=32), original(name))
    assert max(np.abs(mine[0] - other[0]).max() for mine, other in zip(pairs, others, strict=True)) < 1e-5


def recorded_tokens_alone(session: DecodeSession, model: onnx.ModelProto) -> list[tuple[Array, Array]]:
    """Logits of one sequence, token by token: converted and original."""
    alone = Original(model)
    state, sequence, pairs = alone.new(), None, []
    for token in np.random.default_rng(8).integers(0, 64, 12).tolist():
        numbers, logits = session.prefill([[token]], None if sequence is None else [sequence])
        sequence = numbers[0]
        pairs.append((logits[0].astype(np.float64), alone.run(state, [token])))
    return pairs


@pytest.mark.parametrize(
    ("options", "text"),
    [
        ({"cache": "auto", "kv_quant": "int8"}, "calibrated"),
        ({"kv_quant": "int8", "calibrate": {}}, "caches that are kept"),
        ({"block_size": 16}, "caches that are kept"),
        ({"cache": "contiguous", "block_size": 16}, "no such sizes"),
        ({"cache": "auto", "capacity": -1}, "no such sizes"),
    ],
)
def test_options_that_do_not_go_together(options: dict[str, Any], text: str) -> None:
    with pytest.raises(BadUsage, match=text):
        fusion.fuse(original("qwen3_dynamo23_fp32_dyncache"), **options)


def test_latents_are_not_quantised(tmp_path: Path) -> None:
    name = "dsv3_il_dynamo18_fp32_latentcache"
    with pytest.raises(BadModel, match="int8 caches of keys and values; found caches of latents"):
        fusion.fuse(original(name), tmp_path / "out.onnx", cache="auto", kv_quant="int8",
                    calibrate=DATA / "graphs" / f"{name}.npz")  # fmt: skip
    assert not list(tmp_path.iterdir())
