"""What a graph does with slot -1: the operators skip such a token, a scatter wraps it to the last row."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from fusion.facts.caches.slots import Slots, readings
from fusion.facts.caches.write_map import NotAWrite, run_tags
from fusion.facts.caches.written import WrittenView
from fusion.facts.graph import GraphView
from fusion.facts.semantics import Conflict, OutOfRange, Unsupported
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
    return "skips" if all(_skips(view, spine, slots, written, trial) for trial in trials) else "wraps"


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


def _skips(view: GraphView, spine: Spine, slots: Slots, written: WrittenView, numbers: Array) -> bool:
    """Whether the write with these slot numbers leaves alone what the negative ones would address."""
    try:
        tagged = run_tags(view, spine, written.probe.with_data(slots.value, numbers))
    except (Conflict, OutOfRange, Unsupported):
        return False
    if isinstance(tagged, NotAWrite):
        return False
    meanings = readings(slots.value, numbers.astype(np.int64), written.geometry, written.source.shape[0])
    meaning = next((item for item in meanings if item.slots == slots and item.batch == written.batch), None)
    if meaning is None:
        return False
    valid = numbers.reshape(-1) >= 0
    per_token = valid if len(valid) == len(meaning.page) else np.tile(valid, len(meaning.page) // len(valid))
    wanted = np.arange(tagged.tags.size)
    place = written.geometry.places(meaning.page, meaning.line)
    wanted[place[per_token]] = written.source[per_token] + tagged.tags.size
    return bool((tagged.tags.reshape(-1) == wanted).all())
