"""Exports for a fixed number of sequences, or for one token a step: converted as they are, decoded a batch at a time.

What they decode is what ``transformers`` generated (tests/data/decoders).
"""

from __future__ import annotations

from functools import cache
from typing import Literal

import numpy as np
import onnx
import pytest

import fusion
from custom_ort import DecodeSession
from fusion import FusionResult
from ir_ops.errors import BadInput, BadModel
from tests.conftest import DATA

FIXED = {
    "one sequence": (1, None),
    "two sequences": (2, None),
    "one token": (None, 1),
    "one token of one sequence": (1, 1),
}
FAMILIES = {"qwen3_dynamo": "QkvRmsNormRopeCache", "deepseek-v3_dynamo": "MlaPrologV3", "qwen2_torchscript": "",
            "qwen2_genai": ""}  # fmt: skip
CALLS = [(name, fixed) for name in FAMILIES for fixed in FIXED if "genai" not in name or fixed == "one sequence"]
STEPS = 6


def fixed_at(model: onnx.ModelProto, sizes: tuple[int | None, int | None]) -> onnx.ModelProto:
    """The export with batch or new tokens of all inputs and outputs fixed, as without dynamic axes for them."""
    found = onnx.ModelProto()
    found.CopyFrom(model)
    ids = next(entry for entry in found.graph.input if entry.name == "input_ids")
    names = [dim.dim_param for dim in ids.type.tensor_type.shape.dim]
    wanted = {name: size for name, size in zip(names, sizes, strict=True) if size}
    for entry in (*found.graph.input, *found.graph.output):
        for dim in entry.type.tensor_type.shape.dim:
            if dim.dim_param in wanted:
                dim.dim_value = wanted[dim.dim_param]
    del found.graph.value_info[:]
    return found


@cache
def converted(name: str, fixed: str, form: Literal["paged", "contiguous"] = "paged") -> FusionResult:
    model = fixed_at(onnx.load_model(DATA / "decoders" / f"{name}.onnx"), FIXED[fixed])
    return fusion.fuse(model, cache=form, **({"block_size": 16} if form == "paged" else {"capacity": 96}))


@pytest.mark.parametrize("form", ["paged", "contiguous"])
@pytest.mark.parametrize(("name", "fixed"), CALLS)
def test_three_prompts_decode_as_recorded(name: str, fixed: str, form: Literal["paged", "contiguous"]) -> None:
    with np.load(DATA / "decoders" / f"{name}.npz") as record:
        ids = [record[f"three/{number}/ids"].tolist() for number in range(3)]
        lengths = [int(record[f"three/{number}/prompt"]) for number in range(3)]
        wanted = [record[f"three/{number}/logits"] for number in range(3)]
    decoder = DecodeSession(converted(name, fixed, form).model, capacity=96, max_sequences=3)
    sequences, logits = decoder.prefill([row[:length] for row, length in zip(ids, lengths, strict=True)])
    for step in range(STEPS):
        np.testing.assert_allclose(logits, [row[step] for row in wanted], atol=2e-5)
        logits = decoder.step([row[length + step] for row, length in zip(ids, lengths, strict=True)], sequences)


@pytest.mark.parametrize(("name", "fixed"), CALLS)
def test_every_layer_is_fused_and_the_model_verifies(name: str, fixed: str) -> None:
    result = converted(name, fixed)
    assert result.count("FusedInferAttentionScore") == 2
    if FAMILIES[name]:
        assert result.count(FAMILIES[name]) == 2
    model = fixed_at(onnx.load_model(DATA / "decoders" / f"{name}.onnx"), FIXED[fixed])
    verified = fusion.verify(model, result.model, cases=1)
    assert verified.ok, verified.differences


def test_a_call_that_fails_leaves_every_sequence_as_it_was() -> None:
    """The third of three sequences is at its capacity; the first two have run by then."""
    decoder = DecodeSession(converted("qwen3_dynamo", "one sequence").model, capacity=4, max_sequences=3)
    sequences, _ = decoder.prefill([[1, 2], [3], [4, 5, 6, 7]])
    before = [decoder.export(number) for number in sequences]
    with pytest.raises(BadInput, match="longer than its capacity"):
        decoder.step([1, 2, 3], sequences)
    with pytest.raises(BadInput, match="named twice"):
        decoder.step([1, 2], [sequences[0], sequences[0]])
    assert [decoder.length(number) for number in sequences] == [2, 1, 4]
    for number, rows in zip(sequences, before, strict=True):
        after = decoder.export(number)
        assert all(np.array_equal(after[name], array) for name, array in rows.items())


def test_another_fixed_number_of_tokens_is_refused() -> None:
    model = fixed_at(onnx.load_model(DATA / "decoders" / "qwen3_dynamo.onnx"), (None, 4))
    with pytest.raises(BadModel, match=r"runs at several sizes.*dynamic tokens \(or 1\)"):
        fusion.fuse(model, cache="paged")
