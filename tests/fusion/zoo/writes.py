"""Legal ways to write rows into a cache, for every cache mode of KvRmsNormRopeCache.

Each function takes the graph, the cache's name, the rows ``[B, N, S, D]``, the slot value and the sizes, and returns
the written cache in the shape of the old one.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from tests.fusion.zoo.graph import Graph


@dataclass(frozen=True)
class Sizes:
    """What a write spelling must know: heads, columns, rows a page, columns of an NZ fractal."""

    heads: int
    columns: int
    block: int
    fractal: int


Build = Callable[[Graph, str, str, str, Sizes], str]


@dataclass(frozen=True)
class Write:
    """One spelling.

    Attributes:
        modes: values of cache_mode that describe it (a paged write at computed slots may be read as either).
        slots: shape of the slot input: ``tokens`` [B*S], ``rows`` [B,S], ``shared`` [S], ``start`` [B], ``pages``.
        cache: the declared shape: ``page`` [P,bs,N,D], ``batch`` [B,N,M,D], ``bmd`` [B,M,D], ``nz4`` [P,N*D1,bs,d0],
            ``nz5`` [P,N,D1,bs,d0], ``flat`` [P*bs,N,D] (a paged cache declared without pages).
        one_head: exists for N = 1 only.
        since: first opset.
    """

    build: Build
    modes: tuple[str, ...]
    slots: str
    cache: str
    one_head: bool = False
    since: int = 11


WRITES: dict[str, Write] = {}
PAGED = ("PA", "PA_BNSD")


def spelling(
    modes: tuple[str, ...], slots: str, cache: str, one_head: bool = False, since: int = 11
) -> Callable[[Build], Build]:
    def enter(build: Build) -> Build:
        WRITES[build.__name__] = Write(build, modes, slots, cache, one_head, since)
        return build

    return enter


def tokens(g: Graph, rows: str, n: Sizes) -> str:
    """``[B, N, S, D]`` to ``[T, N, D]``; one head needs no transpose."""
    x = rows if n.heads == 1 else g.transpose(rows, 0, 2, 1, 3)
    return g.reshape(x, -1, n.heads, n.columns)


def broadcast(g: Graph, slots: str, n: Sizes, *trailing: int) -> str:
    """Slots ``[T]`` as an index ``[T, *trailing]`` for ScatterElements."""
    column = g.unsqueeze(slots, *range(1, 1 + len(trailing)))
    return g.op("Expand", column, g.shape((slots, 0), *trailing))


def page_and_row(g: Graph, slots: str, n: Sizes) -> tuple[str, str]:
    block = g.const(n.block, "int64")
    return g.op("Div", slots, block), g.op("Mod", slots, block)


def pairs(g: Graph, first: str, second: str) -> str:
    return g.op("Concat", g.unsqueeze(first, -1), g.unsqueeze(second, -1), axis=-1)


def batches(g: Graph, rows: str) -> str:
    """``[B, 1]``: the numbers of the batches."""
    count = g.squeeze(g.size(rows, 0), 0)
    numbers = g.op("Range", g.const(0, "int64"), count, g.const(1, "int64"))
    return g.unsqueeze(numbers, 1)


def steps(g: Graph, rows: str) -> str:
    """``[S]``: the numbers of the tokens."""
    count = g.squeeze(g.size(rows, 2), 0)
    return g.op("Range", g.const(0, "int64"), count, g.const(1, "int64"))


@spelling(PAGED, "tokens", "page")
def flat_scatter_nd(g: Graph, cache: str, rows: str, slots: str, n: Sizes) -> str:
    flat = g.reshape(cache, -1, n.heads, n.columns)
    written = g.op("ScatterND", flat, g.unsqueeze(slots, -1), tokens(g, rows, n))
    return g.reshape(written, -1, n.block, n.heads, n.columns)


@spelling(PAGED, "tokens", "page")
def flat_scatter_elements(g: Graph, cache: str, rows: str, slots: str, n: Sizes) -> str:
    flat = g.reshape(cache, -1, n.heads, n.columns)
    index = broadcast(g, slots, n, n.heads, n.columns)
    written = g.op("ScatterElements", flat, index, tokens(g, rows, n), axis=0)
    return g.op("Reshape", written, g.op("Shape", cache))


@spelling(PAGED, "tokens", "page")
def matrix_scatter(g: Graph, cache: str, rows: str, slots: str, n: Sizes) -> str:
    """Heads and columns joined: ``[P*bs, N*D]``."""
    flat = g.reshape(cache, -1, n.heads * n.columns)
    row = g.reshape(tokens(g, rows, n), -1, n.heads * n.columns)
    written = g.op("ScatterND", flat, g.reshape(slots, -1, 1), row)
    return g.reshape(written, (cache, 0), n.block, n.heads, n.columns)


@spelling(PAGED, "tokens", "page")
def page_row_pairs(g: Graph, cache: str, rows: str, slots: str, n: Sizes) -> str:
    return g.op("ScatterND", cache, pairs(g, *page_and_row(g, slots, n)), tokens(g, rows, n))


@spelling(PAGED, "tokens", "page")
def page_row_by_float(g: Graph, cache: str, rows: str, slots: str, n: Sizes) -> str:
    """The page number through float32, as dynamo writes a floor division; the row by subtraction."""
    quotient = g.op("Div", g.cast(slots, "float32"), g.scalar(float(n.block)))
    page = g.cast(g.op("Floor", quotient), "int64")
    row = g.op("Sub", slots, g.op("Mul", page, g.const(n.block, "int64")))
    index = g.op("Concat", g.unsqueeze(page, 1), g.unsqueeze(row, 1), axis=1)
    return g.op("ScatterND", cache, index, tokens(g, rows, n))


@spelling(PAGED, "tokens", "page")
def page_row_head(g: Graph, cache: str, rows: str, slots: str, n: Sizes) -> str:
    """Three indices a row: page, row and head."""
    page, row = page_and_row(g, slots, n)
    spread = [g.op("Expand", g.unsqueeze(v, 1), g.shape((slots, 0), n.heads)) for v in (page, row)]
    heads = g.op("Expand", g.ints(*range(n.heads)), g.shape((slots, 0), n.heads))
    index = g.op("Concat", *(g.unsqueeze(v, -1) for v in (*spread, heads)), axis=-1)
    return g.op("ScatterND", cache, index, tokens(g, rows, n))


@spelling(PAGED, "tokens", "flat")
def pageless(g: Graph, cache: str, rows: str, slots: str, n: Sizes) -> str:
    """A cache declared ``[slots, N, D]``."""
    return g.op("ScatterND", cache, g.unsqueeze(slots, 1), tokens(g, rows, n))


@spelling(("Norm",), "shared", "batch")
def static_cache(g: Graph, cache: str, rows: str, slots: str, n: Sizes) -> str:
    """StaticCache of dynamo exports: one row of slots for all batches, cache rows brought to the front."""
    written = g.op("ScatterND", g.transpose(cache, 2, 0, 1, 3), g.unsqueeze(slots, -1), g.transpose(rows, 2, 0, 1, 3))
    return g.transpose(written, 1, 2, 0, 3)


@spelling(("Norm",), "shared", "batch")
def index_copy(g: Graph, cache: str, rows: str, slots: str, n: Sizes) -> str:
    """StaticCache of TorchScript exports."""
    index = g.op("Expand", g.unsqueeze(slots, 0, 1, 3), g.op("Shape", rows))
    return g.op("ScatterElements", cache, index, rows, axis=2)


@spelling(("Norm",), "rows", "batch")
def rows_scatter_elements(g: Graph, cache: str, rows: str, slots: str, n: Sizes) -> str:
    index = g.op("Expand", g.unsqueeze(slots, 1, 3), g.op("Shape", rows))
    return g.op("ScatterElements", cache, index, rows, axis=-2)


@spelling(("Norm",), "rows", "batch", one_head=True)
def squeezed_head(g: Graph, cache: str, rows: str, slots: str, n: Sizes) -> str:
    batch = g.op("Expand", batches(g, rows), g.op("Shape", slots))
    written = g.op("ScatterND", g.squeeze(cache, 1), pairs(g, batch, slots), g.squeeze(rows, 1))
    return g.unsqueeze(written, 1)


@spelling(("Norm",), "rows", "batch", one_head=True)
def selected_head(g: Graph, cache: str, rows: str, slots: str, n: Sizes) -> str:
    """``cache[b, 0, slots] = rows``: the only head picked, written, and put back."""
    zero = g.const(np.array(0, np.int64))
    batch = g.op("Expand", batches(g, rows), g.op("Shape", slots))
    inner = g.op("Gather", cache, zero, axis=1)
    written = g.op("ScatterND", inner, pairs(g, batch, slots), g.op("Gather", rows, zero, axis=1))
    whole = g.unsqueeze(written, 1)
    return g.op("ScatterElements", cache, g.op("Expand", zero, g.op("Shape", whole)), whole, axis=1)


@spelling(("Norm",), "start", "batch")
def from_start(g: Graph, cache: str, rows: str, slots: str, n: Sizes) -> str:
    """A start a batch, tokens after each other; the head axis brought inside."""
    row = g.op("Add", g.unsqueeze(slots, 1), g.unsqueeze(steps(g, rows), 0))
    batch = g.op("Expand", batches(g, rows), g.op("Shape", row))
    inner = g.transpose(cache, 0, 2, 1, 3)
    written = g.op("ScatterND", inner, pairs(g, batch, row), g.transpose(rows, 0, 2, 1, 3))
    return g.transpose(written, 0, 2, 1, 3)


@spelling(("Norm",), "start", "batch", since=24)
def tensor_scatter(g: Graph, cache: str, rows: str, slots: str, n: Sizes) -> str:
    return g.op("TensorScatter", cache, rows, slots, axis=-2, mode="linear")


@spelling(("Norm",), "rows", "bmd", one_head=True)
def headless(g: Graph, cache: str, rows: str, slots: str, n: Sizes) -> str:
    """A cache declared ``[B, M, D]``."""
    batch = g.op("Expand", batches(g, rows), g.op("Shape", slots))
    return g.op("ScatterND", cache, pairs(g, batch, slots), g.squeeze(rows, 1))


@spelling(("PA_NZ",), "tokens", "nz4")
def nz_permuted(g: Graph, cache: str, rows: str, slots: str, n: Sizes) -> str:
    width = n.heads * n.columns
    matrix = g.reshape(g.transpose(cache, 0, 2, 1, 3), -1, width)
    written = g.op("ScatterND", matrix, g.unsqueeze(slots, -1), g.reshape(tokens(g, rows, n), -1, width))
    return g.transpose(g.reshape(written, -1, n.block, width // n.fractal, n.fractal), 0, 2, 1, 3)


@spelling(("PA_NZ",), "tokens", "nz4")
def nz_pairs(g: Graph, cache: str, rows: str, slots: str, n: Sizes) -> str:
    row = g.reshape(tokens(g, rows, n), -1, n.heads * n.columns // n.fractal, n.fractal)
    inner = g.transpose(cache, 0, 2, 1, 3)
    written = g.op("ScatterND", inner, pairs(g, *page_and_row(g, slots, n)), row)
    return g.transpose(written, 0, 2, 1, 3)


@spelling(("PA_NZ",), "tokens", "nz5")
def nz_triples(g: Graph, cache: str, rows: str, slots: str, n: Sizes) -> str:
    """Page, fractal and row as indices into ``[P, N*D1, bs, d0]``."""
    fractals = n.heads * n.columns // n.fractal
    flat = g.reshape(cache, (cache, 0), fractals, n.block, n.fractal)
    page, row = page_and_row(g, slots, n)
    shape = g.shape((slots, 0), fractals)
    parts = [g.op("Expand", g.unsqueeze(page, 1), shape), g.op("Expand", g.ints(*range(fractals)), shape)]
    parts.append(g.op("Expand", g.unsqueeze(row, 1), shape))
    index = g.op("Concat", *(g.unsqueeze(v, -1) for v in parts), axis=-1)
    written = g.op("ScatterND", flat, index, g.reshape(tokens(g, rows, n), -1, fractals, n.fractal))
    return g.op("Reshape", written, g.op("Shape", cache))


@spelling(("PA_BLK_BNSD", *PAGED), "pages", "page")
def page_starts(g: Graph, cache: str, rows: str, slots: str, n: Sizes) -> str:
    """One page start for every ``bs`` tokens of a batch."""
    step = steps(g, rows)
    block = g.const(n.block, "int64")
    table = g.reshape(g.op("Div", slots, block), (rows, 0), -1)
    page = g.op("Gather", table, g.op("Div", step, block), axis=1)
    row = g.op("Expand", g.unsqueeze(g.op("Mod", step, block), 0), g.op("Shape", page))
    index = g.reshape(pairs(g, page, row), -1, 2)
    return g.op("ScatterND", cache, index, tokens(g, rows, n))


@spelling(("PA_BLK_NZ", "PA_NZ"), "pages", "nz4")
def nz_page_starts(g: Graph, cache: str, rows: str, slots: str, n: Sizes) -> str:
    step = steps(g, rows)
    block = g.const(n.block, "int64")
    table = g.reshape(g.op("Div", slots, block), (rows, 0), -1)
    start = g.op("Mul", g.op("Gather", table, g.op("Div", step, block), axis=1), block)
    flat = g.reshape(g.op("Add", start, g.unsqueeze(g.op("Mod", step, block), 0)), -1)
    return nz_permuted(g, cache, rows, flat, n)
