"""SwiGlu: gate * sigmoid(gate) * up, packed or apart, whatever the order of the product."""

from __future__ import annotations

from collections.abc import Callable

import pytest

import fusion
from tests.fusion.rules.block_models import check, codes, model_of, random
from tests.fusion.zoo.graph import Graph

WIDTH = 16
Build = Callable[[Graph], dict[str, str]]
APART = {"x": ["B", "S", WIDTH], "u": ["B", "S", WIDTH]}
PACKED = {"x": ["B", "S", 2 * WIDTH]}


def silu(g: Graph, x: str) -> str:
    return g.op("Mul", x, g.op("Sigmoid", x))


APART_FORMS: dict[str, Build] = {
    "silu times up": lambda g: {"y": g.op("Mul", silu(g, "x"), "u")},
    "up times silu": lambda g: {"y": g.op("Mul", "u", silu(g, "x"))},
    "sigmoid first": lambda g: {"y": g.op("Mul", g.op("Mul", g.op("Sigmoid", "x"), "x"), "u")},
    "gate times up first": lambda g: {"y": g.op("Mul", g.op("Mul", "x", "u"), g.op("Sigmoid", "x"))},
    "sigmoid times up first": lambda g: {"y": g.op("Mul", "x", g.op("Mul", g.op("Sigmoid", "x"), "u"))},
    "runtime op": lambda g: {"y": g.op("Mul", g.op("QuickGelu", "x", domain="com.microsoft", alpha=1.0), "u")},
    "identities": lambda g: {"y": g.op("Identity", g.op("Mul", g.op("Identity", silu(g, "x")), "u"))},
}
PACKED_FORMS: dict[str, tuple[Build, int]] = {
    "split": (lambda g: packed(g, *g.halves("x")), 18),
    "split by sizes": (lambda g: packed(g, *g.split("x", [WIDTH, WIDTH])), 13),
    "slices": (lambda g: packed(g, g.slice("x", 0, WIDTH, 2), g.slice("x", WIDTH, 2**63 - 1, -1)), 18),
    "opset 11": (lambda g: packed(g, *g.split("x", [WIDTH, WIDTH])), 11),
}


def packed(g: Graph, gate: str, up: str) -> dict[str, str]:
    return {"y": g.op("Mul", silu(g, gate), up)}


@pytest.mark.parametrize("form", APART_FORMS)
def test_gate_and_up_apart_are_joined(form: str) -> None:
    feeds = {"x": random((2, 3, WIDTH)), "u": random((2, 3, WIDTH), seed=1)}
    result = check(model_of(APART_FORMS[form], APART), feeds, {"SwiGlu": 1})
    assert result.ops_after["Concat"] == 1 and "Concat" in result.sites[0].notes[0]


@pytest.mark.parametrize("form", PACKED_FORMS)
def test_halves_of_one_value_need_no_concat(form: str) -> None:
    build, opset = PACKED_FORMS[form]
    result = check(model_of(build, PACKED, opset=opset), {"x": random((2, 3, 2 * WIDTH))}, {"SwiGlu": 1})
    assert result.ops_after["Concat"] == result.ops_after["Split"] == result.ops_after["Slice"] == 0


@pytest.mark.parametrize("axis", [0, 1])
def test_any_axis(axis: int) -> None:
    def build(g: Graph) -> dict[str, str]:
        return packed(g, *g.halves("x", axis))

    shape = [4, 6, 8]
    result = check(model_of(build, {"x": list(shape)}), {"x": random(shape)}, {"SwiGlu": 1})
    assert result.sites[0].attrs["dim"] == axis


def test_float32_inside_half_precision() -> None:
    def build(g: Graph) -> dict[str, str]:
        return {"y": g.down(g.op("Mul", silu(g, g.up("x")), g.up("u")))}

    feeds = {"x": random((2, 3, WIDTH), "float16"), "u": random((2, 3, WIDTH), "float16", 1)}
    result = check(model_of(build, APART, dtype="float16"), feeds, {"SwiGlu": 1}, "float16")
    assert not result.ops_after["Cast"]


def gelu(g: Graph) -> dict[str, str]:
    inner = g.op("Add", g.op("Erf", g.op("Mul", "x", g.scalar(0.7071))), g.scalar(1.0))
    return {"y": g.op("Mul", g.op("Mul", "x", inner), "u")}


def sigmoid_of(inner: Callable[[Graph], str]) -> Build:
    return lambda g: {"y": g.op("Mul", g.op("Mul", "x", g.op("Sigmoid", inner(g))), "u")}


TRAPS: dict[str, tuple[Build, str]] = {
    "activated by another value": (sigmoid_of(lambda g: "w"), "swiglu-form"),
    "scaled sigmoid": (sigmoid_of(lambda g: g.op("Mul", "x", g.scalar(1.702))), "swiglu-form"),
    "sigmoid gate alone": (lambda g: {"y": g.op("Mul", g.op("Sigmoid", "x"), "u")}, ""),
    "no gate": (lambda g: {"y": silu(g, "x")}, ""),
    "gelu": (gelu, ""),
    "up broadcasts": (lambda g: {"y": g.op("Mul", silu(g, "x"), "b")}, "swiglu-shape"),
}


@pytest.mark.parametrize("name", TRAPS)
def test_near_miss_is_left_alone(name: str) -> None:
    build, code = TRAPS[name]
    model = model_of(build, {**APART, "w": ["B", "S", WIDTH], "b": [1, 1, WIDTH]})
    feeds = {"x": random((2, 3, WIDTH)), "u": random((2, 3, WIDTH), seed=1), "w": random((2, 3, WIDTH), seed=2)}
    result = check(model, {**feeds, "b": random((1, 1, WIDTH))}, {})
    assert codes(result, "SwiGlu") == ({code} if code else set())


def test_up_before_gate_is_refused() -> None:
    def build(g: Graph) -> dict[str, str]:
        up, gate = g.halves("x")
        return packed(g, gate, up)

    result = check(model_of(build, PACKED), {"x": random((2, 3, 2 * WIDTH))}, {})
    assert codes(result, "SwiGlu") == {"swiglu-order"}


def test_a_sigmoid_that_others_read_stays() -> None:
    def build(g: Graph) -> dict[str, str]:
        s = g.op("Sigmoid", "x")
        return {"y": g.op("Mul", g.op("Mul", "x", s), "u"), "s": g.op("Neg", s)}

    feeds = {"x": random((2, 3, WIDTH)), "u": random((2, 3, WIDTH), seed=1)}
    assert codes(check(model_of(build, APART), feeds, {}), "SwiGlu") == {"inner-value-read"}


def test_experts_are_left_to_operators_for_all_of_them() -> None:
    def build(g: Graph) -> dict[str, str]:
        total = "x"
        for number in range(8):
            gate, up = (g.op("MatMul", "x", g.const(random((WIDTH, WIDTH), seed=number + at))) for at in (0, 50))
            total = g.op("Add", total, g.op("Mul", silu(g, gate), up))
        return {"y": total}

    model = model_of(build, {"x": ["B", "S", WIDTH]})
    result = fusion.fuse(model)
    assert not result.count("SwiGlu")
    assert [refusal.code for refusal in result.refusals if refusal.rule == "SwiGlu"] == ["swiglu-experts"]
