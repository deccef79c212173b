"""Whether a reading of slots holds where the numbers that were drawn did not go: at both ends of every page.

A page or a row that is counted otherwise (17 rows where the cache has 16) differs there, and often only there.
"""

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


def holds_at_corners(view: GraphView, spine: Spine, slots: Slots, written: WrittenView) -> bool:
    """Whether the first and the last slots of pages are written as the reading says."""
    numbers = written.probe.array(slots.value)
    if numbers is None or slots.form != "slot" or not written.probe.known(slots.value).taint:
        return True
    return all(is_as_read(view, spine, slots, written, trial) for trial in _corners(written, numbers))


def _corners(written: WrittenView, numbers: Array) -> Iterator[Array]:
    """Numbers that are each in some trial once, with others where a trial has room."""
    pages, rows = written.geometry.pages, written.geometry.rows
    ends = np.unique(np.arange(pages)[:, None] * rows + np.array([0, rows - 1]))
    others = np.setdiff1d(np.arange(pages * rows), ends)
    for start in range(0, len(ends), numbers.size):
        part = ends[start : start + numbers.size]
        more = np.concatenate([others, np.setdiff1d(ends, part)])[: numbers.size - len(part)]
        if len(part) + len(more) == numbers.size:
            yield np.concatenate([part, more]).reshape(numbers.shape)


def is_as_read(view: GraphView, spine: Spine, slots: Slots, written: WrittenView, numbers: Array) -> bool:
    """Whether the graph writes rows as the reading says; what is negative is to be left alone."""
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
