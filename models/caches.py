"""The three forms in which exported decoders keep keys and values, and what each gives a layer: content and mask.

``static``: fixed length, written by index (StaticCache); ``growth``: past in, past and new out (DynamicCache);
``paged``: pages of slots, a block table to read them (engines).
"""

from __future__ import annotations

from typing import Protocol

import numpy as np

from models.graph import Dim, Dims, Graph, Tensor

BATCH, TOKENS, PAST = "s44", "s70", "s69"


class Cache(Protocol):
    """One form of cache.

    Attributes:
        ids: ``input_ids [B, S]``.
    """

    ids: Tensor

    @property
    def length(self) -> Dim:
        """How many positions attention sees."""

    def declare(self, layer: int, heads: int, widths: tuple[int, int], dtype: str) -> None:
        """Adds the graph inputs of a layer."""

    def positions(self) -> Tensor:
        """``[b, S, 1]`` int64."""

    def mask(self) -> Tensor:
        """``[b, 1, S, L]`` bool, true where a token may look."""

    def write(self, layer: int, number: int, rows: Tensor, by_token: bool = False) -> Tensor:
        """Writes rows ``[B, N, S, D]`` (``by_token``: ``[B, S, N, D]``) to the key (0) or value (1) cache.

        Gives what attention reads, ``[B, N, L, D]``.
        """


class StaticCache:
    """Caches ``[B, N, M, D]``; the new rows go to ``cache_position[0] + 0..S-1``."""

    def __init__(self, g: Graph, batch: int, length: int) -> None:
        self._g, self.length = g, length
        self.ids = g.input("input_ids", "int64", (batch, "s58"))
        self._position = g.input("cache_position", "int64", ("s58",))
        self._inputs: dict[tuple[int, int], Tensor] = {}

    def declare(self, layer: int, heads: int, widths: tuple[int, int], dtype: str) -> None:
        for number, (name, width) in enumerate(zip(("key", "value"), widths, strict=True)):
            dims: Dims = (self.ids.dims[0], heads, self.length, width)
            self._inputs[layer, number] = self._g.input(f"{name}_cache.{layer}", dtype, dims)

    def positions(self) -> Tensor:
        return self._g.unsqueeze(self._position, 0, 2)

    def _slots(self) -> Tensor:
        g = self._g
        count = g.op("Squeeze", [g.size("s58")], (), name="sym_size_int")
        first = g.op("Gather", [self._position, g.constant(0)], (), axis=0)
        run = g.op("Range", [g.constant(0), count, g.constant(1)], ("s58",))
        return g.binary("Add", run, first)

    def mask(self) -> Tensor:
        g, batch = self._g, self.ids.dims[0]
        slots = g.once("slots", self._slots)
        columns = g.constant(np.arange(self.length).reshape(1, 1, 1, -1))
        rows = g.unsqueeze(g.unsqueeze(slots, 0, 1), 3)
        causal = g.op("LessOrEqual", [columns, rows], (1, 1, "s58", self.length), "bool")
        dims: Dims = (batch, 1, "s58", self.length)
        return g.op("Expand", [causal, g.shape(dims, exact=True)], dims)

    def write(self, layer: int, number: int, rows: Tensor, by_token: bool = False) -> Tensor:
        g, cache = self._g, self._inputs[layer, number]
        index = g.once("slot index", lambda: g.unsqueeze(g.once("slots", self._slots), -1))
        old = g.transpose(cache, 2, 0, 1, 3)
        new = g.transpose(rows, 1, 0, 2, 3) if by_token else g.transpose(rows, 2, 0, 1, 3)
        written = g.op("ScatterND", [old, index, new], old.dims)
        out = g.transpose(written, 1, 2, 0, 3, name=cache.name.replace("_cache.", "_cache_out."))
        g.output(out)
        return out


class GrowingCache:
    """``past_key_values.i.key [B, N, P, D]`` in, the same with the new rows behind out."""

    def __init__(self, g: Graph) -> None:
        self._g, self.length = g, f"{PAST} + {TOKENS}"
        self.ids = g.input("input_ids", "int64", (BATCH, TOKENS))
        self._attention = g.input("attention_mask", "int64", ("s43", "s53"))
        self._positions = g.input("position_ids", "int64", (BATCH, TOKENS))
        self._inputs: dict[tuple[int, int], Tensor] = {}

    def declare(self, layer: int, heads: int, widths: tuple[int, int], dtype: str) -> None:
        for number, (name, width) in enumerate(zip(("key", "value"), widths, strict=True)):
            dims: Dims = (BATCH, heads, PAST, width)
            self._inputs[layer, number] = self._g.input(f"past_key_values.{layer}.{name}", dtype, dims)

    def positions(self) -> Tensor:
        return self._g.unsqueeze(self._positions, 2)

    def mask(self) -> Tensor:
        """The exporter's own arithmetic: causal, and what attention_mask allows, looked up pair by pair."""
        g = self._g
        batch, tokens, past = (
            g.op("Squeeze", [g.size(dim)], (), name=g.fresh("sym_size_int")) for dim in (BATCH, TOKENS, PAST)
        )
        total = g.binary("Add", past, tokens)
        g.define_size(str(self.length), g.reshape(total, (1,), 0))
        zero, one = g.constant(0), g.constant(1)
        entries = g.op("Range", [zero, batch, one], (BATCH,))
        rows = g.binary("Add", g.op("Range", [zero, tokens, one], (TOKENS,)), past)
        columns = g.op("Range", [zero, total, one], (self.length,))
        entry = g.unsqueeze(g.unsqueeze(entries, 1, 2), 3)
        row = g.unsqueeze(g.unsqueeze(rows, 0, 1), 3)
        column = g.unsqueeze(g.unsqueeze(columns, 0, 1), 2)
        causal = g.op("LessOrEqual", [column, row], (1, 1, TOKENS, self.length), "bool")
        causal = g.op("And", [g.constant(True, "bool"), causal], causal.dims, name=g.fresh("bitwise_and"))
        dims: Dims = (BATCH, 1, 1, self.length)
        shape = g.op("Shape", [g.op("Max", [entry, column], dims)], (4,), start=0)
        pair = [g.unsqueeze(g.op("Expand", [item, shape], dims), -1) for item in (entry, column)]
        index = g.op("Concat", pair, (*dims, 2), axis=-1)
        allowed = g.op("GatherND", [g.cast(self._attention, "bool"), index], dims, batch_dims=0)
        dims = (BATCH, 1, TOKENS, self.length)
        both = g.op("And", [causal, allowed], dims, name=g.fresh("bitwise_and"))
        return g.op("Expand", [both, g.shape(dims, exact=True)], dims)

    def write(self, layer: int, number: int, rows: Tensor, by_token: bool = False) -> Tensor:
        past = self._inputs[layer, number]
        rows = self._g.transpose(rows, 0, 2, 1, 3) if by_token else rows
        dims = (*past.dims[:2], self.length, past.dims[3])
        name = past.name.replace("past_key_values", "present")
        out = self._g.op("Concat", [past, rows], dims, name=name, axis=-2)
        self._g.output(out)
        return out


class PagedCache:
    """Caches ``[pages, rows, N, D]``; rows go to ``slot_mapping [B*S]``, attention reads pages of a block table."""

    def __init__(self, g: Graph, length: int, pages: int, page: int) -> None:
        self._g, self._pages, self._page = g, pages, page
        self.length = length // page * page
        self.ids = g.input("input_ids", "int64", (BATCH, TOKENS))
        self._positions = g.input("position_ids", "int64", (BATCH, TOKENS))
        self._slots = g.input("slot_mapping", "int64", ("s35",))
        self._table = g.input("block_table", "int64", (BATCH, self.length // page))
        self._inputs: dict[tuple[int, int], Tensor] = {}

    def declare(self, layer: int, heads: int, widths: tuple[int, int], dtype: str) -> None:
        for number, (name, width) in enumerate(zip(("key", "value"), widths, strict=True)):
            dims: Dims = (self._pages, self._page, heads, width)
            self._inputs[layer, number] = self._g.input(f"{name}_cache.{layer}", dtype, dims)

    def positions(self) -> Tensor:
        return self._g.unsqueeze(self._positions, 2)

    def mask(self) -> Tensor:
        g = self._g
        columns = g.constant(np.arange(self.length).reshape(1, 1, 1, -1))
        rows = g.unsqueeze(self._positions, 1, 3)
        return g.op("LessOrEqual", [columns, rows], (BATCH, 1, TOKENS, self.length), "bool")

    def write(self, layer: int, number: int, rows: Tensor, by_token: bool = False) -> Tensor:
        g, cache = self._g, self._inputs[layer, number]
        heads, width = cache.dims[2:]
        index = g.once("slot index", lambda: g.unsqueeze(self._slots, -1))
        rows = rows if by_token else g.transpose(rows, 0, 2, 1, 3)
        new = g.reshape(rows, ("s44*s70", heads, width))
        flat = g.reshape(cache, (self._pages * self._page, heads, width))
        written = g.op("ScatterND", [flat, index, new], flat.dims)
        out = g.reshape(written, cache.dims, name=cache.name.replace("_cache.", "_cache_out."))
        g.output(out)
        pages = g.once("page index", lambda: g.unsqueeze(self._table, -1))
        found = g.op("GatherND", [out, pages], (*self._table.dims, self._page, heads, width), batch_dims=0)
        return g.transpose(g.reshape(found, (BATCH, self.length, heads, width)), 0, 2, 1, 3)
