"""Float32 decoders whose caches are kept in 16 bits: the arithmetic stays float32, only cached rows are rounded."""

from __future__ import annotations

from typing import Any, Literal

import numpy as np
import onnx
import pytest

import fusion
from custom_ort import DecodeSession
from ir_ops.dtypes import Array, by_name, by_numpy
from ir_ops.errors import BadModel, BadUsage
from tests.fusion.surgery.decoding import Original
from tests.fusion.surgery.test_decoder import EXPANDED, original

Kind = Literal["float16", "bfloat16"]
KINDS: tuple[Kind, ...] = ("float16", "bfloat16")
STEP = {"float16": 2.0**-10, "bfloat16": 2.0**-7}
QWEN, LATENT = "qwen3_dynamo18_fp32_dyncache", "dsv3_il_dynamo18_fp32_latentcache"
FUSED = {QWEN: "QkvRmsNormRopeCache", LATENT: "MlaPrologV3", EXPANDED: "MlaPrologV3"}
PROMPT = np.random.default_rng(4).integers(0, 64, 9).tolist()


def decoded(name: str, **options: Any) -> tuple[DecodeSession, Array, dict[str, Array]]:
    """The session after one prompt, its logits and the rows that it cached."""
    options = {"cache": "auto", "block_size": 16, **options}
    session = DecodeSession(fusion.fuse(original(name), **options).model, capacity=32)
    sequences, logits = session.prefill([PROMPT])
    return session, logits[0], session.export(sequences[0])


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("name", [QWEN, LATENT])
def test_first_layers_rows_are_those_of_float32_rounded_once(name: str, kind: Kind) -> None:
    """Rows of the first layer depend on no cache."""
    session, _, rows = decoded(name, kv_dtype=kind)
    _, _, wide = decoded(name)
    first = {port.input for port in session.plan.caches if port.layer == 0}
    assert {by_numpy(rows[item].dtype).name for item in rows} == {kind}
    for item in first:
        rounded = wide[item].astype(by_name(kind).np).astype(np.float32)
        apart = np.abs(rows[item].astype(np.float32) - rounded)
        assert np.count_nonzero(apart) <= 0.01 * apart.size, "sums of other orders, rounded to a neighbour"
        assert (apart <= STEP[kind] * np.abs(rounded) + 1e-6).all()


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("form", ["auto", "contiguous"])
@pytest.mark.parametrize("name", [QWEN, LATENT, EXPANDED])
def test_logits_are_the_exports_but_for_the_rounded_rows(name: str, form: str, kind: Kind) -> None:
    size = {"block_size": 16} if form == "auto" else {"block_size": 0, "capacity": 32}
    _, logits, _ = decoded(name, kv_dtype=kind, cache=form, **size)
    alone = Original(original(name))
    wanted = alone.run(alone.new(), PROMPT)
    apart = np.abs(logits - wanted).max() / np.abs(wanted).max()
    assert 1e-6 < apart <= 64 * STEP[kind]


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("name", list(FUSED))
def test_the_same_operators_fuse(name: str, kind: Kind) -> None:
    narrow, wide = (
        fusion.fuse(original(name), cache="auto", block_size=16, **option) for option in ({"kv_dtype": kind}, {})
    )
    assert narrow.count(FUSED[name]) == wide.count(FUSED[name]) > 0
    assert narrow.refusals == wide.refusals == []
    assert any(kind in note for note in narrow.notes)
    apart = fusion.fuse(original(name), cache="auto", block_size=16, kv_dtype=kind, only=["RmsNorm"])
    assert apart.count(FUSED[name]) == 0
    fused, plain = (DecodeSession(result.model, capacity=32) for result in (narrow, apart))
    found, wanted = (session.prefill([PROMPT])[1] for session in (fused, plain))
    assert np.abs(found - wanted).max() <= STEP[kind] * np.abs(wanted).max()


def rounded_in_the_middle(kind: Kind) -> onnx.ModelProto:
    """The decoder with its normalised keys rounded to 16 bits and widened again."""
    model = original(QWEN)
    taken = {node.output[0] for node in model.graph.node if any("k_norm" in name for name in node.input)}
    assert taken
    nodes = []
    for node in model.graph.node:
        node.input[:] = [f"{name}/wide" if name in taken else name for name in node.input]
        nodes.append(node)
        for name in taken.intersection(node.output):
            for given, made, to in (("", "/narrow", kind), ("/narrow", "/wide", "float32")):
                cast = onnx.helper.make_node("Cast", [name + given], [name + made], to=by_name(to).onnx)
                nodes.append(cast)
    kept = [onnx.NodeProto.FromString(node.SerializeToString()) for node in nodes]
    del model.graph.node[:]
    model.graph.node.extend(kept)
    return model


@pytest.mark.parametrize("kind", KINDS)
def test_rows_that_are_rounded_in_the_middle_are_not_the_operators(kind: Kind) -> None:
    """The operator rounds once: its float16 rows would have bits that these have lost."""
    model = rounded_in_the_middle(kind)
    result = fusion.fuse(model, cache="auto", block_size=16, kv_dtype="float16")
    assert result.count(FUSED[QWEN]) == 0
    assert any(refusal.rule == FUSED[QWEN] for refusal in result.refusals)
    alone = Original(model)
    wanted = alone.run(alone.new(), PROMPT)
    logits = DecodeSession(result.model, capacity=32).prefill([PROMPT])[1][0]
    assert np.abs(logits - wanted).max() <= 64 * STEP["float16"] * np.abs(wanted).max()


def test_verify_takes_the_caches_own_precision() -> None:
    result = fusion.fuse(original(QWEN), cache="auto", kv_dtype="float16")
    verified = fusion.verify(original(QWEN), result.model)
    assert verified.ok
    assert {item.dtype for item in verified.differences} == {"float16"}


def test_a_decoder_of_another_type_is_refused() -> None:
    with pytest.raises(BadModel, match="float32 key rows to keep as bfloat16; found float16"):
        fusion.fuse(original("qwen2_dynamo18_fp16_eager_dyncache"), cache="auto", kv_dtype="bfloat16")


@pytest.mark.parametrize(
    ("options", "text"),
    [
        ({"kv_dtype": "float16"}, "caches that are kept"),
        ({"cache": "auto", "kv_dtype": "float16", "kv_quant": "int8", "calibrate": {}}, "two types for one cache"),
    ],
)
def test_options_that_do_not_go_together(options: dict[str, Any], text: str) -> None:
    with pytest.raises(BadUsage, match=text):
        fusion.fuse(original(QWEN), **options)
