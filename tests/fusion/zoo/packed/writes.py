"""Writes of caches in the order of tokens."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from tests.fusion.zoo.graph import Graph
from tests.fusion.zoo.writes import WRITES, Sizes, batches, pairs, steps

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
