"""Sizes of symbolic dims: what a conflict of two numbers ties, and what it must not."""

from __future__ import annotations

import math

import pytest

from fusion.facts.trial.sizes import Sizes


def sizes_of(*symbols: str, seed: int = 0, large: tuple[str, ...] = ()) -> Sizes:
    sizes = Sizes(seed)
    for symbol in symbols:
        sizes.add(symbol, symbol in large)
    return sizes


def test_symbols_get_distinct_sizes_and_other_ones_for_the_other_seed() -> None:
    names = [f"d{number}" for number in range(30)]
    first, second = sizes_of(*names), sizes_of(*names, seed=1)
    assert len({first.size(name) for name in names}) == len(names)
    assert [first.size(name) for name in names[:4]] != [second.size(name) for name in names[:4]]


def test_a_sum_of_two_sizes_is_never_their_product() -> None:
    sizes = sizes_of("a", "b", "c", "d")
    numbers = [sizes.size(name) for name in "abcd"]
    assert all(number % 2 for number in numbers)
    sums = {x + y for x in numbers for y in numbers}
    assert sums.isdisjoint({x * y for x in numbers for y in numbers})


def test_cache_dims_have_room() -> None:
    sizes = sizes_of("tokens", "length", large=("length",))
    assert sizes.size("length") > 3 * sizes.size("tokens")


def test_equal_sizes_are_joined_at_the_smaller() -> None:
    sizes = sizes_of("batch", "b2")
    assert sizes.unify(sizes.size("batch"), sizes.size("b2"))
    assert sizes.size("batch") == sizes.size("b2") == 3


def test_a_product_is_found_and_kept() -> None:
    sizes = sizes_of("B", "S", "T")
    assert sizes.unify(sizes.size("T"), sizes.size("B") * sizes.size("S"))
    assert sizes.size("T") == sizes.size("B") * sizes.size("S") == 15
    # a later change of a part moves the product along
    sizes.add("S2", large=False)
    assert sizes.unify(sizes.size("S"), sizes.size("S2"))
    assert sizes.size("T") == sizes.size("B") * sizes.size("S2")


def test_rows_of_two_dims_that_are_counted_by_another_name_are_the_first() -> None:
    """A mask [B, T] seen as [batch, -1]."""
    sizes = sizes_of("batch", "B", "T")
    assert sizes.unify(sizes.size("B") * sizes.size("T"), sizes.size("batch"), divides=True)
    assert sizes.size("batch") == sizes.size("B") != sizes.size("T")


def test_a_sum_is_found() -> None:
    sizes = sizes_of("past", "S", "total")
    assert sizes.unify(sizes.size("past") + sizes.size("S"), sizes.size("total"))
    assert sizes.size("total") == sizes.size("past") + sizes.size("S")


def test_static_factors_on_both_sides_are_divided_off() -> None:
    sizes = sizes_of("a", "b")
    assert sizes.unify(128 * sizes.size("a"), 128 * sizes.size("b"))
    assert sizes.size("a") == sizes.size("b")


def test_a_static_multiple_is_found() -> None:
    sizes = sizes_of("S", "T")
    assert sizes.unify(sizes.size("T"), 2 * sizes.size("S"))
    assert sizes.size("T") == 2 * sizes.size("S")


def test_what_nothing_explains_is_not_tied() -> None:
    sizes = sizes_of("a", "b")
    before = sizes.state()
    assert not sizes.unify(128, 127)
    assert sizes.state() == before


def test_a_size_is_not_tied_to_what_depends_on_it() -> None:
    sizes = sizes_of("B", "S", "T")
    sizes.unify(sizes.size("T"), sizes.size("B") * sizes.size("S"))
    sizes.unify(sizes.size("B"), sizes.size("T"))
    assert math.isfinite(sizes.size("T"))  # a circle would not end


def test_copies_are_apart() -> None:
    sizes = sizes_of("a", "b")
    twin = sizes.copy()
    assert twin.state() == sizes.state()
    assert twin.unify(twin.size("a"), twin.size("b"))
    assert sizes.size("a") != sizes.size("b")
    assert twin.state() != sizes.state()


def test_a_symbol_may_be_like_another() -> None:
    sizes = sizes_of("k_pages", large=("k_pages",))
    sizes.add("v_pages", large=True, like="k_pages")
    assert sizes.size("v_pages") == sizes.size("k_pages")


@pytest.mark.parametrize("run", [5, 17, 129])
def test_a_run_keeps_its_length(run: int) -> None:
    sizes = Sizes(2, run=run)
    for name in ("B", "S", "S2"):
        sizes.add(name, large=False)
    assert run in (sizes.size("B"), sizes.size("S"))
    assert sizes.unify(sizes.size("S"), sizes.size("S2"))
    assert sizes.size("S") == run
