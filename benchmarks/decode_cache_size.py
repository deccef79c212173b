"""One-row decode with caches bound in place: the time must not depend on the size of the cache."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from benchmarks.kv_graphs import NORM, ROPE, Problem
from benchmarks.timing import interleaved, table

SIZES_MB = (1, 16, 64, 256)
BOUND = 1.5
"""The largest cache may cost this much of the smallest."""


def measure(dtype: str = "float16", sizes: Sequence[int] = SIZES_MB, *, seconds: float = 1.0) -> dict[str, float]:
    """Seconds of a decode step by cache size (``"64 MB"``), and of a plain run of the largest that copies."""
    from custom_ort import run

    row_bytes = (NORM + ROPE) * np.dtype(np.float16 if dtype != "float32" else np.float32).itemsize
    calls = {}
    for size in sizes:
        binding = Problem(dtype, 1, 1, spare_rows=size * 2**20 // row_bytes).binding("kvfuse")
        for name in ("k_cache", "ckv_cache"):
            binding[name].fill(0)  # real memory, not untouched pages
        calls[f"{size} MB"] = binding.step
    times = interleaved(calls, seconds=seconds)
    feeds = {name: binding[name] for name in ("kv", "cos", "sin", "index", "k_cache", "ckv_cache")}
    copying = interleaved({"copied": lambda: run(binding.session, feeds)}, seconds=seconds / 4, rounds=3)
    return {**times, f"{sizes[-1]} MB, not bound in place": copying["copied"]}


def run(argv: Sequence[str] = ()) -> str:
    """The table; its last line says whether the bound holds. ``--quick`` measures for a short time."""
    times = measure(seconds=0.3 if "--quick" in argv else 2.0)
    first = times[f"{SIZES_MB[0]} MB"]
    rows = [[label, f"{seconds * 1e6:.1f}", f"{seconds / first:.2f}x"] for label, seconds in times.items()]
    ratio = times[f"{SIZES_MB[-1]} MB"] / first
    verdict = "does not depend on the cache size" if ratio <= BOUND else "DEPENDS ON THE CACHE SIZE"
    head = ["decode of one row, float16, cache of", "us", f"to {SIZES_MB[0]} MB"]
    return table(head, rows) + f"\n{SIZES_MB[0]} to {SIZES_MB[-1]} MB: {ratio:.2f}x (bound {BOUND}x): {verdict}"
