"""Graphs that nearly are a DequantRopeQuantKvcache: none is fused to it, refusals say what was found and wanted."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from functools import cache
from typing import Any

import numpy as np
import onnx
import pytest

import fusion
from fusion import FusionResult
from tests.fusion.zoo.graph import Array
from tests.fusion.zoo.packed import (
    BLOCK,
    LENGTH,
    Packed,
    PackedPreamble,
    by_token,
    contiguous_pairs,
    expected,
    feeds,
)
from tests.fusion.zoo.quants import rounded, shifted
from tests.fusion.zoo.ropes import half_slices, pair, rotate_half
from tests.fusion.zoo.run import run, worst
from tests.fusion.zoo.writes import Sizes

OP = "DequantRopeQuantKvcache"


@dataclass(frozen=True)
class Trap:
    """A preamble with one part done otherwise; ``code`` is the refusal's, "" where several say it."""

    name: str
    preamble: type[PackedPreamble]
    code: str
    choices: dict[str, Any] = field(default_factory=dict, hash=False)

    @property
    def spec(self) -> Packed:
        return Packed(**self.choices)


TRAPS: dict[str, Trap] = {}


def trap(code: str, **choices: Any) -> Callable[[type[PackedPreamble]], type[PackedPreamble]]:
    def enter(preamble: type[PackedPreamble]) -> type[PackedPreamble]:
        TRAPS[preamble.__name__] = Trap(preamble.__name__, preamble, code, choices)
        return preamble

    return enter


class Own(PackedPreamble):
    """Quantises by a hook: ``steps`` of the scaled rows."""

    def quantise(self, which: str, rows: str) -> str:
        g = self.g
        scale, offset = self.p[f"scale_{which}"][:, None, :], self.p[f"offset_{which}"][:, None, :]
        return self.steps(which, shifted(g, g.op("Mul", rows, g.const(scale)), offset))

    def steps(self, which: str, rows: str) -> str:
        return rounded(self.g, rows)


# -- rounding and limits ---------------------------------------------------------------------------------------------


@trap("quant-form")
class FloorForRound(Own):
    def steps(self, which: str, rows: str) -> str:
        return self.g.cast(self.g.clip(self.g.op("Floor", rows), -128.0, 127.0), "int8")


@trap("quant-form")
class HalfUpForHalfEven(Own):
    def steps(self, which: str, rows: str) -> str:
        g = self.g
        return g.cast(g.clip(g.op("Floor", g.op("Add", rows, g.scalar(0.5))), -128.0, 127.0), "int8")


@trap("quant-form")
class Truncates(Own):
    def steps(self, which: str, rows: str) -> str:
        return self.g.cast(self.g.clip(rows, -128.0, 127.0), "int8")


@trap("quant-form")
class SymmetricLimits(Own):
    def steps(self, which: str, rows: str) -> str:
        return self.g.cast(self.g.clip(self.g.op("Round", rows), -127.0, 127.0), "int8")


@trap("quant-form")
class FourBits(Own):
    def steps(self, which: str, rows: str) -> str:
        return self.g.cast(self.g.clip(self.g.op("Round", rows), -8.0, 7.0), "int8")


@trap("quant-form")
class NoUpperLimit(Own):
    def steps(self, which: str, rows: str) -> str:
        g = self.g
        return g.cast(g.op("Max", g.op("Round", g.op("Mul", rows, g.scalar(0.1))), g.scalar(-128.0)), "int8")


@trap("quant-form")
class ValuesWithOtherLimits(Own):
    def steps(self, which: str, rows: str) -> str:
        limits = (-128.0, 127.0) if which == "k" else (-100.0, 100.0)
        return self.g.cast(self.g.clip(self.g.op("Round", rows), *limits), "int8")


@trap("quant-form")
class OffsetAfterRounding(Own):
    """Not an integer: rounding does not commute with it."""

    def quantise(self, which: str, rows: str) -> str:
        g = self.g
        scaled = g.op("Round", g.op("Mul", rows, g.const(self.p[f"scale_{which}"][:, None, :])))
        return g.cast(g.clip(g.op("Add", scaled, g.scalar(0.4)), -128.0, 127.0), "int8")


# -- scales ----------------------------------------------------------------------------------------------------------


class ByToken(Own):
    def inputs(self) -> None:
        super().inputs()
        self.g.input("token_scale", "float32", ["B", 1, "S", 1])


@trap("")
class ScaleByToken(ByToken):
    def quantise(self, which: str, rows: str) -> str:
        return rounded(self.g, self.g.op("Mul", rows, "token_scale"))


@trap("")
class ScaleByTokenAndColumn(ByToken):
    def quantise(self, which: str, rows: str) -> str:
        return super().quantise(which, self.g.op("Mul", rows, "token_scale"))


@trap("")
class OffsetByToken(ByToken):
    def quantise(self, which: str, rows: str) -> str:
        g = self.g
        scaled = g.op("Mul", rows, g.const(self.p[f"scale_{which}"][:, None, :]))
        return rounded(g, g.op("Add", scaled, "token_scale"))


@trap("")
class DynamicScale(Own):
    """The scale is the largest value of each row."""

    def quantise(self, which: str, rows: str) -> str:
        g = self.g
        most = g.reduce("ReduceMax", g.op("Abs", rows))
        return rounded(g, g.op("Mul", g.op("Div", rows, most), g.scalar(127.0)))


@trap("quant-scale")
class ScaleOfInfinity(Own):
    def quantise(self, which: str, rows: str) -> str:
        return rounded(self.g, self.g.op("Mul", rows, self.g.const(self.p[f"scale_{which}"][:, None, :] * 0)))


@trap("cache-type")
class KeysNotQuantised(PackedPreamble):
    """A float key cache beside an int8 one."""

    def model(self) -> onnx.ModelProto:
        model = super().model()
        for entry in (*model.graph.input, *model.graph.output):
            if entry.name.startswith("k_cache"):
                entry.type.tensor_type.elem_type = onnx.TensorProto.FLOAT
        return model

    def quantise(self, which: str, rows: str) -> str:
        return rows if which == "k" else super().quantise(which, rows)


@trap("cache-type")
class NothingQuantised(PackedPreamble):
    def model(self) -> onnx.ModelProto:
        model = super().model()
        for entry in (*model.graph.input, *model.graph.output):
            if "cache" in entry.name:
                entry.type.tensor_type.elem_type = onnx.TensorProto.FLOAT
        return model

    def quantise(self, which: str, rows: str) -> str:
        return rows


# -- rotation --------------------------------------------------------------------------------------------------------


@trap("kv-no-partner")
class ValuesRotatedToo(PackedPreamble):
    def quantise(self, which: str, rows: str) -> str:
        return super().quantise(which, self.rotate(rows) if which == "v" else rows)


@trap("")
class KeysNotRotated(PackedPreamble):
    def rotate_keys(self, x: str) -> str:
        return x


class TwoTables(PackedPreamble):
    def inputs(self) -> None:
        super().inputs()
        for name in ("cos2", "sin2"):
            self.g.input(name, self.spec.dtype, ["B", 1, "S", self.spec.columns])


@trap("rope-tables")
class QueriesByAnotherTable(TwoTables):
    def rotate_queries(self, x: str) -> str:

        return half_slices(self.g, x, "cos2", "sin2", self.spec.columns)


@trap("rope-tables")
class QueriesByAnotherSine(TwoTables):
    def rotate_queries(self, x: str) -> str:

        return half_slices(self.g, x, "cos", "sin2", self.spec.columns)


@trap("rope-sign")
class KeysBackwards(PackedPreamble):
    def rotate_keys(self, x: str) -> str:

        return half_slices(self.g, x, "cos", self.g.op("Neg", "sin"), self.spec.columns)


@trap("query-missing")
class QueriesBackwards(PackedPreamble):
    def rotate_queries(self, x: str) -> str:

        return half_slices(self.g, x, "cos", self.g.op("Neg", "sin"), self.spec.columns)


@trap("query-missing")
class QueriesNotRotated(PackedPreamble):
    def rotate_queries(self, x: str) -> str:
        return x


@trap("query-missing")
class QueriesInterleavedOut(PackedPreamble):
    def rotate_queries(self, x: str) -> str:
        g, d = self.g, self.spec.columns
        halves = [[g.slice(name, *ends, 3) for ends in ((0, d // 2), (d // 2, d))] for name in (x, "cos", "sin")]
        parts = pair(g, halves[0][0], halves[0][1], (halves[1][0], halves[1][1]), (halves[2][0], halves[2][1]))
        stacked = g.op("Concat", *(g.unsqueeze(part, 4) for part in parts), axis=-1)
        return g.reshape(stacked, (x, 0), (x, 1), (x, 2), d)


@trap("")
class PartlyRotated(PackedPreamble):
    """The last quarter of each head passes."""

    def rotate(self, x: str) -> str:

        g, d = self.g, self.spec.columns
        turned, passing = g.split(x, [d - 4, 4])
        tables = [g.slice(name, 0, d - 4, -1) for name in ("cos", "sin")]
        return g.op("Concat", half_slices(g, turned, *tables, d - 4), passing, axis=-1)


@trap("")
class ScaledQueries(PackedPreamble):
    """Queries are scaled between the products and the sum: no rotation of x by itself."""

    def rotate_queries(self, x: str) -> str:
        g, d = self.g, self.spec.columns
        turned = rotate_half(g, x, d)
        products = [g.op("Mul", g.op("Mul", a, b), g.scalar(0.25)) for a, b in ((x, "cos"), (turned, "sin"))]
        return g.op("Add", *products)


@trap("")
class QueriesOfOtherTokens(PackedPreamble):
    """Token t of the queries is token t + 1 of x."""

    def rotate_queries(self, x: str) -> str:
        g = self.g
        rolled = g.op("Concat", g.slice(x, 1, 2**62, 2), g.slice(x, 0, 1, 2), axis=2)
        return self.rotate(rolled)


@trap("row-order")
class KeysOfOtherTokens(PackedPreamble):
    def rotate_keys(self, x: str) -> str:
        g = self.g
        return self.rotate(g.op("Concat", g.slice(x, 1, 2**62, 2), g.slice(x, 0, 1, 2), axis=2))


@trap("")
class HeadsTurnedByTheirOwnAngles(PackedPreamble):
    def inputs(self) -> None:
        super().inputs()
        for name in ("cos_h", "sin_h"):
            self.g.input(name, self.spec.dtype, ["B", self.spec.heads, "S", self.spec.columns])

    def rotate_keys(self, x: str) -> str:

        return half_slices(self.g, x, "cos_h", "sin_h", self.spec.columns)


# -- slots, caches, readers ------------------------------------------------------------------------------------------


@trap("kv-slots-differ")
class OtherSlotsForValues(PackedPreamble):
    def inputs(self) -> None:
        super().inputs()
        self.g.input("slots2", "int64", ["B"])

    def write(self, cache: str, rows: str) -> str:

        sizes = Sizes(self.spec.heads, self.spec.columns, BLOCK, 32)
        return contiguous_pairs(self.g, cache, rows, "slots" if cache == "k_cache" else "slots2", sizes)


@trap("kv-slots-differ")
class ValuesOneRowLater(PackedPreamble):
    def write(self, cache: str, rows: str) -> str:

        sizes = Sizes(self.spec.heads, self.spec.columns, BLOCK, 32)
        slots = "slots" if cache == "k_cache" else self.g.op("Add", "slots", self.g.const(1, "int64"))
        return contiguous_pairs(self.g, cache, rows, slots, sizes)


@trap("alias-second-reader")
class OldCacheRead(PackedPreamble):
    def finish(self) -> None:
        self.g.output(self.g.op("Abs", "k_cache"), "seen", "int8", self.cache_shape())


@trap("alias-second-reader")
class HalfWrittenCacheRead(PackedPreamble):
    def write(self, cache: str, rows: str) -> str:
        out = super().write(cache, rows)
        if cache == "v_cache":
            self.half = out
            out = self.g.reshape(out, -1, LENGTH, self.spec.heads, self.spec.columns)
        return out

    def finish(self) -> None:
        self.g.output(self.g.op("Abs", self.half), "seen", "int8", self.cache_shape())


@trap("inner-value-read")
class QuantisedRowsRead(PackedPreamble):
    def quantise(self, which: str, rows: str) -> str:
        self.kept = super().quantise(which, rows)
        return self.kept

    def finish(self) -> None:
        self.g.output(self.g.op("Abs", self.kept), "seen", "int8", [None, None, None, None])


@trap("inner-value-read")
class ProductsOfRotationRead(PackedPreamble):
    def finish(self) -> None:
        product = next(node for node in self.g.nodes if node.op_type == "Mul" and node.input[1] == "cos")
        self.g.output(self.g.op("Abs", product.output[0]), "seen", self.spec.dtype, [None, None, None, None])


@trap("kv-layout", write="contiguous_pairs")
class HeadsBeforeTokens(PackedPreamble):
    """Caches ``[C, N, M, D]`` of two heads."""

    def cache_shape(self) -> list[int | str | None]:
        return ["C", self.spec.heads, LENGTH, self.spec.columns]

    def write(self, cache: str, rows: str) -> str:

        g = self.g
        inner = g.transpose(cache, 0, 2, 1, 3)
        sizes = Sizes(self.spec.heads, self.spec.columns, BLOCK, 32)
        return g.transpose(contiguous_pairs(g, inner, rows, "slots", sizes), 0, 2, 1, 3)


@trap("slots-negative", write="flat_scatter_nd")
class PaddingIsSkipped(PackedPreamble):
    """Slot -1 hits a spare row: such slots are meant to come, and the operator refuses them."""

    def write(self, cache: str, rows: str) -> str:
        g, n, d = self.g, self.spec.heads, self.spec.columns
        flat = g.reshape(cache, -1, n, d)
        spare = g.op("Concat", flat, g.const(np.zeros((1, n, d)), "int8"), axis=0)
        x = g.reshape(by_token(g, rows), -1, n, d)
        written = g.op("ScatterND", spare, g.unsqueeze("slots", -1), x)
        return g.reshape(g.slice(written, 0, -1, 0), -1, BLOCK, n, d)


@trap("kv-heads")
class ValuesNarrower(PackedPreamble):
    """Value heads of 8 columns, keys of 16."""

    def heads(self) -> list[str]:
        q, k, v = super().heads()
        return [q, k, self.g.slice(v, 0, 8, -1)]

    def model(self) -> onnx.ModelProto:
        self.p["scale_v"], self.p["offset_v"] = self.p["scale_v"][:, :8], self.p["offset_v"][:, :8]
        model = super().model()
        for entry in (*model.graph.input, *model.graph.output):
            if entry.name.startswith("v_cache"):
                entry.type.tensor_type.shape.dim[3].dim_value = 8
        return model


@trap("x-sources")
class ValuesFromAnotherInput(PackedPreamble):
    def inputs(self) -> None:
        super().inputs()
        self.g.input("other", self.spec.dtype, ["B", self.spec.heads, "S", self.spec.columns])

    def quantise(self, which: str, rows: str) -> str:
        return super().quantise(which, rows if which == "k" else "other")


@trap("mixed-types", rows="float", dtype="float16")
class ValuesNotRounded(PackedPreamble):
    """x is float32; queries and keys are rounded to float16 before they are rotated, values are not."""

    def model(self) -> onnx.ModelProto:
        model = super().model()
        for entry in model.graph.input:
            if entry.name == "x":
                entry.type.tensor_type.elem_type = onnx.TensorProto.FLOAT
        return model

    def rotate(self, x: str) -> str:
        return super().rotate(self.g.cast(x, "float16"))


@trap("quant-form")
class UnsignedCaches(Own):
    """uint8 with a zero point of 128."""

    def model(self) -> onnx.ModelProto:
        model = super().model()
        for entry in (*model.graph.input, *model.graph.output):
            if "cache" in entry.name:
                entry.type.tensor_type.elem_type = onnx.TensorProto.UINT8
        return model

    def quantise(self, which: str, rows: str) -> str:
        return self.g.op("QuantizeLinear", rows, self.g.scalar(0.05), self.g.const(np.array(128, np.uint8)))


@trap("alias-second-reader")
class OldCacheIsAnOutput(PackedPreamble):
    def finish(self) -> None:
        self.g.output("v_cache", "seen", "int8", self.cache_shape())


@trap("")
class AddedToTheCache(PackedPreamble):
    """The write adds to what is there."""

    def model(self) -> onnx.ModelProto:
        model = super().model()
        for node in model.graph.node:
            if node.op_type == "ScatterND":
                node.attribute.append(onnx.helper.make_attribute("reduction", "add"))
        return model


# -- the tests -------------------------------------------------------------------------------------------------------


def trap_feeds(model: onnx.ModelProto, spec: Packed) -> dict[str, Array]:
    """The spec's feeds, and random values of the right kind for inputs of the trap's own."""
    rng = np.random.default_rng(3)
    batch, length = 2, 3
    given = feeds(spec, batch, length, seed=3)
    sizes = {"B": batch, "S": length, "T": batch * length, "C": batch + 1}
    for entry in model.graph.input:
        kind = entry.type.tensor_type
        wanted = onnx.helper.tensor_dtype_to_np_dtype(kind.elem_type)
        shape = [sizes.get(dim.dim_param, 9) if dim.dim_param else dim.dim_value for dim in kind.shape.dim]
        if entry.name not in given or list(given[entry.name].shape) != shape:
            low, high = (0, 4) if wanted == np.int64 else (0.1, 1.0)
            given[entry.name] = rng.uniform(low, high, shape)
        given[entry.name] = given[entry.name].astype(wanted)
    return given


@cache
def fused(name: str) -> tuple[onnx.ModelProto, FusionResult]:
    model = TRAPS[name].preamble(TRAPS[name].spec).model()
    return model, fusion.fuse(model)


def test_there_are_enough_traps() -> None:
    assert len(TRAPS) >= 40


@pytest.mark.parametrize("name", TRAPS)
def test_near_miss_is_not_fused(name: str) -> None:
    """Other operators may stand in it; whatever stands there computes the same."""
    model, result = fused(name)
    assert result.count(OP) == 0
    given = trap_feeds(model, TRAPS[name].spec)
    before = run(model, given, TRAPS[name].spec.dtype)
    assert worst(run(result.model, given, TRAPS[name].spec.dtype), before, TRAPS[name].spec.dtype) == ""


@pytest.mark.parametrize("name", TRAPS)
def test_refusal_says_what_was_found_and_what_was_wanted(name: str) -> None:
    _, result = fused(name)
    assert result.refusals
    for refusal in result.refusals:
        assert refusal.code and refusal.place and refusal.fact and refusal.found and refusal.wanted
    if TRAPS[name].code:
        assert TRAPS[name].code in [refusal.code for refusal in result.refusals]


RARELY = ("HalfUpForHalfEven", "SymmetricLimits", "ValuesNarrower")
"""Traps that differ at ties or at -128 only, or in shape."""


@pytest.mark.parametrize("name", [name for name, item in TRAPS.items() if not item.choices and name not in RARELY])
def test_trap_computes_something_else(name: str) -> None:
    model, _ = fused(name)
    given = trap_feeds(model, TRAPS[name].spec)
    got, wanted = run(model, given), expected(TRAPS[name].spec, given)
    shapes = all(got[key].shape == value.shape for key, value in wanted.items())
    seen = set(got) - set(wanted)
    assert seen or not shapes or worst(got, wanted, "float32", steps=0) != ""
