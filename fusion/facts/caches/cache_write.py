"""A cache write: which rows of which value go to which slots of a cache, whatever operators spell it.

The address map of a write (:mod:`fusion.facts.caches.write_map`) is compared with what :mod:`ir_ops.layout` predicts
for each candidate slot value: an exact match under two trial sizes is the fact.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass, field

import numpy as np
import onnx_ir as ir

from fusion.facts.caches.corners import holds_at_corners
from fusion.facts.caches.negative import with_negative_slots
from fusion.facts.caches.slots import Slots
from fusion.facts.caches.write_map import NotAWrite, run_tags
from fusion.facts.caches.written import WrittenView, predictions
from fusion.facts.graph import GraphView
from fusion.facts.semantics import Conflict, OutOfRange, Unsupported
from fusion.facts.spine import Spine
from fusion.facts.trial.probe import Numbers, Probe
from fusion.facts.trial.settle import settle, start_sizes
from fusion.facts.trial.sizes import Sizes

SEEDS = (0, 1)
LONGEST_PAGE = 512
"""Rows of a page up to which runs longer than a page are tried."""
LARGEST_NUMBER = 1 << 20


@dataclass
class CacheWrite:
    """A write that two probes agree on.

    Attributes:
        spine: the way from the cache input to the output with the new content.
        updates: values whose elements are written, in tag order.
        order: memory order of :mod:`ir_ops.layout`.
        slots: the slot value and its meaning.
        run: where each batch entry's rows begin, when they are one run; None when ``slots`` is that already.
        negative: what the graph does with slot -1: ``skips``, ``wraps`` (writes somewhere) or ``unknown``.
        probes: per probe, the evaluated form.
    """

    spine: Spine
    updates: tuple[ir.Value, ...]
    order: str
    slots: Slots
    run: Slots | None = None
    negative: str = "unknown"
    probes: list[WrittenView] = field(default_factory=list)

    @property
    def cache(self) -> ir.Value:
        return self.spine.cache

    @property
    def out(self) -> ir.Value:
        return self.spine.out


@dataclass
class _Trial:
    """What one trial size found: every reading that predicts the written addresses."""

    updates: tuple[ir.Value, ...]
    matches: list[tuple[Slots, WrittenView]]
    cap: int

    def view_of(self, slots: Slots, order: str) -> WrittenView | None:
        return next((item for own, item in self.matches if own == slots and item.geometry.order == order), None)

    @property
    def by_page(self) -> list[WrittenView]:
        return [item for slots, item in self.matches if slots.form == "block"]


def read_write(view: GraphView, spine: Spine) -> CacheWrite | NotAWrite:
    """Reads how the output is written over the cache: two trial sizes must agree.

    Writes by page are tried with runs of tokens longer than a page, which also decide where the plain sizes do not fit.
    """
    trials = [_trial(view, spine, start_sizes(view, seed, spine.out), seed) for seed in SEEDS]
    read = [trial for trial in trials if isinstance(trial, _Trial)]
    if len(read) < len(SEEDS) or any(trial.by_page for trial in read):
        read += _long_run(view, spine)
    if len(read) < len(SEEDS):
        return next(trial for trial in trials if isinstance(trial, NotAWrite))
    found = _agreed(view, spine, read)
    if found is None and len({trial.cap for trial in read}) > 1:
        # starts of runs may be large in one trial and leave the batch entry: what small ones show holds for both
        most = min(trial.cap for trial in read)
        trials = [_trial(view, spine, start_sizes(view, seed, spine.out), seed, most) for seed in SEEDS]
        read = [trial for trial in trials if isinstance(trial, _Trial)]
        found = _agreed(view, spine, read) if len(read) == len(SEEDS) else None
    return found or NotAWrite(spine.cache, spine.out, "write-layout", "the trial sizes read different layouts")


def _agreed(view: GraphView, spine: Spine, read: list[_Trial]) -> CacheWrite | None:
    """The preferred reading that two trials share."""
    for slots, here in sorted(read[0].matches, key=_preference):
        agreed = [item for trial in read if (item := trial.view_of(slots, here.geometry.order)) is not None]
        if len(agreed) < len(SEEDS):
            continue
        probes = _page_probes(agreed) if slots.form == "block" else agreed[: len(SEEDS)]
        if probes and holds_at_corners(view, spine, slots, probes[0]):
            fixed = not probes[0].probe.known(slots.value).taint  # never -1
            negative = "skips" if fixed else with_negative_slots(view, spine, slots, probes[0])
            run = None if slots.start else _run(read[: len(SEEDS)], probes)
            return CacheWrite(spine, read[0].updates, here.geometry.order, slots, run, negative, probes)
    return None


def _run(trials: list[_Trial], agreed: list[WrittenView]) -> Slots | None:
    """The given value that says where runs start, when that predicts the same rows."""
    order = agreed[0].geometry.order
    for slots in (slots for slots, _ in sorted(trials[0].matches, key=_preference) if slots.start):
        seen = [item for trial in trials if (item := trial.view_of(slots, order)) is not None]
        if len(seen) == len(agreed) and all(
            np.array_equal(item.source, other.source) for item, other in zip(seen, agreed, strict=True)
        ):
            return slots
    return None


def _page_probes(agreed: list[WrittenView]) -> list[WrittenView]:
    """The first probe and one whose runs are longer than a page; none when no probe shows page starts.

    Where the graph fixes batch and tokens, what it shows is all there is.
    """
    fixed = len({(item.batch, item.tokens) for item in agreed}) == 1
    if not fixed and not any(item.is_long for item in agreed):
        return []
    return [agreed[0], next((item for item in agreed if item.is_long), agreed[1])]


def _long_run(view: GraphView, spine: Spine) -> list[_Trial]:
    """A trial with runs one token longer than a page, of the sizes a page may have; one that shows them, if any."""
    found: list[_Trial] = []
    shape = Probe(view, 0, start_sizes(view, 0), Numbers(1)).input_shape(spine.cache) or ()
    for rows in sorted({size for size in shape[1:-1] if 1 < size <= LONGEST_PAGE}):
        for multiple in (1, 2):
            trial = _trial(view, spine, start_sizes(view, len(SEEDS), spine.out, rows + 1, multiple), len(SEEDS))
            if isinstance(trial, _Trial):
                if any(item.is_long for item in trial.by_page):
                    return [trial]
                found.append(trial)
    return found[:1]


def _preference(match: tuple[Slots, WrittenView]) -> tuple[bool, bool, bool]:
    """Slots that are given before slots that are computed, and before the start of a run.

    In a paged cache, numbers that happen to fall into the first page read as rows of one batch entry too.
    """
    slots, written = match
    ambiguous = written.geometry.order == "BSND" and slots.form == "row"
    return slots.start, slots.value.producer() is not None, ambiguous


def _trial(view: GraphView, spine: Spine, sizes: Sizes, seed: int, most: int = LARGEST_NUMBER) -> _Trial | NotAWrite:
    """Reads the write with the first slot numbers, below ``most``, that fit a layout."""
    reason = NotAWrite(spine.cache, spine.out, "write-unreadable", "no slot numbers fit the cache")
    unread: set[int] = set()
    for numbers in (item for item in _number_choices(view, spine.cache, seed) if item.cap <= most):
        try:
            probe = settle(view, seed, numbers, spine.targets, sizes)
            sizes = probe.sizes
            written = run_tags(view, spine, probe)
        except (Conflict, OutOfRange, Unsupported) as error:
            if reason.reason == "write-unreadable":
                reason = NotAWrite(spine.cache, spine.out, "write-unreadable", str(error))
            continue
        if isinstance(written, NotAWrite):
            reason = written
            if written.reason in ("cache-grows", "cache-unwritten"):
                return written
            continue
        matches = [match for match in predictions(view, written) if _reaches_pages(match, numbers)]
        if numbers.stride in unread:
            # larger numbers fit no layout, so these may only be rows of a batch entry, over their whole range
            matches = [match for match in matches if _whole_rows(match, numbers)]
        if matches:
            return _Trial(written.updates, matches, numbers.cap)
        reason = NotAWrite(spine.cache, spine.out, "write-layout", "no cache layout predicts the written addresses")
        unread.add(numbers.stride)
    return reason


def _reaches_pages(match: tuple[Slots, WrittenView], numbers: Numbers) -> bool:
    """Whether a slot could lie in another page than the first: else the numbers may be rows of any page."""
    slots, written = match
    return slots.form == "row" or written.geometry.pages == 1 or numbers.cap > written.geometry.rows


def _whole_rows(match: tuple[Slots, WrittenView], numbers: Numbers) -> bool:
    slots, written = match
    return slots.form == "row" and written.batch > 1 and numbers.cap == written.geometry.rows


def _number_choices(view: GraphView, cache: ir.Value, seed: int) -> Iterator[Numbers]:
    """Integer data to try: bounds from products of cache dims, the largest first, with room for a run of tokens.

    Large bounds come first: small ones would hide pages. Last come numbers that fall into distinct pages, as writes
    by page need them. The last axis holds columns in every layout and bounds no slot.
    """
    shape = (Probe(view, seed, start_sizes(view, seed), Numbers(1)).input_shape(cache) or ())[:-1]
    runs = {math.prod(shape[low:high]) for low in range(len(shape)) for high in range(low + 1, len(shape) + 1)}
    # pages and rows need not be neighbours: fractals lie between them
    runs |= {shape[0] * size for size in shape[1:]}
    caps = {cap for product in runs for cap in (product, product - 8) if 2 <= cap <= LARGEST_NUMBER}
    falling = sorted(caps, reverse=True)
    yield from (Numbers(cap) for cap in falling)
    yield from (Numbers(cap, stride) for stride in sorted(set(shape[1:])) for cap in falling if 1 < stride < cap)
