"""Near misses in what the rows are: their tokens, heads and sources, and whole layers exchanged."""

from __future__ import annotations

import numpy as np

from tests.fusion.qkv.spec import WIDTH, Parameters
from tests.fusion.qkv.spellings import Preamble
from tests.fusion.qkv.traps.registry import trap


class Moved(Preamble):
    """Moves the rows of queries, keys or values ``[B, S, N, D]``."""

    which = "q"

    def moved(self, x: str) -> str:
        g = self.g
        last = g.slice(x, -1, 2**63 - 1, 1)
        return g.op("Concat", last, g.slice(x, 0, -1, 1), axis=1)

    def heads_of(self, p: Parameters) -> tuple[str, str, str]:
        q, k, v = (self.moved(x) if w == self.which else x for w, x in zip("qkv", super().heads_of(p), strict=True))
        return q, k, v


@trap("queries are those of the token before")
class QueriesRolled(Moved):
    pass


@trap("values are those of the token before")
class ValuesRolled(Moved):
    which = "v"


@trap("query heads are in another order: a matter of columns", sites=(0, 1))
class HeadsTurned(Moved):
    def moved(self, x: str) -> str:
        return self.g.op("Gather", x, self.g.ints(3, 2, 1, 0), axis=2)


@trap("query heads differ by token", sites=(0,))
class HeadsOfTokens(Moved):
    def moved(self, x: str) -> str:
        return self.g.reshape(self.g.transpose(x, 0, 2, 1, 3), ("hidden", 0), ("hidden", 1), 4, WIDTH)


@trap("queries come from another value")
class OtherQueries(Preamble):
    def inputs(self) -> None:
        super().inputs()
        self.g.input("other", self.spec.dtype, ["B", "S", 24])

    def heads_of(self, p: Parameters) -> tuple[str, str, str]:
        _, k, v = super().heads_of(p)
        return self.apart(self.project(p.weight["q"], None, "other"), "q"), k, v


@trap("values pass a Relu: another value, joined", sites=(0, 1))
class ValuesCut(Preamble):
    def values(self, x: str, p: Parameters) -> str:
        return self.g.op("Relu", super().values(x, p))


@trap("a second set of queries is made of the same value", sites=(1,))
class MoreQueries(Preamble):
    def turned(self, which: str, x: str, p: Parameters) -> str:
        if which == "q":
            more = self.apart(self.project(p.weight["q"] * np.float32(0.5), None), "q")
            more = self.normalise("k", self.g.transpose(more, 0, 2, 1, 3), p)
            self.more = self.rotate("q", more)
        return super().turned(which, x, p)

    def finish(self) -> None:
        self.g.output(self.more, "more", self.spec.dtype, [None] * 4)


@trap("all of qkv is read elsewhere too", sites=(1,), source="separate")
class ProjectionsRead(Preamble):
    def projected(self, which: str, p: Parameters) -> str:
        y = super().projected(which, p)
        self.seen = y if which == "v" else getattr(self, "seen", "")
        return y

    def finish(self) -> None:
        self.g.output(self.g.op("Abs", self.seen), "seen", self.spec.dtype, [None] * 3)


@trap("one of two layers has different epsilons", "epsilon", sites=(1,), layers=2)
class OneLayerBroken(Preamble):
    def epsilon(self, which: str) -> float:
        return 1e-3 if which == "q" and self.layer == 1 else self.spec.eps


@trap("values of one layer go with keys of the next", sites=(0, 1, 2), layers=2, source="matmul")
class LayersCrossed(Preamble):
    def write(self, which: str, cache: str, rows: str) -> str:
        return super().write(which, cache, rows)

    def heads_of(self, p: Parameters) -> tuple[str, str, str]:
        q, k, v = super().heads_of(p)
        last, self.last = getattr(self, "last", v), v
        return q, k, last
