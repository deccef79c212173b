"""``python -m tests.fusion.metamorphic --count N --seed S --jobs J``: N edits of each sort; failing cases are written.

A file that is written is a regression test as it is: put it and the npz beside it into ``tests/data/metamorphic``.
"""

from __future__ import annotations

import argparse
import random
import sys
import time
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor, as_completed
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import onnx

from tests.fusion.metamorphic.bases import Base, bases
from tests.fusion.metamorphic.breaking import BREAKING, feed_of_others
from tests.fusion.metamorphic.cases import Outcome, Steps, check, draw, edited, fewest, judge, judged
from tests.fusion.metamorphic.shrink import Failing, shrink

GOOD = 0.995
COMPARED = 4
"""Of so many cases in which the meaning was kept, the results of one are compared; sites are counted in all."""
SHRINKING = {"wrong": 30, "lost": 20}
"""Seconds for making one failing case smaller."""
ROUND = 2500
"""Edits of each sort after which a process reports: a long run says what it found while it runs."""
BLOCKS = ("norm-", "rope-", "swiglu-", "dynamic-")


@dataclass
class Tally:
    """What happened: edits by sort, cases by outcome, and the failures."""

    edits: Counter[str] = field(default_factory=Counter)
    names: Counter[str] = field(default_factory=Counter)
    outcomes: Counter[str] = field(default_factory=Counter)
    lost_edits: int = 0
    failures: list[str] = field(default_factory=list)

    def add(self, other: Tally) -> None:
        self.edits += other.edits
        self.names += other.names
        self.outcomes += other.outcomes
        self.lost_edits += other.lost_edits
        self.failures += other.failures

    @property
    def kept(self) -> float:
        """Share of the meaning-preserving edits after which every site was still there (one lost per failing case)."""
        return 1 - self.lost_edits / max(1, self.edits["keeping"])


def cases(seed: int) -> Iterator[tuple[Base, Steps, bool]]:
    """Cases without end, on one base after the other, in a random order."""
    rng = random.Random(seed)
    graphs = list(bases())
    while True:
        rng.shuffle(graphs)
        for base in graphs:
            for breaking in (False, True, True, True):
                yield base, draw(base, rng, breaking), breaking


def explore(seed: int, count: int, out: Path | None, until: float) -> Tally:
    """Runs the cases of a seed until ``count`` edits of each sort found a place, or until the time ``until``."""
    tally = Tally()
    for number, (base, steps, breaking) in enumerate(cases(seed)):
        if time.time() > until or min(tally.edits["keeping"], tally.edits["breaking"]) >= count:
            break
        if tally.edits["breaking" if breaking else "keeping"] >= count:
            continue
        model, applied = edited(base, steps)
        outcome = judged(base, model, breaking, compare=number % COMPARED == 0)
        tally.edits["breaking" if breaking else "keeping"] += sum(
            number for name, number in applied.items() if breaking == (name in BREAKING)
        )
        tally.names += applied
        tally.outcomes[outcome.kind] += 1
        if outcome.kind in ("lost", "wrong"):
            tally.lost_edits += outcome.kind == "lost"
            tally.failures.append(_failure(base, steps, breaking, outcome, out, until))
    return tally


def _failure(base: Base, steps: Steps, breaking: bool, outcome: Outcome, out: Path | None, until: float) -> str:
    steps = fewest(steps, lambda fewer: time.time() < until and check(base, fewer, breaking).kind == outcome.kind)
    text = f"{outcome.kind}: {base.name} after {list(steps)}: {outcome.text}"
    if out is not None:
        model, _ = edited(base, steps)
        name = f"{outcome.kind}_{base.name}_{'_'.join(name for name, _ in steps)}".replace(" ", "_")
        small = _smallest(base, model, outcome, min(SHRINKING[outcome.kind], until - time.time()))
        out.mkdir(parents=True, exist_ok=True)
        onnx.save_model(small.model, out / f"{name}.onnx")
        np.savez_compressed(out / f"{name}.npz", **feed_of_others(small.feeds, small.model))
        text += f" -> {name}.onnx, {len(small.model.graph.node)} nodes"
    return text


def _smallest(base: Base, model: onnx.ModelProto, outcome: Outcome, seconds: float) -> Failing:
    if outcome.kind == "lost":
        return shrink(Failing(model, base.feeds[0], base.model), _lost, seconds)
    for given in base.feeds:
        first = Failing(model, given)
        if _wrong(first):
            return shrink(first, _wrong, seconds)
    return Failing(model, base.feeds[0])


def _wrong(failing: Failing) -> bool:
    return judge(failing.model, [failing.feeds], None).kind == "wrong"


def _lost(failing: Failing) -> bool:
    assert failing.before is not None
    unedited = Base("shrunk", lambda: failing.before, lambda: [failing.feeds])  # type: ignore[arg-type, return-value]
    return bool(unedited.sites) and judge(failing.model, [], unedited.sites).kind == "lost"


def _so_far(total: Tally, started: float) -> str:
    return f"{time.time() - started:.0f} s; edits {dict(total.edits)}; cases {dict(total.outcomes)}"


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--count", type=int, default=100_000, help="edits of each sort")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--jobs", type=int, default=2)
    parser.add_argument("--minutes", type=float, default=1e6, help="stop after so many")
    parser.add_argument("--out", type=Path, default=Path("out/metamorphic"))
    given = parser.parse_args()
    started, total = time.time(), Tally()
    until, rounds = started + 60 * given.minutes, -(-given.count // ROUND)
    with ProcessPoolExecutor(given.jobs) as pool:
        seeds = range(1000 * given.seed, 1000 * given.seed + rounds)
        runs = [pool.submit(explore, seed, -(-given.count // rounds), given.out, until) for seed in seeds]
        for finished in as_completed(runs):
            tally = finished.result()
            total.add(tally)
            print(*tally.failures, _so_far(total, started), sep="\n", flush=True)
    print(f"by name: {dict(sorted(total.names.items()))}")
    print(f"meaning kept, sites kept: {100 * total.kept:.2f} %; wrong fusions: {total.outcomes['wrong']}")
    return int(total.kept < GOOD or total.outcomes["wrong"] > 0)


if __name__ == "__main__":
    sys.exit(main())
