"""The operators of ``ai.ascend``: those that only move elements, cache writes above all, and the shapes of others."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from fusion.facts.semantics.indexing import scatter_nd
from fusion.facts.semantics.table import (
    Attrs,
    Conflict,
    OpDef,
    Operands,
    OutOfRange,
    Unsupported,
    guarded,
    is_stand_in,
    lookup,
    movement,
    register,
)
from ir_ops.declaration import Operator, TensorSpec
from ir_ops.dtypes import Array
from ir_ops.layout import CacheMode, address
from ir_ops.ops import DOMAIN, OPS
from ir_ops.ops.scatter_pa_kv_cache import MODES


@movement("ScatterPaKvCache", (0, 1, 3, 4), DOMAIN, carries=(1, 4))
def scatter_pa_kv_cache(
    attrs: Attrs,
    key: Array,
    key_cache: Array,
    slots: Array,
    value: Array,
    value_cache: Array,
    *compression: Array | None,
) -> list[Array]:
    """Both caches with the rows of the tokens at their slots; -1 skips a token."""
    mode = MODES.get((attrs.get("cache_mode", "Norm"), attrs.get("scatter_mode", "None")))
    if mode is None or any(item is not None for item in compression):
        raise Unsupported("a scatter that compresses")
    return [_written(mode, cache, slots.reshape(-1), rows) for cache, rows in ((key_cache, key), (value_cache, value))]


def _written(mode: CacheMode, cache: Array, slots: Array, rows: Array) -> Array:
    if cache.ndim == 1:  # the operator writes keys only
        return cache
    if len(rows) != len(slots):
        raise Conflict(len(rows), len(slots))
    if is_stand_in(cache):
        return cache
    size = cache.shape[{"BSND": 1, "BNSD": 2}.get(mode.order, -2)]
    if slots.size and (slots.min() < -1 or slots.max() >= cache.shape[0] * size):
        raise OutOfRange(f"{slots.min()}..{slots.max()} of {cache.shape[0] * size}")
    heads, columns = rows.shape[1:]
    if cache.size != cache.shape[0] * size * heads * columns:
        raise Conflict(cache.size // (cache.shape[0] * size), heads * columns)
    page, row = (part[:, None, None] for part in (slots // size, slots % size))
    head, column = np.arange(heads)[:, None], np.arange(columns)
    sizes = {"rows": size, "heads": heads, "columns": columns, "d0": cache.shape[-1]}
    place = np.broadcast_to(address(mode.order, page, row, head, column, **sizes), rows.shape)
    result: Array = cache.copy()
    result.reshape(-1)[place[slots >= 0]] = rows[slots >= 0]
    return result


@movement("ScatterUpdate", (0, 2), DOMAIN)
def scatter_update(attrs: Attrs, var: Array, index: Array, updates: Array) -> Array:
    result: Array = scatter_nd_update(attrs, var, index[..., None], updates)
    return result


@movement("ScatterNdUpdate", (0, 2), DOMAIN)
def scatter_nd_update(attrs: Attrs, var: Array, index: Array, updates: Array) -> Array:
    """ONNX's ScatterND without indices that count from the end."""
    if index.size and index.min() < 0:
        raise OutOfRange(f"{index.min()}")
    result: Array = scatter_nd({}, var, index, updates)
    return result


@movement("TensorMove", (0,), DOMAIN)
def tensor_move(attrs: Attrs, x: Array) -> Array:
    return x


def _shapes(operator: Operator) -> Callable[[Attrs, Operands], list[tuple[int, ...]]]:
    def shapes(attrs: Attrs, operands: Operands) -> list[tuple[int, ...]]:
        specs = {
            entry.name: TensorSpec(operator.types[entry.type][0], item.shape)
            for entry, item in zip(operator.inputs, operands, strict=False)
            if item is not None
        }
        told = operator.infer(specs, {name: item for name, item in attrs.items() if not name.startswith("@")})
        found = [told[output.name].shape for output in operator.outputs]
        if any(shape is None or not all(isinstance(dim, int) for dim in shape) for shape in found):
            raise Unsupported(f"the shapes of {operator.name}")
        return [tuple(dim for dim in shape or () if isinstance(dim, int)) for shape in found]

    return shapes


def _not_run(attrs: Attrs, operands: Operands) -> tuple[Array, ...]:
    raise Unsupported("a fused operator: only its shape is told here")


for _operator in OPS.values():
    if lookup(DOMAIN, _operator.name) is None:
        register(_operator.name, OpDef(_not_run, "compute", None, guarded(_shapes(_operator))), DOMAIN)
