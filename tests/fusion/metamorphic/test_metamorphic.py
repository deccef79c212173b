"""A short run of random edits, and every graph that a long run once failed on."""

from __future__ import annotations

import random
from itertools import islice
from pathlib import Path

import numpy as np
import onnx
import pytest

from tests.conftest import DATA
from tests.fusion.metamorphic.__main__ import BLOCKS, cases
from tests.fusion.metamorphic.bases import Base, bases
from tests.fusion.metamorphic.breaking import BREAKING
from tests.fusion.metamorphic.cases import check, difference, edited, judge, left_open
from tests.fusion.metamorphic.keeping import KEEPING
from tests.fusion.metamorphic.shrink import Failing, shrink

CERTAIN = ("another_order", "commuted", "constant_the_other_way", "identity", "negative_axis", "renamed",
           "split_as_slices", "without_value_info", "idle_reader", "declared_in_another_order")  # fmt: skip
"""Edits after which no site may be lost; a long run reports on the others."""
REGRESSIONS = sorted((DATA / "metamorphic").glob("*.onnx"))


def test_edits_that_keep_the_meaning_keep_the_sites() -> None:
    rng = random.Random(4)
    graphs = rng.sample([base for base in bases() if base.name.startswith(BLOCKS)], 8)
    graphs += rng.sample([base for base in bases() if not base.name.startswith(BLOCKS)], 2)
    for base in graphs:
        steps = tuple((name, rng.randrange(2**32)) for name in rng.sample(CERTAIN, 6))
        assert check(base, steps, breaking=False).kind == "kept", (base.name, steps)


def test_edits_that_break_the_meaning_are_refused_or_followed() -> None:
    breaking = [(base, steps) for base, steps, breaks in islice(cases(2), 40) if breaks]
    outcomes = {check(base, steps, breaking=True).kind: (base.name, steps) for base, steps in breaking}
    assert "wrong" not in outcomes, outcomes
    assert {"refused", "followed"} <= set(outcomes)


@pytest.mark.parametrize("path", REGRESSIONS, ids=lambda path: path.stem)
def test_a_graph_that_once_failed(path: Path) -> None:
    """Named ``lost_*`` fuses now; named ``wrong_*`` is refused or followed."""
    feeds = dict(np.load(path.with_suffix(".npz")))
    kind = judge(onnx.load_model(path), [feeds], None).kind
    assert kind in (("followed",) if path.stem.startswith("lost") else ("refused", "followed", "broken"))


def test_every_edit_finds_a_place_and_can_be_repeated() -> None:
    graphs = [base for base in bases() if base.name.startswith(("kv", "packed", "norm-power"))]
    for name in (*KEEPING, *BREAKING):
        for base in graphs:
            model, applied = edited(base, ((name, 3),))
            if applied:
                assert edited(base, ((name, 3),))[0] == model
                break
        else:
            raise AssertionError(f"{name} changes nothing")


def test_other_results_are_told_apart() -> None:
    one = {"y": np.array([1.0, np.nan, np.inf])}
    assert difference(one, one) == ""
    assert difference({"y": np.array([1.01, np.nan, np.inf])}, one)
    assert difference({"y": np.array([1.0, 0.0, np.inf])}, one)
    assert difference({"y": np.array([3], np.int8)}, {"y": np.array([1], np.int8)})


@pytest.mark.parametrize("made", ["Cast", "QuantizeLinear"])
def test_integers_of_what_has_none_are_not_compared(made: str) -> None:
    """0 / 0 as an integer is what the machine makes of it; a sum that is wrong stays wrong."""
    model = onnx.parser.parse_model(
        """<ir_version: 8, opset_import: ["" : 18]> g (float[2] x, float[2] y) => (int8[2] z)
        <float one = {1.0}, int8 zero = {0}> { q = Div(x, y) """
        + ("z = Cast<to = 3>(q) }" if made == "Cast" else "z = QuantizeLinear(q, one, zero) }")
    )
    x = np.array([0.0, 3.0], np.float32)
    assert left_open(model, {"x": x, "y": np.array([0.0, 2.0], np.float32)})
    assert not left_open(model, {"x": x, "y": np.array([1.0, 2.0], np.float32)})


def test_a_failing_graph_shrinks() -> None:
    base: Base = next(base for base in bases() if base.name.startswith("packed"))

    def fails(failing: Failing) -> bool:
        return any(node.op_type == "Concat" and len(node.input) == 2 for node in failing.model.graph.node)

    first = Failing(base.model, base.feeds[0])
    assert fails(first) and len(base.model.graph.node) > 12
    assert len(shrink(first, fails, seconds=10).model.graph.node) <= 4
