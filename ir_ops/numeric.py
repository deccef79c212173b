"""The small tensor language in which operators are computed.

An operator's computation is written once over :class:`Numeric`. :data:`NUMPY` runs it: that is the reference. The ONNX
backend (``ir_ops.onnx_function``) records it as standard ONNX nodes: that is the function body. Tensors of either
backend take the Python operators ``+ - * / // %`` and comparisons with each other and with Python numbers, which take
the tensor's element type; ``//`` and ``%`` mean something on non-negative integers only. Float attributes come as
numbers of the backend too, so a computation never calls ``float()`` on one.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol

import numpy as np

from ir_ops.dtypes import Array, by_name, by_numpy

Tensor = Any
"""A tensor of the backend: a numpy array, or a recorded ONNX value."""
Dim = Any
"""A size: an int, or a scalar tensor of the backend."""


class Numeric(Protocol):
    """The operations a backend offers. Axes are Python ints; sizes and slice bounds may be backend scalars."""

    def dtype(self, x: Tensor) -> str:
        """The element type. Given to :meth:`cast` or :meth:`zeros` it means "the type of that tensor"."""

    def cast(self, x: Tensor, dtype: str) -> Tensor:
        """To another element type, round half to even; to fp8 without saturation (overflow becomes NaN or inf)."""

    def dim(self, x: Tensor, axis: int) -> Dim: ...

    def rank(self, x: Tensor) -> int:
        """The number of axes. An operator that asks for it names the input in ``needs_rank``."""

    def reshape(self, x: Tensor, dims: Sequence[Dim]) -> Tensor: ...

    def reshape_like(self, x: Tensor, like: Tensor) -> Tensor:
        """``x`` in the shape of another tensor."""

    def transpose(self, x: Tensor, perm: Sequence[int]) -> Tensor: ...

    def slice(self, x: Tensor, start: Dim, stop: Dim, axis: int, step: int = 1) -> Tensor:
        """``x[start:stop:step]`` along an axis."""

    def columns(self, x: Tensor, start: Dim, stop: Dim, step: int = 1) -> Tensor:
        """``x[..., start:stop:step]``."""

    def take_columns(self, x: Tensor, index: Tensor) -> Tensor:
        """``x[..., index]``."""

    def first_column(self, x: Tensor) -> Tensor:
        """``x[..., 0]`` of a last axis of size 1."""

    def column(self, x: Tensor) -> Tensor:
        """``x[..., None]``."""

    def concat_columns(self, parts: Sequence[Tensor]) -> Tensor: ...

    def broadcast(self, x: Tensor, dims: Sequence[Dim]) -> Tensor: ...

    def arange(self, stop: Dim) -> Tensor:
        """int64 ``0 .. stop-1``."""

    def take(self, x: Tensor, rows: Tensor) -> Tensor:
        """``x[rows]`` along the first axis."""

    def sqrt(self, x: Tensor) -> Tensor: ...

    def exp(self, x: Tensor) -> Tensor: ...

    def log(self, x: Tensor) -> Tensor: ...

    def from_bits(self, x: Tensor) -> Tensor:
        """The fp32 numbers whose bits are the low halves of uint64 ones."""

    def copy(self, x: Tensor) -> Tensor: ...

    def size(self, x: Tensor) -> Dim:
        """The only element of an int64 tensor ``[1]``, as a size."""

    def abs(self, x: Tensor) -> Tensor: ...

    def matmul(self, x: Tensor, y: Tensor) -> Tensor:
        """Products of the last axis of x with the first of a matrix y, or of the matrices of two stacks."""

    def matmul_integer(self, x: Tensor, y: Tensor) -> Tensor:
        """The exact int32 product of two int8 matrices."""

    def cumsum(self, x: Tensor) -> Tensor:
        """Running sums of a vector, each including its own element."""

    def sum_columns(self, x: Tensor, axes: int = 1) -> Tensor:
        """Sum over the last axis, or the last few, which stay with size 1."""

    def max_columns(self, x: Tensor) -> Tensor:
        """Maximum over the last axis, which stays with size 1. With a NaN it is NaN in numpy, not defined in ONNX."""

    def round(self, x: Tensor) -> Tensor:
        """Half to even."""

    def floor(self, x: Tensor) -> Tensor: ...

    def ceil(self, x: Tensor) -> Tensor: ...

    def where(self, condition: Tensor, yes: Tensor | float, no: Tensor | float) -> Tensor:
        """One of yes and no, not both numbers."""

    def clip(self, x: Tensor, low: float, high: float) -> Tensor:
        """Into ``low .. high``; what becomes of NaN is not defined."""

    def nan_to_zero(self, x: Tensor) -> Tensor: ...

    def zeros(self, dims: Sequence[Dim], dtype: str) -> Tensor: ...

    def scatter(self, x: Tensor, places: Tensor, values: Tensor) -> Tensor:
        """A copy of ``x`` with ``values[k]`` at the index tuple ``places[k]``, int64, its last axis.

        Tuples are distinct and have no negative numbers.
        """

    def write(self, cache: Tensor, offsets: Tensor, values: Tensor, valid: Tensor, *, rows: bool) -> Tensor:
        """A copy of ``cache`` with ``values[t]`` stored at flat element ``offsets[t]`` for each valid ``t``.

        ``values`` is ``[T, N, D]``, ``valid`` is ``[T]``. ``offsets`` is ``[T, N, D]``, or with ``rows`` ``[T, N, 1]``:
        the first element of a row of the cache's last axis, which has D elements. Valid offsets are distinct.
        """


class NumpyNumeric:
    """The numpy backend."""

    def dtype(self, x: Array) -> str:
        return by_numpy(x.dtype).name

    def cast(self, x: Array, dtype: str) -> Array:
        return x.astype(by_name(dtype).np)

    def dim(self, x: Array, axis: int) -> int:
        return int(x.shape[axis])

    def rank(self, x: Array) -> int:
        return x.ndim

    def reshape_like(self, x: Array, like: Array) -> Array:
        reshaped: Array = x.reshape(like.shape)
        return reshaped

    def reshape(self, x: Array, dims: Sequence[int]) -> Array:
        reshaped: Array = x.reshape(dims)
        return reshaped

    def transpose(self, x: Array, perm: Sequence[int]) -> Array:
        turned: Array = x.transpose(perm)
        return turned

    def columns(self, x: Array, start: int, stop: int, step: int = 1) -> Array:
        return x[..., start:stop:step]

    def slice(self, x: Array, start: int, stop: int, axis: int, step: int = 1) -> Array:
        return np.moveaxis(np.moveaxis(x, axis, 0)[start:stop:step], 0, axis)

    def take_columns(self, x: Array, index: Array) -> Array:
        return x[..., index]

    def first_column(self, x: Array) -> Array:
        return x[..., 0]

    def column(self, x: Array) -> Array:
        tail: Array = x[..., None]
        return tail

    def concat_columns(self, parts: Sequence[Array]) -> Array:
        return np.concatenate(parts, axis=-1)

    def broadcast(self, x: Array, dims: Sequence[int]) -> Array:
        return np.broadcast_to(x, dims)

    def arange(self, stop: int) -> Array:
        return np.arange(stop, dtype=np.int64)

    def take(self, x: Array, rows: Array) -> Array:
        return x[rows]

    def sqrt(self, x: Array) -> Array:
        root: Array = np.sqrt(x)
        return root

    def exp(self, x: Array) -> Array:
        power: Array = np.exp(x)
        return power

    def log(self, x: Array) -> Array:
        power: Array = np.log(x)
        return power

    def from_bits(self, x: Array) -> Array:
        numbers: Array = x.astype(np.uint32).view(np.float32)
        return numbers

    def copy(self, x: Array) -> Array:
        made: Array = x.copy()
        return made

    def size(self, x: Array) -> int:
        return int(x[0])

    def abs(self, x: Array) -> Array:
        return np.abs(x)

    def matmul(self, x: Array, y: Array) -> Array:
        product: Array = x @ y
        return product

    def matmul_integer(self, x: Array, y: Array) -> Array:
        # exact below 2^53, and several times faster than numpy's integer product
        product: Array = (x.astype(np.float64) @ y.astype(np.float64)).astype(np.int32)
        return product

    def cumsum(self, x: Array) -> Array:
        return np.cumsum(x, dtype=x.dtype)

    def sum_columns(self, x: Array, axes: int = 1) -> Array:
        total: Array = x.sum(axis=tuple(range(-axes, 0)), keepdims=True, dtype=x.dtype)
        return total

    def max_columns(self, x: Array) -> Array:
        largest: Array = x.max(axis=-1, keepdims=True)
        return largest

    def round(self, x: Array) -> Array:
        rounded: Array = np.rint(x)
        return rounded

    def floor(self, x: Array) -> Array:
        rounded: Array = np.floor(x)
        return rounded

    def ceil(self, x: Array) -> Array:
        rounded: Array = np.ceil(x)
        return rounded

    def where(self, condition: Array, yes: Array | float, no: Array | float) -> Array:
        return np.where(condition, yes, no)

    def clip(self, x: Array, low: float, high: float) -> Array:
        return np.clip(x, x.dtype.type(low), x.dtype.type(high))

    def nan_to_zero(self, x: Array) -> Array:
        return np.where(np.isnan(x), x.dtype.type(0), x)

    def zeros(self, dims: Sequence[int], dtype: str) -> Array:
        return np.zeros(tuple(dims), by_name(dtype).np)

    def scatter(self, x: Array, places: Array, values: Array) -> Array:
        result: Array = x.copy(order="C")
        result[tuple(np.moveaxis(places, -1, 0))] = values
        return result

    def write(self, cache: Array, offsets: Array, values: Array, valid: Array, *, rows: bool) -> Array:
        result: Array = cache.copy(order="C")
        places = offsets[valid] + np.arange(values.shape[-1]) if rows else offsets[valid]
        result.reshape(-1)[places] = values[valid]
        return result


NUMPY = NumpyNumeric()
