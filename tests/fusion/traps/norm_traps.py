"""Nearly an RMSNorm."""

from __future__ import annotations

import numpy as np

from tests.fusion.traps.base import trap
from tests.fusion.zoo.graph import END
from tests.fusion.zoo.spec import Parameters
from tests.fusion.zoo.spellings import Preamble

NORM = ("norm", "rms")


class OwnNorm(Preamble):
    """A norm written as ``x * inverse(x) * gamma`` whose parts a trap changes."""

    def mean(self, x: str) -> str:
        return self.g.reduce("ReduceMean", self.g.op("Mul", x, x))

    def epsilon(self) -> str:
        return self.g.scalar(self.spec.eps)

    def root(self, mean: str) -> str:
        return self.g.op("Sqrt", self.g.op("Add", mean, self.epsilon()))

    def gamma(self, p: Parameters) -> str:
        return self.g.const(p.gamma.astype(np.float32))

    def normalise(self, x: str, p: Parameters) -> str:
        g = self.g
        xf = g.up(x)
        y = g.op("Div", xf, self.root(self.mean(xf)))
        return g.down(g.op("Mul", y, self.gamma(p)))


@trap("epsilon is added to the root, not under it", *NORM, eps=1e-2)
class EpsilonOutside(OwnNorm):
    def root(self, mean: str) -> str:
        return self.g.op("Add", self.g.op("Sqrt", mean), self.epsilon())


@trap("the sum of squares is divided by n - 1", *NORM)
class WrongCount(OwnNorm):
    def mean(self, x: str) -> str:
        total = self.g.reduce("ReduceSum", self.g.op("Mul", x, x))
        return self.g.op("Div", total, self.g.scalar(float(self.spec.normalised - 1)))


@trap("the mean is taken off first: no norm of kv, though one of a value that may be put in front", *NORM, sites=(0, 1))
class MeanCentred(OwnNorm):
    def normalise(self, x: str, p: Parameters) -> str:
        centred = self.g.op("Sub", x, self.g.reduce("ReduceMean", x))
        return super().normalise(centred, p)


@trap("a variance (mean-centred), but x itself is divided", *NORM)
class VarianceOnly(OwnNorm):
    def mean(self, x: str) -> str:
        return super().mean(self.g.op("Sub", x, self.g.reduce("ReduceMean", x)))


@trap("no square root", *NORM)
class NoRoot(OwnNorm):
    def root(self, mean: str) -> str:
        return self.g.op("Add", mean, self.epsilon())


@trap("the mean goes over the tokens, not over the last axis", *NORM)
class AxisNotLast(OwnNorm):
    def mean(self, x: str) -> str:
        return self.g.reduce("ReduceMean", self.g.op("Mul", x, x), 2)


@trap("the mean of absolute values instead of squares", *NORM)
class MeanOfAbsolutes(OwnNorm):
    def mean(self, x: str) -> str:
        size = self.g.reduce("ReduceMean", self.g.op("Abs", x))
        return self.g.op("Mul", size, size)


@trap("the largest square instead of the mean", *NORM)
class MaximumOfSquares(OwnNorm):
    def mean(self, x: str) -> str:
        return self.g.reduce("ReduceMax", self.g.op("Mul", x, x))


@trap("the mean of another tensor's squares: of all 96 columns of kv", *NORM)
class MeanOfOther(OwnNorm):
    def mean(self, x: str) -> str:
        return super().mean("kv")


@trap("the norm spans all columns of kv, those that are rotated as well", "norm", "column", "rms", "kv")
class NormOfEverything(OwnNorm):
    def one_layer(self, p: Parameters) -> tuple[str, str, str, str]:
        gamma = np.concatenate([p.gamma, np.linspace(0.5, 1.5, self.spec.key_columns)]).astype(np.float32)
        y = self.g.op("Mul", self.g.op("Div", "kv", self.root(self.mean("kv"))), self.g.const(gamma))
        left, right = self.divide(y)
        k_rope = self.rotate(right)
        written = [self.write(which, self.cache(which), rows) for which, rows in (("k", k_rope), ("v", left))]
        return written[0], written[1], k_rope, left


@trap("a bias is added after gamma", *NORM)
class BiasAfter(OwnNorm):
    def normalise(self, x: str, p: Parameters) -> str:
        beta = np.linspace(-1, 1, self.spec.normalised).astype(np.float32)
        return self.g.op("Add", super().normalise(x, p), self.g.const(beta))


@trap("gamma is 1 + w with w from the graph's input, one value a token", *NORM)
class GammaPerToken(OwnNorm):
    def inputs(self) -> None:
        super().inputs()
        self.g.input("w", "float32", ["B", 1, "S", self.spec.normalised])

    def gamma(self, p: Parameters) -> str:
        return self.g.op("Add", self.g.scalar(1.0), "w")


@trap("gamma is 1 + w with w from the graph's input: no constant, yet the operator may be fed it", *NORM, sites=(0, 1))
class GammaFromInput(OwnNorm):
    def inputs(self) -> None:
        super().inputs()
        self.g.input("w", "float32", [self.spec.normalised])

    def gamma(self, p: Parameters) -> str:
        return self.g.op("Add", self.g.scalar(1.0), "w")


@trap("epsilon is a graph input", *NORM, "epsilon")
class EpsilonFromInput(OwnNorm):
    def inputs(self) -> None:
        super().inputs()
        self.g.input("eps_in", "float32", [])

    def epsilon(self) -> str:
        return self.g.op("Mul", "eps_in", self.g.scalar(0.5))


@trap("epsilon differs from column to column", *NORM, "epsilon")
class EpsilonPerColumn(OwnNorm):
    def epsilon(self) -> str:
        return self.g.const(np.linspace(1e-5, 1.0, self.spec.normalised).astype(np.float32))


@trap("gamma is float32 with digits that float16 has not, x is float16", "gamma", "dtype", dtype="float16", same=True)
class GammaOfAnotherType(OwnNorm):
    def gamma(self, p: Parameters) -> str:
        return self.g.const(p.gamma.astype(np.float32) * np.float32(1.0001))


@trap("everything is twice as large; the factor may go into gamma or stop the fusion", *NORM, sites=(0, 1))
class TwiceAsLarge(OwnNorm):
    def normalise(self, x: str, p: Parameters) -> str:
        return self.g.op("Mul", super().normalise(x, p), self.g.scalar(2.0))


@trap("normalised twice; the inner one may stay in front", *NORM, sites=(0, 1))
class NormalisedTwice(OwnNorm):
    def normalise(self, x: str, p: Parameters) -> str:
        return super().normalise(super().normalise(x, p), p)


@trap("norms of the two halves of the 64 columns, each with its own mean", *NORM)
class NormInGroups(OwnNorm):
    def normalise(self, x: str, p: Parameters) -> str:
        g, half = self.g, self.spec.normalised // 2
        parts = (g.slice(x, 0, half, 3), g.slice(x, half, END, 3))
        ys = [g.op("Div", part, self.root(self.mean(part))) for part in parts]
        return g.op("Mul", g.op("Concat", *ys, axis=3), self.gamma(p))


@trap("no norm at all: the latent is cached as it is", *NORM)
class NoNorm(OwnNorm):
    def normalise(self, x: str, p: Parameters) -> str:
        return self.g.op("Mul", x, self.gamma(p))
