"""Where a token lives in a cache. Nobody else does address arithmetic.

A cache of N heads and D columns is stored in one of three orders; ``page`` and ``row`` say which token slot:

=========  ==============================  ==================================================
order      memory                          page, row
=========  ==============================  ==================================================
``BNSD``   ``[pages, N, rows, D]``         batch, position in the batch's own cache
``BSND``   ``[pages, rows, N, D]``         page, offset in the page
``NZ``     ``[pages, N, D/d0, rows, d0]``  page, offset in the page; d0 = 32 bytes / element
=========  ==============================  ==================================================

All functions take numpy arrays as well as recorded ONNX values (see :mod:`ir_ops.numeric`).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from ir_ops.dtypes import Array, by_name, by_numpy
from ir_ops.errors import BadInput

ORDERS = ("BNSD", "BSND", "NZ")


ORDER_TEXT = {
    "BNSD": "[B, N, Scache, D]",
    "BSND": "[block_num, block_size, N, D]",
    "NZ": "[block_num, N, D/d0, block_size, d0]",
}
"""Memory order of a cache as documents write it."""


@dataclass(frozen=True)
class CacheMode:
    """A value of ``cache_mode``.

    Attributes:
        name: GE's word.
        order: how the memory is ordered.
        slot: what an index element means: ``row`` (row in the token's own batch, index ``[B, S]``), ``slot`` (flat
            ``page * block_size + row``, index ``[B*S]``), ``block`` (start slot of a page that takes ``block_size``
            consecutive tokens, index ``[B*ceil(S/block_size)]``), ``start`` (row of a batch's first token in the
            batch's own cache, the others follow, index ``[B]``), ``page`` (the number of a page that takes
            ``block_size`` consecutive tokens), ``token`` (no index: rows in the order of the tokens).
    """

    name: str
    order: str
    slot: str

    @property
    def paged(self) -> bool:
        return self.slot not in ("row", "start", "token")


KV_CACHE_MODES = {
    mode.name: mode
    for mode in (
        CacheMode("Norm", "BNSD", "row"),
        CacheMode("PA", "BSND", "slot"),
        CacheMode("PA_BNSD", "BSND", "slot"),
        CacheMode("PA_NZ", "NZ", "slot"),
        CacheMode("PA_BLK_BNSD", "BSND", "block"),
        CacheMode("PA_BLK_NZ", "NZ", "block"),
    )
}
"""The modes of KvRmsNormRopeCache (operator contract, section 3). PA and PA_BNSD are one layout."""


QKV_CACHE_MODES = {"PA_NZ": CacheMode("PA_NZ", "NZ", "slot")}
"""The mode of QkvRmsNormRopeCache. Its caches are declared with the dims of the memory, :data:`FRACTAL_TEXT`."""

DEQUANT_CACHE_MODES = {
    "contiguous": CacheMode("contiguous", "BSND", "start"),
    "page": CacheMode("page", "BSND", "slot"),
}
"""The modes of DequantRopeQuantKvcache. A contiguous cache has the batches where a paged one has pages."""

FRACTAL_TEXT = "[block_num, N*D/d0, block_size, d0]"

FRACTALS = CacheMode("NZ as declared", "BNSD", "slot")
"""An NZ cache that is declared with its own dims: the fractals of a page lie like BNSD's heads, d0 columns each."""


MLA_CACHE_MODES = {
    mode.name: mode
    for mode in (
        CacheMode("PA_BSND", "BSND", "slot"),
        CacheMode("PA_NZ", "NZ", "slot"),
        CacheMode("PA_BLK_BSND", "BSND", "page"),
        CacheMode("PA_BLK_NZ", "NZ", "page"),
        CacheMode("BSND", "BSND", "token"),
        CacheMode("TND", "BSND", "token"),
    )
}
"""The modes of MlaPrologV3 (operator contract, section 3)."""


def nz_block(dtype: str) -> int:
    """d0, the columns of an NZ fractal: 32 bytes of the cache's element type."""
    return 32 // by_name(dtype).itemsize


def address(
    order: str, page: Any, row: Any, head: Any, column: Any, *, rows: Any, heads: Any, columns: Any, d0: int
) -> Any:
    """Flat element offset of ``(page, row, head, column)`` in a cache with ``rows`` token rows a page.

    Args:
        order: one of :data:`ORDERS`.
        page, row, head, column: integers or integer tensors that broadcast together.
        rows, heads, columns: sizes; for NZ ``columns`` is a multiple of ``d0``.
        d0: :func:`nz_block` of the cache's type; unused for the other orders.
    """
    if order == "BNSD":
        return ((page * heads + head) * rows + row) * columns + column
    if order == "BSND":
        return ((page * rows + row) * heads + head) * columns + column
    fractal = (page * heads + head) * (columns // d0) + column // d0
    return (fractal * rows + row) * d0 + column % d0


def nz_shape(pages: int, rows: int, heads: int, columns: int, d0: int) -> tuple[int, int, int, int, int]:
    """The real shape of an NZ cache that is declared ``[pages, rows, heads, columns]``."""
    return (pages, heads, columns // d0, rows, d0)


def weight_to_nz(weight: Array) -> Array:
    """A weight ``[K, M]`` in the device's FRACTAL_NZ storage ``[M/w0, K/16, 16, w0]``, w0 = 32 bytes / element.

    The operators take weights as plain ``[K, M]``; this is for files and buffers that a device reads itself.

    Raises:
        BadInput: the weight is no matrix, K is no multiple of 16, or M none of w0.
    """
    w0 = nz_block(by_numpy(weight.dtype).name)
    if weight.ndim != 2 or weight.shape[0] % 16 or weight.shape[1] % w0:
        found = str(list(weight.shape))
        raise BadInput(
            "a weight does not divide into fractals", found=found, wanted=f"[K, M], K % 16 = 0, M % {w0} = 0"
        )
    blocks = weight.reshape(weight.shape[0] // 16, 16, weight.shape[1] // w0, w0)
    stored: Array = blocks.transpose(2, 0, 1, 3).copy()
    return stored


def weight_from_nz(stored: Array) -> Array:
    """The weight ``[K, M]`` behind a FRACTAL_NZ storage ``[M/w0, K/16, 16, w0]``: the inverse of :func:`weight_to_nz`.

    Raises:
        BadInput: the storage has another form.
    """
    w0 = nz_block(by_numpy(stored.dtype).name)
    if stored.ndim != 4 or stored.shape[2:] != (16, w0):
        found = str(list(stored.shape))
        raise BadInput("a weight is not stored in fractals", found=found, wanted=f"[M/{w0}, K/16, 16, {w0}]")
    plain: Array = stored.transpose(1, 2, 0, 3).reshape(stored.shape[1] * 16, stored.shape[0] * w0)
    return plain
