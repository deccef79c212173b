"""The operator table and the ways an evaluation can fail."""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from ir_ops.dtypes import Array
from ir_ops.errors import KvfuseError

MICROSOFT = "com.microsoft"
"""The domain of onnxruntime's own operators."""
Attrs = Mapping[str, Any]
Operands = Sequence["Array | None"]


class Conflict(Exception):
    """Two sizes that the operator wants equal are not: the graph says something about its symbolic dims.

    ``left`` and ``right`` are the numbers that should agree (``divides``: the second should divide the first;
    ``or_one``: a size of 1 would do as well), ``place`` is the node, once an evaluation knows it.
    """

    place: object = None

    def __init__(self, left: int, right: int, divides: bool = False, or_one: bool = False) -> None:
        super().__init__(f"{left} against {right}")
        self.left, self.right, self.divides, self.or_one = left, right, divides, or_one


class OutOfRange(Exception):
    """An index points outside its axis: the values chosen for an integer input do not fit."""


class Unsupported(Exception):
    """The table does not know this operator, or not this form of it."""


@dataclass(frozen=True)
class OpDef:
    """One operator.

    Attributes:
        run: ``run(attrs, operands) -> outputs``; ``attrs["@wide"]`` asks for float64 in place of every float type.
        moves: positions of the operands whose elements are only moved, None for operators that compute.
        shapes: for operators that compute: a cheap ``shapes(attrs, operands) -> output shapes`` where operands may be
            shape-only dummies; None means elementwise broadcasting of all operands.
        kind: ``move``, ``elementwise``, ``reduce`` or ``compute``.
        carries: for movement: per output, the operand that it is, written over; the first for all when empty.
    """

    run: Callable[[Attrs, Operands], tuple[Array, ...]]
    kind: str
    moves: tuple[int, ...] | None = None
    shapes: Callable[[Attrs, Operands], list[tuple[int, ...]]] | None = None
    carries: tuple[int, ...] = ()


_TABLE: dict[tuple[str, str], OpDef] = {}


def register(names: str, definition: OpDef, domain: str = "") -> None:
    for name in names.split():
        _TABLE[domain, name] = definition


def lookup(domain: str, op_type: str) -> OpDef | None:
    """The entry of an operator; ``ai.onnx`` is the empty domain."""
    return _TABLE.get(("" if domain == "ai.onnx" else domain, op_type))


_STAND_IN = np.zeros((), np.dtype(np.int8, metadata={"stand_in": True}))


@functools.lru_cache(maxsize=4096)
def stand_in(shape: tuple[int, ...]) -> Array:
    """An array that has a shape and no storage, for operands whose content is not known."""
    try:
        return np.broadcast_to(_STAND_IN, shape)
    except ValueError:  # more elements than numpy can count
        raise Unsupported(f"a shape of {list(shape)}") from None


def is_stand_in(x: Array) -> bool:
    """Whether ``x`` only stands in for a shape: a copy of it would take the memory it was made to save."""
    return x.dtype.metadata is not None and "stand_in" in x.dtype.metadata


Function = Callable[..., Any]


def _as_tuple(result: Any) -> tuple[Array, ...]:
    return tuple(result) if isinstance(result, (list, tuple)) else (result,)


def guarded(function: Function) -> Function:
    """``function`` that finds operands and attributes of another form than its operator's unsupported: graphs may be
    broken."""

    def run(*operands: Any) -> Any:
        try:
            return function(*operands)
        except (
            ValueError, LookupError, TypeError, AssertionError, AttributeError, ArithmeticError, StopIteration,
            MemoryError, KvfuseError,
        ) as error:  # fmt: skip
            raise Unsupported(str(error) or type(error).__name__) from None

    return run


def movement(
    names: str, moves: tuple[int, ...], domain: str = "", carries: tuple[int, ...] = ()
) -> Callable[[Function], Function]:
    """Registers ``f(attrs, *operands)`` as a movement operator. ``(-1,)`` means that every operand is moved."""

    def decorate(function: Function) -> Function:
        run = guarded(function)

        def moved(attrs: Attrs, operands: Operands) -> tuple[Array, ...]:
            return _as_tuple(run(attrs, *operands))

        register(names, OpDef(moved, "move", moves, carries=carries), domain)
        return function

    return decorate


def elementwise(names: str) -> Callable[[Function], Function]:
    """Registers ``f(attrs, *operands)`` whose result has the broadcast shape of its operands."""

    def decorate(function: Function) -> Function:
        safe = guarded(function)

        def run(attrs: Attrs, operands: Operands) -> tuple[Array, ...]:
            broadcast_shape(*(operand.shape for operand in operands if operand is not None))
            return _as_tuple(safe(attrs, *operands))

        register(names, OpDef(run, "elementwise"))
        return function

    return decorate


def computing(
    names: str, shapes: Callable[[Attrs, Operands], list[tuple[int, ...]]], kind: str = "compute", domain: str = ""
) -> Callable[[Function], Function]:
    """Registers ``f(attrs, *operands)`` with a shape rule of its own."""

    def decorate(function: Function) -> Function:
        run = guarded(function)
        entry = OpDef(lambda attrs, operands: _as_tuple(run(attrs, *operands)), kind, None, guarded(shapes))
        register(names, entry, domain)
        return function

    return decorate


def broadcast_shape(*shapes: tuple[int, ...]) -> tuple[int, ...]:
    """The numpy broadcast of shapes. Raises Conflict where two sizes other than 1 differ."""
    rank = max((len(shape) for shape in shapes), default=0)
    result = [1] * rank
    for shape in shapes:
        for axis, size in enumerate(shape, start=rank - len(shape)):
            if size != 1:
                if result[axis] not in (1, size):
                    raise Conflict(result[axis], size, or_one=True)
                result[axis] = size
    return tuple(result)


def ints(array: Array | None) -> list[int]:
    """An index operand as Python ints."""
    if array is None:
        raise Unsupported("a missing index operand")
    return [int(item) for item in array.reshape(-1)]


def axes_of(attrs: Attrs, operand: Array | None, rank: int) -> list[int] | None:
    """The axes of an operator that takes them as attribute (older opsets) or operand; None when neither is given."""
    axes = attrs["axes"] if "axes" in attrs else (None if operand is None else ints(operand))
    return None if axes is None else [int(axis) % rank for axis in axes]
