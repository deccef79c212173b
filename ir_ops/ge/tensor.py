"""Handles that the graph builder passes around."""

from __future__ import annotations

import operator
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ir_ops.dtypes import DType, by_name, by_numpy
from ir_ops.errors import BadInput, BadUsage
from ir_ops.ge.model import Edge, Shape, TensorType

DTypeLike = DType | str | np.dtype[Any] | type


@dataclass(frozen=True, eq=False, slots=True)
class Tensor:
    """An output of a node under construction.

    Attributes:
        edge: node name and output index.
        type: element type and, as far as known, shape.
        known: content as far as known (an array; unknown elements are None), None when nothing is.
    """

    edge: Edge
    type: TensorType
    known: NDArray[Any] | None = None

    @property
    def dtype(self) -> DType:
        """The element type. Raises BadInput when it is not known."""
        if self.type.dtype is None:
            raise BadInput("the element type is not known", where=str(self.edge))
        return self.type.dtype

    @property
    def shape(self) -> Shape | None:
        return self.type.shape

    def __str__(self) -> str:
        return f"{self.edge} {self.type}"


TensorLike = Tensor | NDArray[Any] | np.generic
"""What stands for an input: a handle, or a numpy array that becomes a constant."""


def as_dtype(dtype: DTypeLike) -> DType:
    """A row of the type table by name, numpy dtype or itself. Raises BadUsage for an unknown one."""
    try:
        if isinstance(dtype, DType):
            return dtype
        return by_name(dtype) if isinstance(dtype, str) else by_numpy(dtype)
    except (KeyError, TypeError):
        raise BadUsage("unknown element type", found=str(dtype)) from None


def as_dims(shape: Iterable[object], where: str) -> Shape:
    """A shape as a tuple of Python ints. Raises BadUsage for anything that is no sequence of whole numbers."""
    wanted = "whole numbers, e.g. (1, 128)"
    try:
        dims = tuple(operator.index(dim) for dim in shape)  # type: ignore[arg-type]
    except TypeError:
        raise BadUsage("a shape is not a list of dims", where=where, found=repr(shape)[:60], wanted=wanted) from None
    if any(abs(dim) >= 2**63 for dim in dims):
        raise BadUsage("a dim is too large", where=where, found=str(list(dims)), wanted="dims below 2^63")
    return dims


class Outputs:
    """The outputs of one operator, by GE name (``out.k_cache``), by position, or unpacked in order.

    A dynamic output is a tuple of tensors.
    """

    def __init__(self, by_name: Mapping[str, Tensor | tuple[Tensor, ...]]) -> None:
        self._by_name = dict(by_name)

    def __getattr__(self, name: str) -> Any:
        try:
            return self.__dict__["_by_name"][name]
        except KeyError:
            raise AttributeError(f"no output {name!r}; there are {', '.join(self._by_name)}") from None

    def __getitem__(self, key: str | int) -> Any:
        return self._by_name[key] if isinstance(key, str) else self.flat()[key]

    def __iter__(self) -> Iterator[Tensor]:
        return iter(self.flat())

    def __len__(self) -> int:
        return len(self.flat())

    def names(self) -> tuple[str, ...]:
        return tuple(self._by_name)

    def flat(self) -> list[Tensor]:
        """All output tensors in order, dynamic ones spread out."""
        found: list[Tensor] = []
        for value in self._by_name.values():
            found.extend(value if isinstance(value, tuple) else (value,))
        return found
