"""Arrays of every element type into and out of ``OrtValue``, bfloat16 and float8 included."""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from numpy.typing import DTypeLike

from custom_ort.library import runtime
from ir_ops.dtypes import Array, DType, by_numpy, by_onnx
from ir_ops.errors import BadInput

_ALIGNMENT = 64
_RAW = {1: np.uint8, 2: np.uint16}


def element_type(array: Array, name: str = "") -> DType:
    """The type of an array's elements.

    Raises:
        BadInput: ONNX has no such type.
    """
    try:
        dtype = by_numpy(array.dtype)
    except KeyError:
        dtype = None
    if dtype is None or dtype.onnx is None or dtype.bits < 8:
        raise BadInput("an array has an element type that sessions do not take", where=name, found=str(array.dtype))
    return dtype


def aligned_empty(shape: Sequence[int], dtype: DTypeLike) -> Array:
    """An uninitialised array at a 64-byte boundary, where onnxruntime's own allocator puts tensors.

    numpy aligns to 16 bytes only, which costs the kernels up to half of their speed: make caches with this.
    """
    return _aligned(np.empty, shape, dtype)


def aligned_zeros(shape: Sequence[int], dtype: DTypeLike) -> Array:
    """As :func:`aligned_empty`, zeros; large memory is taken from the system only where it is written."""
    return _aligned(np.zeros, shape, dtype)


def _aligned(make: Callable[..., Array], shape: Sequence[int], dtype: DTypeLike) -> Array:
    kind = np.dtype(dtype)
    count = int(np.prod(shape, dtype=np.int64)) * kind.itemsize
    memory = make(count + _ALIGNMENT, np.uint8)
    start = -memory.ctypes.data % _ALIGNMENT
    array: Array = memory[start : start + count].view(kind).reshape(tuple(shape))
    return array


def to_ortvalue(array: Array) -> Any:
    """A CPU ``OrtValue`` over the array's own memory.

    The memory is shared where the array is C-contiguous: whoever writes the value writes the array.

    Raises:
        BadInput: the element type does not exist in ONNX, or is a packed one.
    """
    dtype = element_type(array)
    contiguous = np.ascontiguousarray(array).reshape(array.shape)  # ascontiguousarray makes a scalar 1-D
    make = runtime().OrtValue
    if dtype.suffix:
        return make.ortvalue_from_numpy_with_onnx_type(contiguous.view(_RAW[dtype.itemsize]), dtype.onnx)
    return make.ortvalue_from_numpy(contiguous)


def from_ortvalue(value: Any) -> Array:
    """A copy of an ``OrtValue`` as an array of its real type (bfloat16 and float8 as ml_dtypes).

    Raises:
        BadInput: the value is not a tensor of a type that kvfuse knows.
    """
    copy: Array = view_of(value).copy()
    return copy


def view_of(value: Any) -> Array:
    """An ``OrtValue``'s tensor without a copy: valid as long as the value lives.

    Raises:
        BadInput: as :func:`from_ortvalue`.
    """
    try:
        dtype = by_onnx(value.element_type())
    except (KeyError, RuntimeError):
        dtype = None
    if dtype is None or dtype.np is None or dtype.bits < 8:
        raise BadInput("a value is not a tensor of a known type", found=str(value.data_type()))
    shape = tuple(value.shape())
    count = int(np.prod(shape, dtype=np.int64)) * dtype.itemsize
    if not count:
        return np.empty(shape, dtype.np)
    memory = (ctypes.c_uint8 * count).from_address(value.data_ptr())
    array: Array = np.ctypeslib.as_array(memory).view(dtype.np).reshape(shape)
    return array
