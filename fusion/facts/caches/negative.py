"""What a graph does with slot -1: the operators skip such a token, a scatter wraps it to the last row."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from fusion.facts.caches.corners import is_as_read
from fusion.facts.caches.slots import Slots
from fusion.facts.caches.written import WrittenView
from fusion.facts.graph import GraphView
from fusion.facts.spine import Spine
from ir_ops.dtypes import Array

TRIALS = 8


def with_negative_slots(view: GraphView, spine: Spine, slots: Slots, written: WrittenView) -> str:
    """``skips``, ``wraps`` (writes somewhere) or ``unknown``, over several choices of the other slots.

    A guard redirects -1 to some row and writes the old content there. That is a skip only as long as no other token
    targets that row, so the likely rows are tried both free and taken, with -1 before and behind them.
    """
    numbers = written.probe.array(slots.value)
    if numbers is None or slots.start or numbers.size < 2:
        return "unknown"
    trials = _trials(slots, written, numbers)
    return "skips" if all(is_as_read(view, spine, slots, written, trial) for trial in trials) else "wraps"


def _trials(slots: Slots, written: WrittenView, numbers: Array) -> Iterator[Array]:
    """Slot numbers with one -1."""
    geometry = written.geometry
    step = geometry.rows if slots.form == "block" else 1
    limit = geometry.rows if slots.form == "row" else geometry.pages * geometry.rows // step
    lines = numbers.reshape(-1, numbers.shape[-1]) if slots.form == "row" else numbers.reshape(1, -1)
    rng = np.random.default_rng(0)
    likely = [0, limit - 1, min(geometry.rows, limit) - 1]
    for trial in range(TRIALS):
        result = lines.copy()
        for line in result:
            chosen = rng.permutation(limit)
            if trial >= TRIALS - 2:
                rest = [slot for slot in chosen if slot not in likely]
                chosen = np.array([*dict.fromkeys(likely), *rest])
            if len(chosen) < len(line):
                return
            line[:] = chosen[: len(line)] * step
        result.reshape(-1)[-1 if trial % 2 else 0] = -1
        yield result.reshape(numbers.shape)
