"""The decode plan in a model's metadata."""

from __future__ import annotations

import dataclasses
import json
from typing import Any

import pytest

from ir_ops.decode_plan import KEY, CachePort, DecodePlan, read_plan
from ir_ops.errors import BadModel

PORTS = tuple(
    CachePort(f"past.{layer}.{part}", f"present.{layer}.{part}", layer, part, "NZ", 2, 64, (-1, 8, 16, 16))
    for layer in (0, 1)
    for part in ("key", "value")
)
PAGED = DecodePlan(
    inputs={"ids": "input_ids", "slots": "slots", "block_table": "table", "kv_lengths": "lengths"},
    logits="logits",
    slot_form="flat",
    block_size=16,
    capacity=0,
    caches=PORTS,
)


def read(text: str) -> DecodePlan:
    return read_plan({KEY: text}, "m.onnx")


def test_a_plan_comes_back_as_it_was() -> None:
    assert read(PAGED.to_json()) == PAGED
    assert PAGED.to_json() == read(PAGED.to_json()).to_json()
    assert PAGED.paged
    assert not dataclasses.replace(PAGED, slot_form="row", block_size=0).paged


def test_a_model_without_a_plan_is_refused_with_the_way_to_one() -> None:
    with pytest.raises(BadModel, match=r"m\.onnx: the model has no decode plan.*--cache auto"):
        read_plan({}, "m.onnx")


@pytest.mark.parametrize("text", ["", "{", "[]", "{}", '{"format": 1}', '{"format": 1, "caches": [{}]}'])
def test_broken_metadata_is_one_line(text: str) -> None:
    with pytest.raises(BadModel, match="decode plan cannot be read"):
        read(text)


def test_a_newer_format_is_refused() -> None:
    with pytest.raises(BadModel, match="another format; found 2"):
        read(json.dumps({**json.loads(PAGED.to_json()), "format": 2}))


@pytest.mark.parametrize(
    ("changes", "found"),
    [
        ({"slot_form": "page"}, "page"),
        ({"block_size": 0}, "block_size 0"),
        ({"slot_form": "row"}, "block_size 16"),
        ({"inputs": {"ids": "a"}}, "ids"),
        ({"inputs": {**PAGED.inputs, "mask": "m"}}, "mask"),
        ({"caches": ()}, "one input and one output"),
        ({"caches": (PORTS[0], PORTS[0])}, "none shared"),
        ({"caches": (dataclasses.replace(PORTS[0], order="NCHW"),)}, "NCHW"),
        ({"caches": (dataclasses.replace(PORTS[0], heads=0),)}, "0 x 64"),
        ({"caches": (dataclasses.replace(PORTS[0], columns=5, halves=True),)}, "halves of 5 columns"),
    ],
)
def test_contradictions_are_refused(changes: dict[str, Any], found: str) -> None:
    with pytest.raises(BadModel, match="contradicts itself") as caught:
        read(dataclasses.replace(PAGED, **changes).to_json())
    assert found in str(caught.value)
