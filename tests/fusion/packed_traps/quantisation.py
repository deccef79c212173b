"""Near misses in how rows are quantised."""

from __future__ import annotations

import onnx

from tests.fusion.packed_traps.registry import Own, trap
from tests.fusion.zoo.packed import PackedPreamble
from tests.fusion.zoo.quants import rounded


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
