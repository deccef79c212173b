"""Nearly a write that the operator can do."""

from __future__ import annotations

import numpy as np
import onnx

from tests.fusion.traps.base import trap
from tests.fusion.zoo.graph import END
from tests.fusion.zoo.spellings import Preamble
from tests.fusion.zoo.writes import Sizes, pairs, tokens

SLOTS = ("slot", "index")
WRITE = ("write-", "in place", "address", "layout", "row-order", "another order")


class OwnWrite(Preamble):
    """A paged write: ``ScatterND(flat cache, slots, rows)``, whose parts a trap changes."""

    attributes: dict[str, str]

    def rows(self, which: str, rows: str, n: Sizes) -> str:
        return tokens(self.g, rows, n)

    def scatter(self, flat: str, index: str, rows: str) -> str:
        return self.g.op("ScatterND", flat, index, rows)

    def write(self, which: str, cache: str, rows: str) -> str:
        g, n = self.g, self.spec.cache_sizes(which)
        flat = g.reshape(cache, -1, n.heads, n.columns)
        written = self.scatter(flat, g.unsqueeze(self.slots(which), -1), self.rows(which, rows, n))
        return g.reshape(written, -1, n.block, n.heads, n.columns)


@trap("the two caches have slots of their own", *SLOTS)
class TwoSlotInputs(OwnWrite):
    def inputs(self) -> None:
        super().inputs()
        self.g.input("slots_v", "int64", ["T"])

    def slots(self, which: str) -> str:
        return "slots" if which == "k" else "slots_v"


@trap("the ckv cache is written one slot further (wrapping around)", *SLOTS)
class OneSlotFurther(OwnWrite):
    def slots(self, which: str) -> str:
        if which == "k":
            return "slots"
        moved = self.g.op("Add", "slots", self.g.const(1, "int64"))
        return self.g.op("Mod", moved, self.g.const(20, "int64"))


@trap("the ckv cache takes the slots in reverse order", *SLOTS)
class SlotsReversed(OwnWrite):
    def slots(self, which: str) -> str:
        g = self.g
        return "slots" if which == "k" else g.op("Slice", "slots", g.ints(-1), g.ints(-END), g.ints(0), g.ints(-1))


@trap("key rows are rolled by one token", "token", "row", "order", *SLOTS)
class RowsRolled(OwnWrite):
    def rows(self, which: str, rows: str, n: Sizes) -> str:
        flat = super().rows(which, rows, n)
        if which == "v":
            return flat
        return self.g.op("Concat", self.g.slice(flat, 1, END, 0), self.g.slice(flat, 0, 1, 0), axis=0)


@trap("both rows are rolled by one token: one slot map would fit, with the slots rolled too", *WRITE, sites=(0, 1))
class BothRowsRolled(OwnWrite):
    def rows(self, which: str, rows: str, n: Sizes) -> str:
        flat = super().rows(which, rows, n)
        return self.g.op("Concat", self.g.slice(flat, 1, END, 0), self.g.slice(flat, 0, 1, 0), axis=0)


@trap("tokens are written in the order (token, batch)", "token", "row", "order", *SLOTS)
class TokensBeforeBatches(OwnWrite):
    def rows(self, which: str, rows: str, n: Sizes) -> str:
        return self.g.reshape(self.g.transpose(rows, 2, 0, 1, 3), -1, n.heads, n.columns)


@trap("the heads are swapped before the write", "head", form="v2")
class HeadsSwapped(OwnWrite):
    def rows(self, which: str, rows: str, n: Sizes) -> str:
        flat = super().rows(which, rows, n)
        return self.g.op("Gather", flat, self.g.ints(1, 0), axis=1) if which == "k" else flat


@trap("every token gets the row of the first one", "token", "row", *WRITE)
class FirstRowForAll(OwnWrite):
    def rows(self, which: str, rows: str, n: Sizes) -> str:
        g = self.g
        first = g.slice(super().rows(which, rows, n), 0, 1, 0)
        return g.op("Expand", first, g.shape(("slots", 0), n.heads, n.columns))


@trap("the left half of the columns is written, the right half keeps the old values", "column", *WRITE)
class HalfOfTheColumns(OwnWrite):
    def write(self, which: str, cache: str, rows: str) -> str:
        g, n = self.g, self.spec.cache_sizes(which)
        old = g.slice(cache, n.columns // 2, END, 3)
        return g.op("Concat", g.slice(super().write(which, cache, rows), 0, n.columns // 2, 3), old, axis=3)


@trap("the columns are reversed before the write", "column", "order", "rotat", *WRITE)
class ColumnsReversed(OwnWrite):
    def rows(self, which: str, rows: str, n: Sizes) -> str:
        order = self.g.ints(*reversed(range(n.columns)))
        return self.g.op("Gather", super().rows(which, rows, n), order, axis=2)


@trap("reduction=add: the rows are added to what is there", "reduction", "add", *WRITE)
class Accumulates(OwnWrite):
    def scatter(self, flat: str, index: str, rows: str) -> str:
        return self.g.op("ScatterND", flat, index, rows, reduction="add")


@trap("the old row is averaged into the new one", *WRITE)
class Blends(OwnWrite):
    def scatter(self, flat: str, index: str, rows: str) -> str:
        g = self.g
        old = g.op("GatherND", flat, index)
        blended = g.op("Mul", g.op("Add", rows, old), g.scalar(0.5))
        return super().scatter(flat, index, blended)


@trap("page and row by different block sizes", "block", *SLOTS, *WRITE)
class TwoBlockSizes(OwnWrite):
    def write(self, which: str, cache: str, rows: str) -> str:
        g, n = self.g, self.spec.cache_sizes(which)
        page = g.op("Div", "slots", g.const(n.block, "int64"))
        row = g.op("Mod", "slots", g.const(n.block - 1, "int64"))
        return g.op("ScatterND", cache, pairs(g, page, row), tokens(g, rows, n))


@trap("rows inside a page in reverse order", *SLOTS, *WRITE)
class RowsOfAPageReversed(OwnWrite):
    def write(self, which: str, cache: str, rows: str) -> str:
        g, n = self.g, self.spec.cache_sizes(which)
        block = g.const(n.block, "int64")
        row = g.op("Sub", g.const(n.block - 1, "int64"), g.op("Mod", "slots", block))
        return g.op("ScatterND", cache, pairs(g, g.op("Div", "slots", block), row), tokens(g, rows, n))


@trap("the caches come back with pages and rows exchanged", "moved", *WRITE)
class ReturnedTransposed(OwnWrite):
    def write(self, which: str, cache: str, rows: str) -> str:
        return self.g.transpose(super().write(which, cache, rows), 1, 0, 2, 3)

    def finish(self) -> None:
        for entry in self.g.outputs:
            dims = entry.type.tensor_type.shape.dim
            if len(dims) == 4:
                dims[0].dim_value, dims[1].dim_value = dims[1].dim_value, dims[0].dim_value


@trap("the cache grows by the new rows", "grow", "concat", "in place", "preallocated", write="index_copy")
class Grows(OwnWrite):
    def write(self, which: str, cache: str, rows: str) -> str:
        return self.g.op("Concat", cache, rows, axis=2)

    def finish(self) -> None:
        for entry in self.g.outputs:
            entry.type.tensor_type.shape.dim[2].ClearField("dim_value")


@trap("the caches move on by the new rows: the oldest fall out", *WRITE, write="index_copy")
class Slides(OwnWrite):
    def write(self, which: str, cache: str, rows: str) -> str:
        both = self.g.op("Concat", cache, rows, axis=2)
        return self.g.slice(both, -self.length, END, 2)

    length = 13


@trap("other rows are written over it afterwards; the first write may still be fused", *WRITE, "values", sites=(0, 1))
class WrittenTwice(OwnWrite):
    def write(self, which: str, cache: str, rows: str) -> str:
        g, n = self.g, self.spec.cache_sizes(which)
        written = super().write(which, cache, rows)
        zeros = g.const(np.zeros((1, n.heads, n.columns), np.float32))
        return g.op("ScatterND", written, g.const(np.array([[0, 0]], np.int64)), zeros)


@trap("every row is written to its slot and to the one after it", "duplicate", *SLOTS, *WRITE)
class WrittenToTwoSlots(OwnWrite):
    def scatter(self, flat: str, index: str, rows: str) -> str:
        g = self.g
        last = g.const(19, "int64")
        second = g.op("Min", g.op("Add", index, g.const(1, "int64")), last)
        return super().scatter(super().scatter(flat, second, rows), index, rows)


@trap("the first token is not written; a fuser may cut it off in front", *WRITE, *SLOTS, sites=(0, 1))
class FirstTokenLeftOut(OwnWrite):
    def slots(self, which: str) -> str:
        return self.g.slice("slots", 1, END, 0)

    def rows(self, which: str, rows: str, n: Sizes) -> str:
        return self.g.slice(super().rows(which, rows, n), 1, END, 0)


@trap("slots below zero are written to slot 0: the computed slot is what counts", *SLOTS, sites=(0, 1), same=True)
class ClampedSlots(OwnWrite):
    def slots(self, which: str) -> str:
        return self.g.op("Max", "slots", self.g.const(0, "int64"))


@trap("slots below zero write zeros to slot 0", *SLOTS, sites=(0, 1), same=True, assumes="slot")
class NegativeSlotsWriteZeros(OwnWrite):
    def slots(self, which: str) -> str:
        return self.g.op("Max", "slots", self.g.const(0, "int64"))

    def rows(self, which: str, rows: str, n: Sizes) -> str:
        g = self.g
        valid = g.unsqueeze(g.cast(g.op("Less", g.const(-1, "int64"), "slots"), self.spec.dtype), 1, 2)
        return g.op("Mul", super().rows(which, rows, n), valid)


@trap("slots below zero keep the old row: the operator skips them as well", *SLOTS, sites=(0, 1), same=True, opset=16)
class NegativeSlotsSkip(OwnWrite):
    def slots(self, which: str) -> str:
        return self.g.op("Max", "slots", self.g.const(0, "int64"))

    def scatter(self, flat: str, index: str, rows: str) -> str:
        g = self.g
        skip = g.unsqueeze(g.op("Less", "slots", g.const(0, "int64")), 1, 2)
        return super().scatter(flat, index, g.op("Where", skip, g.op("GatherND", flat, index), rows))


@trap("float32 NZ caches with fractals of 16 columns: the operator has 8", "nz", *WRITE, write="nz_permuted")
class WideFractals(Preamble):
    fractal = 16

    def write(self, which: str, cache: str, rows: str) -> str:
        n = self.spec.cache_sizes(which)
        wide = Sizes(n.heads, n.columns, n.block, self.fractal)
        fractals = n.heads * n.columns // self.fractal
        view = self.g.reshape(cache, -1, fractals, n.block, self.fractal)
        written = self.spec.how_written.build(self.g, view, rows, "slots", wide)
        return self.g.op("Reshape", written, self.g.op("Shape", cache))


@trap("one cache holds float16, the rows are float32", "dtype", "type", same=True)
class CacheOfAnotherType(OwnWrite):
    def inputs(self) -> None:
        super().inputs()
        for entry in self.g.inputs:
            if entry.name.startswith("ckv_cache"):
                entry.type.tensor_type.elem_type = 10

    def write(self, which: str, cache: str, rows: str) -> str:
        return super().write(which, cache, self.g.cast(rows, "float16") if which == "v" else rows)

    def finish(self) -> None:
        for entry in self.g.outputs:
            if entry.name.startswith("ckv_cache"):
                entry.type.tensor_type.elem_type = 10


@trap("contiguous caches of different lengths", "length", "scache", "kv-14", *WRITE, write="index_copy", same=True)
class TwoLengths(Preamble):
    def inputs(self) -> None:
        super().inputs()
        self._lengthen(self.g.inputs)

    def finish(self) -> None:
        self._lengthen(self.g.outputs)

    @staticmethod
    def _lengthen(entries: list[onnx.ValueInfoProto]) -> None:
        for entry in entries:
            if entry.name.startswith("ckv_cache"):
                entry.type.tensor_type.shape.dim[2].dim_value = 17


@trap("paged caches of different numbers of pages", "page", "block_num", "kv-15", *WRITE, same=True)
class TwoPageCounts(Preamble):
    def inputs(self) -> None:
        super().inputs()
        for entry in self.g.inputs:
            if entry.name.startswith("ckv_cache"):
                entry.type.tensor_type.shape.dim[0].dim_value = 7

    def finish(self) -> None:
        for entry in self.g.outputs:
            if entry.name.startswith("ckv_cache"):
                entry.type.tensor_type.shape.dim[0].dim_value = 7
