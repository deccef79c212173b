"""Near misses in what is rotated, and how."""

from __future__ import annotations

from tests.fusion.packed_traps.registry import trap
from tests.fusion.zoo.packed import PackedPreamble
from tests.fusion.zoo.ropes import half_slices, pair, rotate_half


@trap("kv-no-partner")
class ValuesRotatedToo(PackedPreamble):
    def quantise(self, which: str, rows: str) -> str:
        return super().quantise(which, self.rotate(rows) if which == "v" else rows)


@trap("")
class KeysNotRotated(PackedPreamble):
    def rotate_keys(self, x: str) -> str:
        return x


class TwoTables(PackedPreamble):
    def inputs(self) -> None:
        super().inputs()
        for name in ("cos2", "sin2"):
            self.g.input(name, self.spec.dtype, ["B", 1, "S", self.spec.columns])


@trap("rope-tables")
class QueriesByAnotherTable(TwoTables):
    def rotate_queries(self, x: str) -> str:

        return half_slices(self.g, x, "cos2", "sin2", self.spec.columns)


@trap("rope-tables")
class QueriesByAnotherSine(TwoTables):
    def rotate_queries(self, x: str) -> str:

        return half_slices(self.g, x, "cos", "sin2", self.spec.columns)


@trap("rope-sign")
class KeysBackwards(PackedPreamble):
    def rotate_keys(self, x: str) -> str:

        return half_slices(self.g, x, "cos", self.g.op("Neg", "sin"), self.spec.columns)


@trap("query-missing")
class QueriesBackwards(PackedPreamble):
    def rotate_queries(self, x: str) -> str:

        return half_slices(self.g, x, "cos", self.g.op("Neg", "sin"), self.spec.columns)


@trap("query-missing")
class QueriesNotRotated(PackedPreamble):
    def rotate_queries(self, x: str) -> str:
        return x


@trap("query-missing")
class QueriesInterleavedOut(PackedPreamble):
    def rotate_queries(self, x: str) -> str:
        g, d = self.g, self.spec.columns
        halves = [[g.slice(name, *ends, 3) for ends in ((0, d // 2), (d // 2, d))] for name in (x, "cos", "sin")]
        parts = pair(g, halves[0][0], halves[0][1], (halves[1][0], halves[1][1]), (halves[2][0], halves[2][1]))
        stacked = g.op("Concat", *(g.unsqueeze(part, 4) for part in parts), axis=-1)
        return g.reshape(stacked, (x, 0), (x, 1), (x, 2), d)


@trap("")
class PartlyRotated(PackedPreamble):
    """The last quarter of each head passes."""

    def rotate(self, x: str) -> str:

        g, d = self.g, self.spec.columns
        turned, passing = g.split(x, [d - 4, 4])
        tables = [g.slice(name, 0, d - 4, -1) for name in ("cos", "sin")]
        return g.op("Concat", half_slices(g, turned, *tables, d - 4), passing, axis=-1)


@trap("")
class ScaledQueries(PackedPreamble):
    """Queries are scaled between the products and the sum: no rotation of x by itself."""

    def rotate_queries(self, x: str) -> str:
        g, d = self.g, self.spec.columns
        turned = rotate_half(g, x, d)
        products = [g.op("Mul", g.op("Mul", a, b), g.scalar(0.25)) for a, b in ((x, "cos"), (turned, "sin"))]
        return g.op("Add", *products)


@trap("")
class QueriesOfOtherTokens(PackedPreamble):
    """Token t of the queries is token t + 1 of x."""

    def rotate_queries(self, x: str) -> str:
        g = self.g
        rolled = g.op("Concat", g.slice(x, 1, 2**62, 2), g.slice(x, 0, 1, 2), axis=2)
        return self.rotate(rolled)


@trap("row-order")
class KeysOfOtherTokens(PackedPreamble):
    def rotate_keys(self, x: str) -> str:
        g = self.g
        return self.rotate(g.op("Concat", g.slice(x, 1, 2**62, 2), g.slice(x, 0, 1, 2), axis=2))


@trap("")
class HeadsTurnedByTheirOwnAngles(PackedPreamble):
    def inputs(self) -> None:
        super().inputs()
        for name in ("cos_h", "sin_h"):
            self.g.input(name, self.spec.dtype, ["B", self.spec.heads, "S", self.spec.columns])

    def rotate_keys(self, x: str) -> str:

        return half_slices(self.g, x, "cos_h", "sin_h", self.spec.columns)


# -- slots, caches, readers ------------------------------------------------------------------------------------------
