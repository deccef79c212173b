"""Many random calls of a decode session: ``python -m tests.custom_ort.decode.soak [operations]``.

Every logit is compared with the formula, and the process must not grow.
"""

from __future__ import annotations

import sys
import time
from pathlib import Path

import numpy as np

from custom_ort import DecodeSession
from ir_ops.errors import BadInput
from tests.custom_ort.decode import tiny

SEQUENCES, CAPACITY, PAGES = 64, 40, 200
BOUND = 2e-4
GROWTH = 4 << 20
"""Bytes that the process may grow after the first tenth."""


def resident() -> int:
    """Bytes of the process in memory."""
    return int(Path("/proc/self/statm").read_text(encoding="ascii").split()[1]) * 4096


class Soak:
    """Sequences, and the ids that each must consist of."""

    def __init__(self, paged: bool, seed: int) -> None:
        pages = {"pages": PAGES} if paged else {}
        self._session = DecodeSession(tiny.model(paged), max_sequences=SEQUENCES, capacity=CAPACITY, **pages)
        self._rng = np.random.default_rng(seed)
        self._alive: dict[int, list[int]] = {}
        self.worst, self.tokens, self.refused = 0.0, 0, 0

    def operate(self) -> None:
        """One operation."""
        kind = self._rng.choice(["prefill", "step", "fork", "free"], p=[0.15, 0.6, 0.15, 0.1])
        if len(self._alive) >= SEQUENCES - 4:
            kind = "free"
        try:
            getattr(self, f"_{kind}")()
        except BadInput as error:
            if "caches are full" not in str(error):
                raise
            self.refused += 1
            self._free()

    def end(self) -> None:
        """All pages come back."""
        while self._alive:
            self._free()
        assert not self._session.sequences
        assert self._session.free_pages == len(self._session._pool)

    def _check(self, logits: np.ndarray, numbers: list[int]) -> None:
        wanted = np.stack([tiny.logits_of(self._alive[number]) for number in numbers])
        self.worst = max(self.worst, float(np.abs(logits - wanted).max()))
        assert self.worst <= BOUND, f"logits are {self.worst:.3g} apart"

    def _some(self, most: int) -> list[int]:
        return [int(number) for number in self._rng.permutation(list(self._alive))[: self._rng.integers(1, most)]]

    def _prefill(self) -> None:
        old = [number for number in self._some(3) if len(self._alive[number]) < CAPACITY - 8] if self._alive else []
        new = not old or self._rng.random() < 0.6
        count = int(self._rng.integers(1, 4)) if new else len(old)
        rows = [self._rng.integers(0, tiny.VOCABULARY, self._rng.integers(1, 8)).tolist() for _ in range(count)]
        chunk = int(self._rng.integers(1, 8))
        numbers, logits = self._session.prefill(rows, None if new else old, chunk=chunk)
        for number, row in zip(numbers, rows, strict=True):
            self._alive[number] = [*self._alive.get(number, []), *row]
            self.tokens += len(row)
        self._check(logits, list(numbers))

    def _step(self) -> None:
        numbers = [number for number in self._some(9) if len(self._alive[number]) < CAPACITY] if self._alive else []
        if numbers:
            ids = self._rng.integers(0, tiny.VOCABULARY, len(numbers))
            logits = self._session.step(ids, numbers)
            for number, token in zip(numbers, ids, strict=True):
                self._alive[number].append(int(token))
            self.tokens += len(numbers)
            self._check(logits, numbers)

    def _fork(self) -> None:
        if self._alive:
            parent = int(self._rng.choice(list(self._alive)))
            self._alive[self._session.fork(parent)] = list(self._alive[parent])

    def _free(self) -> None:
        if self._alive:
            number = int(self._rng.choice(list(self._alive)))
            self._session.free(number)
            del self._alive[number]


def run(operations: int, paged: bool = True, seed: int = 1) -> str:
    """Runs and checks; one line of figures."""
    soak, began, start = Soak(paged, seed), time.perf_counter(), 0
    for number in range(operations):
        soak.operate()
        if number == operations // 10:
            start = resident()
    grown = resident() - start
    soak.end()
    assert grown <= GROWTH, f"the process has grown by {grown} bytes"
    return (
        f"{'paged' if paged else 'contiguous'}: {operations} operations, {soak.tokens} tokens, {soak.refused} refused, "
        f"worst difference {soak.worst:.2g}, {grown / 2**20:+.2f} MiB after the first tenth, "
        f"{time.perf_counter() - began:.0f} s"
    )


if __name__ == "__main__":
    for paged in (True, False):
        print(run(int(sys.argv[1]) if len(sys.argv) > 1 else 12000, paged))
