"""Near misses of QkvRmsNormRopeCache: preambles with one part done differently."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from tests.fusion.qkv.spec import WIDTH, Parameters, Spec, legal
from tests.fusion.qkv.spellings import Preamble
from tests.fusion.zoo.graph import Array


@dataclass(frozen=True)
class Trap:
    """One near miss.

    Attributes:
        preamble, spec: what builds it, and the preamble that it nearly is.
        text: what is different.
        words: one of them must occur in a refusal of the operator; empty where none is needed.
        sites: numbers of fused nodes that are right: 0 where the operator cannot say what the graph says.
    """

    preamble: type[Preamble]
    spec: Spec
    text: str
    words: tuple[str, ...]
    sites: tuple[int, ...]


TRAPS: dict[str, Trap] = {}


def trap(
    text: str, *words: str, sites: tuple[int, ...] = (0,), **choices: Any
) -> Callable[[type[Preamble]], type[Preamble]]:
    def enter(preamble: type[Preamble]) -> type[Preamble]:
        spec = Spec(**choices)
        assert legal(spec) and preamble.__name__ not in TRAPS
        TRAPS[preamble.__name__] = Trap(preamble, spec, text, words, sites)
        return preamble

    return enter


# norms ----------------------------------------------------------------------------------------------------------------


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


# rotation -------------------------------------------------------------------------------------------------------------


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


# rows -----------------------------------------------------------------------------------------------------------------


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


# caches ---------------------------------------------------------------------------------------------------------------


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


# quantisation ---------------------------------------------------------------------------------------------------------


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


# whole ----------------------------------------------------------------------------------------------------------------


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
