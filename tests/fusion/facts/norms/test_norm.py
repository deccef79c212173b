"""RMSNorm as algebra: what x, gamma and epsilon are, wherever they stand; spellings as such are the zoo's."""

from __future__ import annotations

import pytest

from fusion.facts.norms.norm import NormFact, find_norms
from fusion.facts.trial.settle import Survey
from tests.fusion.facts.build import view_of

HEAD = "g (float[B, S, 8] x) => (float[B, S, 8] y)\n<float[8] gamma = {1,2,3,4,5,6,7,8}, float two = {2}, float eps = {0.001}, int64[1] last = {-1}, float half = {-0.5}, float n = {8}, int64[1] middle = {1}>"  # noqa: E501
MEAN = "s = Pow (x, two)\n m = ReduceMean (s, last)\n e = Add (m, eps)\n r = Sqrt (e)\n"


def norms(body: str, opset: int = 18) -> list[NormFact]:
    view = view_of(HEAD + "{" + body + "}", opset)
    return find_norms(view, Survey(view))


def test_parts_of_a_norm_are_named() -> None:
    (norm,) = norms(MEAN + "d = Div (x, r)\n y = Mul (d, gamma)")
    assert (norm.x.name, norm.gamma.name if norm.gamma else "", norm.y.name) == ("x", "gamma", "y")
    assert norm.epsilon == pytest.approx(1e-3)
    assert [node.op_type for node in norm.nodes] == ["Pow", "ReduceMean", "Add", "Sqrt", "Div", "Mul"]


def test_without_gamma_the_bare_norm_is_the_fact() -> None:
    (norm,) = norms(MEAN + "y = Div (x, r)")
    assert norm.gamma is None and norm.y.name == "y"


def test_the_fact_sits_on_the_earliest_value() -> None:
    """Casts and Identities behind the product are movement, and may have other readers."""
    (norm,) = norms(MEAN + "d = Div (x, r)\n p = Mul (gamma, d)\n i = Identity (p)\n y = Cast <to = 1> (i)")
    assert norm.y.name == "p"


def test_casts_and_signs_around_x_are_looked_through() -> None:
    (norm,) = norms("w = Cast <to = 11> (x)\n v = Cast <to = 1> (w)\n g1 = Neg (v)\n s = Mul (g1, g1)\n"
                    "m = ReduceMean (s, last)\n e = Add (m, eps)\n r = Sqrt (e)\n y = Div (x, r)")  # fmt: skip
    assert norm.x.name == "x"


def test_a_sum_tells_what_it_divides_by() -> None:
    (norm,) = norms("s = ReduceSumSquare (x, last)\n m = Div (s, n)\n e = Add (m, eps)\n r = Sqrt (e)\n"
                    "y = Div (x, r)")  # fmt: skip
    assert norm.count == 8.0


def test_one_square_may_serve_two_norms() -> None:
    found = norms(MEAN + "d = Div (x, r)\n a = Mul (d, gamma)\n b = Mul (d, n)\n y = Add (a, b)")
    assert [norm.y.name for norm in found] == ["a"]


def test_standard_operator_is_a_norm_over_the_last_axis_only() -> None:
    (norm,) = norms("y = RMSNormalization <axis = 2, epsilon = 0.01> (x, gamma)", 23)
    assert norm.epsilon == pytest.approx(0.01)
    assert norms("y = RMSNormalization <axis = 1> (x, gamma)", 23) == []


@pytest.mark.parametrize(
    "body",
    [
        MEAN + "y = Mul (x, r)",
        MEAN + "d = Div (x, e)\n y = Mul (d, gamma)",
        "s = Pow (x, two)\n m = ReduceMean (s, middle)\n e = Add (m, eps)\n r = Sqrt (e)\n y = Div (x, r)",
        "c = Sub (x, gamma)\n s = Pow (c, two)\n m = ReduceMean (s, last)\n e = Add (m, eps)\n r = Sqrt (e)\n"
        "y = Div (x, r)",
        "s = Pow (x, n)\n m = ReduceMean (s, last)\n e = Add (m, eps)\n r = Sqrt (e)\n y = Div (x, r)",
        MEAN + "d = Div (x, r)\n y = Mul (d, two)",
        "s = Pow (x, two)\n m = ReduceMean (s, last)\n r0 = Sqrt (m)\n r = Add (r0, eps)\n y = Div (x, r)",
    ],
    ids=["times-root", "no-root", "other-axis", "centred", "power-8", "factor", "epsilon-outside"],
)
def test_what_is_nearly_a_norm_is_none(body: str) -> None:
    found = [norm for norm in norms(body) if norm.y.name == "y"]
    assert found == []
