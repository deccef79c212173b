"""Rows of a sequence in and out of cache memory of every order."""

from __future__ import annotations

import numpy as np
import pytest

from custom_ort.decode.memory import CacheMemory, check_rows
from ir_ops.decode_plan import CachePort
from ir_ops.dtypes import by_name
from ir_ops.errors import BadInput
from ir_ops.layout import address, nz_block

HEADS, COLUMNS, ROWS, PAGES = 2, 64, 4, 6
DECLARED = {
    "BNSD": (-1, HEADS, -1, COLUMNS),
    "BSND": (-1, ROWS, HEADS, COLUMNS),
    "NZ": (-1, ROWS, HEADS, COLUMNS),
}


def memory(order: str, dtype: str = "float16", shape: tuple[int, ...] | None = None) -> CacheMemory:
    port = CachePort("key", "key_out", 0, "key", order, HEADS, COLUMNS, shape or DECLARED[order])
    return CacheMemory(port, by_name(dtype), PAGES, ROWS)


@pytest.mark.parametrize("order", list(DECLARED))
@pytest.mark.parametrize("dtype", ["float32", "float16", "bfloat16", "int8"])
def test_rows_lie_where_the_layout_says(order: str, dtype: str) -> None:
    cache = memory(order, dtype)
    rng = np.random.default_rng(3)
    rows = rng.integers(-100, 100, (9, HEADS, COLUMNS)).astype(cache.array.dtype)
    pages = [4, 0, 3]
    cache.write(pages, rows)
    token, head, column = np.indices(rows.shape)
    place = address(
        order, np.asarray(pages)[token // ROWS], token % ROWS, head, column, rows=ROWS, heads=HEADS, columns=COLUMNS,
        d0=nz_block(dtype),
    )  # fmt: skip
    assert np.array_equal(cache.array.reshape(-1)[place], rows)
    assert np.array_equal(cache.read(pages, 9), rows)
    assert np.count_nonzero(cache.array) == np.count_nonzero(rows)


@pytest.mark.parametrize("order", list(DECLARED))
def test_a_copied_page_has_the_rows_in_use(order: str) -> None:
    cache = memory(order)
    rows = np.arange(1, 1 + 3 * HEADS * COLUMNS).reshape(3, HEADS, COLUMNS).astype(np.float16)
    cache.write([1], rows)
    cache.copy_page(1, 5, 2)
    assert np.array_equal(cache.read([5], 2), rows[:2])
    assert not cache.read([5], 4)[2:].any()
    assert np.array_equal(cache.read([1], 3), rows)


@pytest.mark.parametrize("order", list(DECLARED))
def test_pairs_kept_as_halves_come_and_go_in_their_own_order(order: str) -> None:
    port = CachePort("rope", "rope_out", 0, "rope", order, HEADS, COLUMNS, DECLARED[order], halves=True)
    cache, plain = CacheMemory(port, by_name("float16"), PAGES, ROWS), memory(order)
    rows = np.random.default_rng(3).standard_normal((6, HEADS, COLUMNS)).astype(np.float16)
    cache.write([2, 0], rows)
    assert np.array_equal(cache.read([2, 0], 6), rows)
    plain.write([2, 0], np.concatenate([rows[..., 0::2], rows[..., 1::2]], -1))
    assert np.array_equal(cache.array, plain.array)


def test_declared_dims_are_kept() -> None:
    assert memory("NZ", shape=(-1, 8, ROWS, 16)).array.shape == (PAGES, 8, ROWS, 16)
    assert memory("NZ").array.shape == (PAGES, ROWS, HEADS, COLUMNS)
    assert memory("BNSD").array.shape == (PAGES, HEADS, ROWS, COLUMNS)
    assert memory("BSND", shape=(-1, ROWS, HEADS * COLUMNS)).array.shape == (PAGES, ROWS, HEADS * COLUMNS)


@pytest.mark.parametrize(
    ("rows", "text"),
    [
        ({}, "not those of the model's caches"),
        ({"key": np.zeros((2, HEADS, COLUMNS), np.float32)}, "another type or shape"),
        ({"key": np.zeros((2, COLUMNS, HEADS), np.float16)}, "another type or shape"),
        ({"key": np.zeros((0, HEADS, COLUMNS), np.float16)}, "one at least"),
    ],
)
def test_rows_that_do_not_fit_are_refused(rows: dict[str, np.ndarray], text: str) -> None:
    with pytest.raises(BadInput, match=text):
        check_rows(rows, {"key": memory("BSND")})
