"""How caches of a converted decoder lie in memory, and the nodes that write and read them."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import onnx_ir as ir

from fusion.emit import Emitter
from fusion.facts.caches.growth import Growth
from fusion.facts.graph import dtype_name
from ir_ops.decode_plan import CachePort
from ir_ops.dtypes import Array, by_name
from ir_ops.layout import nz_block
from ir_ops.ops import DOMAIN


@dataclass(frozen=True)
class Pages:
    """Pages of ``block_size`` tokens in memory order ``order``: ``NZ``, ``BSND``, or ``BNSD``: one a sequence."""

    order: str
    block_size: int

    def shape(self, heads: int, columns: int, dtype: str) -> tuple[int, ...]:
        """Declared dims of a cache, -1 for the pages."""
        if self.order == "BSND":
            return (-1, self.block_size, heads, columns)
        if self.order == "BNSD":
            return (-1, heads, self.block_size, columns)
        block = nz_block(dtype)
        return (-1, heads * columns // block, self.block_size, block)

    def read_shape(self, heads: int, columns: int, dtype: str) -> list[int]:
        """The dims that attention reads the same memory with."""
        if self.order == "BSND":
            return [-1, self.block_size, heads * columns]
        if self.order == "BNSD":
            return [-1, heads, self.block_size, columns]
        block = nz_block(dtype)
        return [-1, heads, columns // block, self.block_size, block]

    @property
    def write_attrs(self) -> dict[str, str]:
        """Attributes of ScatterPaKvCache."""
        modes = {"NZ": ("PA_NZ", "None"), "BSND": ("Norm", "None"), "BNSD": ("Norm", "NHSD")}[self.order]
        return {"cache_mode": modes[0], "scatter_mode": modes[1]}


@dataclass(frozen=True)
class NewInputs:
    """Graph inputs of a converted decoder, by role of :mod:`ir_ops.decode_plan`."""

    slots: ir.Value
    block_table: ir.Value
    query_lengths: ir.Value
    kv_lengths: ir.Value


@dataclass(frozen=True)
class Cached:
    """One cache of a converted decoder.

    Attributes:
        growth: the growing cache that it stands for; its names stay.
        new: rows of the new tokens, ``[B, N, S, D]``; of one head in any form with these elements in this order.
        part: what it holds, as in :class:`ir_ops.decode_plan.CachePort`.
        scale: ``[N, D]``, of int8 caches; None for caches of floats.
        kept: the float type of the cache where it is narrower than the rows; empty: theirs.
        halves: pairs of neighbouring columns are cached as a low and a high half, as in
            :class:`ir_ops.decode_plan.CachePort`. Only of one head.
    """

    growth: Growth
    new: ir.Value
    heads: int
    columns: int
    part: str
    scale: Array | None = None
    kept: str = ""
    halves: bool = False

    @property
    def own_dtype(self) -> str:
        """Of the rows."""
        return dtype_name(self.growth.past)

    @property
    def dtype(self) -> str:
        """Of the cache."""
        return "int8" if self.scale is not None else self.kept or self.own_dtype

    def ordered(self, emit: Emitter, rows: ir.Value) -> ir.Value:
        """Rows ``[.., D]`` with their columns as they are cached."""
        if not self.halves:
            return rows
        column = np.arange(self.columns)
        order = np.concatenate([column[0::2], column[1::2]])
        return emit.pick_columns(rows, order, self.columns, f"{self.part}_halves")

    def port(self, output: str, layer: int, pages: Pages) -> CachePort:
        """The cache for the decode plan, after the write under the name ``output``."""
        dims = pages.shape(self.heads, self.columns, self.dtype)
        name = str(self.growth.past.name)
        return CachePort(name, output, layer, self.part, pages.order, self.heads, self.columns, dims, self.halves)

    def scale_constant(self, emit: Emitter) -> ir.Value:
        """The scale by head and column, for who reads the cache."""
        assert self.scale is not None
        return emit.constant(self.scale.reshape(-1).astype(np.float32), self.part + "_scale")


def rows_of(emit: Emitter, cached: Cached) -> ir.Value:
    """The new rows as ``[B * S, N, D]``, in the cache's type."""
    new, part = emit.cast(cached.new, cached.own_dtype, cached.part), cached.part
    heads, columns = cached.heads, cached.columns
    if heads > 1:
        new = emit.node("Transpose", [new], part + "_by_token", {"perm": [0, 2, 1, 3]})
    rows = cached.ordered(emit, emit.reshape(new, [-1, heads, columns], part + "_rows"))
    if cached.scale is not None:
        return _quantised(emit, rows, cached)
    return rows if cached.dtype == cached.own_dtype else emit.cast(rows, cached.dtype, part + "_kept")


def _quantised(emit: Emitter, rows: ir.Value, cached: Cached) -> ir.Value:
    """``clip(round(rows / scale))`` as int8."""
    part = cached.part
    assert cached.scale is not None
    scale = emit.constant(cached.scale.astype(np.float32), part + "_divisor")
    divided = emit.node("Div", [emit.cast(rows, "float32", part + "_wide"), scale], part + "_divided")
    limits = [emit.constant(np.array(limit, np.float32), part + "_limit") for limit in (-128, 127)]
    clipped = emit.node("Clip", [emit.node("Round", [divided], part + "_rounded"), *limits], part + "_clipped")
    return emit.cast(clipped, "int8", part + "_int8")


def cache_input(cached: Cached, pages: Pages) -> ir.Value:
    """The cache in place of a growing one, under its name."""
    dims = pages.shape(cached.heads, cached.columns, cached.dtype)
    shape = ir.Shape(["pages" if dim < 0 else dim for dim in dims])
    number = by_name(cached.dtype).onnx
    assert number is not None
    return ir.Value(name=cached.growth.past.name, shape=shape, type=ir.TensorType(ir.DataType(number)))


def write(
    emit: Emitter, pages: Pages, slots: ir.Value, rows: tuple[ir.Value, ir.Value], caches: tuple[ir.Value, ir.Value],
    names: tuple[str, str],
) -> tuple[ir.Value, ir.Value]:  # fmt: skip
    """Writes rows of keys and values at their slots; gives the caches as outputs of these names."""
    outs = tuple(
        ir.Value(name=name, shape=cache.shape, type=cache.type) for cache, name in zip(caches, names, strict=True)
    )
    inputs = [rows[0], caches[0], slots, rows[1], caches[1]]
    node = ir.node("ScatterPaKvCache", inputs, pages.write_attrs, domain=DOMAIN, outputs=outs, name=emit.name("write"))
    emit.nodes.append(node)
    return outs[0], outs[1]
