"""The row kernels against exporters' spellings of the same call in onnxruntime, and against memcpy.

Everything at ORT_ENABLE_ALL, every input and cache bound, caches in place on both sides, variants in turns in one
process. The figures are ratios: time of the other / time of the kernel, and time of the kernel / time of one memcpy
that moves as many bytes as the call.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

import numpy as np

from benchmarks import dequant_graphs, kv_graphs, qkv_graphs
from benchmarks.graph import aligned
from benchmarks.timing import interleaved, table

FLOATS = ("float32", "float16", "bfloat16")
SHAPES = (("decode B=1", 1, 1), ("decode B=4", 4, 1), ("decode B=64", 64, 1), ("prefill S=1024", 1, 1024))
LONGEST = SHAPES[-1]
VARIANTS = ("kvfuse", "exporter", "fused-ort")
Problem = kv_graphs.Problem | qkv_graphs.Problem | dequant_graphs.Problem
OPERATORS: dict[str, tuple[Callable[[str, int, int], Problem], tuple[str, ...]]] = {
    "KvRmsNormRopeCache": (kv_graphs.Problem, FLOATS),
    "QkvRmsNormRopeCache": (qkv_graphs.Problem, FLOATS),
    "DequantRopeQuantKvcache": (dequant_graphs.Problem, (*FLOATS, "int32")),
}


def measure(problem: Problem, *, threads: int = 1, seconds: float = 1.0) -> dict[str, float]:
    """Seconds a call: kvfuse, exporter, fused-ort, and memcpy of the bytes that the call moves."""
    calls: dict[str, Callable[[], object]] = {name: problem.binding(name, threads).step for name in VARIANTS}
    source, target = (aligned(np.ones(problem.moved, np.uint8)) for _ in range(2))
    calls["memcpy"] = lambda: np.copyto(target, source)
    return interleaved(calls, seconds=seconds)


def scaling(problem: Problem, *, threads: int, seconds: float = 1.0) -> float:
    """Time of the kernel with one thread / with ``threads``: one session at a time, idle pools would spin."""
    best: dict[int, float] = {}
    for count in (1, threads) * 3:
        binding = problem.binding("kvfuse", count)
        found = interleaved({"kvfuse": binding.step}, seconds=seconds / 6)["kvfuse"]
        best[count] = min(best.get(count, found), found)
        del binding
    return best[1] / best[threads]


def run(argv: Sequence[str] = ()) -> Iterator[str]:
    """The tables of ratios. ``--quick`` measures a tenth of the time, ``--threads N`` uses N threads."""
    seconds = 0.1 if "--quick" in argv else 2.0
    threads = int(argv[list(argv).index("--threads") + 1]) if "--threads" in argv else 1
    for operator, (problem, dtypes) in OPERATORS.items():
        rows = []
        for label, batch, tokens in SHAPES:
            for dtype in dtypes:
                made = problem(dtype, batch, tokens)
                times = measure(made, threads=threads, seconds=seconds)
                ours = times["kvfuse"]
                ratios = [f"{times[name] / ours:.1f}x" for name in ("exporter", "fused-ort")]
                row = [label, dtype, f"{ours * 1e6:.1f}", *ratios, f"{ours / times['memcpy']:.2f}"]
                two = scaling(made, threads=2, seconds=seconds) if (label, batch, tokens) == LONGEST else 0
                rows.append([*row, f"{two:.2f}x" if two else ""])
        head = [
            operator,
            "rows",
            "kernel us",
            "exporter / kernel",
            "fused-ort / kernel",
            "kernel / memcpy",
            "2 threads",
        ]
        yield table(head, rows)
