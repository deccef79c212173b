"""Near misses in the norms of queries and keys."""

from __future__ import annotations

import numpy as np

from tests.fusion.qkv.spec import WIDTH, Parameters
from tests.fusion.qkv.spellings import Preamble
from tests.fusion.qkv.traps.registry import trap
from tests.fusion.zoo.graph import Array


@trap("the norms of queries and keys add different numbers", "epsilon")
class EpsilonDiffers(Preamble):
    def epsilon(self, which: str) -> float:
        return 1e-3 if which == "q" else self.spec.eps


@trap("each weight is on the other norm: a matter of names", sites=(1,))
class WeightsExchanged(Preamble):
    def gamma(self, which: str, p: Parameters) -> Array:
        return p.gamma["k" if which == "q" else "q"]


@trap("queries are not normalised")
class QueriesBare(Preamble):
    def normalise(self, which: str, x: str, p: Parameters) -> str:
        return x if which == "q" else super().normalise(which, x, p)


@trap("keys are not normalised")
class KeysBare(Preamble):
    def normalise(self, which: str, x: str, p: Parameters) -> str:
        return x if which == "k" else super().normalise(which, x, p)


@trap("values are normalised as well", "normalised")
class ValuesNormalised(Preamble):
    def values(self, x: str, p: Parameters) -> str:
        return super().normalise("k", super().values(x, p), p)


@trap("the norm of the keys spans all heads", rows="bsnd")
class KeyNormSpansHeads(Preamble):
    which = "k"

    def normalise(self, which: str, x: str, p: Parameters) -> str:
        if which != self.which:
            return super().normalise(which, x, p)
        g, heads = self.g, self.spec.count(which)
        wide = g.reshape(x, 0, 0, heads * WIDTH)
        gamma = np.tile(p.gamma[which], heads)
        mean = g.reduce("ReduceMean", g.op("Mul", wide, wide))
        y = g.op("Div", wide, g.op("Sqrt", g.op("Add", mean, g.scalar(self.spec.eps))))
        return g.reshape(g.op("Mul", y, g.const(gamma)), 0, 0, heads, WIDTH)


@trap("the norm of the queries spans all heads", rows="bsnd")
class QueryNormSpansHeads(KeyNormSpansHeads):
    which = "q"


@trap("queries are rotated first and normalised then")
class QueriesNormalisedLast(Preamble):
    def turned(self, which: str, x: str, p: Parameters) -> str:
        if which == "k":
            return super().turned(which, x, p)
        x = self.g.transpose(x, 0, 2, 1, 3)
        return self.normalise(which, self.rotate(which, x), p)


@trap("the mean of the queries is taken off first: no norm of qkv, though one of a value beside it", sites=(0, 1))
class QueriesCentred(Preamble):
    def normalise(self, which: str, x: str, p: Parameters) -> str:
        if which == "q":
            x = self.g.op("Sub", x, self.g.reduce("ReduceMean", x))
        return super().normalise(which, x, p)


@trap("every query head has a weight of its own")
class WeightByHead(Preamble):
    def normalise(self, which: str, x: str, p: Parameters) -> str:
        if which == "k":
            return super().normalise(which, x, p)
        g = self.g
        mean = g.reduce("ReduceMean", g.op("Mul", x, x))
        y = g.op("Div", x, g.op("Sqrt", g.op("Add", mean, g.scalar(self.spec.eps))))
        by_head = np.linspace(0.5, 1.5, self.spec.count("q") * WIDTH, dtype=np.float32).reshape(-1, 1, WIDTH)
        return g.op("Mul", y, g.const(by_head))


@trap("the normalised queries are a result too", "not read outside")
class NormalisedQueriesRead(Preamble):
    which = "q"
    seen = ""

    def normalise(self, which: str, x: str, p: Parameters) -> str:
        y = super().normalise(which, x, p)
        self.seen = y if which == self.which else self.seen
        return y

    def finish(self) -> None:
        self.g.output(self.g.op("Abs", self.seen), "seen", self.spec.dtype, [None] * 4)


@trap("the normalised keys are a result too", "not read outside")
class NormalisedKeysRead(NormalisedQueriesRead):
    which = "k"
