"""Decoders with ``expand_prompts``: logits and greedy ids are those of the decoder without it, and of ``transformers``.

Which way each layer took is read from the runtime's profile.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable, Sequence
from functools import cache
from pathlib import Path

import numpy as np
import onnx
import onnxruntime
import pytest

import fusion
from custom_ort import DecodeSession
from custom_ort.decode.calls import batch_of
from custom_ort.decode.memory import CacheMemory
from custom_ort.decode.pages import PagePool
from ir_ops.decode_plan import read_plan
from ir_ops.dtypes import Array, by_onnx
from tests.conftest import DATA
from tests.custom_ort import one_node
from tests.fusion.surgery.decoding import greedy
from tests.fusion.surgery.test_fixed_sizes import FIXED, fixed_at

DECODERS = sorted((DATA / "decoders").glob("deepseek-*.onnx"))
LAYERS, NEW, CAPACITY = 2, 64, 96
EXPANDED, ABSORBED = "prompts", "decode"
"""What the names of the attentions begin with."""


def sizes(form: str) -> dict[str, int]:
    return {"block_size": 16} if form == "paged" else {"capacity": CAPACITY}


@cache
def converted(path: Path, form: str, least: int, **options: str) -> onnx.ModelProto:
    found = fusion.fuse(path, cache=form, expand_prompts=least, **sizes(form), **options)  # type: ignore[arg-type]
    assert isinstance(found.model, onnx.ModelProto)
    return found.model


class Watched:
    """A session that says how often each layer took which way."""

    def __init__(self, model: onnx.ModelProto, folder: Path) -> None:
        options = onnxruntime.SessionOptions()
        options.enable_profiling, options.log_severity_level = True, 4
        options.profile_file_prefix = str(folder / "profile")
        self.decoder = DecodeSession(model, capacity=CAPACITY, max_sequences=4, sess_options=options)

    def taken(self) -> tuple[int, int]:
        """Attentions over keys and values, and over latents, of all layers and calls. Ends the session's profile."""
        events = json.loads(Path(self.decoder._session.end_profiling()).read_text())
        ran = Counter(
            event["name"].split("/")[0]
            for event in events
            if event.get("args", {}).get("op_name") == "FusedInferAttentionScore"
            and event["name"].endswith("_kernel_time")
        )
        return ran[EXPANDED], ran[ABSORBED]


@pytest.mark.parametrize("prompts", ["one", "three"])
@pytest.mark.parametrize("path", DECODERS, ids=lambda path: path.stem)
def test_greedy_ids_and_logits_are_those_of_transformers(path: Path, prompts: str, tmp_path: Path) -> None:
    wanted = greedy(path, prompts)
    form = "paged" if path.stem.endswith("dynamo") else "contiguous"
    watched = Watched(converted(path, form, 2), tmp_path)
    plain = DecodeSession(converted(path, form, 0), capacity=CAPACITY, max_sequences=len(wanted.ids))
    (sequences, logits), (others, same) = watched.decoder.prefill(wanted.prompts), plain.prefill(wanted.prompts)
    for step in range(NEW):
        assert np.abs(logits - same).max() <= 5e-6
        for number, expected in enumerate(wanted.logits):
            assert np.abs(logits[number] - expected[step]).max() <= 2e-5, (step, number)
        assert [int(row.argmax()) for row in logits] == wanted.at(step)
        if step < NEW - 1:
            ids = wanted.at(step)
            logits, same = watched.decoder.step(ids, sequences), plain.step(ids, others)
    assert watched.taken() == (LAYERS, LAYERS * (NEW - 1))
    for sequence in sequences:
        watched.decoder.free(sequence)
    assert watched.decoder.generate(wanted.prompts, max_new_tokens=NEW) == wanted.ids


Calls = Callable[[DecodeSession], list[Array]]


def first(*prompts: list[int]) -> Calls:
    return lambda decoder: [decoder.prefill(list(prompts))[1]]


def in_chunks(decoder: DecodeSession) -> list[Array]:
    return [decoder.prefill([list(range(11)), [7, 8]], chunk=4)[1]]


def further(decoder: DecodeSession) -> list[Array]:
    """A second prompt of a living sequence is no first one."""
    sequences, logits = decoder.prefill([[3, 1, 4, 1, 5]])
    return [logits, decoder.prefill([[9, 2, 6, 5, 3]], sequences)[1]]


def beside(decoder: DecodeSession) -> list[Array]:
    """One sequence begins, the other goes on: in one call."""
    old, logits = decoder.prefill([[1, 2, 3, 4]])
    new = decoder._begin(1)
    return [logits, decoder.prefill([[5, 6, 7, 8], [9, 10, 11, 12, 13]], [*old, *new])[1]]


def padded(decoder: DecodeSession) -> list[Array]:
    ids = np.arange(1, 15).reshape(2, 7)
    left, right = np.ones((2, 7), int), np.ones((2, 7), int)
    left[0, :3] = 0
    right[1, 5:] = 0
    return [decoder.prefill(ids, attention_mask=mask)[1] for mask in (left, right)]


def steps(decoder: DecodeSession) -> list[Array]:
    sequences, logits = decoder.prefill([[1, 2, 3, 4], [5]])
    return [logits, *(decoder.step([step, step], sequences) for step in range(3))]


def forked(decoder: DecodeSession) -> list[Array]:
    (sequence,), logits = decoder.prefill([[1, 2, 3, 4, 5, 6]])
    twin = decoder.fork(sequence)
    return [logits, decoder.step([7, 8], [sequence, twin])]


CALLS: dict[str, tuple[Calls, int, int]] = {
    "one sequence": (first([1, 2, 3, 4, 5]), 1, 0),
    "different lengths": (first([1, 2, 3, 4], [5], list(range(40))), 1, 0),
    "shorter than that": (first([1, 2, 3], [5]), 0, 1),
    "in chunks": (in_chunks, 1, 2),
    "a further prompt": (further, 1, 1),
    "one begins and one goes on": (beside, 1, 1),
    "padding on the left, on the right": (padded, 2, 0),
    "steps": (steps, 1, 3),
    "a fork": (forked, 1, 1),
}
"""Calls; runs whose layers expand, runs that stay on latents, with 4 tokens as the least."""
MODELS = {"deepseek-v3_dynamo": "paged", "deepseek-v2-lite_torchscript": "contiguous"}


@pytest.mark.parametrize("name", MODELS)
@pytest.mark.parametrize("case", CALLS)
def test_each_call_takes_its_way_and_gives_the_same(case: str, name: str, tmp_path: Path) -> None:
    calls, expanded, absorbed = CALLS[case]
    path = DATA / "decoders" / f"{name}.onnx"
    watched = Watched(converted(path, MODELS[name], 4), tmp_path)
    got = calls(watched.decoder)
    wanted = calls(DecodeSession(converted(path, MODELS[name], 0), capacity=CAPACITY, max_sequences=4))
    for mine, its in zip(got, wanted, strict=True):
        np.testing.assert_allclose(mine, its, atol=5e-6, rtol=0)
    assert watched.taken() == (LAYERS * expanded, LAYERS * absorbed)


def test_rows_are_cached_all_the_same() -> None:
    path, prompt = DECODERS[0], list(range(20))
    rows = []
    for least in (0, 4):
        decoder = DecodeSession(converted(path, "paged", least), capacity=CAPACITY)
        (sequence,), _ = decoder.prefill([prompt])
        rows.append(decoder.export(sequence))
    for name, array in rows[0].items():
        np.testing.assert_allclose(rows[1][name], array, atol=5e-6, rtol=0)


@pytest.mark.parametrize("kind", ["float16", "bfloat16"])
def test_narrow_caches_round_the_rows_that_are_expanded_too(kind: str, tmp_path: Path) -> None:
    path = DATA / "decoders" / "deepseek-v3_dynamo.onnx"
    watched = Watched(converted(path, "paged", 4, kv_dtype=kind), tmp_path)
    plain = DecodeSession(converted(path, "paged", 0, kv_dtype=kind), capacity=CAPACITY)
    prompts = [list(range(9)), [4, 5]]
    np.testing.assert_allclose(watched.decoder.prefill(prompts)[1], plain.prefill(prompts)[1], atol=5e-6, rtol=0)
    assert watched.taken() == (LAYERS, 0)


def test_a_decoder_of_float16(tmp_path: Path) -> None:
    path = DATA / "graphs" / "dsv3_noil_yarn_hfexporter20_fp16_latentcache.onnx"
    watched = Watched(converted(path, "paged", 4), tmp_path)
    plain = DecodeSession(converted(path, "paged", 0), capacity=CAPACITY)
    prompts = [list(range(9)), [4, 5]]
    got, wanted = watched.decoder.prefill(prompts)[1], plain.prefill(prompts)[1]
    np.testing.assert_allclose(got.astype(np.float32), wanted.astype(np.float32), atol=1e-2, rtol=0)
    assert watched.taken() == (LAYERS, 0)


@pytest.mark.parametrize("fixed", ["one sequence", "two sequences"])
def test_a_fixed_batch(fixed: str, tmp_path: Path) -> None:
    given = fixed_at(onnx.load_model(DATA / "decoders" / "deepseek-v3_dynamo.onnx"), FIXED[fixed])
    models = [fusion.fuse(given, cache="auto", block_size=16, expand_prompts=least).model for least in (0, 4)]
    watched = Watched(models[1], tmp_path)
    plain = DecodeSession(models[0], capacity=CAPACITY, max_sequences=4)
    prompts = [list(range(9)), [4, 5], [6, 7, 8, 9, 10]]
    np.testing.assert_allclose(watched.decoder.prefill(prompts)[1], plain.prefill(prompts)[1], atol=5e-6, rtol=0)
    expanded, absorbed = watched.taken()
    assert (expanded, absorbed) == ((2 * LAYERS, LAYERS) if fixed == "one sequence" else (2 * LAYERS, 0))


def run_once(session: onnxruntime.InferenceSession, model: onnx.ModelProto, prompts: Sequence[list[int]]) -> Array:
    """Logits of the last tokens of first prompts, without anything of ours around the runtime."""
    plan = read_plan({item.key: item.value for item in model.metadata_props}, "model")
    kinds = {item.name: by_onnx(item.type.tensor_type.elem_type) for item in model.graph.input}
    pool = PagePool(8, plan.block_size, CAPACITY)
    ids = [np.array(row) for row in prompts]
    grown = pool.grow([(pool.new(), len(row)) for row in ids])
    batch = batch_of(plan, ids, [np.arange(len(row)) for row in ids], grown, plan.block_size, CAPACITY)
    feeds = {name: batch.inputs[role].astype(kinds[name].np) for role, name in plan.inputs.items()}
    feeds |= {port.input: CacheMemory(port, kinds[port.input], 8, plan.block_size).array for port in plan.caches}
    (logits,) = session.run([plan.logits], feeds)
    picked: Array = np.asarray(logits)[batch.rows, batch.last]
    return picked


@pytest.mark.parametrize("prompts", [[[1, 2, 3, 4, 5], [6]], [[1, 2], [3]]], ids=["expanded", "absorbed"])
def test_a_runtime_without_our_kernels_runs_both_ways(prompts: list[list[int]]) -> None:
    model = converted(DATA / "decoders" / "deepseek-v3_dynamo.onnx", "paged", 4)
    wanted = DecodeSession(model, capacity=CAPACITY).prefill(prompts)[1]
    # two attentions are two bodies of one operator: runtimes before 1.27 refuse them
    for stock in (fusion.defuse(model).model, *([model] if one_node.MINOR >= 27 else [])):
        session = onnxruntime.InferenceSession(stock.SerializeToString(), providers=["CPUExecutionProvider"])
        np.testing.assert_allclose(run_once(session, model, prompts), wanted, atol=1e-5, rtol=0)
