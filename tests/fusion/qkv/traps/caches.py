"""Near misses in the writes and in the quantisation in front of them."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from tests.fusion.qkv.spec import WIDTH, Parameters
from tests.fusion.qkv.spellings import Preamble
from tests.fusion.qkv.traps.registry import trap


@trap("keys and values have slots of their own", "slot")
class OwnSlots(Preamble):
    def inputs(self) -> None:
        super().inputs()
        self.g.input("slots_v", "int64", ["T"])

    def slots(self, which: str) -> str:
        return "slots_v" if which == "v" else "slots"


@trap("values are written one slot further", "slot")
class NextSlot(Preamble):
    def slots(self, which: str) -> str:
        if which == "k":
            return "slots"
        return self.g.op("Mod", self.g.op("Add", "slots", self.g.const(1, "int64")), self.g.const(48, "int64"))


@trap("the old keys are read as well", "second-reader", "other reader")
class OldCacheRead(Preamble):
    which = "k"

    def finish(self) -> None:
        self.g.output(self.g.op("Abs", f"{self.which}_cache_0"), "old", self.spec.dtype, [None] * 4)


@trap("the old values are read as well", "second-reader", "other reader")
class OldValuesRead(OldCacheRead):
    which = "v"


@trap("pages hold rows of heads, not fractals", "layout", "bsnd")
class PagesOfRows(Preamble):
    write_as = "flat_scatter_nd"

    def shape(self, which: str) -> list[int | str]:
        return [12, 4, self.spec.count(which), WIDTH]

    def inputs(self) -> None:
        self.spec = replace(self.spec, write=self.write_as)
        super().inputs()
        for entry in [entry for entry in self.g.inputs if "cache" in entry.name]:
            self.g.inputs.remove(entry)
            self.g.input(entry.name, self.spec.dtype, list(self.shape(entry.name[0])))

    def shape_of(self, name: str) -> list[Any]:
        return self.shape(name[0]) if "cache" in name else super().shape_of(name)


@trap("each batch entry has a cache of its own, [B, N, S, D]", "layout", "bnsd")
class CacheByBatch(PagesOfRows):
    write_as = "rows_scatter_elements"

    def shape(self, which: str) -> list[int | str]:
        return ["B", self.spec.count(which), 24, WIDTH]

    def inputs(self) -> None:
        super().inputs()
        self.g.inputs = [entry for entry in self.g.inputs if entry.name != "slots"]
        self.g.input("slots", "int64", ["B", "S"])


@trap("both writes add to the old rows")
class Added(Preamble):
    def write(self, which: str, cache: str, rows: str) -> str:
        out = super().write(which, cache, rows)
        for node in self.g.nodes:
            if node.op_type == "ScatterND":
                del node.attribute[:]
                node.attribute.extend([_string("reduction", "add")])
        return out


def _string(name: str, text: str) -> Any:
    from onnx import helper

    return helper.make_attribute(name, text)


class Quantised(Preamble):
    """Quantises by a chain whose parts a trap changes."""

    low, high = -128.0, 127.0

    def scaled(self, which: str, x: str, p: Parameters) -> str:
        return self.g.op("Mul", x, self.g.const(p.scale[which]))

    def rounded(self, x: str) -> str:
        return self.g.op("Round", x)

    def quantise(self, which: str, rows: str, p: Parameters) -> str:
        t = self.rounded(self.scaled(which, rows, p))
        return self.g.cast(self.g.clip(t, self.low, self.high), "int8")


@trap("the scale multiplies: its reciprocal divides", sites=(1,), quant="multiply")
class ScaleMultiplies(Quantised):
    pass


@trap("the cast truncates", quant="multiply")
class Truncated(Quantised):
    def rounded(self, x: str) -> str:
        return x


@trap("clipped at -127", quant="multiply")
class ClippedEarly(Quantised):
    low = -127.0


@trap("the scale is that of the row: dynamic quantisation", quant="multiply")
class ScaleByRow(Quantised):
    def scaled(self, which: str, x: str, p: Parameters) -> str:
        return self.g.op("Div", x, self.g.reduce("ReduceMax", self.g.op("Abs", x)))


@trap("a scale is 0", "0", quant="multiply")
class ScaleOfZero(Quantised):
    def scaled(self, which: str, x: str, p: Parameters) -> str:
        scale = p.scale[which].copy()
        scale.reshape(-1)[3] = 0
        return self.g.op("Mul", x, self.g.const(scale))


@trap("rounded up at halves", quant="multiply")
class HalfUp(Quantised):
    def rounded(self, x: str) -> str:
        return self.g.op("Floor", self.g.op("Add", x, self.g.scalar(0.5)))
