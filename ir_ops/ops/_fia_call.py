"""The words of FusedInferAttentionScore's ``input_layout`` and the sizes of a call."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from ir_ops.declaration import Attrs, Case, Shape, TensorSpec, Undecided
from ir_ops.dtypes import Array
from ir_ops.layout import nz_block

INPUT_LAYOUTS = (
    "BSH",
    "BSND",
    "BNSD",
    "TND",
    "NTD",
    "BSH_BNSD",
    "BSND_BNSD",
    "BNSD_BSND",
    "BSH_NBSD",
    "BSND_NBSD",
    "BNSD_NBSD",
    "TND_NTD",
    "NTD_TND",
)
"""Left of ``_`` is the layout of query, key and value, right of it that of the output."""

TRIANGLE = 2048
"""Rows and columns of the mask that only names a pattern."""
UNBOUNDED = 2147483647
"""``pre_tokens`` and ``next_tokens`` that cut nothing."""


def sides(layout: str) -> tuple[str, str]:
    """Axes of query and of the output for a word of ``input_layout``."""
    query, _, out = layout.partition("_")
    return query, out or query


def head_counts(attrs: Attrs) -> tuple[int, int]:
    """Query heads, and key heads."""
    heads, kv_heads = attrs["num_heads"], attrs["num_key_value_heads"]
    assert isinstance(heads, int) and isinstance(kv_heads, int)
    return heads, kv_heads or heads


class Sizes:
    """The sizes of a call; a size that is not known raises :class:`Undecided`."""

    def __init__(self, case: Case) -> None:
        self.case = case
        if case.attrs["input_layout"] not in INPUT_LAYOUTS:
            raise Undecided("input_layout")
        self.axes, self.out = sides(str(case.attrs["input_layout"]))
        self.heads, self.kv_heads = head_counts(case.attrs)
        if self.heads < 1 or self.kv_heads < 1 or self.heads % self.kv_heads:
            raise Undecided("num_heads")
        self.paged = case.has("block_table")
        self.packed = self.axes in ("TND", "NTD")
        if len(case.shape("query")) != len(self.axes):
            raise Undecided("query")

    def _query(self, axis: str) -> int:
        return self.case.dim("query", self.axes.index(axis))

    @property
    def batch(self) -> int:
        return self.case.dim("actual_seq_lengths", 0) if self.packed else self._query("B")

    @property
    def tokens(self) -> int:
        """S, or T of all entries together."""
        return self._query("T" if self.packed else "S")

    @property
    def width(self) -> int:
        """D."""
        return self._query("H") // self.heads if self.axes == "BSH" else self._query("D")

    @property
    def kv_tokens(self) -> int:
        """Rows of a contiguous key: Skv, or T of all entries together."""
        return self.case.dim("key", self.axes.index("T" if self.packed else "S"))

    @property
    def page(self) -> int:
        size = self.case.attrs["block_size"]
        assert isinstance(size, int)
        if size < 1:
            raise Undecided("block_size")
        return size

    @property
    def room(self) -> int:
        """The most keys that an entry can have."""
        return self.case.dim("block_table", 1) * self.page if self.paged else self.kv_tokens

    @property
    def single(self) -> bool:
        """One query token without rope: the lengths of the queries are ignored."""
        return not self.packed and self.tokens == 1 and not self.case.has("query_rope")

    def value_width(self) -> int:
        """Dv."""
        shape = self.case.shape("value")
        found = cache_width(shape, self.axes, self.kv_heads, self.paged)
        if found is None:
            raise Undecided("value")
        return found

    def lengths(self, name: str, total: int) -> Array:
        """The valid tokens of each entry as the input says them; absent: all of them."""
        batch = self.batch
        if not self.case.has(name):
            return np.full(batch, total, np.int64)
        given = self.case.value(name).astype(np.int64).reshape(-1)
        if given.size == 0:
            raise Undecided(name)
        if given.size < batch:
            given = np.broadcast_to(given[:1], batch)
        return given[:batch]

    def kv_lengths(self) -> Array:
        """S2 of each entry."""
        given = self.lengths("actual_seq_lengths_kv", 0 if self.paged else self.kv_tokens)
        return np.diff(given, prepend=0) if self.packed and not self.paged else given


def cache_width(shape: Shape, axes: str, kv_heads: int, paged: bool) -> int | None:
    """Columns of a head in key, value or key_rope; None where the shape does not tell."""
    if paged and len(shape) == 5:
        fractals, d0 = shape[2], shape[4]
        return None if fractals is None or d0 is None else fractals * d0
    if not shape or shape[-1] is None:
        return None
    joined = len(shape) == 3 and (paged or axes == "BSH")
    return shape[-1] // kv_heads if joined else shape[-1]


def cache_shape(sizes: Sizes, width: int | None, dtype: str, rank: int) -> Shape | None:
    """The shape that key, value or key_rope must have; None where that rank has no meaning."""
    heads = sizes.kv_heads
    joined = None if width is None else heads * width
    if not sizes.paged:
        dims = {"B": None if sizes.packed else sizes.batch, "S": None, "T": None, "N": heads, "D": width, "H": joined}
        form: Shape = tuple(dims[axis] for axis in sizes.axes)
        return form if len(form) == rank else None
    page, d0 = sizes.page, nz_block(dtype)
    fractals = None if width is None else width // d0
    pages: Mapping[int, Shape] = {
        3: (None, page, joined),
        4: (None, heads, page, width),
        5: (None, heads, fractals, page, d0),
    }
    return pages.get(rank)


@dataclass(frozen=True)
class Results:
    """Shapes of the outputs."""

    attention_out: Shape | None
    softmax_lse: Shape | None


def results(specs: Mapping[str, TensorSpec], attrs: Attrs) -> Results:
    """The shapes of the outputs as far as the inputs tell."""
    layout = attrs.get("input_layout")
    if layout not in INPUT_LAYOUTS or "num_heads" not in attrs:
        return Results(None, None)
    axes, out = sides(str(layout))
    heads, kv_heads = head_counts(attrs)
    sizes: dict[str, int | None] = dict.fromkeys("BSTD")
    query, value = specs["query"].shape, specs["value"].shape
    if query is not None and len(query) == len(axes):
        sizes |= {axis: size for axis, size in zip(axes, query, strict=True) if axis in "BST"}
    if value is not None and kv_heads > 0:
        sizes["D"] = cache_width(value, axes, kv_heads, "block_table" in specs)
    sizes["N"] = heads
    sizes["H"] = None if sizes["D"] is None else heads * sizes["D"]
    lse = "TN" if "T" in axes else "BNS"
    return Results(tuple(sizes[axis] for axis in out), (*(sizes[axis] for axis in lse), 1))
