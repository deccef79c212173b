"""Near misses in the rotation of queries and keys."""

from __future__ import annotations

import numpy as np

from tests.fusion.qkv.spec import WIDTH, Parameters
from tests.fusion.qkv.spellings import Preamble
from tests.fusion.qkv.traps.registry import trap


class Some(Preamble):
    """Rotates the left half of the columns of some heads."""

    some = "qk"

    def rotate(self, which: str, x: str) -> str:
        g = self.g
        if which not in self.some:
            return super().rotate(which, x)
        left, right = g.split(x, [WIDTH // 2, WIDTH // 2])
        cos, sin = (g.slice(table, 0, WIDTH // 2, 3) for table in (self.cos, self.sin))
        return g.op("Concat", self.spec.how_rotated.build(g, left, cos, sin, WIDTH // 2), right, axis=-1)


@trap("half of the columns are rotated", "columns")
class PartialRotation(Some):
    pass


@trap("half of the columns of the queries are rotated", "columns")
class PartialQueries(Some):
    some = "q"


@trap("half of the columns of the keys are rotated", "columns")
class PartialKeys(Some):
    some = "k"


@trap("keys are rotated back")
class KeysBack(Preamble):
    which = "k"

    def rotate(self, which: str, x: str) -> str:
        if which != self.which:
            return super().rotate(which, x)
        sin = self.sin
        g = self.g
        low, high = g.slice(x, 0, WIDTH // 2, 3), g.slice(x, WIDTH // 2, WIDTH, 3)
        turned = g.op("Concat", high, g.op("Neg", low), axis=-1)
        return g.op("Add", g.op("Mul", x, self.cos), g.op("Mul", turned, sin))


@trap("queries are rotated back", "inverse")
class QueriesBack(KeysBack):
    which = "q"


class Woven(Preamble):
    """Neighbouring pairs stay where they are."""

    some = "qk"

    def rotate(self, which: str, x: str) -> str:
        g = self.g
        if which not in self.some:
            return super().rotate(which, x)
        even, odd = g.slice(x, 0, WIDTH, 3, 2), g.slice(x, 1, WIDTH, 3, 2)
        c, s = (g.slice(table, 0, WIDTH // 2, 3) for table in (self.cos, self.sin))
        first = g.op("Sub", g.op("Mul", even, c), g.op("Mul", odd, s))
        second = g.op("Add", g.op("Mul", odd, c), g.op("Mul", even, s))
        joined = g.op("Concat", g.unsqueeze(first, 4), g.unsqueeze(second, 4), axis=-1)
        return g.op("Reshape", joined, g.op("Shape", x))


@trap("the result of the rotation is interleaved")
class InterleavedOut(Woven):
    pass


@trap("the rotated queries are interleaved", "interleaved")
class InterleavedQueries(Woven):
    some = "q"


@trap("queries and keys have tables of their own", "one cos", "one sin")
class OwnTables(Preamble):
    def inputs(self) -> None:
        super().inputs()
        for name in ("cos_q", "sin_q"):
            self.g.input(name, self.spec.dtype, ["B", "S", WIDTH])

    def rotate(self, which: str, x: str) -> str:
        if which == "k":
            return super().rotate(which, x)
        cos, sin = (self.g.unsqueeze(name, 1) for name in ("cos_q", "sin_q"))
        return self.spec.how_rotated.build(self.g, x, cos, sin, WIDTH)


@trap("sin of the queries is that of cos", "one sin")
class OneTableWrong(Preamble):
    def rotate(self, which: str, x: str) -> str:
        sin = self.cos if which == "q" else self.sin
        return self.spec.how_rotated.build(self.g, x, self.cos, sin, WIDTH)


@trap("cos and sin change places everywhere: a matter of names", sites=(1,))
class TablesExchanged(Preamble):
    def rotate(self, which: str, x: str) -> str:
        return self.spec.how_rotated.build(self.g, x, self.sin, self.cos, WIDTH)


@trap("the tables carry a factor, as YaRN's do", sites=(1,))
class ScaledTables(Preamble):
    def angles(self) -> tuple[str, str]:
        cos, sin = super().angles()
        return self.g.op("Mul", cos, self.g.scalar(1.05)), self.g.op("Mul", sin, self.g.scalar(1.05))


@trap("the tables of the queries alone carry a factor", "one cos")
class ScaledQueryTables(Preamble):
    def rotate(self, which: str, x: str) -> str:
        if which == "k":
            return super().rotate(which, x)
        cos, sin = (self.g.op("Mul", table, self.g.scalar(1.05)) for table in (self.cos, self.sin))
        return self.spec.how_rotated.build(self.g, x, cos, sin, WIDTH)


@trap("queries are scaled between norm and rotation", "rotat", "row")
class QueriesScaledBetween(Preamble):
    def normalise(self, which: str, x: str, p: Parameters) -> str:
        y = super().normalise(which, x, p)
        by_head = np.linspace(0.5, 1, 4, dtype=np.float32).reshape(4, 1, 1)
        return self.g.op("Mul", y, self.g.const(by_head)) if which == "q" else y


@trap("queries are scaled behind the rotation: their reader does that", sites=(1,))
class QueriesScaledBehind(Preamble):
    def delivered(self, q: str) -> str:
        return super().delivered(self.g.op("Mul", q, self.g.scalar(0.125)))


@trap("keys are scaled behind the rotation")
class KeysScaledBehind(Preamble):
    def rotate(self, which: str, x: str) -> str:
        y = super().rotate(which, x)
        return self.g.op("Mul", y, self.g.scalar(0.125)) if which == "k" else y
