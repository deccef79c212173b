"""Random legal calls of QkvRmsNormRopeCache, over all types, quantisations, head counts and shapes of ``generic``."""

from __future__ import annotations

from typing import Any

import numpy as np

from ir_ops.contract import kept_as
from ir_ops.layout import QKV_CACHE_MODES, nz_block
from tests.custom_ort.calls import FLOATS, Call, contents, index, values

NAME = "QkvRmsNormRopeCache"
ALIASES = {"q_out": "q_out_out", "k_cache": "k_cache_out", "v_cache": "v_cache_out"}


def cache(rng: np.random.Generator, dtype: str, pages: int, rows: int, heads: int, width: int) -> Any:
    """A cache in its declared dims."""
    d0 = nz_block(dtype)
    return contents(rng, (pages, heads * width // d0, rows, d0), dtype)


def scales(rng: np.random.Generator, shape: tuple[int, ...]) -> Any:
    """Divisors of either sign, away from 0."""
    return (rng.uniform(0.005, 0.2, shape) * rng.choice([1, 1, 1, -1])).astype(np.float32)


def random_call(rng: np.random.Generator) -> Call:
    """One legal call."""
    kind = str(rng.choice(FLOATS))
    k_type, v_type = (str(rng.choice([kind, *kept_as(kind), "int8"])) for _ in range(2))
    step = max(nz_block(k_type), nz_block(v_type))
    width = 128 if rng.random() < 0.3 else int(step * rng.integers(1, 1 + max(2, 160 // step)))
    heads = [int(rng.choice([1, 2, 3, 5, 8])), int(rng.choice([1, 2, 3])), int(rng.choice([1, 2, 3]))]
    batch, length = int(rng.integers(1, 4)), int(rng.choice([1, 2, 3, 7]))
    tokens = batch * length
    rows = int(rng.choice([1, 3, 16]))
    pages = -(-tokens // rows) + int(rng.integers(0, 3))
    inputs = {
        "qkv": values(rng, (tokens, sum(heads) * width), kind, float(rng.choice([0.01, 1.0, 30.0]))),
        "q_gamma": values(rng, (width,), kind),
        "k_gamma": values(rng, (width,), kind),
        "cos": values(rng, (tokens, width), kind),
        "sin": values(rng, (tokens, width), kind),
        "index": index(rng, QKV_CACHE_MODES["PA_NZ"], batch, length, pages, rows),
        "k_cache": cache(rng, k_type, pages, rows, heads[1], width),
        "v_cache": cache(rng, v_type, pages, rows, heads[2], width),
    }
    if rng.integers(2):
        inputs["q_out"] = values(rng, (tokens, heads[0] * width), kind)
    for name, dtype, count in (("k", k_type, heads[1]), ("v", v_type, heads[2])):
        if dtype == "int8":
            inputs[f"{name}_scale"] = scales(rng, (count, width))
            if rng.integers(2):
                inputs[f"{name}_offset"] = values(rng, (count, width), "float32", 20.0)
    sizes = [(batch, length), (-1, length), (batch, -1), (-1, -1)][int(rng.integers(4))]
    attrs: dict[str, Any] = {
        "qkv_size": [*sizes, sum(heads), width],
        "head_nums": heads,
        "epsilon": float(rng.choice([1e-6, 1e-5, 0.1])),
        "is_output_qkv": bool(rng.integers(2)),
    }
    return Call(inputs, attrs)


def prefill(kind: str, cache_type: str, tokens: int = 150) -> Call:
    """Enough rows for many chunks, in random order of slots."""
    rng = np.random.default_rng(3)
    heads, width, rows = [8, 2, 2], 128, 16
    pages = tokens // rows + 2
    inputs = {
        "qkv": values(rng, (tokens, 12 * width), kind),
        "q_gamma": values(rng, (width,), kind),
        "k_gamma": values(rng, (width,), kind),
        "cos": values(rng, (tokens, width), kind),
        "sin": values(rng, (tokens, width), kind),
        "index": rng.permutation(pages * rows)[:tokens].astype(np.int64),
        "q_out": values(rng, (tokens, 8 * width), kind),
        "k_cache": cache(rng, cache_type, pages, rows, 2, width),
        "v_cache": cache(rng, cache_type, pages, rows, 2, width),
    }
    if cache_type == "int8":
        inputs["k_scale"], inputs["v_scale"] = scales(rng, (2, width)), scales(rng, (2, width))
    return Call(inputs, {"qkv_size": [1, tokens, 12, width], "head_nums": heads, "is_output_qkv": True})


CALLS = {NAME: random_call}
"""Operator -> generator of legal calls."""
