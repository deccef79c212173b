"""Greedy generation through converted exports equals that of ``transformers``: same ids, same logits.

tests/data/decoders: decoders of ``transformers`` 5.24 (two layers, random weights, float32) whose caches grow, by both
exporters of torch 2.13, and what ``model.generate`` gave: 64 greedy ids for one prompt and for three of different
lengths, with the logits of each step. Written by ``python -m models.export_from_transformers FAMILY OUT.onnx --cache
growth --small --greedy --seed 3`` and ``--exporter dynamo`` or ``--exporter torchscript --opset 17``. DeepSeek-V2-Lite
is DeepSeek-V2 without a latent of the queries. Two are by the builder of onnxruntime-genai 0.18 (``-p fp32 -e cpu``),
whose attention keeps its caches itself.
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
from tests.fusion.surgery.decoding import greedy

DECODERS = sorted((DATA / "decoders").glob("*.onnx"))
FAMILIES = ("qwen2", "qwen3", "qwen3-moe", "deepseek-v2", "deepseek-v2-lite", "deepseek-v3")
LAYERS, NEW = 2, 64
CALLS = [(path, form, prompts) for path in DECODERS
         for form, prompts in (("paged", "one"), ("paged", "three"), ("contiguous", "three"))
         if form == "paged" or path.stem.endswith(("dynamo", "genai"))]  # fmt: skip
WRITES = {"qwen2": None, "deepseek-v2-lite": "KvRmsNormRopeCache", "deepseek-v2": "MlaPrologV3",
          "deepseek-v3": "MlaPrologV3", "qwen3": "QkvRmsNormRopeCache", "qwen3-moe": "QkvRmsNormRopeCache"}  # fmt: skip
"""What takes the place of everything in front of the cache, layer by layer. Qwen2 has no norm of queries and keys."""


@cache
def converted(path: Path, form: str = "paged") -> FusionResult:
    sizes = {"block_size": 16} if form == "paged" else {"capacity": 96}
    return fusion.fuse(path, cache=form, **sizes)  # type: ignore[arg-type]


def test_every_family_is_there_by_both_exporters() -> None:
    names = {path.stem for path in DECODERS}
    exported = {f"{family}_{exporter}" for family in FAMILIES for exporter in ("dynamo", "torchscript")}
    assert exported | {"qwen2_genai", "qwen3_genai"} == names


@pytest.mark.parametrize(("path", "form", "prompts"), CALLS, ids=lambda item: getattr(item, "stem", item))
def test_greedy_ids_and_logits_are_those_of_transformers(path: Path, form: str, prompts: str) -> None:
    wanted = greedy(path, prompts)
    decoder = DecodeSession(converted(path, form).model, capacity=96, max_sequences=len(wanted.ids))
    sequences, logits = decoder.prefill(wanted.prompts)
    for step in range(NEW):
        for number, expected in enumerate(wanted.logits):
            assert np.abs(logits[number] - expected[step]).max() <= 2e-5, (step, number)
        assert [int(row.argmax()) for row in logits] == wanted.at(step)
        if step < NEW - 1:
            logits = decoder.step(wanted.at(step), sequences)
    for sequence in sequences:
        decoder.free(sequence)
    assert decoder.generate(wanted.prompts, max_new_tokens=NEW) == wanted.ids


@pytest.mark.parametrize("path", DECODERS, ids=lambda path: path.stem)
def test_every_layer_has_its_fused_operators(path: Path) -> None:
    result = converted(path)
    assert result.count("FusedInferAttentionScore") == LAYERS
    write = WRITES[path.stem.split("_")[0]]
    for op in ("QkvRmsNormRopeCache", "MlaPrologV3", "KvRmsNormRopeCache"):
        assert result.count(op) == (LAYERS if op == write else 0)
