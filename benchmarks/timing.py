"""Comparing things on a machine that others use too: only ratios measured in one process, in turns, mean anything."""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Mapping, Sequence

import numpy as np


def interleaved(
    variants: Mapping[str, Callable[[], object]], *, seconds: float = 1.0, rounds: int = 9
) -> dict[str, float]:
    """Seconds a call of each variant takes: the lower quartile over rounds in which every variant has its turn.

    Args:
        variants: name -> call.
        seconds: about how long to measure in all.
        rounds: the least number of rounds.
    """
    for call in variants.values():
        call()
        call()
    start = time.perf_counter()
    for call in variants.values():
        call()
    rounds = max(rounds, min(4000, int(seconds / max(time.perf_counter() - start, 1e-7))))
    times: dict[str, list[float]] = {name: [] for name in variants}
    order, rng = list(variants.items()), random.Random(0)
    for _ in range(rounds):
        rng.shuffle(order)  # what ran before has changed the caches: nobody always follows the same one
        for name, call in order:
            begin = time.perf_counter()
            call()
            times[name].append(time.perf_counter() - begin)
    return {name: float(np.quantile(samples, 0.25)) for name, samples in times.items()}


def table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """A plain text table, first column left, others right."""
    widths = [max(len(row[column]) for row in (head, *rows)) for column in range(len(head))]

    def line(row: Sequence[str]) -> str:
        cells = [row[0].ljust(widths[0]), *(cell.rjust(width) for cell, width in zip(row[1:], widths[1:], strict=True))]
        return "  ".join(cells).rstrip()

    return "\n".join([line(head), "  ".join("-" * width for width in widths), *map(line, rows)])
