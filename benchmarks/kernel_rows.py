"""The KvRmsNormRopeCache kernel against exporters' spellings of the same call in onnxruntime, and against memcpy.

One thread, everything at ORT_ENABLE_ALL, every input and output bound, caches in place on both sides, variants in
turns in one process. The figures are ratios: time of the other / time of the kernel.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np

from benchmarks.kv_graphs import VARIANTS, Problem, aligned
from benchmarks.timing import interleaved, table

DTYPES = ("float32", "float16", "bfloat16")
SHAPES = (("decode B=1", 1, 1), ("decode B=4", 4, 1), ("decode B=64", 64, 1), ("prefill S=1024", 1, 1024))


def measure(dtype: str, batch: int, tokens: int, *, threads: int = 1, seconds: float = 1.0) -> dict[str, float]:
    """Seconds a call: kvfuse, exporter, fused-ort, and memcpy of the bytes of kv."""
    problem = Problem(dtype, batch, tokens)
    calls: dict[str, Callable[[], object]] = {name: problem.binding(name, threads).step for name in VARIANTS}
    source = aligned(problem.arrays["kv"].view(np.uint8))
    target = aligned(source)
    calls["memcpy"] = lambda: np.copyto(target, source)
    return interleaved(calls, seconds=seconds)


def run(argv: Sequence[str] = ()) -> str:
    """The table of ratios. ``--quick`` measures a tenth of the time, ``--threads N`` uses N threads."""
    seconds = 0.2 if "--quick" in argv else 2.0
    threads = int(argv[list(argv).index("--threads") + 1]) if "--threads" in argv else 1
    rows = []
    for label, batch, tokens in SHAPES:
        for dtype in DTYPES:
            times = measure(dtype, batch, tokens, threads=threads, seconds=seconds)
            ours = times["kvfuse"]
            ratios = [f"{times[name] / ours:.1f}x" for name in ("exporter", "fused-ort")]
            rows.append([label, dtype, f"{ours * 1e6:.1f}", *ratios, f"{ours / times['memcpy']:.2f}"])
    head = ["KvRmsNormRopeCache", "dtype", "kernel us", "exporter / kernel", "fused-ort / kernel", "kernel / memcpy"]
    return table(head, rows)
