"""Random legal calls of KvRmsNormRopeCache, over all modes, types, quantisations and shapes of policy ``generic``."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from ir_ops.contract import kept_as
from ir_ops.dtypes import Array, by_name
from ir_ops.layout import KV_CACHE_MODES, CacheMode, nz_block

NAME = "KvRmsNormRopeCache"
FLOATS = ("float32", "float16", "bfloat16")
EIGHT_BIT = ("int8", "float8_e4m3fn", "float8_e5m2")
CASTS = ("saturate", "nonsaturate", "integer")


@dataclass
class Call:
    """Inputs by GE name, attributes, and the mode that they use."""

    inputs: dict[str, Array]
    attrs: dict[str, Any]

    @property
    def mode(self) -> CacheMode:
        return KV_CACHE_MODES[self.attrs["cache_mode"]]


def values(rng: np.random.Generator, shape: tuple[int, ...], dtype: str, spread: float = 1.0) -> Array:
    array: Array = (rng.standard_normal(shape) * spread).astype(np.float32).astype(by_name(dtype).np)
    return array


def contents(rng: np.random.Generator, shape: tuple[int, ...], dtype: str) -> Array:
    """What a cache holds before: small integers, so that a byte written by mistake shows."""
    array: Array = rng.integers(-8, 8, shape).astype(np.float32).astype(by_name(dtype).np)
    return array


def width(rng: np.random.Generator, mode: CacheMode, dtype: str) -> int:
    """An even width that the cache can hold; often one that fills no vector."""
    step = nz_block(dtype) if mode.order == "NZ" else 2
    if rng.random() < 0.3:
        return 64
    return int(step * rng.integers(1, 4 if step > 2 else 45))


def index(rng: np.random.Generator, mode: CacheMode, batch: int, tokens: int, pages: int, rows: int) -> Array:
    """Slots without repeats, some of them -1."""
    if mode.slot == "row":
        slots = np.stack([rng.permutation(rows)[:tokens] for _ in range(batch)])
    elif mode.slot == "slot":
        slots = rng.permutation(pages * rows)[: batch * tokens]
    else:
        starts = rng.permutation(pages)[: batch * -(-tokens // rows)]
        slots = starts * rows + (rng.integers(0, rows, starts.shape) if rng.random() < 0.2 else 0)
    if rng.random() < 0.3:
        slots = np.sort(slots, axis=-1)
    slots = slots.astype(np.int64)
    slots[rng.random(slots.shape) < rng.choice([0.0, 0.2, 1.0], p=[0.6, 0.37, 0.03])] = -1
    return slots


def cache_types(rng: np.random.Generator, kv: str) -> tuple[str, str]:
    """Both plain, float32 rows also narrower, or one 8-bit type for the one, the other, or both."""
    small = str(rng.choice(EIGHT_BIT, p=[0.5, 0.25, 0.25]))
    first, second = (str(rng.choice([kv, *kept_as(kv)])) for _ in range(2))
    return ((first, second), (small, small), (small, first), (first, small))[int(rng.integers(4))]


def random_call(rng: np.random.Generator, *, cache_mode: str | None = None, separate: bool | None = None) -> Call:
    """One legal call."""
    mode = KV_CACHE_MODES[cache_mode or str(rng.choice(list(KV_CACHE_MODES)))]
    separate = bool(rng.integers(2)) if separate is None else separate
    kind = str(rng.choice(FLOATS))
    k_type, v_type = cache_types(rng, kind)
    batch, tokens = int(rng.integers(1, 4)), int(rng.choice([1, 2, 3, 7, 20]))
    heads = int(rng.choice([1, 2, 3])) if separate else 1
    k_width, v_width = width(rng, mode, k_type), width(rng, mode, v_type)
    rope = int(2 * rng.integers(1, k_width // 2 + 1)) if separate else k_width
    norm = k_width if separate else v_width
    inputs = {
        "kv": values(rng, (batch, heads, tokens, k_width if separate else k_width + v_width), kind),
        "gamma": values(rng, (norm,), kind),
        "cos": values(rng, (batch, heads if rng.integers(2) else 1, tokens if rng.integers(2) else 1, rope), kind),
    }
    inputs["sin"] = values(rng, inputs["cos"].shape, kind)
    rows = int(rng.choice([1, 3, 16])) if mode.paged else tokens + int(rng.integers(0, 4))
    needed = -(-tokens // rows) * batch if mode.slot == "block" else -(-batch * tokens // rows)
    pages = needed + int(rng.integers(0, 3)) if mode.paged else batch
    inputs["index"] = index(rng, mode, batch, tokens, pages, rows)
    for name, cache_type, columns in (("k_cache", k_type, k_width), ("ckv_cache", v_type, v_width)):
        shape = (pages, rows, heads, columns) if mode.paged else (batch, heads, rows, columns)
        inputs[name] = contents(rng, shape, cache_type)
    asymmetric = bool(rng.integers(2))
    quantisation = (("k_rope", k_type, k_width), ("c_kv", v_type, v_width))
    for prefix, cache_type, columns in quantisation:
        if cache_type in EIGHT_BIT:
            shapes = [(1,), (columns,), (1, columns), (heads, columns)]
            shape = shapes[int(rng.integers(4))]
            spread = 40.0 if cache_type == "int8" else float(rng.choice([0.01, 1.0, 200.0]))
            inputs[f"{prefix}_scale"] = np.abs(values(rng, shape, "float32", spread))
            if asymmetric:
                inputs[f"{prefix}_offset"] = values(rng, shapes[int(rng.integers(4))], "float32", 20.0)
    if separate:
        inputs["v"] = values(rng, (batch, heads, tokens, v_width), kind)
    attrs: dict[str, Any] = {
        "cache_mode": mode.name,
        "epsilon": float(rng.choice([1e-5, 1e-6, 0.1])),
        "is_output_kv": bool(rng.integers(2)),
    }
    if {k_type, v_type} & {"float8_e4m3fn", "float8_e5m2"}:
        attrs["float8_cast"] = str(rng.choice(CASTS))
    return Call(inputs, attrs)


CALLS = {NAME: random_call}
"""Operator -> generator of legal calls."""
