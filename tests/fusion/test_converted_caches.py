"""Caches that change their element type on the way: kept pairs are seen through, others are refused with the reason."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx
import pytest

import fusion
from tests.fusion.zoo.graph import ONNX, Array
from tests.fusion.zoo.packed import Packed, PackedPreamble, feeds
from tests.fusion.zoo.run import run, worst

OP = "DequantRopeQuantKvcache"


class Converted(PackedPreamble):
    """Rows are written as they are into the cache in another type; ``there`` and ``back`` change the type."""

    kind = "int8"

    def quantise(self, which: str, rows: str) -> str:
        return rows

    def write(self, cache: str, rows: str) -> str:
        return self.back(super().write(self.there(cache), rows))

    def there(self, cache: str) -> str:
        return self.g.op("DequantizeLinear", cache, self.g.scalar(0.05), self.g.const(3, "int8"))

    def back(self, cache: str) -> str:
        return self.g.op("QuantizeLinear", cache, self.g.scalar(0.05), self.g.const(3, "int8"))

    def model(self) -> onnx.ModelProto:
        model = super().model()
        for entry in (*model.graph.input, *model.graph.output):
            if "cache" in entry.name:
                entry.type.tensor_type.elem_type = ONNX[self.kind]
        return model


class OtherStep(Converted):
    def back(self, cache: str) -> str:
        return self.g.op("QuantizeLinear", cache, self.g.scalar(0.06), self.g.const(3, "int8"))


class OtherZero(Converted):
    def back(self, cache: str) -> str:
        return self.g.op("QuantizeLinear", cache, self.g.scalar(0.05), self.g.const(2, "int8"))


class StepByColumn(Converted):
    def steps(self) -> tuple[str, str]:
        columns = self.spec.columns
        return self.g.const(np.linspace(0.04, 0.06, columns), "float32"), self.g.const(np.zeros(columns), "int8")

    def there(self, cache: str) -> str:
        return self.g.op("DequantizeLinear", cache, *self.steps(), axis=3)

    def back(self, cache: str) -> str:
        return self.g.op("QuantizeLinear", cache, *self.steps(), axis=3)


class FloatQuantised(Converted):
    """A float cache that is rounded to 8 bits on the way: its old rows too."""

    kind = "float32"

    def there(self, cache: str) -> str:
        return super().there(self.g.op("QuantizeLinear", cache, self.g.scalar(0.05), self.g.const(3, "int8")))

    def back(self, cache: str) -> str:
        return cache


class Wider(Converted):
    kind = "float16"

    def there(self, cache: str) -> str:
        return self.g.cast(cache, "float32")

    def back(self, cache: str) -> str:
        return self.g.cast(cache, "float16")

    def quantise(self, which: str, rows: str) -> str:
        return self.g.cast(rows, "float32")


class Narrower(Wider):
    kind = "float32"

    def there(self, cache: str) -> str:
        return self.g.cast(cache, "float16")

    def back(self, cache: str) -> str:
        return self.g.cast(cache, "float32")

    def quantise(self, which: str, rows: str) -> str:
        return self.g.cast(rows, "float16")


class ReadMeanwhile(Converted):
    """Someone reads the rows before they are rounded."""

    def back(self, cache: str) -> str:
        self.seen = cache
        return super().back(cache)

    def finish(self) -> None:
        self.g.output(self.g.op("Abs", self.seen), "seen", "float32", self.cache_shape())


def fed(model: onnx.ModelProto, spec: Packed) -> dict[str, Array]:
    given = feeds(spec, 2, 3)
    for entry in model.graph.input:
        kind = onnx.helper.tensor_dtype_to_np_dtype(entry.type.tensor_type.elem_type)
        given[entry.name] = given[entry.name].astype(kind)
    return given


def fused(preamble: type[Converted], **choices: Any) -> fusion.FusionResult:
    """The fused model, which computes what the plain one does."""
    spec = Packed(**choices)
    model = preamble(spec).model()
    result = fusion.fuse(model)
    given = fed(model, spec)
    assert worst(run(result.model, given, spec.dtype), run(model, given, spec.dtype), spec.dtype) == ""
    return result


@pytest.mark.parametrize("write", ["contiguous_pairs", "flat_scatter_nd"])
def test_a_cache_that_is_dequantised_written_and_quantised_again_is_quantised_rows(write: str) -> None:
    result = fused(Converted, write=write)
    assert result.count(OP) == 1
    assert not {"QuantizeLinear", "DequantizeLinear"} & set(result.ops_after)


@pytest.mark.parametrize(
    ("preamble", "code", "words"),
    [
        (OtherStep, "cache-converted", "different numbers"),
        (OtherZero, "cache-converted", "different numbers"),
        (StepByColumn, "cache-converted", "one float32 number"),
        (FloatQuantised, "cache-converted", "rounded again"),
        (Narrower, "cache-converted", "rounded to float16"),
        (Wider, "cache-type", "float16"),
        (ReadMeanwhile, "alias-second-reader", "read by Abs"),
    ],
)
def test_others_are_refused(preamble: type[Converted], code: str, words: str) -> None:
    """A wider float type keeps a cache as it is; what is wrong with that one is its type."""
    choices = {"dtype": "float16", "rows": "float"} if preamble is Wider else {}
    result = fused(preamble, **choices)
    assert result.count(OP) == 0
    assert any(words in refusal.found for refusal in result.refusals if refusal.code == code), result.refusals
