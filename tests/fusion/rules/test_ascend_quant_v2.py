"""AscendQuantV2 anywhere: every spelling of a static quantisation to int8, and near misses."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest

from tests.fusion.rules.block_models import check, codes, model_of, random
from tests.fusion.zoo.graph import Array, Graph
from tests.fusion.zoo.quants import QUANTS

WIDTH = 8
ROWS = {"x": ["B", "S", WIDTH]}
Build = Callable[[Graph], dict[str, str]]


def parameters(quant: str) -> tuple[Array, Array | None]:
    how = QUANTS[quant]
    scale = np.linspace(10, 40, WIDTH).astype(np.float32) if how.per_column else np.array([16.0], np.float32)
    offsets = {"any": np.float32(2.25) * np.ones_like(scale), "integer": np.array([3.0], np.float32), "none": None}
    return scale, offsets[how.offset]


@pytest.mark.parametrize("dtype", ["float32", "float16"])
@pytest.mark.parametrize("quant", QUANTS)
def test_every_spelling_is_one_node(quant: str, dtype: str) -> None:
    scale, offset = parameters(quant)
    model = model_of(
        lambda g: {"y": QUANTS[quant].build(g, "x", scale, offset)}, ROWS, opset=20, dtype=dtype, kinds={"y": "int8"}
    )
    check(model, {"x": random((4, 9, WIDTH), dtype)}, {"AscendQuantV2": 1}, dtype)


def static(**parts: Callable[..., str]) -> Build:
    """``cast(clip(round(x * scale)))`` with one part done differently."""

    def build(g: Graph) -> dict[str, str]:
        scaled = parts["scale"](g) if "scale" in parts else g.op("Mul", "x", g.const(np.full(WIDTH, 16, np.float32)))
        whole = parts["rounding"](g, scaled) if "rounding" in parts else g.op("Round", scaled)
        bounded = parts["clip"](g, whole) if "clip" in parts else g.clip(whole, -128.0, 127.0)
        return {"y": g.cast(bounded, "int8")}

    return build


def test_scalar_scale_beside_column_offsets() -> None:
    def scale(g: Graph) -> str:
        return g.op("Add", g.op("Mul", "x", g.scalar(16.0)), g.const(np.linspace(-3, 3, WIDTH).astype(np.float32)))

    model = model_of(static(scale=scale), ROWS, kinds={"y": "int8"})
    check(model, {"x": random((4, 9, WIDTH))}, {"AscendQuantV2": 1})


def test_parameters_may_be_given() -> None:
    model = model_of(
        static(scale=lambda g: g.op("Add", g.op("Div", "x", "s"), "o")), {**ROWS, "s": [WIDTH], "o": [1]},
        kinds={"y": "int8"},
    )  # fmt: skip
    feeds = {"x": random((4, 9, WIDTH)), "s": np.full(WIDTH, 0.0625, np.float32), "o": np.array([1.5], np.float32)}
    result = check(model, feeds, {"AscendQuantV2": 1})
    assert "reciprocal" in result.sites[0].notes[0]


def test_a_bias_in_front_stays_in_front() -> None:
    def scale(g: Graph) -> str:
        return g.op("Mul", g.op("Add", "x", g.const(random((WIDTH,)))), g.scalar(16.0))

    model = model_of(static(scale=scale), ROWS, kinds={"y": "int8"})
    assert check(model, {"x": random((4, 9, WIDTH))}, {"AscendQuantV2": 1}).ops_after["Add"] == 1


def test_parameters_that_half_precision_cannot_hold_make_it_float32() -> None:
    model = model_of(
        lambda g: {"y": QUANTS["multiply"].build(g, "x", np.full(WIDTH, 16.001, np.float32), None)}, ROWS,
        dtype="float16", kinds={"y": "int8"},
    )  # fmt: skip
    result = check(model, {"x": random((4, 9, WIDTH), "float16")}, {"AscendQuantV2": 1}, "float16")
    assert result.ops_after["Cast"] == 1


def test_a_scale_by_token_stays_in_front_of_the_rounding() -> None:
    model = model_of(static(scale=lambda g: g.op("Mul", "x", "t")), {**ROWS, "t": ["B", "S", 1]}, kinds={"y": "int8"})
    feeds = {"x": random((4, 9, WIDTH)), "t": 16 * np.ones((4, 9, 1), np.float32)}
    assert check(model, feeds, {"AscendQuantV2": 1}).ops_after["Mul"] == 1


TRAPS: dict[str, tuple[Build, str]] = {
    "truncated": (static(rounding=lambda g, x: x), "quant-form"),
    "rounded down": (static(rounding=lambda g, x: g.op("Floor", x)), "quant-form"),
    "half away from zero": (
        static(rounding=lambda g, x: g.op(
            "Mul", g.op("Sign", x), g.op("Floor", g.op("Add", g.op("Abs", x), g.scalar(0.5))))), "quant-form"),
    "clip to -127": (static(clip=lambda g, x: g.clip(x, -127.0, 127.0)), "quant-form"),
    "clip to 100": (static(clip=lambda g, x: g.clip(x, -128.0, 100.0)), "quant-form"),
    "no clip": (static(clip=lambda g, x: x), "quant-form"),
    "offset behind the clip": (
        static(clip=lambda g, x: g.op("Add", g.clip(x, -128.0, 127.0), g.scalar(1.0))), "quant-form"),
}  # fmt: skip


@pytest.mark.parametrize("name", TRAPS)
def test_near_miss_is_left_alone_with_the_reason(name: str) -> None:
    build, code = TRAPS[name]
    result = check(model_of(build, ROWS, kinds={"y": "int8"}), {"x": random((2, 3, WIDTH)) / 4}, {})
    assert codes(result, "AscendQuantV2") == {code}


def test_unsigned_is_another_type() -> None:
    def build(g: Graph) -> dict[str, str]:
        zero = g.const(np.array(128, np.uint8))
        return {"y": g.cast(g.op("QuantizeLinear", "x", g.scalar(0.0625), zero), "int32")}

    result = check(model_of(build, ROWS, kinds={"y": "int32"}), {"x": random((2, 3, WIDTH))}, {})
    assert codes(result, "AscendQuantV2") == {"quant-form"}
