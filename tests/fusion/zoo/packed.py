"""Composes DequantRopeQuantKvcache preambles: packed rows of heads, split, rotated, quantised and written.

Parts come from the other zoo modules (rotations, quantisations, paged writes); here are the ways to have the rows
(floats, int32 sums, products of 8-bit numbers), to split them, and to write caches in the order of tokens. The class
has one method a part, so that a trap is a subclass with one part done wrongly.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import numpy as np
import onnx

from tests.fusion.zoo.graph import NUMPY, Array, Graph
from tests.fusion.zoo.quants import QUANTS
from tests.fusion.zoo.ropes import ROPES
from tests.fusion.zoo.writes import WRITES, Sizes, batches, pairs, steps

BLOCK, PAGES, LENGTH, HIDDEN = 4, 9, 12, 24

ROWS = ("float", "sums", "matmul", "matmul_bias", "separate", "separate_bias", "integer", "integer_bias",
        "integer_separate", "integer_separate_bias")  # fmt: skip
"""Where the rows come from: an input, or a product of ``hidden`` by one weight or by three."""
DEQUANTS = ("plain", "factors_first", "tokens_first", "divided", "linear", "heads_first", "scale_by_number")
SPLITS = ("split", "slices", "heads", "gather", "strided")


@dataclass(frozen=True)
class Packed:
    """Choices for one preamble.

    Attributes:
        rows: one of :data:`ROWS`; ``dequant``, ``activation`` (tokens, number, none) and ``bias`` (none, float32,
            float16, int32) matter for ``sums``.
        layout: ``heads`` rotates ``[B, N, S, D]``, ``tokens`` rotates ``[B, S, N, D]``.
        rank: of a float or int32 x; 2 means a token a batch entry.
        outs: keys and values before quantisation are graph outputs.
    """

    rows: str = "sums"
    dequant: str = "plain"
    activation: str = "tokens"
    bias: str = "float32"
    split: str = "split"
    layout: str = "heads"
    rope: str = "half_slices"
    quant: str = "divide"
    write: str = "contiguous_pairs"
    opset: int = 18
    dtype: str = "float32"
    style: str = "dynamo"
    queries: int = 4
    heads: int = 2
    columns: int = 16
    rank: int = 3
    offset: bool = True
    outs: bool = False

    @property
    def width(self) -> int:
        return (self.queries + 2 * self.heads) * self.columns

    @property
    def sizes(self) -> list[int]:
        return [count * self.columns for count in (self.queries, self.heads, self.heads)]


# -- writes of caches in the order of tokens -------------------------------------------------------------------------

Build = Callable[[Graph, str, str, str, Sizes], str]


@dataclass(frozen=True)
class TokenWrite:
    build: Build
    mode: str
    slots: str
    cache: str
    since: int = 11
    one_head: bool = False


TOKEN_WRITES: dict[str, TokenWrite] = {
    name: TokenWrite(how.build, "page", how.slots, how.cache, how.since, how.one_head)
    for name, how in WRITES.items()
    if how.slots == "tokens" and how.cache in ("page", "flat")
}
for _name in ("squeezed_head", "headless", "index_copy", "static_cache", "from_start"):
    _how = WRITES[_name]
    _mode = "contiguous" if _how.slots == "start" else "page"
    TOKEN_WRITES[_name] = TokenWrite(_how.build, _mode, _how.slots, _how.cache, _how.since, True)


def writes(mode: str, slots: str, since: int = 11) -> Callable[[Build], Build]:
    def enter(build: Build) -> Build:
        TOKEN_WRITES[build.__name__] = TokenWrite(build, mode, slots, "bmnd", since)
        return build

    return enter


def by_token(g: Graph, rows: str) -> str:
    return g.transpose(rows, 0, 2, 1, 3)


def run_of_rows(g: Graph, rows: str, slots: str) -> str:
    return g.op("Add", g.unsqueeze(slots, 1), g.unsqueeze(steps(g, rows), 0))


@writes("contiguous", "start")
def contiguous_pairs(g: Graph, cache: str, rows: str, slots: str, n: Sizes) -> str:
    row = run_of_rows(g, rows, slots)
    batch = g.op("Expand", batches(g, rows), g.op("Shape", row))
    return g.op("ScatterND", cache, pairs(g, batch, row), by_token(g, rows))


@writes("contiguous", "start")
def contiguous_elements(g: Graph, cache: str, rows: str, slots: str, n: Sizes) -> str:
    x = by_token(g, rows)
    index = g.op("Expand", g.unsqueeze(run_of_rows(g, rows, slots), 2, 3), g.op("Shape", x))
    return g.op("ScatterElements", cache, index, x, axis=1)


@writes("contiguous", "start", since=24)
def contiguous_tensor_scatter(g: Graph, cache: str, rows: str, slots: str, n: Sizes) -> str:
    return g.op("TensorScatter", cache, by_token(g, rows), slots, axis=1, mode="linear")


@writes("contiguous", "start")
def contiguous_flat(g: Graph, cache: str, rows: str, slots: str, n: Sizes) -> str:
    """Slots of the whole cache, computed from the starts."""
    first = g.op("Mul", batches(g, rows), g.size(cache, 1))
    flat = g.reshape(g.op("Add", first, run_of_rows(g, rows, slots)), -1, 1)
    written = g.op("ScatterND", g.reshape(cache, -1, n.heads, n.columns), flat,
                   g.reshape(by_token(g, rows), -1, n.heads, n.columns))  # fmt: skip
    return g.reshape(written, (cache, 0), (cache, 1), n.heads, n.columns)


@writes("page", "rows")
def rows_pairs(g: Graph, cache: str, rows: str, slots: str, n: Sizes) -> str:
    """Any rows of each batch entry's cache: no run."""
    batch = g.op("Expand", batches(g, rows), g.op("Shape", slots))
    return g.op("ScatterND", cache, pairs(g, batch, slots), by_token(g, rows))


@writes("page", "shared")
def shared_rows(g: Graph, cache: str, rows: str, slots: str, n: Sizes) -> str:
    """Rows that the batch shares."""
    inner = g.transpose(cache, 1, 0, 2, 3)
    written = g.op("ScatterND", inner, g.unsqueeze(slots, -1), g.transpose(rows, 2, 0, 1, 3))
    return g.transpose(written, 1, 0, 2, 3)


# -- the graph -------------------------------------------------------------------------------------------------------


def parameters(spec: Packed) -> dict[str, Array]:
    rng = np.random.default_rng(11)
    d, n = spec.columns, spec.heads
    per_column = QUANTS[spec.quant].per_column and not spec.quant.startswith("linear")
    shape = (n, d) if per_column else (1, d) if spec.quant == "linear_columns" else (1, 1)
    if spec.quant.startswith("linear") and shape == (1, d):
        shape = (d,)
    found: dict[str, Array] = {
        "weight_scale": rng.uniform(0.5, 2.0, spec.width).astype(np.float32) * np.float32(2e-3),
        "scale_k": rng.uniform(15.0, 40.0, shape).astype(np.float32),
        "scale_v": rng.uniform(15.0, 40.0, shape).astype(np.float32),
        "offset_k": rng.integers(-9, 9, shape).astype(np.float32),
        "offset_v": rng.integers(-9, 9, shape).astype(np.float32),
        "weight": rng.integers(-90, 90, (HIDDEN, spec.width)).astype(np.int8),
        "weight_step": rng.uniform(2e-3, 4e-3, spec.width).astype(np.float32),
    }
    kind = spec.bias if spec.rows == "sums" else spec.dtype
    bias = rng.integers(-200, 200, spec.width) if kind == "int32" else rng.uniform(-0.5, 0.5, spec.width)
    found["bias"] = bias.astype(NUMPY["float32" if kind == "none" else kind])
    if QUANTS[spec.quant].offset == "none" or not spec.offset:
        del found["offset_k"], found["offset_v"]
    return found


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


# -- what it means ---------------------------------------------------------------------------------------------------


def feeds(spec: Packed, batch: int, length: int, seed: int = 5) -> dict[str, Array]:
    rng = np.random.default_rng(seed)
    kind, tokens = NUMPY[spec.dtype], batch * length
    lead = (batch, length) if spec.rank == 3 else (batch,)
    width = spec.columns // 2 if ROPES[spec.rope].width == "half" else spec.columns
    rows = (1, length) if spec.layout == "heads" else (length, 1)
    angles = rng.uniform(-3, 3, (batch, *rows, width))
    if width == spec.columns and ROPES[spec.rope].width == "full":
        angles[..., width // 2 :] = angles[..., : width // 2]
    how = TOKEN_WRITES[spec.write]
    slots = {
        "tokens": rng.permutation(PAGES * BLOCK)[:tokens],
        "shared": rng.permutation(LENGTH)[:length],
        "start": rng.integers(0, LENGTH - length + 1, batch),
        "rows": np.stack([rng.permutation(LENGTH)[:length] for _ in range(batch)]),
    }[how.slots]
    n, d = spec.heads, spec.columns
    caches = {"page": (PAGES, BLOCK, n, d), "flat": (PAGES * BLOCK, n, d), "bmnd": (batch + 1, LENGTH, n, d),
              "batch": (batch, n, LENGTH, d), "bmd": (batch, LENGTH, d)}[how.cache]  # fmt: skip
    if spec.write in ("shared_rows", "contiguous_tensor_scatter"):
        caches = (batch, LENGTH, n, d)
    x = (
        rng.standard_normal((*lead, spec.width))
        if spec.rows == "float"
        else rng.integers(-900, 900, (*lead, spec.width))
    )
    return {
        "x": x.astype(kind if spec.rows == "float" else np.int32),
        "hidden": rng.standard_normal((batch, length, HIDDEN)).astype(kind),
        "activation": rng.uniform(0.5, 1.5, tokens if spec.activation == "tokens" else 1).astype(np.float32),
        "cos": np.cos(angles).astype(kind), "sin": np.sin(angles).astype(kind), "slots": slots.astype(np.int64),
        "k_cache": rng.integers(-100, 100, caches).astype(np.int8),
        "v_cache": rng.integers(-100, 100, caches).astype(np.int8),
    }  # fmt: skip


def expected(spec: Packed, given: dict[str, Array]) -> dict[str, Array]:
    """The definition, in float64."""
    p, d = parameters(spec), spec.columns
    rows = _rows(spec, given, p)
    tokens = given["cos"].astype(np.float64)
    cos, sin = (given[name].astype(np.float64).reshape(len(rows), 1, -1) for name in ("cos", "sin"))
    del tokens
    q, k, v = (part.reshape(len(rows), -1, d) for part in np.split(rows, np.cumsum(spec.sizes)[:-1], axis=1))
    q, k = (_turned(spec, part, cos, sin) for part in (q, k))
    found = {name: _laid_out(spec, part, given) for name, part in (("q", q), ("k", k), ("v", v))}
    if not spec.outs:
        del found["k"], found["v"]
    for which, part in (("k", k), ("v", v)):
        scale, offset = (
            None if item is None else item.astype(np.float64)
            for item in (p[f"scale_{which}"], p.get(f"offset_{which}"))
        )
        steps_ = np.rint(part * scale + (0 if offset is None else offset))
        found[f"{which}_cache_out"] = _written(
            spec, given, f"{which}_cache", np.clip(steps_, -128, 127).astype(np.int8)
        )
    return found


def _rows(spec: Packed, given: dict[str, Array], p: dict[str, Array]) -> Array:
    if spec.rows == "float":
        return given["x"].reshape(-1, spec.width).astype(np.float64)
    bias = p["bias"].astype(np.float64)
    if spec.rows == "sums":
        x = given["x"].reshape(-1, spec.width).astype(np.float64) + (bias if spec.bias == "int32" else 0)
        x = x * p["weight_scale"]
        x = x if spec.activation == "none" else x * given["activation"].reshape(-1, 1)
        return x + (bias if spec.bias in ("float32", "float16") else 0)
    hidden = given["hidden"].reshape(-1, HIDDEN).astype(np.float32)
    if spec.rows.startswith("integer"):
        scale = np.float32((max(hidden.max(), 0) - min(hidden.min(), 0)) / np.float32(255))
        zero = np.clip(np.rint(-min(hidden.min(), 0) / scale), 0, 255)
        hidden = (np.clip(np.rint(hidden / scale) + zero, 0, 255) - zero).astype(np.float64) * scale
        rows = hidden @ (p["weight"].astype(np.float64) * p["weight_step"])
    else:
        rows = hidden.astype(np.float64) @ (p["weight"] * p["weight_step"]).astype(NUMPY[spec.dtype]).astype(np.float64)
    return np.asarray(rows + (bias if spec.rows.endswith("bias") else 0))


def _turned(spec: Packed, x: Array, cos: Array, sin: Array) -> Array:
    half = spec.columns // 2
    if ROPES[spec.rope].kind == "half":
        low, high = x[..., :half], x[..., half:]
    else:
        low, high = x[..., 0::2], x[..., 1::2]
    c, s = cos[..., :half], sin[..., :half]
    return np.concatenate([low * c - high * s, high * c + low * s], axis=-1)


def _laid_out(spec: Packed, rows: Array, given: dict[str, Array]) -> Array:
    shape = given["cos"].shape
    batch, length = shape[0], shape[2] if spec.layout == "heads" else shape[1]
    view = rows.reshape(batch, length, -1, spec.columns)
    return (view if spec.layout == "tokens" else view.transpose(0, 2, 1, 3)).astype(NUMPY[spec.dtype])


def _written(spec: Packed, given: dict[str, Array], name: str, rows: Array) -> Array:
    how, cache, slots = TOKEN_WRITES[spec.write], given[name].copy(), given["slots"]
    length = given["cos"].shape[2 if spec.layout == "heads" else 1]
    if how.slots == "tokens":
        cache.reshape(-1, spec.heads, spec.columns)[slots] = rows
        return cache
    for token, row in enumerate(rows):
        b, s = divmod(token, length)
        place = slots[b] + s if how.slots == "start" else slots[s] if how.slots == "shared" else slots[b, s]
        if how.cache == "bmnd":
            cache[b, place] = row
        elif how.cache == "batch":
            cache[b, :, place] = row
        else:
            cache[b, place] = row[0]
    return cache


def legal(spec: Packed) -> bool:
    rope, quant, write = ROPES[spec.rope], QUANTS[spec.quant], TOKEN_WRITES[spec.write]
    if spec.opset < max(rope.since, quant.since, write.since):
        return False
    if write.one_head and spec.heads != 1:
        return False
    if "standard_op" in spec.rope and (spec.layout != "heads" or spec.dtype == "bfloat16"):
        return False
    if spec.rank == 2 and (spec.rows not in ("float", "sums") or write.slots in ("shared", "rows")):
        return False
    if spec.dequant == "linear" and (spec.opset < 13 or spec.bias == "int32"):
        return False
    if spec.quant == "linear_zero_point" and spec.dtype != "float32":
        return False
    if spec.quant == "offset_inside" and spec.dtype != "float32":
        return False  # the value that is quantised would be float32, rows of another type
    return spec.opset >= 18 or spec.style == "ts" or spec.opset >= 15


def build(**choices: Any) -> onnx.ModelProto:
    return PackedPreamble(Packed(**choices)).model()
