"""The graph, one method a part: a trap is a subclass with one part done wrongly."""

from __future__ import annotations

from itertools import pairwise

import numpy as np
import onnx

from tests.fusion.zoo.graph import Array, Graph
from tests.fusion.zoo.packed.spec import BLOCK, HIDDEN, LENGTH, Packed, parameters
from tests.fusion.zoo.packed.writes import TOKEN_WRITES, TokenWrite, by_token
from tests.fusion.zoo.quants import QUANTS
from tests.fusion.zoo.ropes import ROPES
from tests.fusion.zoo.writes import Sizes


class PackedPreamble:
    """Writes the graph of one :class:`Packed`, part by part."""

    def __init__(self, spec: Packed) -> None:
        self.spec, self.p = spec, parameters(spec)
        self.g = Graph(spec.opset, spec.dtype, spec.style)

    def model(self) -> onnx.ModelProto:
        spec, g = self.spec, self.g
        self.inputs()
        q, k, v = self.heads()
        q, k = self.rotate_queries(q), self.rotate_keys(k)
        stored = [self.quantise(which, rows) for which, rows in (("k", k), ("v", v))]
        out = [self.write(f"{which}_cache", rows) for which, rows in zip("kv", stored, strict=True)]
        g.output(q, "q", spec.dtype, [None, None, None, spec.columns])
        if spec.outs:
            for name, rows in (("k", k), ("v", v)):
                g.output(rows, name, spec.dtype, [None, None, None, spec.columns])
        for name, value in zip(("k_cache_out", "v_cache_out"), out, strict=True):
            g.output(value, name, "int8", self.cache_shape())
        self.finish()
        return g.model("packed")

    def finish(self) -> None:
        """Something a trap adds at the end."""

    # -- the interface -----------------------------------------------------------------------------------------------

    @property
    def how_written(self) -> TokenWrite:
        return TOKEN_WRITES[self.spec.write]

    def cache_shape(self) -> list[int | str | None]:
        n, d = self.spec.heads, self.spec.columns
        return {"page": ["P", BLOCK, n, d], "flat": ["P", n, d], "bmnd": ["C", LENGTH, n, d],
                "batch": ["B", n, LENGTH, d], "bmd": ["B", LENGTH, d]}[self.how_written.cache]  # fmt: skip

    def inputs(self) -> None:
        spec, g = self.spec, self.g
        lead: list[int | str | None] = ["B", "S"] if spec.rank == 3 else ["B"]
        if spec.rows in ("float", "sums"):
            g.input("x", spec.dtype if spec.rows == "float" else "int32", [*lead, spec.width])
        else:
            g.input("hidden", spec.dtype, ["B", "S", HIDDEN])
        if spec.rows == "sums" and spec.activation != "none":
            g.input("activation", "float32", ["T"] if spec.activation == "tokens" else [1])
        width = spec.columns // 2 if ROPES[spec.rope].width == "half" else spec.columns
        for name in ("cos", "sin"):
            tokens = [1, "S"] if spec.layout == "heads" else ["S", 1]
            g.input(name, spec.dtype, ["B", *(tokens if spec.rank == 3 else [1, 1]), width])
        slots = {"tokens": ["T"], "shared": ["S"], "start": ["B"], "rows": ["B", "S"]}[self.how_written.slots]
        g.input("slots", "int64", list(slots))
        for name in ("k_cache", "v_cache"):
            g.input(name, "int8", self.cache_shape())

    # -- the rows ----------------------------------------------------------------------------------------------------

    def heads(self) -> list[str]:
        """Query, key and value heads in the layout of the rotation."""
        parts = self.separate() if "separate" in self.spec.rows else self.split(self.joined())
        return [self.viewed(part, size // self.spec.columns) for part, size in zip(parts, self.spec.sizes, strict=True)]

    def viewed(self, rows: str, count: int) -> str:
        """``[B, S, n*D]`` as heads."""
        g, spec = self.g, self.spec
        if spec.split == "heads" and "separate" not in spec.rows:
            return rows if spec.layout == "tokens" else by_token(g, rows)
        view = g.reshape(rows, (rows, 0), (rows, 1), count, spec.columns) if spec.rank == 3 else g.reshape(
            rows, (rows, 0), 1, count, spec.columns)  # fmt: skip
        return view if spec.layout == "tokens" else by_token(g, view)

    def joined(self) -> str:
        g, spec = self.g, self.spec
        if spec.rows == "float":
            return "x"
        if spec.rows == "sums":
            return g.down(self.dequantised("x"))
        return self.projected(slice(0, spec.width), spec.rows.endswith("bias"))

    def separate(self) -> list[str]:
        stops = np.cumsum([0, *self.spec.sizes])
        return [self.projected(slice(a, b), self.spec.rows.endswith("bias"))
                for a, b in pairwise(stops)]  # fmt: skip

    def projected(self, columns: slice, bias: bool) -> str:
        g, p = self.g, self.p
        if self.spec.rows.startswith("integer"):
            rows = self.integer_product(p["weight"][:, columns], p["weight_step"][columns])
        else:
            weight = p["weight"][:, columns] * p["weight_step"][columns]
            rows = g.op("MatMul", "hidden", g.const(weight, self.spec.dtype))
        return g.op("Add", rows, g.const(p["bias"][columns], self.spec.dtype)) if bias else rows

    def integer_product(self, weight: Array, step: Array) -> str:
        """As quantize_dynamic writes it; one DynamicQuantizeLinear serves all products."""
        g = self.g
        if not hasattr(self, "dynamic"):
            self.dynamic = g.many("DynamicQuantizeLinear", g.up("hidden"), count=3)
        x, scale, zero = self.dynamic
        sums = g.op("MatMulInteger", x, g.const(weight), zero, g.const(np.zeros(weight.shape[1]), "int8"))
        both = g.op("Mul", scale, g.const(step))
        return g.down(g.op("Mul", g.cast(sums, "float32"), both))

    def per_token(self, activation: str) -> str:
        g, spec = self.g, self.spec
        if spec.activation == "number":
            return activation
        return g.reshape(activation, ("x", 0), ("x", 1), 1) if spec.rank == 3 else g.reshape(activation, -1, 1)

    def dequantised(self, x: str) -> str:
        g, spec, p = self.g, self.spec, self.p
        weight, activation = p["weight_scale"], "" if spec.activation == "none" else self.per_token("activation")
        if spec.bias == "int32":
            x = g.op("Add", x, g.const(p["bias"]))
        if spec.dequant == "linear":
            rows = g.op("DequantizeLinear", x, g.const(weight), axis=spec.rank - 1)
        elif spec.dequant == "factors_first" and activation:
            both = g.op("Mul", activation, g.const(weight))
            rows, activation = g.op("Mul", both, g.cast(x, "float32")), ""
        elif spec.dequant == "tokens_first" and activation:
            rows = g.op("Mul", g.op("Mul", g.cast(x, "float32"), activation), g.const(weight))
            activation = ""
        elif spec.dequant == "divided":
            rows = g.op("Div", g.cast(x, "float32"), g.const(1 / weight))
        elif spec.dequant == "heads_first":
            count = spec.width // spec.columns
            rows = g.op("Mul", g.reshape(g.cast(x, "float32"), -1, count, spec.columns),
                        g.const(weight.reshape(count, spec.columns)))  # fmt: skip
            rows = g.reshape(rows, *((x, axis) for axis in range(spec.rank - 1)), spec.width)
        elif spec.dequant == "scale_by_number":
            rows = g.op("Mul", g.op("Mul", g.cast(x, "float32"), g.scalar(0.5)), g.const(weight * 2))
        else:
            rows = g.op("Mul", g.cast(x, "float32"), g.const(weight))
        if activation:
            rows = g.op("Mul", rows, activation)
        if spec.bias in ("float32", "float16"):
            bias = g.const(p["bias"])
            rows = g.op("Add", rows, bias if spec.bias == "float32" else g.cast(bias, "float32"))
        return rows

    def split(self, rows: str) -> list[str]:
        g, spec, sizes = self.g, self.spec, self.spec.sizes
        stops = [0, *np.cumsum(sizes).tolist()]
        if spec.split == "slices":
            return [g.slice(rows, a, b, -1) for a, b in pairwise(stops)]
        if spec.split == "gather":
            return [g.op("Gather", rows, g.ints(*range(a, b)), axis=-1)
                    for a, b in pairwise(stops)]  # fmt: skip
        if spec.split == "strided":
            first, rest = g.split(rows, [sizes[0], 2 * sizes[1]])
            return [first, *g.split(rest, [sizes[1], sizes[2]])]
        if spec.split == "heads":
            count = spec.width // spec.columns
            lead = [(rows, 0), (rows, 1)] if spec.rank == 3 else [(rows, 0), 1]
            view = g.reshape(rows, *lead, count, spec.columns)
            return g.split(view, [size // spec.columns for size in sizes], 2)
        return g.split(rows, sizes)

    # -- rotation, quantisation, write -------------------------------------------------------------------------------

    def rotate_queries(self, x: str) -> str:
        return self.rotate(x)

    def rotate_keys(self, x: str) -> str:
        return self.rotate(x)

    def rotate(self, x: str) -> str:
        return ROPES[self.spec.rope].build(self.g, x, "cos", "sin", self.spec.columns)

    def quantise(self, which: str, rows: str) -> str:
        """To int8; scales of ``[N, D]`` stand beside the heads."""
        scale, offset = self.p[f"scale_{which}"], self.p.get(f"offset_{which}")
        if scale.ndim == 2 and self.spec.layout == "heads":
            scale, offset = (None if item is None else item[:, None, :] for item in (scale, offset))
        return QUANTS[self.spec.quant].build(self.g, rows, scale, offset)

    def write(self, cache: str, rows: str) -> str:
        spec, g = self.spec, self.g
        if spec.layout == "tokens":
            rows = by_token(g, rows)
        sizes = Sizes(spec.heads, spec.columns, BLOCK, 32)
        return self.how_written.build(g, cache, rows, "slots", sizes)
