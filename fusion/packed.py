"""A matrix that is made of stored ones side by side, put together block by block when it is written."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import BinaryIO

import numpy as np
import onnx_ir as ir

from ir_ops.dtypes import Array
from ir_ops.errors import BadModel

_BLOCK = 8 * 2**20
"""Bytes that are held at a time."""


@dataclass(frozen=True)
class Piece:
    """A stored matrix; ``turned`` stands for its transpose."""

    tensor: ir.TensorProtocol
    turned: bool = False

    @property
    def dims(self) -> tuple[int, int]:
        rows, columns = (int(dim) for dim in self.tensor.shape.numpy())
        return (columns, rows) if self.turned else (rows, columns)

    def rows(self, start: int, stop: int) -> Array:
        """Rows as unsigned integers of the element's size, a copy."""
        stored = _bits(self.tensor)
        block = stored[:, start:stop].T if self.turned else stored[start:stop]
        return np.array(block, order="C")


def _bits(tensor: ir.TensorProtocol) -> Array:
    """The stored matrix, mapped anew each time: what was read is given back to the system with the mapping."""
    kind = np.dtype(f"u{int(tensor.dtype.itemsize)}")
    if not isinstance(tensor, ir.ExternalTensor):
        array: Array = np.ascontiguousarray(tensor.numpy())
        return array.view(kind)
    shape = tuple(int(dim) for dim in tensor.shape.numpy())
    try:
        return np.memmap(tensor.path, kind, "r", tensor.offset or 0, shape)
    except FileNotFoundError:
        raise BadModel(
            "external weights are missing", where=str(tensor.path), found="no such file",
            wanted=f"the data of {tensor.name!r}",
        ) from None  # fmt: skip
    except ValueError:
        found = f"less than the {tensor.nbytes} bytes of {tensor.name!r}"
        raise BadModel("a weight file is too short", where=str(tensor.path), found=found) from None


class PackedTensor(ir.LazyTensor):
    """Matrices side by side (axis 1) or below each other (axis 0), of one element type of whole bytes.

    Nothing is read before the content is asked for; :meth:`tofile` holds a few megabytes at a time.
    """

    def __init__(self, pieces: Sequence[Piece], axis: int, name: str) -> None:
        self.pieces, self.axis = tuple(pieces), axis
        dims = [piece.dims for piece in self.pieces]
        total = sum(dim[axis] for dim in dims)
        if len({dim[1 - axis] for dim in dims}) != 1 or len({piece.tensor.dtype for piece in pieces}) != 1:
            raise ValueError(f"matrices {dims} do not fit together")
        self._dims = (total, dims[0][1]) if axis == 0 else (dims[0][0], total)
        super().__init__(self._whole, self.pieces[0].tensor.dtype, ir.Shape(self._dims), name=name)

    @property
    def sources(self) -> list[ir.TensorProtocol]:
        """The stored tensors it is made of."""
        return [piece.tensor for piece in self.pieces]

    def blocks(self) -> Iterator[Array]:
        """The content from the first row to the last, in blocks of rows, as unsigned integers."""
        row_bytes = int(self._dims[1] * self.dtype.itemsize)
        if self.axis == 0:
            for piece in self.pieces:
                yield from (piece.rows(*span) for span in _spans(piece.dims[0], row_bytes))
            return
        for start, stop in _spans(self._dims[0], row_bytes):
            yield np.concatenate([piece.rows(start, stop) for piece in self.pieces], axis=1)

    def tofile(self, file: BinaryIO) -> None:
        for block in self.blocks():
            file.write(block.data)

    def _whole(self) -> ir.TensorProtocol:
        return ir.Tensor(np.concatenate(list(self.blocks())).view(self.dtype.numpy()), dtype=self.dtype)


def stored_outside(tensor: ir.TensorProtocol) -> list[ir.ExternalTensor]:
    """The external tensors that a tensor is, or is made of."""
    if isinstance(tensor, PackedTensor):
        return [source for source in tensor.sources if isinstance(source, ir.ExternalTensor)]
    return [tensor] if isinstance(tensor, ir.ExternalTensor) else []


def _spans(rows: int, row_bytes: int) -> Iterator[tuple[int, int]]:
    step = max(1, _BLOCK // max(row_bytes, 1))
    for start in range(0, rows, step):
        yield start, min(start + step, rows)
