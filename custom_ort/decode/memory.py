"""The memory of the caches of a decoder: allocation, copies of pages, and rows of a sequence in and out."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from custom_ort.values import aligned_zeros
from ir_ops.decode_plan import CachePort
from ir_ops.dtypes import Array, DType
from ir_ops.errors import BadInput
from ir_ops.layout import nz_block


class CacheMemory:
    """One cache.

    Args:
        port: how it lies in memory.
        dtype: of its elements.
        pages, rows: how many pages, and rows a page.

    Attributes:
        array: the memory, with the dims that the model declares.
    """

    def __init__(self, port: CachePort, dtype: DType, pages: int, rows: int) -> None:
        self.port = port
        self._order = port.column_order
        assert dtype.np is not None
        if port.order == "BNSD":
            shape: tuple[int, ...] = (pages, port.heads, rows, port.columns)
            self._row_axis = 2
        elif port.order == "BSND":
            shape = (pages, rows, port.heads, port.columns)
            self._row_axis = 1
        else:
            block = nz_block(dtype.name)
            shape = (pages, port.heads, port.columns // block, rows, block)
            self._row_axis = 3
        # Attention in standard operators reads rows that nobody wrote and masks them: they must be numbers.
        self._pages = aligned_zeros(shape, dtype.np)
        self.array = self._pages.reshape(self._declared(pages, rows))

    def _declared(self, pages: int, rows: int) -> list[int]:
        """The declared dims with the free ones settled: the first is the pages, another one the rows."""
        dims = list(self.port.shape)
        return [pages, *(rows if dim < 0 else dim for dim in dims[1:])]

    def copy_page(self, source: int, target: int, rows: int) -> None:
        """Copies the first ``rows`` rows of a page."""
        self._rows_of(target)[:rows] = self._rows_of(source)[:rows]

    def read(self, pages: Sequence[int], length: int) -> Array:
        """The rows of a sequence, ``[length, heads, columns]``."""
        rows = np.concatenate([self._rows_of(page) for page in pages])[:length]
        rows = rows.reshape(length, self.port.heads, self.port.columns)
        return rows[..., np.argsort(self._order)] if self.port.halves else rows

    def write(self, pages: Sequence[int], rows: Array) -> None:
        """Writes the rows of a sequence, ``[length, heads, columns]``, from its first page on."""
        size = self._pages.shape[self._row_axis]
        rows = rows[..., self._order] if self.port.halves else rows
        for number, page in enumerate(pages):
            part = rows[number * size : (number + 1) * size]
            target = self._rows_of(page)
            target[: len(part)] = part.reshape(len(part), *target.shape[1:])

    def _rows_of(self, page: int) -> Array:
        """A page with its rows first: a view."""
        return np.moveaxis(self._pages[page], self._row_axis - 1, 0)


def check_rows(rows: Mapping[str, Array], memories: Mapping[str, CacheMemory]) -> int:
    """The number of tokens that rows of all caches hold.

    Raises:
        BadInput: a cache is missing or unknown, or rows have another type or shape.
    """
    if set(rows) != set(memories):
        odd = sorted(set(rows) ^ set(memories))[0]
        raise BadInput("the rows are not those of the model's caches", found=odd, wanted=", ".join(memories))
    lengths = set()
    for name, memory in memories.items():
        given, wanted = np.asarray(rows[name]), (memory.port.heads, memory.port.columns)
        if given.ndim != 3 or given.shape[1:] != wanted or given.dtype != memory.array.dtype:
            raise BadInput(
                "rows of another type or shape", where=name, found=f"{given.dtype}{list(given.shape)}",
                wanted=f"{memory.array.dtype}[tokens, {wanted[0]}, {wanted[1]}]",
            )  # fmt: skip
        lengths.add(len(given))
    if len(lengths) != 1 or not next(iter(lengths)):
        raise BadInput("all caches have the same number of tokens, one at least", found=", ".join(map(str, lengths)))
    return lengths.pop()
