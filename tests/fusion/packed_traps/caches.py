"""Near misses in slots, caches, their readers and types."""

from __future__ import annotations

import numpy as np
import onnx

from tests.fusion.packed_traps.registry import Own, trap
from tests.fusion.zoo.packed import BLOCK, LENGTH, PackedPreamble, by_token, contiguous_pairs
from tests.fusion.zoo.writes import Sizes


@trap("kv-slots-differ")
class OtherSlotsForValues(PackedPreamble):
    def inputs(self) -> None:
        super().inputs()
        self.g.input("slots2", "int64", ["B"])

    def write(self, cache: str, rows: str) -> str:

        sizes = Sizes(self.spec.heads, self.spec.columns, BLOCK, 32)
        return contiguous_pairs(self.g, cache, rows, "slots" if cache == "k_cache" else "slots2", sizes)


@trap("kv-slots-differ")
class ValuesOneRowLater(PackedPreamble):
    def write(self, cache: str, rows: str) -> str:

        sizes = Sizes(self.spec.heads, self.spec.columns, BLOCK, 32)
        slots = "slots" if cache == "k_cache" else self.g.op("Add", "slots", self.g.const(1, "int64"))
        return contiguous_pairs(self.g, cache, rows, slots, sizes)


@trap("alias-second-reader")
class OldCacheRead(PackedPreamble):
    def finish(self) -> None:
        self.g.output(self.g.op("Abs", "k_cache"), "seen", "int8", self.cache_shape())


@trap("alias-second-reader")
class HalfWrittenCacheRead(PackedPreamble):
    def write(self, cache: str, rows: str) -> str:
        out = super().write(cache, rows)
        if cache == "v_cache":
            self.half = out
            out = self.g.reshape(out, -1, LENGTH, self.spec.heads, self.spec.columns)
        return out

    def finish(self) -> None:
        self.g.output(self.g.op("Abs", self.half), "seen", "int8", self.cache_shape())


@trap("inner-value-read")
class QuantisedRowsRead(PackedPreamble):
    def quantise(self, which: str, rows: str) -> str:
        self.kept = super().quantise(which, rows)
        return self.kept

    def finish(self) -> None:
        self.g.output(self.g.op("Abs", self.kept), "seen", "int8", [None, None, None, None])


@trap("inner-value-read")
class ProductsOfRotationRead(PackedPreamble):
    def finish(self) -> None:
        product = next(node for node in self.g.nodes if node.op_type == "Mul" and node.input[1] == "cos")
        self.g.output(self.g.op("Abs", product.output[0]), "seen", self.spec.dtype, [None, None, None, None])


@trap("kv-layout", write="contiguous_pairs")
class HeadsBeforeTokens(PackedPreamble):
    """Caches ``[C, N, M, D]`` of two heads."""

    def cache_shape(self) -> list[int | str | None]:
        return ["C", self.spec.heads, LENGTH, self.spec.columns]

    def write(self, cache: str, rows: str) -> str:

        g = self.g
        inner = g.transpose(cache, 0, 2, 1, 3)
        sizes = Sizes(self.spec.heads, self.spec.columns, BLOCK, 32)
        return g.transpose(contiguous_pairs(g, inner, rows, "slots", sizes), 0, 2, 1, 3)


@trap("slots-negative", write="flat_scatter_nd")
class PaddingIsSkipped(PackedPreamble):
    """Slot -1 hits a spare row: such slots are meant to come, and the operator refuses them."""

    def write(self, cache: str, rows: str) -> str:
        g, n, d = self.g, self.spec.heads, self.spec.columns
        flat = g.reshape(cache, -1, n, d)
        spare = g.op("Concat", flat, g.const(np.zeros((1, n, d)), "int8"), axis=0)
        x = g.reshape(by_token(g, rows), -1, n, d)
        written = g.op("ScatterND", spare, g.unsqueeze("slots", -1), x)
        return g.reshape(g.slice(written, 0, -1, 0), -1, BLOCK, n, d)


@trap("kv-heads")
class ValuesNarrower(PackedPreamble):
    """Value heads of 8 columns, keys of 16."""

    def heads(self) -> list[str]:
        q, k, v = super().heads()
        return [q, k, self.g.slice(v, 0, 8, -1)]

    def model(self) -> onnx.ModelProto:
        self.p["scale_v"], self.p["offset_v"] = self.p["scale_v"][:, :8], self.p["offset_v"][:, :8]
        model = super().model()
        for entry in (*model.graph.input, *model.graph.output):
            if entry.name.startswith("v_cache"):
                entry.type.tensor_type.shape.dim[3].dim_value = 8
        return model


@trap("x-sources")
class ValuesFromAnotherInput(PackedPreamble):
    def inputs(self) -> None:
        super().inputs()
        self.g.input("other", self.spec.dtype, ["B", self.spec.heads, "S", self.spec.columns])

    def quantise(self, which: str, rows: str) -> str:
        return super().quantise(which, rows if which == "k" else "other")


@trap("mixed-types", rows="float", dtype="float16")
class ValuesNotRounded(PackedPreamble):
    """x is float32; queries and keys are rounded to float16 before they are rotated, values are not."""

    def model(self) -> onnx.ModelProto:
        model = super().model()
        for entry in model.graph.input:
            if entry.name == "x":
                entry.type.tensor_type.elem_type = onnx.TensorProto.FLOAT
        return model

    def rotate(self, x: str) -> str:
        return super().rotate(self.g.cast(x, "float16"))


@trap("quant-form")
class UnsignedCaches(Own):
    """uint8 with a zero point of 128."""

    def model(self) -> onnx.ModelProto:
        model = super().model()
        for entry in (*model.graph.input, *model.graph.output):
            if "cache" in entry.name:
                entry.type.tensor_type.elem_type = onnx.TensorProto.UINT8
        return model

    def quantise(self, which: str, rows: str) -> str:
        return self.g.op("QuantizeLinear", rows, self.g.scalar(0.05), self.g.const(np.array(128, np.uint8)))


@trap("alias-second-reader")
class OldCacheIsAnOutput(PackedPreamble):
    def finish(self) -> None:
        self.g.output("v_cache", "seen", "int8", self.cache_shape())


@trap("")
class AddedToTheCache(PackedPreamble):
    """The write adds to what is there."""

    def model(self) -> onnx.ModelProto:
        model = super().model()
        for node in model.graph.node:
            if node.op_type == "ScatterND":
                node.attribute.append(onnx.helper.make_attribute("reduction", "add"))
        return model
