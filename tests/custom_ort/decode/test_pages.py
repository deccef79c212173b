"""Pages of sequences: room, sharing, and nothing lost whatever happens."""

from __future__ import annotations

import numpy as np
import pytest

from custom_ort.decode.pages import PagePool
from ir_ops.errors import BadInput


def grown(pool: PagePool, *wanted: tuple[int, int]) -> list[tuple[int, int] | None]:
    growth = pool.grow(wanted)
    pool.commit(growth)
    return [item.copy for item in growth]


def test_pages_are_taken_when_they_are_needed() -> None:
    pool = PagePool(8, 4, 20)
    first, second = pool.new(), pool.new()
    grown(pool, (first, 5), (second, 4))
    assert (len(pool[first].pages), len(pool[second].pages), pool.free_pages) == (2, 1, 5)
    grown(pool, (first, 3), (second, 1))
    assert (len(pool[first].pages), len(pool[second].pages), pool.free_pages) == (2, 2, 4)
    assert not set(pool[first].pages) & set(pool[second].pages)


def test_freed_pages_are_used_again() -> None:
    pool = PagePool(2, 4, 8)
    for _ in range(5):
        number = pool.new()
        grown(pool, (number, 8))
        assert pool.free_pages == 0
        pool.free(number)
    assert pool.free_pages == 2
    assert pool.sequences == ()


def test_room_that_is_dropped_leaves_no_trace() -> None:
    pool = PagePool(4, 4, 16)
    number = pool.new()
    grown(pool, (number, 3))
    before = (pool[number].length, list(pool[number].pages), pool.free_pages)
    pool.drop(pool.grow([(number, 9)]))
    assert (pool[number].length, list(pool[number].pages), pool.free_pages) == before


def test_a_fork_shares_pages_until_one_writes() -> None:
    pool = PagePool(8, 4, 20)
    parent = pool.new()
    grown(pool, (parent, 6))
    child = pool.fork(parent)
    assert pool[child].pages == pool[parent].pages
    assert pool.free_pages == 6
    shared = list(pool[parent].pages)
    (copy,) = grown(pool, (child, 1))
    assert copy == (shared[1], pool[child].pages[1])
    assert pool[child].pages[0] == shared[0]
    assert grown(pool, (parent, 1)) == [None], "the parent is the only reader of its last page now"
    pool.free(parent)
    pool.free(child)
    assert pool.free_pages == 8


def test_a_full_shared_page_needs_no_copy() -> None:
    pool = PagePool(8, 4, 20)
    parent = pool.new()
    grown(pool, (parent, 4))
    child = pool.fork(parent)
    assert grown(pool, (child, 2), (parent, 2)) == [None, None]
    assert pool[child].pages[0] == pool[parent].pages[0]
    assert pool[child].pages[1] != pool[parent].pages[1]


def test_of_three_that_write_in_one_call_the_last_keeps_the_page() -> None:
    pool = PagePool(8, 4, 20)
    parent = pool.new()
    grown(pool, (parent, 2))
    children = [pool.fork(parent), pool.fork(parent)]
    copies = grown(pool, *((child, 1) for child in children), (parent, 1))
    assert len({pool[number].pages[0] for number in (parent, *children)}) == 3
    assert [copy is None for copy in copies] == [False, False, True]
    assert pool.free_pages == 5


@pytest.mark.parametrize(
    ("wanted", "text"),
    [
        ([(0, 21)], "longer than its capacity"),
        ([(0, 20), (1, 20)], "caches are full"),
        ([(7, 1)], "no such sequence"),
        ([(0, 1), (0, 1)], "named twice"),
    ],
)
def test_what_does_not_fit_is_refused_and_takes_nothing(wanted: list[tuple[int, int]], text: str) -> None:
    pool = PagePool(6, 4, 20)
    pool.new(), pool.new()
    with pytest.raises(BadInput, match=text):
        pool.grow(wanted)
    assert pool.free_pages == 6


def test_pages_add_up_under_random_use() -> None:
    rng = np.random.default_rng(11)
    pool = PagePool(40, 4, 24)
    alive: list[int] = []
    for _ in range(3000):
        kind = rng.integers(5)
        if kind == 0 or not alive:
            alive.append(pool.new())
        elif kind == 1:
            alive.append(pool.fork(int(rng.choice(alive))))
        elif kind == 2:
            pool.free(alive.pop(int(rng.integers(len(alive)))))
        else:
            wanted = [(int(number), int(rng.integers(1, 7))) for number in
                      rng.choice(alive, size=min(len(alive), 3), replace=False)]  # fmt: skip
            try:
                growth = pool.grow(wanted)
            except BadInput:
                continue
            (pool.commit if rng.random() < 0.8 else pool.drop)(growth)
        _consistent(pool)


def _consistent(pool: PagePool) -> None:
    held = [page for number in pool.sequences for page in pool[number].pages]
    assert pool.free_pages + len(set(held)) == len(pool)
    for number in pool.sequences:
        assert len(pool[number].pages) == -(-pool[number].length // pool.page_size)
        assert len(set(pool[number].pages)) == len(pool[number].pages)
