"""Nearly the operator's rotation."""

from __future__ import annotations

import numpy as np

from tests.fusion.traps.base import trap
from tests.fusion.zoo.graph import END
from tests.fusion.zoo.ropes import deinterleaved, products, rotate_half
from tests.fusion.zoo.spec import Parameters
from tests.fusion.zoo.spellings import Preamble

ROPE = ("rotat", "rope")
SIGN = ("sign", "inverse", "direction")
ORDER = ("interleave", "order", "permut", "halves", "table", "column")


class OwnRope(Preamble):
    """``z`` (de-interleaved), its quarter turn, cos and sin as a trap wants them."""

    def turn(self, z: str) -> str:
        return rotate_half(self.g, z, self.spec.rotated)

    def rotate(self, x: str) -> str:
        z = deinterleaved(self.g, x, self.spec.rotated)
        return products(self.g, z, self.turn(z), self.cos, self.sin)


@trap("turned the other way", *SIGN)
class WrongDirection(OwnRope):
    def rotate(self, x: str) -> str:
        z = deinterleaved(self.g, x, self.spec.rotated)
        return self.g.op("Sub", self.g.op("Mul", z, self.cos), self.g.op("Mul", self.turn(z), self.sin))


@trap("turned the other way: Neg on the first half", *SIGN, rope="half_slices")
class NegOnTheFirstHalf(OwnRope):
    def rotate(self, x: str) -> str:
        g, d = self.g, self.spec.rotated
        turned = g.op("Concat", g.slice(x, d // 2, END, 3), g.op("Neg", g.slice(x, 0, d // 2, 3)), axis=-1)
        return products(g, x, turned, self.cos, self.sin)


@trap("both halves are added: no rotation", *SIGN, *ROPE)
class NoSign(OwnRope):
    def turn(self, z: str) -> str:
        d = self.spec.rotated
        return self.g.op("Concat", self.g.slice(z, d // 2, END, 3), self.g.slice(z, 0, d // 2, 3), axis=-1)


@trap("the halves of the result are swapped", *ORDER, *SIGN)
class SwappedHalves(OwnRope):
    def rotate(self, x: str) -> str:
        low, high = self.g.halves(super().rotate(x))
        return self.g.op("Concat", high, low, axis=-1)


@trap("interleaved in and out: cached columns in another order", *ORDER, rope="deint_chunk")
class InterleavedOut(OwnRope):
    def rotate(self, x: str) -> str:
        g = self.g
        e, o = g.slice(x, 0, END, 3, 2), g.slice(x, 1, END, 3, 2)
        first = g.op("Sub", g.op("Mul", e, self.cos), g.op("Mul", o, self.sin))
        second = g.op("Add", g.op("Mul", o, self.cos), g.op("Mul", e, self.sin))
        stacked = g.op("Concat", g.unsqueeze(first, -1), g.unsqueeze(second, -1), axis=-1)
        return g.reshape(stacked, (x, 0), (x, 1), (x, 2), self.spec.rotated)


@trap("ONNX RotaryEmbedding with interleaved=1", *ORDER, opset=23, rope="deint_standard_op")
class InterleavedStandardOp(OwnRope):
    def rotate(self, x: str) -> str:
        cos, sin = self.g.squeeze(self.cos, 1), self.g.squeeze(self.sin, 1)
        return self.g.op("RotaryEmbedding", x, cos, sin, interleaved=1)


@trap("half-split rotation written interleaved", *ORDER, rope="half_slices")
class HalfWrittenInterleaved(OwnRope):
    def rotate(self, x: str) -> str:
        g, d = self.g, self.spec.rotated
        y = products(g, x, rotate_half(g, x, d), self.cos, self.sin)
        rows = g.reshape(y, (x, 0), (x, 1), (x, 2), 2, d // 2)
        return g.reshape(g.transpose(rows, 0, 1, 2, 4, 3), (x, 0), (x, 1), (x, 2), d)


@trap("cos and sin change roles in the left half only; a fuser may put both together again", *ROPE, sites=(0, 1))
class RolesSwappedInOneHalf(OwnRope):
    def rotate(self, x: str) -> str:
        g, d = self.g, self.spec.rotated
        z = deinterleaved(g, x, d)
        (cl, ch), (sl, sh) = g.halves(self.cos), g.halves(self.sin)
        c, s = g.op("Concat", sl, ch, axis=-1), g.op("Concat", cl, sh, axis=-1)
        return products(g, z, rotate_half(g, z, d), c, s)


@trap("the columns of cos are in another order than those of sin", "cos", *ROPE, sites=(0, 1))
class CosColumnsReversed(OwnRope):
    def rotate(self, x: str) -> str:
        g, d = self.g, self.spec.rotated
        z = deinterleaved(g, x, d)
        cos = g.op("Gather", self.cos, g.ints(*reversed(range(d))), axis=3)
        return products(g, z, rotate_half(g, z, d), cos, self.sin)


@trap("cos belongs to the next token, sin to this one", "cos", *ROPE, sites=(0, 1))
class CosOfTheNextToken(OwnRope):
    def rotate(self, x: str) -> str:
        g, d = self.g, self.spec.rotated
        z = deinterleaved(g, x, d)
        cos = g.op("Concat", g.slice(self.cos, 1, END, 2), g.slice(self.cos, 0, 1, 2), axis=2)
        return products(g, z, rotate_half(g, z, d), cos, self.sin)


@trap("the quarter turn is taken from the next token", *ROPE)
class PartnerOfTheNextToken(OwnRope):
    def turn(self, z: str) -> str:
        g = self.g
        turned = super().turn(z)
        return g.op("Concat", g.slice(turned, 1, END, 2), g.slice(turned, 0, 1, 2), axis=2)


@trap("pairs are (j, j+1 of the next pair)", *ROPE)
class WrongPartner(OwnRope):
    def turn(self, z: str) -> str:
        d = self.spec.rotated
        order = [*range(d // 2 + 1, d), d // 2, *range(d // 2)]
        sign = self.g.const(np.repeat([-1.0, 1.0], d // 2), "float32")
        return self.g.op("Mul", self.g.op("Gather", z, self.g.ints(*order), axis=3), sign)


@trap("the quarter turn is taken from the other head", *ROPE, form="v2")
class PartnerOfTheOtherHead(OwnRope):
    def turn(self, z: str) -> str:
        return self.g.op("Gather", super().turn(z), self.g.ints(1, 0), axis=1)


@trap("a bias is added to the rotated key", *ROPE)
class BiasAfterRotation(OwnRope):
    def rotate(self, x: str) -> str:
        return self.g.op("Add", super().rotate(x), self.g.const(np.linspace(-1, 1, 32).astype(np.float32)))


@trap("no rotation: the key columns are cached as they are", *ROPE)
class NotRotated(OwnRope):
    def rotate(self, x: str) -> str:
        return self.g.op("Identity", x)


@trap("only half of the rotary columns are rotated in form V1", *ROPE, "width", sites=(0, 1))
class PartlyRotated(OwnRope):
    def rotate(self, x: str) -> str:
        g, d = self.g, self.spec.rotated // 2
        turned, rest = g.halves(x)
        c, s = g.slice(self.cos, 0, d, 3), g.slice(self.sin, 0, d, 3)
        z = deinterleaved(g, turned, d)
        return g.op("Concat", products(g, z, rotate_half(g, z, d), c, s), rest, axis=-1)


@trap("the rotated columns are columns 40..71 of kv; a fuser may gather them in front", *ROPE, "column", sites=(0, 1))
class RotatesOtherColumns(OwnRope):
    def divide(self, kv: str) -> tuple[str, str]:
        return super().divide(kv)[0], self.g.slice(kv, 40, 72, 3)


@trap("form V2 with the right columns rotated: the operator rotates the left ones", *ORDER, form="v2part")
class RotatesTheRightColumns(OwnRope):
    def rotate_keys(self, y: str) -> str:
        rest, turned = self.g.split(y, [self.spec.key_columns - self.spec.rotated, self.spec.rotated])
        return self.g.op("Concat", rest, self.rotate(turned), axis=-1)


@trap("form V2, rotated first and normalised afterwards", *ROPE, "norm", form="v2")
class RotatedBeforeTheNorm(OwnRope):
    def one_layer(self, p: Parameters) -> tuple[str, str, str, str]:
        rows = {"k": self.normalise(self.rotate("k"), p), "v": "v"}
        written = [self.write(which, self.cache(which), rows[which]) for which in "kv"]
        return written[0], written[1], rows["k"], rows["v"]


@trap("form V2 without a norm on the rotated columns", *ROPE, "norm", form="v2part")
class NormOnTheRestOnly(OwnRope):
    def rotate_keys(self, y: str) -> str:
        raw = self.g.slice("k", 0, self.spec.rotated, 3)
        return self.g.op("Concat", self.rotate(raw), self.g.slice(y, self.spec.rotated, END, 3), axis=-1)


@trap("rotated twice; the inner rotation may stay in front", *ROPE, sites=(0, 1))
class RotatedTwice(OwnRope):
    def rotate(self, x: str) -> str:
        return super().rotate(super().rotate(x))


@trap("the rotated columns stand left of the normalised ones; a fuser may gather them in front", "column", sites=(0, 1))
class RotatedPartOnTheLeft(OwnRope):
    def divide(self, kv: str) -> tuple[str, str]:
        right, left = self.g.split(kv, [self.spec.key_columns, self.spec.value_columns], 3)
        return left, right


@trap("norm and rotation read different inputs; a fuser may join them in front", "kv", "same", "input", sites=(0, 1))
class TwoSources(OwnRope):
    def inputs(self) -> None:
        super().inputs()
        self.g.input("kv_other", "float32", ["B", 1, "S", 96])

    def divide(self, kv: str) -> tuple[str, str]:
        return super().divide(kv)[0], super().divide("kv_other")[1]
