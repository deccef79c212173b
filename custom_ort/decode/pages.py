"""Which pages of the caches belong to which sequence: allocation, sharing after a fork, copies before a shared write.

A cache without pages is one page a sequence here. Nothing of this knows the caches' memory.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field

from ir_ops.errors import BadInput


@dataclass
class Held:
    """A sequence: how many tokens it has, the pages that hold them in order, and the position of its last token."""

    length: int = 0
    pages: list[int] = field(default_factory=list)
    position: int = -1


@dataclass
class Growth:
    """Room for the new tokens of one sequence, not yet part of it.

    Attributes:
        length: tokens after the growth.
        pages: all pages after it.
        copy: (from, to) where the last page is shared and must be copied before it is written.
    """

    sequence: int
    length: int
    pages: list[int]
    copy: tuple[int, int] | None


def check_distinct(sequences: Sequence[int]) -> None:
    """Refuses a call that names a sequence twice.

    Raises:
        BadInput: it does.
    """
    if len(set(sequences)) != len(sequences):
        twice = next(number for number in sequences if sequences.count(number) > 1)
        raise BadInput("a sequence is named twice in one call", found=str(twice), wanted="each sequence once")


class PagePool:
    """All pages and all sequences.

    Args:
        pages: how many there are.
        page_size: tokens a page.
        capacity: most tokens of a sequence.
    """

    def __init__(self, pages: int, page_size: int, capacity: int) -> None:
        self.page_size, self.capacity = page_size, capacity
        self._free = list(range(pages - 1, -1, -1))
        self._readers = [0] * pages
        self._held: dict[int, Held] = {}
        self._next = 0

    @property
    def sequences(self) -> tuple[int, ...]:
        """Numbers of the living sequences, the oldest first."""
        return tuple(self._held)

    def __len__(self) -> int:
        """All pages, free ones and held ones."""
        return len(self._readers)

    @property
    def free_pages(self) -> int:
        return len(self._free)

    def __getitem__(self, sequence: int) -> Held:
        """A sequence.

        Raises:
            BadInput: there is none of this number.
        """
        found = self._held.get(sequence)
        if found is None:
            alive = ", ".join(map(str, self._held)) or "none"
            raise BadInput("there is no such sequence", found=str(sequence), wanted=f"one that lives: {alive}")
        return found

    def new(self) -> int:
        """A sequence without tokens. Numbers are never used again."""
        number, self._next = self._next, self._next + 1
        self._held[number] = Held()
        return number

    def free(self, sequence: int) -> None:
        """Ends a sequence.

        Raises:
            BadInput: there is none of this number.
        """
        held = self[sequence]
        del self._held[sequence]
        self._release(held.pages)

    def fork(self, sequence: int) -> int:
        """A sequence with the same tokens. Pages are shared until one of both writes to them.

        Raises:
            BadInput: there is none of this number.
        """
        held = self[sequence]
        for page in held.pages:
            self._readers[page] += 1
        number = self.new()
        self._held[number] = Held(held.length, list(held.pages), held.position)
        return number

    def grow(self, wanted: Sequence[tuple[int, int]]) -> list[Growth]:
        """Room for new tokens: (sequence, how many). Nothing belongs to the sequences before :meth:`commit`.

        Raises:
            BadInput: a sequence is unknown or named twice, would be longer than the capacity, or pages are short;
                nothing is taken in that case.
        """
        check_distinct([sequence for sequence, _ in wanted])
        grown: list[Growth] = []
        leaving: Counter[int] = Counter()  # readers that get a copy in this call: the last one keeps the page
        try:
            for sequence, count in wanted:
                grown.append(self._grown(sequence, count, leaving))
        except BadInput:
            self.drop(grown)
            raise
        return grown

    def _grown(self, sequence: int, count: int, leaving: Counter[int]) -> Growth:
        held = self[sequence]
        length = held.length + count
        if length > self.capacity:
            raise BadInput(
                "a sequence is longer than its capacity", where=f"sequence {sequence}",
                found=f"{held.length} tokens and {count} new ones", wanted=f"at most {self.capacity}",
                hint="free it, or make the session with a larger capacity",
            )  # fmt: skip
        pages = list(held.pages)
        last = held.length // self.page_size
        partly = held.length % self.page_size != 0 and count > 0
        shared = partly and self._readers[pages[last]] - leaving[pages[last]] > 1
        missing = -(-length // self.page_size) - len(pages) + shared
        if missing > len(self._free):
            raise BadInput(
                "the caches are full", where=f"sequence {sequence}", found=f"{len(self._free)} free pages",
                wanted=f"{missing} pages of {self.page_size} tokens",
                hint="free a sequence, or make the session with more pages",
            )  # fmt: skip
        taken = [self._take() for _ in range(missing)]
        copy = None
        if shared:
            copy = (pages[last], taken[0])
            leaving[pages[last]] += 1
            pages[last], taken = taken[0], taken[1:]
        return Growth(sequence, length, pages + taken, copy)

    def commit(self, grown: Sequence[Growth]) -> None:
        """Makes the room part of the sequences."""
        for item in grown:
            held = self._held[item.sequence]
            held.length, held.pages = item.length, item.pages
            if item.copy is not None:
                self._release([item.copy[0]])

    def drop(self, grown: Sequence[Growth]) -> None:
        """Gives the room back: the sequences stay as they were."""
        for item in grown:
            old = set(self._held[item.sequence].pages)
            self._release([page for page in item.pages if page not in old])

    def shrink(self, sequence: int, length: int, position: int) -> None:
        """Forgets the last tokens of a sequence."""
        held = self._held[sequence]
        kept = -(-length // self.page_size)
        self._release(held.pages[kept:])
        self._held[sequence] = Held(length, held.pages[:kept], position)

    def _take(self) -> int:
        page = self._free.pop()
        self._readers[page] = 1
        return page

    def _release(self, pages: Sequence[int]) -> None:
        for page in reversed(pages):
            self._readers[page] -= 1
            if not self._readers[page]:
                self._free.append(page)
