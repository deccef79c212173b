"""Greedy generation through converted exports equals that of ``transformers``: same ids, same logits.

tests/data/decoders: decoders of ``transformers`` 5.24 (two layers, random weights, float32) whose caches grow, by both
exporters of torch 2.13 (``models/export_from_transformers.py``, smaller sizes), and what ``model.generate`` gave: 64
greedy ids for one prompt and for three of different lengths, with the logits of each step. Two are by the builder of
onnxruntime-genai 0.18 (``-p fp32 -e cpu``), whose attention keeps its caches itself. DeepSeek-V2 is not among
them: neither exporter of torch 2.13 takes its complex numbers (``aten.polar``, complex ``aten.unsqueeze``); what the
exporter of ``transformers`` makes of it is in tests/data/graphs.
"""

from __future__ import annotations

from functools import cache
from pathlib import Path

import numpy as np
import pytest

import fusion
from custom_ort import DecodeSession
from fusion import FusionResult
from tests.conftest import DATA

DECODERS = sorted((DATA / "decoders").glob("*.onnx"))
LAYERS, NEW = 2, 64


@cache
def converted(path: Path) -> FusionResult:
    return fusion.fuse(path, cache="auto", block_size=16)


def test_every_family_is_there_by_both_exporters() -> None:
    names = {path.stem for path in DECODERS}
    families = ("qwen2", "qwen3", "qwen3-moe", "deepseek-v3")
    assert {f"{family}_{exporter}" for family in families for exporter in ("dynamo", "torchscript")} <= names


@pytest.mark.parametrize("path", DECODERS, ids=lambda path: path.stem)
@pytest.mark.parametrize("prompts", ["one", "three"])
def test_greedy_ids_and_logits_are_those_of_transformers(path: Path, prompts: str) -> None:
    with np.load(path.with_suffix(".npz")) as recorded:
        arrays = {name: recorded[name] for name in recorded.files if name.startswith(f"{prompts}/")}
    count = len(arrays) // 3
    wanted = [arrays[f"{prompts}/{number}/ids"].tolist() for number in range(count)]
    lengths = [int(arrays[f"{prompts}/{number}/prompt"]) for number in range(count)]
    given = [ids[:length] for ids, length in zip(wanted, lengths, strict=True)]
    decoder = DecodeSession(converted(path).model, capacity=96, max_sequences=count)
    sequences, logits = decoder.prefill(given)
    for step in range(NEW):
        for number in range(count):
            expected = arrays[f"{prompts}/{number}/logits"][step]
            assert np.abs(logits[number] - expected).max() <= 2e-5, (step, number)
            assert int(logits[number].argmax()) == wanted[number][lengths[number] + step]
        if step < NEW - 1:
            logits = decoder.step([ids[length + step] for ids, length in zip(wanted, lengths, strict=True)], sequences)
    for sequence in sequences:
        decoder.free(sequence)
    assert decoder.generate(given, max_new_tokens=NEW) == wanted


@pytest.mark.parametrize("path", DECODERS, ids=lambda path: path.stem)
def test_every_layer_has_its_fused_operators(path: Path) -> None:
    result = converted(path)
    assert result.count("FusedInferAttentionScore") == LAYERS
    big = sum(result.count(op) for op in ("QkvRmsNormRopeCache", "MlaPrologV3", "KvRmsNormRopeCache"))
    assert big == (0 if path.stem.startswith(("qwen2_", "deepseek-v2")) else LAYERS)
