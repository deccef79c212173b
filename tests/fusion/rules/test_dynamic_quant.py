"""DynamicQuant: rows quantised by their own largest value, in whatever order the factors stand."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from tests.fusion.rules.block_models import check, codes, model_of, random
from tests.fusion.zoo.graph import Graph

WIDTH = 16
ROWS = {"x": ["B", "S", WIDTH]}
KINDS = {"y": "int8", "s": "float32"}
Build = Callable[[Graph], dict[str, str]]


def largest(g: Graph, x: str, axis: int = -1) -> str:
    return g.reduce("ReduceMax", g.op("Abs", x), axis)


def rounded(g: Graph, x: str, low: float = -128.0, high: float = 127.0) -> str:
    return g.cast(g.clip(g.op("Round", x), low, high), "int8")


def by_scale(g: Graph) -> dict[str, str]:
    xf = g.up("x")
    s = g.op("Div", largest(g, xf), g.scalar(127.0))
    return {"y": rounded(g, g.op("Div", xf, s)), "s": s}


def by_factor(g: Graph) -> dict[str, str]:
    xf = g.up("x")
    m = largest(g, xf)
    factor = g.op("Div", g.scalar(127.0), m)
    return {"y": rounded(g, g.op("Mul", xf, factor)), "s": g.op("Mul", m, g.scalar(1 / 127.0))}


def by_reciprocal(g: Graph) -> dict[str, str]:
    s = g.op("Mul", largest(g, "x"), g.scalar(1 / 127.0))
    return {"y": rounded(g, g.op("Mul", "x", g.op("Reciprocal", s)), -127.0), "s": s}


def without_clip(g: Graph) -> dict[str, str]:
    s = g.op("Div", largest(g, "x"), g.scalar(127.0))
    return {"y": g.cast(g.op("Round", g.op("Div", "x", s)), "int8"), "s": s}


def numerator_first(g: Graph) -> dict[str, str]:
    m = largest(g, "x")
    return {"y": rounded(g, g.op("Div", g.op("Mul", "x", g.scalar(127.0)), m))}


def squeezed(g: Graph) -> dict[str, str]:
    m = g.reduce("ReduceMax", g.op("Abs", "x"), keepdims=0)
    s = g.op("Div", m, g.scalar(127.0))
    return {"y": rounded(g, g.op("Div", "x", g.unsqueeze(s, 2))), "s": s}


FORMS: dict[str, Build] = {
    form.__name__: form for form in (by_scale, by_factor, by_reciprocal, without_clip, numerator_first, squeezed)
}


@pytest.mark.parametrize("form", FORMS)
def test_every_form_is_one_node(form: str) -> None:
    result = check(model_of(FORMS[form], ROWS, kinds=KINDS), {"x": random((2, 5, WIDTH))}, {"DynamicQuant": 1})
    assert result.ops_after["ReduceMax"] == 0
    assert any("all zeros" in text for text in result.sites[0].assumptions)


@pytest.mark.parametrize("form", ["by_scale", "by_factor"])
def test_half_precision(form: str) -> None:
    model = model_of(FORMS[form], ROWS, dtype="float16", kinds=KINDS)
    check(model, {"x": random((2, 5, WIDTH), "float16")}, {"DynamicQuant": 1}, "float16")


def test_a_norm_in_front_fuses_too() -> None:
    def build(g: Graph) -> dict[str, str]:
        mean = g.reduce("ReduceMean", g.op("Mul", "x", "x"))
        h = g.op("Mul", g.op("Div", "x", g.op("Sqrt", g.op("Add", mean, g.scalar(1e-5)))), g.const(random((WIDTH,))))
        s = g.op("Div", largest(g, h), g.scalar(127.0))
        return {"y": rounded(g, g.op("Div", h, s)), "s": s}

    model = model_of(build, ROWS, kinds=KINDS)
    check(model, {"x": random((2, 5, WIDTH))}, {"RmsNorm": 1, "DynamicQuant": 1})


def other(**parts: Callable[[Graph], str]) -> Build:
    def build(g: Graph) -> dict[str, str]:
        m = parts["largest"](g) if "largest" in parts else largest(g, "x")
        s = parts["scale"](g) if "scale" in parts else g.op("Div", m, g.scalar(127.0))
        return {"y": rounded(g, g.op("Div", "x", s)), "s": s}

    return build


TRAPS: dict[str, tuple[Build, str]] = {
    "largest of columns": (other(largest=lambda g: largest(g, "x", 1)), "quant-axis"),
    "128 instead of 127": (other(scale=lambda g: g.op("Div", largest(g, "x"), g.scalar(128.0))), "quant-form"),
    "a floor under the scale": (
        other(scale=lambda g: g.op("Max", g.op("Div", largest(g, "x"), g.scalar(127.0)), g.scalar(1e-3))),
        "quant-form"),
    "a clip to 100": (
        lambda g: {"y": rounded(g, g.op("Div", "x", g.op("Div", largest(g, "x"), g.scalar(127.0))), -128.0, 100.0)},
        "quant-form"),
    "multiplied by the scale": (
        lambda g: {"y": rounded(g, g.op("Mul", "x", g.op("Div", largest(g, "x"), g.scalar(127.0))))}, "quant-form"),
}  # fmt: skip


@pytest.mark.parametrize("name", TRAPS)
def test_near_miss_keeps_its_scales(name: str) -> None:
    build, code = TRAPS[name]
    model = model_of(build, ROWS, kinds=KINDS)
    result = check(model, {"x": random((2, 5, WIDTH))}, {}, only=["DynamicQuant"])
    assert codes(result, "DynamicQuant") == {code}
