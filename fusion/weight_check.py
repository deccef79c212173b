"""What is wrong with a tensor or the weight file it refers to, and the state that a model's check carries along."""

from __future__ import annotations

import math
import os
import sys
from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any

import onnx_ir as ir
from onnx import TensorProto

from ir_ops.errors import BadModel

_TYPED_DATA: dict[int, str] = {
    TensorProto.FLOAT: "float_data",
    TensorProto.COMPLEX64: "float_data",
    TensorProto.DOUBLE: "double_data",
    TensorProto.COMPLEX128: "double_data",
    TensorProto.INT64: "int64_data",
    TensorProto.UINT32: "uint64_data",
    TensorProto.UINT64: "uint64_data",
    TensorProto.STRING: "string_data",
}
_VALUES_PER_ELEMENT: dict[int, int] = {TensorProto.COMPLEX64: 2, TensorProto.COMPLEX128: 2}


@dataclass
class Findings:
    """What a check found that is not a fault.

    Attributes:
        unsorted: some node stands before the producer of its input; the graph can be sorted.
        notes: sentences for the user.
        locations: of external weights, as the model spells them, in its order.
        names: of what each node of the main graph reads and gives: slow to read twice.
    """

    unsorted: bool = False
    notes: list[str] = field(default_factory=list)
    locations: dict[str, None] = field(default_factory=dict)
    names: list[tuple[list[str], list[str]]] = field(default_factory=list)


@dataclass(frozen=True)
class Kind:
    """An operator as the imported opset has it.

    Attributes:
        schema: None for one that onnx does not know.
        low, high: the numbers of inputs it takes.
        unknown: a name of ai.onnx that is neither an operator nor a function of the model.
    """

    schema: Any = None
    low: int = 0
    high: int = sys.maxsize
    unknown: bool = False


@dataclass
class Context:
    """State of one check: what messages call the model, what it imports, what has been looked up already."""

    where: str
    imports: dict[str, int]
    functions: set[tuple[str, str]]
    folder: Path | None
    findings: Findings
    unknown: Counter[str] = field(default_factory=Counter)
    kinds: dict[tuple[str, str], Kind] = field(default_factory=dict)
    file_sizes: dict[str, int] = field(default_factory=dict)
    missing: dict[Path, list[str]] = field(default_factory=dict)

    def path(self, location: str) -> Path:
        """The weight file at ``location``, as messages call it."""
        assert self.folder is not None
        return Path(os.path.normpath(self.folder / location))

    def fault(self, what: str, **facts: str) -> BadModel:
        return BadModel(what, where=self.where, **facts)


def unique(names: Iterable[str], kind: str, context: Context) -> None:
    given = list(names)
    if len(set(given)) < len(given):
        name = next(name for name, count in Counter(given).items() if count > 1)
        raise context.fault(f"{kind}: one name is given twice", found=repr(name), wanted="unique names")


def check_tensor(tensor: TensorProto, where: Callable[[], str], context: Context) -> None:
    """Refuses a tensor whose type is unknown or whose data (inside, or in a file) does not fit its shape."""
    text = tensor.data_type == TensorProto.STRING
    bits = 0 if text else _bits(tensor.data_type)
    if bits is None:
        raise context.fault(
            f"{where()} has an unknown element type", found=str(tensor.data_type), wanted="a TensorProto data type"
        )
    dims = tensor.dims[:]
    if dims and min(dims) < 0:
        raise context.fault(f"{where()} has a negative size", found=str(dims))
    count = math.prod(dims)
    expected = (count * bits + 7) // 8
    if tensor.data_location == TensorProto.EXTERNAL:
        _check_external(tensor, expected, where, context)
    elif tensor.HasField("raw_data"):
        if text or len(tensor.raw_data) != expected:
            raise context.fault(
                f"{where()} has data of a wrong size",
                found=f"{len(tensor.raw_data)} bytes",
                wanted=f"{expected} bytes for {dims}",
            )
    else:
        values = len(getattr(tensor, _TYPED_DATA.get(tensor.data_type, "int32_data")))
        wanted = count * _VALUES_PER_ELEMENT.get(tensor.data_type, 1)
        if values not in (wanted, expected if bits < 8 and not text else wanted):
            raise context.fault(
                f"{where()} has data of a wrong size",
                found=f"{values} values",
                wanted=f"{wanted} for {dims}",
            )


@cache
def _bits(number: int) -> int | None:
    """Bits of an element, None for a number that is no element type."""
    try:
        return ir.DataType(number).bitwidth
    except (ValueError, TypeError):
        return None


def _check_external(tensor: TensorProto, expected: int, where: Callable[[], str], context: Context) -> None:
    facts = {entry.key: entry.value for entry in tensor.external_data}
    location = facts.get("location", "")
    if not location:
        raise context.fault(f"{where()} is external without a location")
    try:
        offset, length = int(facts.get("offset", 0)), int(facts.get("length", expected))
    except ValueError:
        raise context.fault(f"{where()} has an external offset or length that is no number", found=str(facts)) from None
    if offset < 0 or length < expected:
        raise context.fault(
            f"{where()} has external data of a wrong size",
            found=f"offset {offset}, length {length}",
            wanted=f"{expected} bytes for {tensor.dims[:]}",
        )
    context.findings.locations[location] = None
    if context.folder is None or not expected:
        return
    size = _file_size(location, context)
    if size < 0:
        context.missing.setdefault(context.path(location), []).append(tensor.name)
    elif size < offset + length:
        raise context.fault(
            f"{where()} lies beyond the end of its weight file",
            found=f"{context.path(location)} of {size} bytes",
            wanted=f"at least {offset + length} bytes",
        )


def _file_size(location: str, context: Context) -> int:
    """Bytes of the file, -1 when there is none."""
    if location not in context.file_sizes:
        path = context.path(location)
        try:
            context.file_sizes[location] = path.stat().st_size if path.is_file() else -1
        except (OSError, ValueError):
            context.file_sizes[location] = -1
    return context.file_sizes[location]
