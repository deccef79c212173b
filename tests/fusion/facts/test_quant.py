"""The rounding chain in front of an 8-bit value: what is taken off, and what is no quantisation of the operators'."""

from __future__ import annotations

import pytest

from fusion.facts.quant import NotQuantised, Peeled, peel
from tests.fusion.facts.build import value, view_of

CONSTANTS = "<float low = {-128}, float high = {127}, float seven = {7}, float scale = {0.5}, int8 zero = {3}, uint8 uzero = {3}>"  # noqa: E501


def peeled(body: str, kind: str = "int8", opset: int = 20) -> Peeled | NotQuantised:
    view = view_of(f"g (float[T, 8] x) => ({kind}[T, 8] y)\n{CONSTANTS} {{ {body} }}", opset)
    return peel(view, value(view, "y"))


@pytest.mark.parametrize(
    "body",
    [
        "r = Round (x)\n c = Clip (r, low, high)\n y = Cast <to = 3> (c)",
        "c = Clip (x, low, high)\n r = Round (c)\n y = Cast <to = 3> (r)",
        "r = Round (x)\n a = Max (r, low)\n c = Min (high, a)\n y = Cast <to = 3> (c)",
        "r = Round (x)\n i = Identity (r)\n c = Clip (i, low, high)\n w = Cast <to = 6> (c)\n y = Cast <to = 3> (w)",
    ],
    ids=["round-clip", "clip-round", "min-max", "through-int32"],
)
def test_rounding_and_clipping_are_taken_off(body: str) -> None:
    found = peeled(body)
    assert isinstance(found, Peeled)
    assert (found.value.name, found.dtype, found.linear, found.float8_cast) == ("x", "int8", None, "")


def test_quantize_linear_keeps_its_parameters() -> None:
    found = peeled("y = QuantizeLinear (x, scale, zero)")
    assert isinstance(found, Peeled) and found.linear is not None
    assert [item.name for item in found.linear if item is not None] == ["scale", "zero"]


@pytest.mark.parametrize(("saturate", "mode"), [(1, "saturate"), (0, "nonsaturate")])
def test_float8_is_a_cast(saturate: int, mode: str) -> None:
    found = peeled(f"y = Cast <to = 17, saturate = {saturate}> (x)", "float8e4m3fn")
    assert isinstance(found, Peeled)
    assert (found.dtype, found.float8_cast) == ("float8_e4m3fn", mode)


@pytest.mark.parametrize(
    ("body", "kind", "fact"),
    [
        ("c = Clip (x, low, high)\n y = Cast <to = 3> (c)", "int8", "rounding"),
        ("f = Floor (x)\n c = Clip (f, low, high)\n y = Cast <to = 3> (c)", "int8", "rounding"),
        ("r = Round (x)\n c = Clip (r, seven, high)\n y = Cast <to = 3> (c)", "int8", "clip bounds"),
        ("r = Round (x)\n y = Cast <to = 3> (r)", "int8", "clip bounds"),
        ("r = Round (x)\n c = Clip (r, low, high)\n y = Cast <to = 2> (c)", "uint8", "quantised type"),
        ("y = QuantizeLinear (x, scale, uzero)", "uint8", "QuantizeLinear type"),
    ],
)
def test_other_chains_say_what_is_missing(body: str, kind: str, fact: str) -> None:
    found = peeled(body, kind)
    assert isinstance(found, NotQuantised)
    assert found.fact == fact and found.found and found.wanted
