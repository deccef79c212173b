"""Reading a rotation off its terms: pairs, tables and columns; and what is refused by name."""

from __future__ import annotations

import numpy as np
import pytest

from fusion.facts.rotary.rotation import NotARotation, Rotation, read_rotation
from fusion.facts.symbols.symbolic import Symbolic
from fusion.facts.trial.probe import Numbers
from fusion.facts.trial.settle import settle, start_sizes
from tests.fusion.facts.build import value, view_of

HEAD = """g (float[T, 1, 8] x, float[T, 1, 4] cos, float[T, 1, 4] sin) => (float[T, 1, 8] y)
<int64[1] i0 = {0}, int64[1] i4 = {4}, int64[1] i8 = {8}, int64[1] i1 = {1}, int64[1] last = {-1}, int64[1] two = {2},
 int64[2] thirds = {6, 2}, float ten = {10}> {"""
HALVES = "a, b = Split <axis = -1, num_outputs = 2> (x)\n"
PAIRS = "a = Slice (x, i0, i8, last, two)\n b = Slice (x, i1, i8, last, two)\n"
TURN = "ac = Mul (a, cos)\n bs = Mul (b, sin)\n low = Sub (ac, bs)\n bc = Mul (b, cos)\n as = Mul (a, sin)\n high = Add (bc, as)\n"  # noqa: E501


def read(body: str, budget: int = 2) -> Rotation | NotARotation:
    view = view_of(HEAD + body + "}")
    probe = settle(view, 0, Numbers(8), list(view.graph.outputs), start_sizes(view, 0))
    symbolic = Symbolic(view, probe, set())
    return read_rotation(symbolic, symbolic.read(value(view, "y"), budget))


def test_halves_are_pairs_half_a_row_apart() -> None:
    found = read(HALVES + TURN + "y = Concat <axis = -1> (low, high)")
    assert isinstance(found, Rotation)
    assert (found.source.value.name, found.cos_source.value.name, found.sin_source.value.name) == ("x", "cos", "sin")
    assert (found.start, found.width) == (0, 8)
    # the operator wants pairs side by side
    assert found.position[0, 0].tolist() == [0, 4, 1, 5, 2, 6, 3, 7]
    assert found.cos[0, 0].tolist() == found.sin[0, 0].tolist() == [0, 1, 2, 3, 0, 1, 2, 3]


def test_adjacent_pairs_are_read_in_their_order() -> None:
    found = read(PAIRS + TURN + "y = Concat <axis = -1> (low, high)")
    assert isinstance(found, Rotation)
    assert found.position[1, 0].tolist() == list(range(8, 16))


def test_names_of_the_tables_do_not_matter() -> None:
    swapped = TURN.replace("cos", "t").replace("sin", "cos").replace("t)", "sin)")
    found = read(HALVES + swapped + "y = Concat <axis = -1> (low, high)")
    assert isinstance(found, Rotation)
    assert (found.cos_source.value.name, found.sin_source.value.name) == ("sin", "cos")


def test_columns_that_pass_are_kept() -> None:
    body = """turned, rest = Split <axis = -1> (x, thirds)
    a, b = Split <axis = -1, num_outputs = 2> (turned)
    c3 = Slice (cos, i0, three, last)
    s3 = Slice (sin, i0, three, last)
    three = Constant <value = int64[1] {3}> ()
    """
    body = body.replace("    c3", "    three = Constant <value = int64[1] {3}> ()\n    c3", 1)
    body = body[: body.rindex("three = Constant")]
    found = read(body + TURN.replace("cos", "c3").replace("sin", "s3") + "y = Concat <axis = -1> (low, high, rest)")
    assert isinstance(found, Rotation)
    assert (found.start, found.width) == (0, 6)
    assert found.position[0, 0].tolist() == [0, 3, 1, 4, 2, 5, 6, 7]


@pytest.mark.parametrize(
    ("body", "code"),
    [
        (HALVES + TURN.replace("low = Sub", "low = Add").replace("high = Add", "high = Sub")
         + "y = Concat <axis = -1> (low, high)", "rope-sign"),
        (HALVES + TURN.replace("low = Sub", "low = Add") + "y = Concat <axis = -1> (low, high)", "rope-sign"),
        (HALVES + TURN + "y = Concat <axis = -1> (high, low)", "rope-sign"),
        (PAIRS + TURN + "lu = Unsqueeze (low, last)\n hu = Unsqueeze (high, last)\n"
         "p = Concat <axis = -1> (lu, hu)\n y = Reshape (p, shape)\n".replace("y = R", "shape = Shape (x)\n y = R"),
         "rope-interleaved-out"),
        (HALVES + TURN.replace("high = Add (bc, as)", "n = Mul (b, sin)\n high = Add (bc, n)")
         + "y = Concat <axis = -1> (low, high)", "rope-pairs"),
        ("c = Concat <axis = -1> (cos, cos)\n y = Mul (x, c)", "row-form"),
        ("y = Add (x, x)", "row-form"),
    ],
    ids=["inverse", "both-plus", "halves-swapped", "interleaved-out", "other-pairs", "one-product", "no-product"],
)  # fmt: skip
def test_what_is_no_rotation_into_halves_says_which(body: str, code: str) -> None:
    found = read(body)
    assert isinstance(found, NotARotation)
    assert found.code == code and found.found and found.wanted


def test_before_the_products_are_opened_there_is_no_rotation() -> None:
    assert isinstance(read(HALVES + TURN + "y = Concat <axis = -1> (low, high)", budget=1), NotARotation)
    assert np.all([isinstance(read(HALVES + TURN + "y = Concat <axis = -1> (low, high)", b), Rotation) for b in (2, 3)])
