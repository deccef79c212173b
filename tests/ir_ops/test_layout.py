"""Where a token lives in a cache."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ir_ops.layout import KV_CACHE_MODES, ORDERS, address, nz_block, nz_shape

sizes = st.integers(1, 5)


@given(
    order=st.sampled_from(ORDERS), pages=sizes, rows=sizes, heads=sizes, blocks=st.integers(1, 3), d0=st.integers(1, 4)
)
def test_every_element_has_one_place(order: str, pages: int, rows: int, heads: int, blocks: int, d0: int) -> None:
    """The address map is a bijection onto the cache's elements."""
    columns = blocks * d0
    page, row, head, column = np.ogrid[:pages, :rows, :heads, :columns]
    places = address(order, page, row, head, column, rows=rows, heads=heads, columns=columns, d0=d0)
    assert np.array_equal(np.sort(places, axis=None), np.arange(pages * rows * heads * columns))


@given(pages=sizes, rows=sizes, heads=sizes, columns=sizes)
def test_plain_orders_are_the_declared_shapes(pages: int, rows: int, heads: int, columns: int) -> None:
    """BNSD is ``[pages, N, rows, D]``, BSND ``[pages, rows, N, D]``."""
    page, row, head, column = np.ogrid[:pages, :rows, :heads, :columns]
    flat = np.arange(pages * rows * heads * columns)
    for order, shape, index in (
        ("BNSD", (pages, heads, rows, columns), (page, head, row, column)),
        ("BSND", (pages, rows, heads, columns), (page, row, head, column)),
    ):
        found = address(order, page, row, head, column, rows=rows, heads=heads, columns=columns, d0=1)
        assert np.array_equal(found, flat.reshape(shape)[index])


@given(pages=sizes, rows=sizes, heads=sizes, blocks=st.integers(1, 3), d0=st.integers(1, 4))
def test_nz_is_the_fractal_shape(pages: int, rows: int, heads: int, blocks: int, d0: int) -> None:
    """NZ memory read as ``[pages, N, D/d0, rows, d0]`` holds column block and column in block."""
    columns = blocks * d0
    page, row, head, column = np.ogrid[:pages, :rows, :heads, :columns]
    memory = np.arange(pages * rows * heads * columns).reshape(nz_shape(pages, rows, heads, columns, d0))
    found = address("NZ", page, row, head, column, rows=rows, heads=heads, columns=columns, d0=d0)
    assert np.array_equal(found, memory[page, head, column // d0, row, column % d0])


def test_nz_offset_by_hand() -> None:
    """Operator contract, section 7: pages of 16, 2 heads, 64 columns of 16 bits; slot 17, head 1, column 37."""
    d0 = nz_block("float16")
    assert d0 == 16
    assert address("NZ", 17 // 16, 17 % 16, 1, 37, rows=16, heads=2, columns=64, d0=d0) == 3605


@pytest.mark.parametrize(("dtype", "d0"), [("float32", 8), ("bfloat16", 16), ("int8", 32), ("hifloat8", 32)])
def test_nz_block_is_32_bytes(dtype: str, d0: int) -> None:
    assert nz_block(dtype) == d0


def test_modes() -> None:
    """The two NZ modes store fractals, all paged ones but those store tokens, Norm stores heads first."""
    assert {mode.name: (mode.order, mode.slot, mode.paged) for mode in KV_CACHE_MODES.values()} == {
        "Norm": ("BNSD", "row", False),
        "PA": ("BSND", "slot", True),
        "PA_BNSD": ("BSND", "slot", True),
        "PA_NZ": ("NZ", "slot", True),
        "PA_BLK_BNSD": ("BSND", "block", True),
        "PA_BLK_NZ": ("NZ", "block", True),
    }
