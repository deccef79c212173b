"""Built decoders: spelled as torch.export does, computing what torch computes, of the published sizes."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import numpy as np
import onnx
import onnxruntime
import pytest

import models
from fusion import fuse
from ir_ops.errors import BadUsage
from ir_ops.npz import load_npz
from models.architecture import ALIASES, PRESETS, Architecture, tiny
from models.decoder import CACHES, Options, build, write
from models.weights import RandomWeights, SparseWeights

GRAPHS = Path(__file__).parent.parent / "data" / "graphs"
BATCH, TOKENS, PAST = 2, 3, 4
SIZES = {"s58": TOKENS, "s44": BATCH, "s70": TOKENS, "s69": PAST, "s43": BATCH, "s53": PAST + TOKENS, "s35": 6}


def toy(name: str) -> Architecture:
    return tiny(PRESETS[ALIASES.get(name, name)])


def exported(path: str) -> tuple[Architecture, str]:
    """The architecture and type of a recorded export of one layer."""
    model = toy("qwen3") if path.startswith("qwen3") else toy("deepseek-v3")
    return replace(model, layers=1, yarn=None), "float16" if "fp16" in path else "float32"


def ops(model: onnx.ModelProto) -> Counter[str]:
    return Counter(node.op_type for node in model.graph.node)


def feeds(session: onnxruntime.InferenceSession, dtype: str = "float32") -> dict[str, np.ndarray]:  # type: ignore[type-arg]
    """Tokens at positions 4 to 6 of caches that hold the same numbers in every form of equal shape."""
    known = {
        "attention_mask": np.ones((BATCH, PAST + TOKENS)),
        "position_ids": np.tile(np.arange(PAST, PAST + TOKENS), (BATCH, 1)),
        "cache_position": np.arange(PAST, PAST + TOKENS),
        "slot_mapping": np.array([4, 5, 6, 20, 21, 22]),
        "block_table": np.array([[0], [1]]),
        "input_ids": np.arange(BATCH * TOKENS).reshape(BATCH, TOKENS) * 7,
    }
    rng = np.random.default_rng(0)
    found = {}
    for entry in session.get_inputs():
        dims = [SIZES.get(dim, dim) for dim in entry.shape]
        found[entry.name] = known[entry.name].astype(np.int64) if entry.name in known else (
            rng.standard_normal(dims).astype(dtype)
        )  # fmt: skip
    return found


@pytest.mark.parametrize("name", ["dsv3_il_dynamo18_fp16_staticcache", "qwen3_dynamo18_fp32_staticcache"])
def test_static_decoders_have_the_operators_of_the_recorded_exports(name: str) -> None:
    model, dtype = exported(name)
    built = build(model, Options(dtype), RandomWeights(0))
    assert ops(built) == ops(onnx.load_model(GRAPHS / f"{name}.onnx"))


def floats(model: onnx.ModelProto) -> Iterator[onnx.TensorProto]:
    """Weights in the order in which nodes first read them."""
    known = {item.name: item for item in model.graph.initializer if len(item.dims)}
    for node in model.graph.node:
        for name in node.input:
            tensor = known.pop(name, None)
            if tensor is not None and tensor.data_type in (onnx.TensorProto.FLOAT, onnx.TensorProto.FLOAT16):
                yield tensor


def test_with_torchs_weights_it_computes_torchs_results() -> None:
    architecture, dtype = exported("dsv3_il_dynamo18_fp16_staticcache")
    built = build(architecture, Options(dtype), RandomWeights(0))
    recorded = onnx.load_model(models.demo_graph())
    for ours, theirs in zip(floats(built), floats(recorded), strict=True):
        assert (ours.dims, ours.data_type) == (theirs.dims, theirs.data_type)
        ours.raw_data = onnx.numpy_helper.to_array(theirs).tobytes()
    session = onnxruntime.InferenceSession(built.SerializeToString())
    record = load_npz(models.demo_record())
    for case in ("case0", "case1"):
        given = {key.split("/", 2)[2]: value for key, value in record.items() if key.startswith(f"{case}/in/")}
        names = [entry.name for entry in session.get_outputs()]
        for name, result in zip(names, session.run(names, given), strict=True):
            assert np.allclose(result, record[f"{case}/out/{name}"], rtol=0, atol=1e-2), name


@pytest.mark.parametrize("cache", CACHES)
@pytest.mark.parametrize("name", ["deepseek-v3", "deepseek-v2", "deepseek-v2-lite", "qwen3", "qwen3-moe", "qwen2"])
def test_toys_are_valid_and_run(name: str, cache: str, tmp_path: Path) -> None:
    path = tmp_path / "toy.onnx"
    written = write(toy(name), path, Options("float16", cache))
    assert written.data is None
    onnx.checker.check_model(str(path), full_check=True)
    session = onnxruntime.InferenceSession(str(path))
    logits, *caches = session.run(None, feeds(session, "float16"))
    assert logits.shape == (BATCH, TOKENS, 64) and np.isfinite(logits).all() and np.ptp(logits) > 1
    assert len(caches) == 4


@pytest.mark.parametrize(
    ("name", "absorbed"), [("deepseek-v3", ""), ("deepseek-v3", "matmul"), ("deepseek-v2", "einsum"), ("qwen3", "")]
)
def test_paged_and_static_caches_give_the_same_logits(name: str, absorbed: str, tmp_path: Path) -> None:
    found = []
    # one head of keys lies alike in [B, N, M, D] and in [pages, rows, N, D]
    model = replace(toy(name), kv_heads=1 if name == "qwen3" else 0)
    for cache in ("static", "paged"):
        write(model, tmp_path / "m.onnx", Options(cache=cache, absorbed=absorbed, pages=2))
        session = onnxruntime.InferenceSession(str(tmp_path / "m.onnx"))
        found.append(session.run(["logits"], feeds(session))[0])
    assert np.allclose(*found, rtol=0, atol=1e-5)


def test_both_absorptions_agree(tmp_path: Path) -> None:
    found = []
    for absorbed in ("einsum", "matmul"):
        session = onnxruntime.InferenceSession(
            build(toy("deepseek-v3"), Options(absorbed=absorbed), RandomWeights(3)).SerializeToString()
        )
        found.append(session.run(["logits"], feeds(session))[0])
    assert np.allclose(*found, rtol=0, atol=1e-5)


def test_caches_of_latents_and_of_heads_give_the_same_logits() -> None:
    """Two tokens after none, then one: the latents of the first are expanded again, the heads are kept."""
    model, rng, found = toy("deepseek-v3"), np.random.default_rng(0), []
    ids = rng.integers(0, model.vocab, (BATCH, 3))
    for expanded in (False, True):
        built = build(model, Options(cache="growth", expanded=expanded), RandomWeights(3))
        session = onnxruntime.InferenceSession(built.SerializeToString())
        past = {
            entry.name: np.zeros((BATCH, entry.shape[1], 0, entry.shape[3]), np.float32)
            for entry in session.get_inputs()
            if entry.name.startswith("past")
        }
        widths = [rows.shape[1::2] for rows in past.values()][:2]
        assert widths == ([(2, 192), (2, 128)] if expanded else [(1, 512), (1, 64)])
        for tokens in (slice(0, 2), slice(2, 3)):
            given = {
                "input_ids": ids[:, tokens], "attention_mask": np.ones((BATCH, tokens.stop), np.int64),
                "position_ids": np.tile(np.arange(tokens.start, tokens.stop), (BATCH, 1)),
            }  # fmt: skip
            logits, *rows = session.run(None, given | past)
            past = dict(zip(past, rows, strict=True))
        found.append(logits)
    assert np.allclose(*found, rtol=0, atol=1e-5)


def test_opset_23_has_norms_as_operators() -> None:
    counted = ops(build(toy("qwen3"), Options(opset=23), RandomWeights(0)))
    assert counted["RMSNormalization"] == 9 and not counted["ReduceMean"]


@pytest.mark.parametrize("cache", ["static", "paged"])
@pytest.mark.parametrize("name", ["deepseek-v3", "qwen3"])
def test_toys_fuse_in_every_layer(name: str, cache: str, tmp_path: Path) -> None:
    write(toy(name), tmp_path / "toy.onnx", Options("float16", cache))
    result = fuse(tmp_path / "toy.onnx", only=["KvRmsNormRopeCache"])
    assert [site.layer for site in result.sites] == [0, 1] and not result.refusals


PARAMETERS = {
    "deepseek-v3": 671.0e9, "deepseek-v2": 235.7e9, "deepseek-v2-lite": 15.7e9, "qwen3-235b-a22b": 235.1e9,
    "qwen3-30b-a3b": 30.5e9, "qwen3-32b": 32.8e9, "qwen3-8b": 8.2e9, "qwen2-72b": 72.7e9, "qwen2-7b": 7.6e9,
}  # fmt: skip


@pytest.mark.parametrize("name", PARAMETERS)
def test_full_topologies_have_the_published_number_of_parameters(name: str) -> None:
    sizes = SparseWeights("data")
    model = PRESETS[name]
    few = replace(model, layers=min(model.layers, 5))
    build(few, Options("bfloat16", batch=1), sizes)
    more = SparseWeights("data")
    build(replace(few, layers=few.layers + 1), Options("bfloat16", batch=1), more)
    total = sizes.size + (more.size - sizes.size) * (model.layers - few.layers)
    assert total / 2 == pytest.approx(PARAMETERS[name], rel=0.01)


def test_the_weight_file_is_holes(tmp_path: Path) -> None:
    written = write(replace(PRESETS["qwen3-8b"], layers=2), tmp_path / "m.onnx", Options("bfloat16", batch=1))
    assert written.data is not None and written.data.name == "m.onnx.data"
    status = written.data.stat()
    assert status.st_size == written.weight_bytes > 2e9
    assert status.st_blocks * 512 < 1e6
    assert (tmp_path / "m.onnx").stat().st_size < 1e6


@pytest.mark.parametrize(
    ("model", "options", "reason"),
    [
        (toy("qwen3"), Options(absorbed="einsum"), "only latent attention can be absorbed"),
        (toy("qwen3"), Options(cache="growth", expanded=True), "found qwen3, growth caches"),
        (toy("deepseek-v3"), Options(expanded=True), "found deepseek_v3, static caches, wanted a DeepSeek model with"),
        (toy("deepseek-v3"), Options(cache="growth", expanded=True, absorbed="matmul"), "growth caches, absorbed"),
        (toy("qwen3"), Options(cache="ring"), "unknown form of cache; found ring"),
        (toy("qwen3"), Options(opset=17), "found 17, wanted 18 to 23"),
        (toy("qwen3"), Options(cache="paged", page=5), "whole pages"),
        (replace(toy("qwen3"), kv_heads=3), Options(), "4 heads, 3 of keys"),
    ],
)
def test_what_does_not_go_together_is_refused(model: Architecture, options: Options, reason: str) -> None:
    with pytest.raises(BadUsage, match=reason):
        build(model, options, RandomWeights(0))
