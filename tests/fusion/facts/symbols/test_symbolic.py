"""Values as sums of products of atoms: movement gathers, multiplication joins, addition merges, a budget opens."""

from __future__ import annotations

import numpy as np
import pytest

from fusion.facts.symbols.symbolic import Symbolic
from fusion.facts.symbols.terms import MAX_TERMS, Sym, Unreadable, add, constant_sym, joined, multiply, reciprocal, tidy
from fusion.facts.trial.probe import Numbers
from fusion.facts.trial.settle import settle, start_sizes
from tests.fusion.facts.build import value, view_of


def atoms(first: int, *shape: int) -> Sym:
    count = int(np.prod(shape))
    return Sym(np.ones((1, *shape)), (first + np.arange(count)).reshape(1, 1, *shape))


def same(a: Sym, b: Sym) -> bool:
    return np.array_equal(a.coef, b.coef) and np.array_equal(a.atom, b.atom)


def test_addition_and_multiplication_commute() -> None:
    x, y = atoms(1, 3), atoms(4, 3)
    assert same(add(x, y, 1.0), add(y, x, 1.0))
    assert same(tidy(multiply(x, y)), tidy(multiply(y, x)))


def test_products_distribute_over_sums() -> None:
    x, y, z = atoms(1, 2), atoms(3, 2), atoms(5, 2)
    assert same(multiply(x, add(y, z, 1.0)), add(multiply(x, y), multiply(x, z), 1.0))


def test_equal_terms_merge_and_opposite_terms_vanish() -> None:
    x = atoms(1, 2)
    assert add(x, x, 1.0).coef.tolist() == [[2.0, 2.0]]
    assert not add(x, x, -1.0).coef.any()


def test_a_factor_and_its_reciprocal_cancel() -> None:
    x, y = atoms(1, 2), atoms(3, 2)
    inverse = reciprocal(y)
    assert inverse is not None
    assert same(multiply(multiply(x, y), inverse), tidy(x))
    assert reciprocal(add(x, y, 1.0)) is None


def test_operands_broadcast() -> None:
    assert multiply(atoms(1, 2, 1), atoms(3, 3)).shape == (2, 3)


def test_zero_drops_terms_and_numbers_scale() -> None:
    mask = constant_sym(np.array([0.0, 2.0]))
    scaled = multiply(atoms(1, 2), mask)
    assert scaled.coef.tolist() == [[0.0, 2.0]]
    assert scaled.atom[0, :, 0].tolist() == [0]


def test_joining_keeps_each_part() -> None:
    whole = joined([atoms(1, 2), add(atoms(3, 1), atoms(4, 1), 1.0)])
    assert (whole.coef != 0).sum(axis=0).tolist() == [1, 1, 2]


def test_long_sums_are_refused() -> None:
    total = atoms(1, 1)
    for place in range(MAX_TERMS - 1):
        total = add(total, atoms(10 + place, 1), 1.0)
    with pytest.raises(Unreadable):
        add(total, atoms(99, 1), 1.0)


ROTATED = """g (float[S, 4] x, float[S, 4] cos, float[S, 4] sin) => (float[S, 4] y) {
    low, high = Split <axis = 1, num_outputs = 2> (x)
    minus = Neg (high)
    turned = Concat <axis = 1> (minus, low)
    a = Mul (x, cos)
    b = Mul (turned, sin)
    y = Add (a, b)
}"""


def reader(text: str) -> Symbolic:
    view = view_of(text)
    return Symbolic(view, settle(view, 0, Numbers(8), list(view.graph.outputs), start_sizes(view, 0)), set())


def test_the_budget_opens_one_operation_after_the_other() -> None:
    symbolic = reader(ROTATED)
    y = value(symbolic.view, "y")
    names = [sorted(source.value.name or "" for source in symbolic.sources)
             for budget in range(3) if symbolic.read(y, budget)]  # fmt: skip
    assert names == [["y"], ["a", "b", "y"], ["a", "b", "cos", "sin", "x", "y"]]


def test_a_rotation_shows_with_its_positions() -> None:
    symbolic = reader(ROTATED)
    sym = symbolic.read(value(symbolic.view, "y"), 2)
    x = next(source for source in symbolic.sources if source.value.name == "x")
    inside = (sym.atom >= x.base) & (sym.atom < x.base + 12)
    position = np.where(inside, sym.atom - x.base, 0).sum(axis=1)
    # row 1: column 0 is x[0] cos - x[2] sin
    assert sorted(position[:, 1, 0].tolist()) == [4, 6]
    assert sorted(sym.coef[:, 1, 0].tolist()) == [-1.0, 1.0]


def test_casts_between_floats_are_movement_casts_to_integers_are_not() -> None:
    symbolic = reader("g (float[3] x) => (float[3] y, float[3] z)\n{ h = Cast <to = 10> (x)\n y = Cast <to = 1> (h)\n"
                      "i = Cast <to = 7> (x)\n z = Cast <to = 1> (i) }")  # fmt: skip
    symbolic.read(value(symbolic.view, "y"), 0)
    symbolic.read(value(symbolic.view, "z"), 0)
    assert [source.value.name for source in symbolic.sources] == ["x", "z"]


def test_reading_stops_where_it_is_told() -> None:
    view = view_of("g (float[3] x) => (float[3] z) { y = Neg (x)\n z = Identity (y) }")
    probe = settle(view, 0, Numbers(8), list(view.graph.outputs), start_sizes(view, 0))
    symbolic = Symbolic(view, probe, {id(value(view, "y"))})
    symbolic.read(value(view, "z"), 4)
    assert [source.value.name for source in symbolic.sources] == ["y"]
