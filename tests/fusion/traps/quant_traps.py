"""Nearly the operator's quantisation."""

from __future__ import annotations

import numpy as np
from onnx import TensorProto, helper

from tests.fusion.traps.base import trap
from tests.fusion.zoo.graph import Array
from tests.fusion.zoo.spec import Parameters
from tests.fusion.zoo.spellings import Preamble

QUANT = ("quant", "int8", "round", "clip", "scale")


class OwnQuant(Preamble):
    """``cast(clip(round(x * scale + offset)))`` whose parts a trap changes."""

    low, high = -128.0, 127.0

    def scaled(self, rows: str, which: str, scale: Array) -> str:
        return self.g.op("Mul", rows, self.g.const(scale))

    def rounded(self, t: str) -> str:
        return self.g.op("Round", t)

    def clipped(self, t: str) -> str:
        return self.g.clip(t, self.low, self.high)

    def quantise(self, which: str, rows: str, p: Parameters) -> str:
        t = self.scaled(rows, which, p.scale[which])
        offset = p.offset[which]
        if offset is not None:
            t = self.g.op("Add", t, self.g.const(offset))
        return self.g.cast(self.clipped(self.rounded(t)), "int8")


@trap("no rounding: the cast truncates", *QUANT, quant="multiply")
class Truncates(OwnQuant):
    def rounded(self, t: str) -> str:
        return t


@trap("rounded down", *QUANT, quant="multiply")
class RoundsDown(OwnQuant):
    def rounded(self, t: str) -> str:
        return self.g.op("Floor", t)


@trap("rounded half up: differs at exact ties only", *QUANT, sites=(0, 1), same=True, quant="multiply")
class RoundsHalfUp(OwnQuant):
    def rounded(self, t: str) -> str:
        return self.g.op("Floor", self.g.op("Add", t, self.g.scalar(0.5)))


@trap("clipped to seven bits", *QUANT, quant="multiply")
class SevenBits(OwnQuant):
    low, high = -64.0, 63.0


@trap("clipped to -127..127, as symmetric quantisers do", *QUANT, quant="multiply")
class SymmetricClip(OwnQuant):
    low = -127.0

    def scaled(self, rows: str, which: str, scale: Array) -> str:
        return super().scaled(rows, which, scale * 8)


@trap("clipped on one side only", *QUANT, quant="multiply")
class ClippedOnOneSide(OwnQuant):
    def scaled(self, rows: str, which: str, scale: Array) -> str:
        return super().scaled(rows, which, scale * 8)

    def clipped(self, t: str) -> str:
        return self.g.op("Max", t, self.g.scalar(-128.0))


@trap("a fractional offset is added after rounding", *QUANT, "offset", quant="multiply", offset=True)
class OffsetAfterRound(OwnQuant):
    def quantise(self, which: str, rows: str, p: Parameters) -> str:
        offset = p.offset[which]
        assert offset is not None
        t = self.g.op("Round", self.scaled(rows, which, p.scale[which]))
        t = self.g.op("Add", t, self.g.const(offset - np.float32(0.75)))
        return self.g.cast(self.clipped(t), "int8")


@trap("dynamic quantisation: the scale is the token's own maximum", *QUANT, quant="multiply")
class ScalePerToken(OwnQuant):
    def scaled(self, rows: str, which: str, scale: Array) -> str:
        g = self.g
        largest = g.reduce("ReduceMax", g.op("Abs", rows))
        return g.op("Div", g.op("Mul", rows, g.scalar(127.0)), largest)


@trap("scaled twice, by columns and by token", *QUANT, quant="multiply")
class ScalePerTokenAndColumn(OwnQuant):
    def inputs(self) -> None:
        super().inputs()
        self.g.input("token_scale", "float32", ["B", 1, "S", 1])

    def scaled(self, rows: str, which: str, scale: Array) -> str:
        return self.g.op("Mul", super().scaled(rows, which, scale), "token_scale")


@trap("the key is scaled before it is rotated, column by column", *QUANT, "rotat", sites=(0, 1), quant="multiply")
class ScaledBeforeRotation(OwnQuant):
    def rotate(self, x: str) -> str:
        return super().rotate(self.g.op("Mul", x, self.g.const(self.parameters.scale["k"])))

    def scaled(self, rows: str, which: str, scale: Array) -> str:
        return rows if which == "k" else super().scaled(rows, which, scale)


@trap("a hyperbolic tangent of the rows is quantised", *QUANT, quant="multiply")
class NotLinear(OwnQuant):
    def scaled(self, rows: str, which: str, scale: Array) -> str:
        return super().scaled(self.g.op("Tanh", rows), which, scale)


@trap("quantised and dequantised again: the cache holds floats", *QUANT, "dtype", norm="hf_reciprocal")
class QuantisedAndBack(OwnQuant):
    def write(self, which: str, cache: str, rows: str) -> str:
        g = self.g
        step, zero = g.scalar(0.05), g.const(np.array(0), "int8")
        small = g.op("QuantizeLinear", rows, step, zero)
        return super().write(which, cache, g.op("DequantizeLinear", small, step, zero))


@trap("the caches are unsigned", *QUANT, "uint8", "dtype", quant="multiply")
class Unsigned(OwnQuant):
    def quantise(self, which: str, rows: str, p: Parameters) -> str:
        t = self.g.op("Add", self.scaled(rows, which, p.scale[which]), self.g.scalar(128.0))
        whole = self.g.clip(self.rounded(t), 0.0, 255.0)
        return self.g.op("Cast", whole, to=TensorProto.UINT8)

    def finish(self) -> None:
        for entry in [*self.g.inputs, *self.g.outputs]:
            if "cache" in entry.name:
                entry.type.tensor_type.elem_type = TensorProto.UINT8


@trap("the caches are int8, the rows are cast without any scale or rounding", *QUANT, quant="multiply")
class CastOnly(OwnQuant):
    def quantise(self, which: str, rows: str, p: Parameters) -> str:
        return self.g.cast(rows, "int8")


@trap(
    "the int8 rows are a graph output too: the operator does not deliver them",
    sites=(0, 1),
    same=True,
    quant="multiply",
)
class QuantisedRowsAreAnOutput(OwnQuant):
    def quantise(self, which: str, rows: str, p: Parameters) -> str:
        small = super().quantise(which, rows, p)
        self.g.nodes.append(helper.make_node("Identity", [small], [f"small_{which}"], name=f"small_out_{which}"))
        shape = [None, 1, None, self.spec.columns(which)]
        self.g.outputs.append(helper.make_tensor_value_info(f"small_{which}", TensorProto.INT8, shape))
        return small
