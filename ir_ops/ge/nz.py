"""Constants in FRACTAL_NZ: the blocked storage of matrices that Ascend's cube unit reads."""

from __future__ import annotations

import numpy as np

from ir_ops.dtypes import Array, DType
from ir_ops.errors import BadInput
from ir_ops.ge.model import Shape
from ir_ops.layout import weight_from_nz, weight_to_nz


def storage_shape(dtype: DType, shape: Shape) -> Shape:
    """The dims in memory of a matrix ``[K, M]``: ``[M/w0, K/16, 16, w0]`` with w0 = 32 bytes / element.

    Raises:
        BadInput: no matrix, or dims that do not divide into blocks.
    """
    w0 = 32 // _bits(dtype).itemsize
    if len(shape) != 2 or shape[0] % 16 or shape[1] % w0:
        raise BadInput("a weight does not divide into fractals", found=str(list(shape)),
                       wanted=f"[K, M], K % 16 = 0, M % {w0} = 0")  # fmt: skip
    return (shape[1] // w0, shape[0] // 16, 16, w0)


def packed(data: bytes, dtype: DType, shape: Shape) -> bytes:
    """The bytes of a plain matrix, reordered. Raises BadInput as :func:`storage_shape` does."""
    return weight_to_nz(np.frombuffer(data, _bits(dtype)).reshape(shape)).tobytes()


def unpacked(stored: Array) -> Array:
    """The plain matrix behind an array in storage order."""
    return weight_from_nz(stored.view(f"uint{stored.dtype.itemsize * 8}")).view(stored.dtype)


def _bits(dtype: DType) -> np.dtype[np.unsignedinteger]:
    """An unsigned type of the element's size: packing moves bits, also of types numpy does not have."""
    if dtype.bits not in (8, 16, 32):
        raise BadInput("no NZ storage of this element type", found=dtype.name, wanted="8, 16 or 32 bits")
    return np.dtype(f"uint{dtype.bits}")
