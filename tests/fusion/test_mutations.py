"""Edits that keep the meaning do not change what fuses; edits that break it never give a wrong model or a traceback."""

from __future__ import annotations

import os
import random
from collections import Counter
from typing import Any

import onnx
import pytest

import fusion
from ir_ops.errors import KvfuseError
from tests.fusion.mutations import BREAKING, KEEPING
from tests.fusion.zoo.cover import cover
from tests.fusion.zoo.run import run, worst
from tests.fusion.zoo.spec import Spec, feeds
from tests.fusion.zoo.spellings import Preamble

OP = "KvRmsNormRopeCache"
ROUNDS = 16 * (25 if os.environ.get("EXPLORE") else 1)
SPECS = [spec for spec in cover(60) if spec.dtype != "bfloat16"]


def sizes(spec: Spec) -> list[tuple[int, int]]:
    return [spec.sizes] if spec.dims == "static" else [(2, 3), (1, 5)]


def outputs(model: onnx.ModelProto, spec: Spec, batch: int, tokens: int) -> dict[str, Any] | None:
    """What the model computes, None where it does not run."""
    given = feeds(spec, batch, tokens, seed=3)
    try:
        return run(model, {item.name: given[item.name] for item in model.graph.input if item.name in given}, spec.dtype)
    except Exception:  # whatever the runtime says of a broken graph
        return None


@pytest.mark.parametrize("number", range(ROUNDS))
def test_edits_that_keep_the_meaning_keep_the_sites(number: int) -> None:
    rng = random.Random(number)
    spec = rng.choice(SPECS)
    model = Preamble(spec).model()
    for edit in rng.sample(KEEPING, rng.choice((1, 2, 3))):
        edit(model, rng)
    result = fusion.fuse(model)
    assert result.count(OP) == spec.layers, (spec, result.refusals)
    for batch, tokens in sizes(spec):
        before = outputs(model, spec, batch, tokens)
        assert before is not None
        after = outputs(result.model, spec, batch, tokens)
        assert after is not None and worst(after, before, spec.dtype) == ""


@pytest.mark.parametrize("number", range(ROUNDS))
def test_edits_that_break_something_are_refused_or_followed(number: int) -> None:
    rng = random.Random(1000 + number)
    spec = rng.choice(SPECS)
    model = Preamble(spec).model()
    for edit in (*rng.sample(KEEPING, 1), *rng.sample(BREAKING, rng.choice((1, 1, 2)))):
        edit(model, rng)
    try:
        result = fusion.fuse(model)
    except KvfuseError:
        return
    if not result.sites:
        assert Counter(node.op_type for node in result.model.graph.node) == Counter(
            node.op_type for node in model.graph.node
        )
        return
    for batch, tokens in sizes(spec):
        before = outputs(model, spec, batch, tokens)
        if before is not None:
            after = outputs(result.model, spec, batch, tokens)
            assert after is not None and worst(after, before, spec.dtype) == ""
