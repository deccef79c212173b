"""Random legal calls of DequantRopeQuantKvcache, over both modes, all types, biases and shapes of ``generic``."""

from __future__ import annotations

from typing import Any

import numpy as np

from tests.custom_ort.calls import FLOATS, Call, contents, values
from tests.custom_ort.qkv_calls import scales

NAME = "DequantRopeQuantKvcache"
ALIASES = {"k_cache": "k_cache_out", "v_cache": "v_cache_out"}
MODES = ("contiguous", "page")


def indices(rng: np.random.Generator, mode: str, batch: int, length: int, pages: int, rows: int) -> Any:
    """Slots without repeats, or a start row for each batch."""
    if mode == "page":
        found = rng.permutation(pages * rows)[: batch * length]
    else:
        found = rng.integers(0, rows - length + 1, batch)
    return found.astype(np.int32 if rng.integers(2) else np.int64)


def add_dequantisation(rng: np.random.Generator, inputs: dict[str, Any], hidden: int, tokens: int) -> None:
    """An int32 x with its scales and one of the biases."""
    limit = 2**31 - 1 if rng.random() < 0.1 else 5000
    inputs["x"] = rng.integers(-limit, limit, inputs["x"].shape, dtype=np.int32)
    inputs["weight_scale"] = (rng.uniform(0.1, 1, hidden) / limit).astype(np.float32)
    if rng.integers(2):
        inputs["activation_scale"] = rng.uniform(0.5, 3, tokens).astype(np.float32)
    bias = str(rng.choice(["", "int32", *FLOATS]))
    if bias == "int32":
        inputs["bias"] = rng.integers(-limit, limit, hidden, dtype=np.int32)
    elif bias:
        inputs["bias"] = values(rng, (hidden,), bias)


def random_call(rng: np.random.Generator, *, cache_mode: str | None = None) -> Call:
    """One legal call."""
    mode = cache_mode or str(rng.choice(MODES))
    kind = str(rng.choice(FLOATS))
    width = 128 if rng.random() < 0.3 else int(2 * rng.integers(1, 50))
    q_heads, heads = int(rng.choice([0, 1, 2, 5, 8], p=[0.05, 0.25, 0.3, 0.2, 0.2])), int(rng.choice([1, 2, 3]))
    batch, length = int(rng.integers(1, 4)), int(rng.choice([1, 2, 3, 7]))
    flat = rng.random() < 0.3
    length = 1 if flat else length
    lead = (batch,) if flat else (batch, length)
    splits = [q_heads * width, heads * width, heads * width]
    if mode == "page":
        rows = int(rng.choice([1, 3, 16]))
        pages = -(-batch * length // rows) + int(rng.integers(0, 3))
    else:
        rows, pages = length + int(rng.integers(0, 4)), batch + int(rng.integers(0, 2))
    table = (batch, width) if flat else (batch, length, 1, width)
    inputs = {
        "x": values(rng, (*lead, sum(splits)), kind),
        "cos": values(rng, table, kind),
        "sin": values(rng, table, kind),
        "k_cache": contents(rng, (pages, rows, heads, width), "int8"),
        "v_cache": contents(rng, (pages, rows, heads, width), "int8"),
        "indices": indices(rng, mode, batch, length, pages, rows),
    }
    shape = (heads, width) if rng.random() < 0.7 else (heads * width,)
    for name in ("k", "v"):
        inputs[f"scale_{name}"] = scales(rng, shape)
        if rng.integers(2):
            inputs[f"offset_{name}"] = values(rng, shape, "float32", 20.0)
    if rng.integers(2):
        add_dequantisation(rng, inputs, sum(splits), batch * length)
    return Call(inputs, {"size_splits": splits, "kv_output": bool(rng.integers(2)), "cache_mode": mode})


def prefill(kind: str, mode: str, *, quantised: bool = False, length: int = 150) -> Call:
    """Enough rows for many chunks: 4 query and 2 key and value heads of 64 columns."""
    rng = np.random.default_rng(3)
    splits, rows = [256, 128, 128], length + 5
    inputs = {
        "x": values(rng, (2, length, 512), kind),
        "cos": values(rng, (2, length, 1, 64), kind),
        "sin": values(rng, (2, length, 1, 64), kind),
        "k_cache": contents(rng, (2, rows, 2, 64), "int8"),
        "v_cache": contents(rng, (2, rows, 2, 64), "int8"),
        "indices": np.array([5, 1], np.int32)
        if mode == "contiguous"
        else rng.permutation(2 * rows)[: 2 * length].astype(np.int32),
        "scale_k": scales(rng, (2, 64)),
        "scale_v": scales(rng, (2, 64)),
    }
    if quantised:
        inputs["x"] = rng.integers(-5000, 5000, (2, length, 512), dtype=np.int32)
        inputs["weight_scale"] = rng.uniform(1e-4, 1e-3, 512).astype(np.float32)
        inputs["activation_scale"] = rng.uniform(0.5, 3, 2 * length).astype(np.float32)
        inputs["bias"] = values(rng, (512,), "float16")
    return Call(inputs, {"size_splits": splits, "kv_output": True, "cache_mode": mode})


CALLS = {NAME: random_call}
"""Operator -> generator of legal calls."""
