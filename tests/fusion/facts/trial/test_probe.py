"""Trial evaluation: integers are computed, floats are shapes, data of inputs taints, conflicts settle."""

from __future__ import annotations

import numpy as np
import pytest

from fusion.facts.semantics import Conflict
from fusion.facts.trial.probe import COUNTS, Numbers, Probe
from fusion.facts.trial.settle import settle, start_sizes
from fusion.facts.trial.sizes import Sizes
from tests.fusion.facts.build import value, view_of

SHAPES = """g (float[B, S, 24] x) => (float[B, 2, S, 12] y)
<int64[4] wanted = {0, 0, 2, 12}> {
    split = Reshape (x, wanted)
    y = Transpose <perm = [0, 2, 1, 3]> (split)
}"""


def trial(text: str, seed: int = 0) -> Probe:
    view = view_of(text)
    sizes = start_sizes(view, seed)
    return settle(view, seed, Numbers(64), list(view.graph.outputs), sizes)


def test_shapes_are_followed_and_floats_have_no_content() -> None:
    probe = trial(SHAPES)
    x = probe.known(value(probe.view, "x"))
    assert x.array is None and x.taint
    assert x.shape == (3, 5, 24)
    assert probe.shape(value(probe.view, "y")) == (3, 2, 5, 12)


def test_shape_arithmetic_is_untainted_data_is_not() -> None:
    probe = trial("g (float[B, S, 24] x, int64[T] slots) => (int64[1] b, int64[T] page)\n"
                  "<int64[1] zero = {0}, int64 block = {4}> {\n"
                  "dims = Shape (x)\n b = Gather <axis = 0> (dims, zero)\n page = Div (slots, block)\n}")  # fmt: skip
    view = probe.view
    b, page = probe.known(value(view, "b")), probe.known(value(view, "page"))
    assert b.array is not None and not b.taint
    assert page.array is not None and page.taint
    slots = probe.array(value(view, "slots"))
    assert slots is not None
    np.testing.assert_array_equal(page.array, slots // 4)


CHOSEN = """g (float[B, 24] x) => (float[B, 24] y, int64[1] count)
<float zero = {0}, int64[1] one = {1}, int64[1] first = {0}> {
    some = Greater (x, zero)
    places = NonZero (some)
    dims = Shape (places)
    count = Gather <axis = 0> (dims, one)
    index = Gather <axis = 0> (places, first)
    column = Transpose <perm = [1, 0]> (index)
    rows = Gather <axis = 0> (x, index)
    row = Squeeze (rows, first)
    y = ScatterND (x, column, row)
    whole = Shape (y)
}"""


@pytest.mark.parametrize("seed", range(3))
def test_a_number_that_the_data_choose_is_no_fact(seed: int) -> None:
    """It has some size, to go on with; asked for, it is data, and another one under another seed."""
    probe = trial(CHOSEN, seed)
    view = probe.view
    places, count = probe.known(value(view, "places")), probe.known(value(view, "count"))
    assert places.loose and places.shape == (2, COUNTS[seed])
    assert count.taint and count.array is not None and count.array.tolist() == [COUNTS[seed]]
    assert probe.shape(value(view, "row")) == (COUNTS[seed], 24)


def test_what_is_written_over_keeps_its_shape_whatever_is_written() -> None:
    probe = trial(CHOSEN)
    y, whole = (probe.known(value(probe.view, name)) for name in ("y", "whole"))
    assert y.shape == (3, 24) and not y.loose
    assert whole.array is not None and not whole.taint and whole.array.tolist() == [3, 24]


def test_what_is_behind_sizes_that_contradict_each_other_is_still_followed() -> None:
    """A mask for the four tokens that were cached when the graph was traced: it fits no other number of them."""
    graph = """g (float[B, 4, S, P] scores, float[B, 1, S, 9] mask) => (float[B, 4, S, P] y)
    <float[1, 1, 1, 12] fixed = {0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0}> {
        nine = Add (scores, mask)
        twelve = Add (nine, fixed)
        y = Softmax <axis = -1> (twelve)
    }"""
    probe = trial(graph)
    y = probe.known(value(probe.view, "y"))
    assert y.shape is not None and y.shape[:3] == (3, 4, 5) and y.loose


def test_numbers_are_distinct_below_their_bound() -> None:
    drawn = Numbers(40).draw(np.random.default_rng(0), (3, 5))
    assert len(np.unique(drawn)) == 15 and drawn.max() < 40 and drawn.min() >= 0
    by_page = Numbers(40, 8).draw(np.random.default_rng(0), (5,))
    assert len(np.unique(by_page // 8)) == 5


def test_numbers_that_do_not_suffice_are_distinct_along_the_last_axis() -> None:
    drawn = Numbers(6).draw(np.random.default_rng(0), (4, 5))
    assert all(len(np.unique(line)) == 5 for line in drawn)


def test_conflicting_names_are_tied() -> None:
    """One logical size has two names: adding the tensors says so."""
    view = view_of("g (float[B, 4] x, float[C, 4] y) => (float[B, 4] z) { z = Add (x, y) }")
    with pytest.raises(Conflict):
        Probe(view, 0, start_sizes(view, 0), Numbers(8)).known(value(view, "z"))
    probe = settle(view, 0, Numbers(8), [value(view, "z")], start_sizes(view, 0))
    assert probe.shape(value(view, "x")) == probe.shape(value(view, "y")) == probe.shape(value(view, "z"))


def test_a_graph_that_contradicts_itself_leaves_one_value_loose() -> None:
    view = view_of("g (float[3, 4] x, float[5, 4] y, float[B, 2] t) => (float[?, 4] z, float[B, 2] n)"
                   "{ z = Add (x, y)\n n = Neg (t) }")  # fmt: skip
    probe = settle(view, 0, Numbers(8), list(view.graph.outputs), start_sizes(view, 0))
    z = probe.known(value(view, "z"))
    assert z.shape == (5, 4) and z.loose and z.taint
    assert probe.shape(value(view, "n")) == (3, 2)


def test_settling_leaves_the_sizes_it_starts_from() -> None:
    view = view_of("g (float[B, 4] x, float[C, 4] y) => (float[B, 4] z) { z = Add (x, y) }")
    sizes = start_sizes(view, 0)
    before = sizes.state()
    probe = settle(view, 0, Numbers(8), [value(view, "z")], sizes)
    assert sizes.state() == before != probe.sizes.state()


def test_equal_trials_are_one_probe() -> None:
    view = view_of("g (float[B, 4] x, float[C, 4] y) => (float[B, 4] z) { z = Add (x, y) }")
    first, second = (settle(view, 0, Numbers(8), [value(view, name)], start_sizes(view, 0)) for name in ("z", "z"))
    assert first is second
    assert settle(view, 0, Numbers(9), [value(view, "z")], start_sizes(view, 0)) is not first


def test_other_data_in_one_value_is_followed_and_shapes_are_kept() -> None:
    probe = trial("g (float[T, 3] x, int64[T] slots) => (int64[T] page, float[T, 3] y)\n<int64 block = {4}> {\n"
                  "page = Div (slots, block)\n y = Neg (x)\n}")  # fmt: skip
    slots, page = value(probe.view, "slots"), value(probe.view, "page")
    count = (probe.shape(slots) or (0,))[0]
    variant = probe.with_data(slots, np.arange(count) * 4)
    np.testing.assert_array_equal(variant.array(page), np.arange(count))
    assert variant.shape(value(probe.view, "y")) == probe.shape(value(probe.view, "y"))
    assert not np.array_equal(probe.array(page), variant.array(page))


def test_index_that_does_not_fit_a_table_leaves_its_shape() -> None:
    probe = trial("g (int64[T] position) => (float[T, 6] row)\n<float[2, 6] table = {0,1,2,3,4,5,6,7,8,9,10,11}> {\n"
                  "row = Gather <axis = 0> (table, position)\n}")  # fmt: skip
    assert probe.shape(value(probe.view, "row")) == (3, 6)


def test_operators_of_other_domains_are_taken_at_their_declared_shape() -> None:
    view = view_of("g (float[B, 4] x) => (float[B, 4] y, float[2, 3] z)"
                   "{ y = custom.Thing (x)\n z = custom.Other (x) }")  # fmt: skip
    probe = Probe(view, 0, Sizes(0), Numbers(8))
    probe.sizes.add("B", large=False)
    assert probe.shape(value(view, "y")) is None  # a symbol may be anything behind an unknown operator
    assert probe.shape(value(view, "z")) == (2, 3)
