"""ONNX values during conversion."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ir_ops.dtypes import Array, DType
from ir_ops.ge.infer.call import Known
from ir_ops.ge.model import Shape, TensorType
from ir_ops.ge.tensor import Tensor

KNOWN_LIMIT = 4096
"""Contents of up to this many elements are followed through shape arithmetic."""
FLOAT_LIMIT = 64


def is_complete(known: Known) -> bool:
    """Whether every element is known."""
    return known.dtype != object


def settle(known: Known, dtype: DType) -> Known:
    """``known`` as an array of ``dtype`` when no element is missing, else unchanged."""
    if known.dtype != object or dtype.np is None or any(item is None for item in known.reshape(-1)):
        return known
    try:
        return np.asarray(known.tolist(), dtype=dtype.np).reshape(known.shape)
    except OverflowError:  # a number beyond the type: the operator itself says what becomes of it
        return known


@dataclass(eq=False)
class Operand:
    """One ONNX value: its type, what is known of its content, and the GE tensor once something needs it.

    Constants become nodes only when a converted node reads them, so folded shape arithmetic leaves nothing behind.

    Attributes:
        make_nz: makes the constant in FRACTAL_NZ; gives None where it stays as it is.
        nonneg: no element is negative (shapes, indices that come from Shape, Range or TopK).
    """

    name: str
    type: TensorType
    make: Callable[[], Tensor] | None = None
    load: Callable[[], Array] | None = None
    make_nz: Callable[[], Tensor | None] | None = None
    content: Known | None = None
    nonneg: bool = False
    made: Tensor | None = None
    made_nz: Tensor | None = None

    @property
    def dtype(self) -> DType:
        assert self.type.dtype is not None
        return self.type.dtype

    @property
    def shape(self) -> Shape | None:
        return self.type.shape

    @property
    def known(self) -> Known | None:
        """The content as far as known; small constants are read on first use."""
        if self.content is None and self.load is not None and self._is_small():
            self.content = np.asarray(self.load())
        return self.content

    def _is_small(self) -> bool:
        count = self.type.numel
        if count is None:
            return False
        return count <= (FLOAT_LIMIT if self.dtype.is_float else KNOWN_LIMIT)

    def constant(self) -> Array | None:
        """The whole content of a constant, None when any element is unknown; reads a weight from its file."""
        if self.content is None and self.load is not None:
            return np.asarray(self.load())
        known = self.known
        return known if known is not None and is_complete(known) else None

    @property
    def is_constant(self) -> bool:
        return self.load is not None or (self.content is not None and is_complete(self.content))

    def tensor(self) -> Tensor:
        """The GE tensor, made on first use."""
        if self.made is None:
            assert self.make is not None, self.name
            self.made = self.make()
        return self.made

    def nz_tensor(self) -> Tensor:
        """The GE tensor in FRACTAL_NZ if it is a weight and packs, else as :meth:`tensor`."""
        if self.made_nz is None and self.make_nz is not None:
            self.made_nz = self.make_nz()
        return self.made_nz or self.tensor()


def object_array(values: Any) -> NDArray[Any]:
    """An array that can hold None for unknown elements."""
    return np.asarray(values, dtype=object)
