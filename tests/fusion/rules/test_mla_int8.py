"""The up-projection in int8, normed rows quantised by their largest value: weight_quant_mode 1 spelled out."""

from __future__ import annotations

import numpy as np
import pytest

import fusion
from tests.fusion.mla.preamble import Preamble, feeds, worst
from tests.fusion.mla.spec import Spec
from tests.fusion.zoo.graph import Array
from tests.fusion.zoo.run import run

OP = "MlaPrologV3"
ORDERS = ("rows_first", "columns_first", "together")


class Int8(Preamble):
    """``order`` of the scales; ``whole``: one scale for all columns of the weight."""

    order, whole = ORDERS[0], False

    def product(self, x: str, weight: Array) -> str:
        return self.integers(x, weight) if weight is self.w.uq else super().product(x, weight)

    def integers(self, x: str, weight: Array) -> str:
        g = self.g
        largest = np.abs(weight.astype(np.float32)).max(None if self.whole else 0)
        scale = (np.atleast_1d(largest) / 127).astype(np.float32)
        stored = np.round(weight.astype(np.float32) / scale).astype(np.int8)
        wide = g.cast(x, "float32")
        step = self.step(wide)
        sums = g.cast(self.sums(self.rounded(g.op("Div", wide, step)), stored), "float32")
        if self.order == "together":
            return self.back(g.op("Mul", sums, g.op("Mul", step, g.const(scale))))
        factors = (step, g.const(scale)) if self.order == "rows_first" else (g.const(scale), step)
        return self.back(g.op("Mul", g.op("Mul", sums, factors[0]), factors[1]))

    def step(self, x: str) -> str:
        return self.g.op("Div", self.g.reduce("ReduceMax", self.g.op("Abs", x), -1), self.g.scalar(127.0))

    def rounded(self, x: str) -> str:
        g = self.g
        return g.cast(g.op("Clip", g.op("Round", x), g.scalar(-128.0), g.scalar(127.0)), "int8")

    def sums(self, rows: str, weight: Array) -> str:
        return self.g.op("MatMulInteger", rows, self.g.const(weight))

    def back(self, x: str) -> str:
        return x if self.spec.dtype == "float32" else self.g.cast(x, self.spec.dtype)


class OneStepForAll(Int8):
    """The largest value of all tokens."""

    def step(self, x: str) -> str:
        g = self.g
        largest = g.op("Max", g.op("ReduceMax", g.op("Abs", x), keepdims=1), g.scalar(1e-9))
        return g.op("Div", largest, g.scalar(127.0))


class OtherLargest(Int8):
    """128 steps."""

    def step(self, x: str) -> str:
        return self.g.op("Div", self.g.reduce("ReduceMax", self.g.op("Abs", x), -1), self.g.scalar(128.0))


class ZeroPoint(Int8):
    """Another zero of the rows."""

    def sums(self, rows: str, weight: Array) -> str:
        return self.g.op("MatMulInteger", rows, self.g.const(weight), self.g.const(np.array(3, np.int8)))


class SquaredStep(Int8):
    """The step is multiplied twice."""

    def back(self, x: str) -> str:
        return self.g.op("Mul", x, self.g.op("Sqrt", self.g.op("Abs", x)))


class Truncated(Int8):
    """Rounded towards zero."""

    def rounded(self, x: str) -> str:
        return self.g.cast(x, "int8")


@pytest.mark.parametrize("flat", [False, True], ids=["batch", "tokens"])
@pytest.mark.parametrize("whole", [False, True], ids=["columns", "whole"])
@pytest.mark.parametrize("order", ORDERS)
def test_it_is_one_operator_with_the_same_results(order: str, whole: bool, flat: bool) -> None:
    spec = Spec(flat=flat, absorb="by_row" if flat else "einsum", rope="half_slices" if whole else "deint_view")
    preamble = Int8(spec)
    preamble.order, preamble.whole = order, whole
    model = preamble.model()
    result = fusion.fuse(model)
    (site,) = result.sites
    assert (site.op, site.attrs["weight_quant_mode"]) == (OP, 1), [str(refusal) for refusal in result.refusals]
    assert any("all zeros" in text for text in site.assumptions)
    given = feeds(spec, 1)
    assert worst(run(result.model, given), run(model, given), spec.dtype) == ""
    assert fusion.verify(model, result.model, kernel=False).ok
    assert not fusion.fuse(result.model).sites


@pytest.mark.parametrize("kinds", ["kv", "both"])
def test_int8_caches_go_with_it(kinds: str) -> None:
    spec = Spec(kinds=kinds)
    model = Int8(spec).model()
    result = fusion.fuse(model)
    assert [(site.op, site.attrs["kv_cache_quant_mode"]) for site in result.sites] == [(OP, 1 + (kinds == "both"))]
    given = feeds(spec, 1)
    assert worst(run(result.model, given), run(model, given), spec.dtype) == ""


def test_scales_go_with_it() -> None:
    site = fusion.fuse(Int8(Spec(scales=(1.0, 1.5))).model()).sites[0]
    assert site.op == OP and site.attrs["kc_scale"] == 1.5


def test_large_weights_are_proven_at_small_sizes(monkeypatch: pytest.MonkeyPatch) -> None:
    """Not the rank: integers of other ranks are others."""
    monkeypatch.setattr("fusion.rules._mla_frame.MATRIX_LIMIT", 10)
    assert [site.op for site in fusion.fuse(Int8(Spec()).model()).sites] == [OP]


@pytest.mark.parametrize(
    "trap", [OneStepForAll, OtherLargest, ZeroPoint, SquaredStep, Truncated], ids=lambda t: t.__doc__
)
def test_near_misses_are_not(trap: type[Int8]) -> None:
    spec = Spec()
    model = trap(spec).model()
    result = fusion.fuse(model)
    assert not result.count(OP)
    given = feeds(spec, 3)
    assert worst(run(result.model, given), run(model, given), spec.dtype) == ""


def test_rows_in_16_bits_are_refused_with_the_reason() -> None:
    """The operator quantises unrounded rows; others give other integers in places."""
    result = fusion.fuse(Int8(Spec(dtype="float16")).model())
    (refusal,) = [refusal for refusal in result.refusals if refusal.rule == OP]
    assert refusal.code == "mla-quant-products" and "float16 rows" in refusal.found
    assert result.count("KvRmsNormRopeCache") == 1


def test_a_reader_of_the_normed_rows_is_refused() -> None:
    """The operator delivers the integers."""
    result = fusion.fuse(Int8(Spec(reads="norm")).model())
    assert not result.count(OP)
    assert "inner-value-read" in {refusal.code for refusal in result.refusals if refusal.rule == OP}
