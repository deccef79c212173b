"""Decoders whose caches GroupQueryAttention keeps (onnxruntime-genai's builder): opened, converted, decoding the same.

Their original is onnxruntime with the file as it came. What transformers generates with them: test_generation.py;
recorded calls: test_decoder.py; `.air` files: tests/ir_ops/ge/test_decoders.py.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import helper, numpy_helper

import custom_ort
import fusion
from custom_ort import DecodeSession
from fusion import FusionResult
from ir_ops.decode_plan import read_plan
from ir_ops.errors import BadModel
from tests.conftest import DATA
from tests.fusion.surgery.decoding import Original

NORMED = DATA / "decoders" / "qwen3_genai.onnx"
"""Two layers, norms of queries and keys."""
PACKED = DATA / "decoders" / "qwen2_genai.onnx"
"""Two layers, queries, keys and values in one value with a bias."""
INT4 = DATA / "graphs" / "qwen3_genai_int4.onnx"
"""MatMulNBits, which rounds activations to 8 bits."""
FILES = {NORMED: 16, PACKED: 16, INT4: 128}
"""Columns of a head."""
BOUNDS = {NORMED: 2e-5, PACKED: 2e-5, INT4: 0.1}
"""Of logits of about 1. Where the last bit of an activation is another, its 8 bits may be the next step."""


@cache
def converted(path: Path, form: str = "auto") -> FusionResult:
    sizes = {"capacity": 96} if form == "contiguous" else {"block_size": 16}
    return fusion.fuse(path, cache=form, **sizes)  # type: ignore[arg-type]


@pytest.mark.parametrize("lengths", [(6,), (7, 1, 20)], ids=["one", "three"])
@pytest.mark.parametrize("path", FILES, ids=lambda path: path.stem)
def test_greedy_decoding_is_that_of_the_genai_graph_in_onnxruntime(path: Path, lengths: tuple[int, ...]) -> None:
    rng = np.random.default_rng(4)
    prompts = [rng.integers(0, 64, length).tolist() for length in lengths]
    alone = Original(onnx.load_model(path), FILES[path])
    states = [alone.new() for _ in prompts]
    session = DecodeSession(converted(path).model, capacity=96, max_sequences=3)
    sequences, logits = session.prefill(prompts, chunk=8)
    wanted = np.stack([alone.run(state, prompt) for state, prompt in zip(states, prompts, strict=True)])
    for _ in range(24):
        assert np.abs(logits - wanted).max() <= BOUNDS[path]
        chosen, ordered = wanted.argmax(axis=-1).tolist(), np.sort(wanted, axis=-1)
        certain = ordered[:, -1] - ordered[:, -2] > 2 * BOUNDS[path]
        assert (logits.argmax(axis=-1) == chosen)[certain].all()
        logits = session.step(chosen, sequences)
        wanted = np.stack([alone.run(state, [number]) for state, number in zip(states, chosen, strict=True)])


@pytest.mark.parametrize("path", [NORMED, PACKED], ids=lambda path: path.stem)
def test_a_batch_decodes_as_onnxruntime_decodes_it_padded_on_the_right(path: Path) -> None:
    """New rows go behind each sequence's tokens, into the padding: lengths are sums of the mask."""
    rng = np.random.default_rng(6)
    lengths = np.array([7, 1, 12])
    prompts = [rng.integers(0, 64, length).tolist() for length in lengths]
    original = custom_ort.session(onnx.load_model(path))
    names = [item.name for item in original.get_inputs() if "past" in item.name]
    caches = {name: np.zeros((3, 2, 0, FILES[path]), np.float32) for name in names}
    ids = np.array([prompt + [0] * (12 - len(prompt)) for prompt in prompts])
    mask = (np.arange(12) < lengths[:, None]).astype(np.int64)
    last = lengths - 1
    session = DecodeSession(converted(path).model, capacity=96, max_sequences=3)
    sequences, logits = session.prefill(prompts)
    for _ in range(16):
        results = custom_ort.run(original, {"input_ids": ids, "attention_mask": mask, **caches})
        wanted = results["logits"][np.arange(3), last]
        assert np.abs(logits - wanted).max() <= BOUNDS[path]
        caches = {name: results[name.replace("past_key_values", "present")] for name in names}
        ids, last = wanted.argmax(axis=-1)[:, None], np.zeros(3, np.int64)
        mask = np.concatenate([mask, np.ones((3, 1), np.int64)], axis=1)
        logits = session.step(ids[:, 0], sequences)


@pytest.mark.parametrize("form", ["auto", "contiguous"])
@pytest.mark.parametrize("path", FILES, ids=lambda path: path.stem)
def test_verify_meets_the_original(path: Path, form: str) -> None:
    result = fusion.verify(path, converted(path, form).model, cases=1)
    assert result.ok, result.differences
    assert ("MatMulNBits" in result.how) == (path == INT4)


def test_verify_notices_another_rotation() -> None:
    model = onnx.ModelProto()
    model.CopyFrom(converted(NORMED).model)
    table = next(item for item in model.graph.initializer if item.name == "sin_cache")
    table.CopyFrom(numpy_helper.from_array(-numpy_helper.to_array(table), "sin_cache"))
    assert not fusion.verify(NORMED, model, cases=1).ok


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.stem)
def test_nothing_is_left_of_lengths_masks_and_opened_attention(path: Path) -> None:
    model = converted(path).model
    assert isinstance(model, onnx.ModelProto)
    kinds = {node.op_type for node in model.graph.node}
    assert not kinds & {"GroupQueryAttention", "Softmax", "Range", "Where", "ReduceSum", "Less", "Max"}
    assert ("MatMulNBits" in kinds) == (path == INT4)
    names = [item.name for item in model.graph.input]
    assert "attention_mask" not in names
    assert "position_ids" in names
    plan = read_plan({item.key: item.value for item in model.metadata_props}, "model")
    assert {port.columns for port in plan.caches} == {FILES[path]}


def test_16_bit_and_8_bit_caches() -> None:
    narrow = fusion.fuse(NORMED, cache="auto", block_size=16, kv_dtype="float16")
    assert fusion.verify(NORMED, narrow.model, cases=1).ok
    ids = np.random.default_rng(1).permutation(64)[None]
    empty = {f"past_key_values.0.{part}": np.zeros((1, 2, 0, 128), np.float32) for part in ("key", "value")}
    given = {"input_ids": ids, "attention_mask": np.ones_like(ids), **empty}
    small = fusion.fuse(INT4, cache="auto", block_size=16, kv_quant="int8", calibrate=given)
    assert small.count("QkvRmsNormRopeCache") == 1
    alone, session = Original(onnx.load_model(INT4), 128), DecodeSession(small.model, capacity=32)
    _, logits = session.prefill([[5, 6, 7, 8]])
    wanted = alone.run(alone.new(), [5, 6, 7, 8])
    assert 1e-6 < np.abs(logits[0] - wanted).max() < 0.05 * np.abs(wanted).max()


@pytest.mark.parametrize("path", [NORMED, PACKED], ids=lambda path: path.stem)
def test_turned_back_it_runs_without_kernels(path: Path, tmp_path: Path) -> None:
    plain = fusion.defuse(converted(path).model)
    assert not [node for node in plain.model.graph.node if node.domain == "ai.ascend"]
    assert fusion.verify(path, plain.model, cases=1).ok


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.stem)
def test_where_caches_are_kept_the_operator_stays_as_it_came(path: Path) -> None:
    fused = fusion.fuse(path).model
    assert isinstance(fused, onnx.ModelProto)
    assert [spelled(node) for node in attention(fused)] == [spelled(node) for node in attention(onnx.load_model(path))]


def spelled(node: onnx.NodeProto) -> Any:
    """All but the queries, which a fused operator may give; missing operands at the end are as good as none."""
    operands = ",".join(node.input[1:]).rstrip(",")
    return node.name, operands, list(node.output), sorted(item.SerializeToString() for item in node.attribute)


Builder = Callable[[onnx.ModelProto], None]


def attention(model: onnx.ModelProto) -> list[onnx.NodeProto]:
    return [node for node in model.graph.node if node.op_type == "GroupQueryAttention"]


def attribute(name: str, value: Any, layer: int | None = None) -> Builder:
    def edit(model: onnx.ModelProto) -> None:
        for node in attention(model) if layer is None else attention(model)[layer : layer + 1]:
            kept = [item for item in node.attribute if item.name != name]
            del node.attribute[:]
            node.attribute.extend([*kept, helper.make_attribute(name, value)])

    return edit


def constant(model: onnx.ModelProto, array: Any) -> str:
    name = f"edit_{len(model.graph.initializer)}"
    model.graph.initializer.append(numpy_helper.from_array(np.asarray(array), name))
    return name


def lengths_by(number: int) -> Builder:
    """``seqlens_k`` is the sum of the mask less ``number``."""

    def edit(model: onnx.ModelProto) -> None:
        node = next(node for node in model.graph.node if node.op_type == "Sub")
        node.input[1] = constant(model, np.array([number]))

    return edit


def longer_total(model: onnx.ModelProto) -> None:
    node = next(node for node in model.graph.node if node.op_type == "Gather" and "attn_mask" in node.name)
    more = helper.make_node("Add", [node.output[0], constant(model, np.array(1))], ["edit_total"])
    for reader in model.graph.node:
        for place, name in enumerate(reader.input):
            reader.input[place] = "edit_total" if name == node.output[0] else name
    model.graph.node.insert([*model.graph.node].index(node) + 1, more)


def first_entry_of_the_mask(model: onnx.ModelProto) -> None:
    """The first token counts twice: right as long as it is there."""
    node = next(node for node in model.graph.node if node.op_type == "ReduceSum")
    weights = constant(model, np.array([2]))
    parts = [
        helper.make_node("Slice", ["attention_mask", *(constant(model, np.array([i])) for i in (0, 1, 1))], ["edit_a"]),
        helper.make_node("Slice", ["attention_mask", *(constant(model, np.array([i])) for i in (2, 1 << 40, 1))],
                         ["edit_b"]),
        helper.make_node("Mul", ["edit_a", weights], ["edit_c"]),
        helper.make_node("Concat", ["edit_c", "edit_b"], ["edit_d"], axis=1),
    ]  # fmt: skip
    place = [*model.graph.node].index(node)
    node.input[0] = "edit_d"
    for part in reversed(parts):
        model.graph.node.insert(place, part)


def mask_read_elsewhere(model: onnx.ModelProto) -> None:
    place = next(place for place, node in enumerate(model.graph.node) if node.op_type == "ReduceSum")
    total = model.graph.node[place].output[0]
    rows = "/model/embed_tokens/Gather/output_0"
    gather = next(node for node in model.graph.node if node.output[0] == rows)
    number = [*model.graph.node].index(gather)
    gather.output[0] = "edit_rows"
    nodes = [helper.make_node("Cast", [total], ["edit_float"], to=1),
             helper.make_node("Reshape", ["edit_float", constant(model, np.array([-1, 1, 1]))], ["edit_length"]),
             helper.make_node("Mul", ["edit_rows", "edit_length"], [rows])]  # fmt: skip
    for node in reversed(nodes):
        model.graph.node.insert(number + 1, node)


def unknown_operator(model: onnx.ModelProto) -> None:
    last = model.graph.node[-1]
    last.output[0] = "edit_logits"
    model.graph.node.append(helper.make_node("NGramMixer", ["edit_logits"], ["logits"], domain="com.microsoft"))


REFUSED: dict[str, tuple[Builder, str]] = {
    "a window": (attribute("local_window_size", 3), "seen_near: .*windows, biases and other masks"),
    "a window beyond all trials": (attribute("local_window_size", 4096), "seen_near: .*windows, biases"),
    "a window in one layer": (attribute("local_window_size", 8, 1), "layers.1/attn/.*seen_near: .*windows, biases"),
    "a softcap": (attribute("softcap", 30.0), "layers.0/attn/.*found Tanh in front of it"),
    "smooth softmax in one layer": (attribute("smooth_softmax", 1, 1),
                                    "node /model/layers.1/attn/GroupQueryAttention: .*found smooth_softmax = 1"),
    "lengths that are one too large": (lengths_by(0), "sees all tokens up to itself"),
    "lengths that are one too small": (lengths_by(2), "sees all tokens up to itself"),
    "a total that is one too large": (longer_total, "runs at several sizes"),
    "lengths that count one token twice": (first_entry_of_the_mask, "."),
    "a length that is computed with": (mask_read_elsewhere, "growing caches"),
    "an operator that nobody knows": (unknown_operator, "com.microsoft.NGramMixer, which may bring them together"),
}  # fmt: skip


@pytest.mark.parametrize("case", REFUSED)
def test_what_is_not_understood_is_refused(case: str, tmp_path: Path) -> None:
    edit, text = REFUSED[case]
    model = onnx.load_model(NORMED)
    edit(model)
    before = model.SerializeToString(deterministic=True)
    with pytest.raises(BadModel, match=text):
        fusion.fuse(model, tmp_path / "out.onnx", cache="auto")
    assert not list(tmp_path.iterdir())
    assert model.SerializeToString(deterministic=True) == before


def given_positions(model: onnx.ModelProto) -> None:
    ids = next(item for item in model.graph.input if item.name == "input_ids")
    positions = onnx.ValueInfoProto.FromString(ids.SerializeToString())
    positions.name = "position_ids"
    model.graph.input.append(positions)
    for node in attention(model):
        node.input.extend([""] * (10 - len(node.input)))
        node.input[9] = "position_ids"


CONVERTED: dict[str, tuple[Builder, dict[str, int]]] = {
    "rotated neighbours": (attribute("rotary_interleaved", 1), {"QkvRmsNormRopeCache": 0}),
    "positions that are given": (given_positions, {"QkvRmsNormRopeCache": 2}),
    "no rotation": (attribute("do_rotary", 0), {"QkvRmsNormRopeCache": 0}),
    "another scale": (attribute("scale", 0.7), {"QkvRmsNormRopeCache": 2}),
    "the scale of the width": (attribute("scale", 0.0), {"QkvRmsNormRopeCache": 2}),
}


@pytest.mark.parametrize("case", CONVERTED)
def test_other_forms_decode_like_the_original(case: str) -> None:
    edit, counts = CONVERTED[case]
    model = onnx.load_model(NORMED)
    edit(model)
    result = fusion.fuse(model, cache="auto", block_size=16)
    assert {op: result.count(op) for op in counts} == counts
    assert result.count("FusedInferAttentionScore") == 2
    verified = fusion.verify(model, result.model, cases=1)
    assert verified.ok, verified.differences
