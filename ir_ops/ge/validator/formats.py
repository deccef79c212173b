"""Rules 26 to 28: dims, storage formats, devices."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from ir_ops.ge.codec import FORMAT_ND, FORMAT_NZ, UNKNOWN_RANK, layout_of
from ir_ops.ge.messages import Message
from ir_ops.ge.model import FRACTAL_NZ
from ir_ops.ge.validator.context import ERROR, NOTE, WARNING, Context, Op, Report, is_placeholder, rule
from ir_ops.ops import OPS

_NZ_ATTRS = (
    "origin_shape",
    "origin_shape_initialized",
    "origin_format_for_int",
    "format_for_int",
    "origin_format_is_set",
)


@dataclass(frozen=True, slots=True)
class _Port:
    """A descriptor's place; its text is made only for a report."""

    op: Op
    side: str
    index: int

    def __str__(self) -> str:
        return f"{self.op.place} {self.side} {self.index}"


def _descs(c: Context) -> Iterator[tuple[_Port, Message]]:
    for op in c.ops():
        for i, desc in enumerate(op.message.input_desc):
            yield _Port(op, "input", i), desc
        for i, desc in enumerate(op.message.output_desc):
            yield _Port(op, "output", i), desc


def _reads_constant(op: Op, index: int) -> bool:
    """Whether an input is fed by a constant (an empty one is how a shape of rank 0 is written)."""
    edge = op.edges[index] if index < len(op.edges) else None
    source = None if edge is None else op.graph.by_name.get(edge[0])
    return source is not None and source.is_constant


def _reads(port: _Port) -> bool:
    return port.side == "input" and _reads_constant(port.op, port.index)


def _may_be_empty(op: Op) -> bool:
    """Whether an operator's contract has empty tensors: outputs a mode leaves out, a cache it does not use."""
    return op.type in OPS and (op.type != "TensorMove" or _reads_constant(op, 0))


@rule(26, "Dims are -2 (alone: unknown rank), -1 or more; 0 only in constants")
def dims(c: Context) -> Iterator[Report]:
    for port, desc in _descs(c):
        shape = tuple(desc.shape.dim)
        if not shape or min(shape) > 0:
            continue
        text = f"dims {list(shape)}"
        if min(shape) < UNKNOWN_RANK:
            yield ERROR, str(port), f"{text}: below -2"
        elif UNKNOWN_RANK in shape and len(shape) > 1:
            yield ERROR, str(port), f"{text}: -2 stands for an unknown rank, alone"
        elif 0 in shape and port.op.is_input:
            yield ERROR, str(port), f"{text}: a graph input cannot be empty"
        elif 0 in shape and not port.op.is_constant and not _reads(port):
            severity = NOTE if _may_be_empty(port.op) else WARNING
            yield severity, str(port), f"{text}: an empty tensor outside a constant"


@rule(27, "Tensors are ND, or FRACTAL_NZ with everything that goes with it")
def layouts(c: Context) -> Iterator[Report]:
    for port, desc in _descs(c):
        layout, op = layout_of(desc), port.op
        if layout == "ND" or is_placeholder(desc):
            continue
        place = str(port)
        if layout != FRACTAL_NZ:
            yield ERROR, place, f"layout {desc.layout!r}, wanted ND or {FRACTAL_NZ}"
            continue
        missing = [name for name in _NZ_ATTRS if name not in desc.attr]
        if missing:
            yield ERROR, place, f"an NZ tensor lacks {', '.join(missing)}"
        elif desc.attr["format_for_int"].i != FORMAT_NZ or desc.attr["origin_format_for_int"].i != FORMAT_ND:
            yield ERROR, place, "format_for_int / origin_format_for_int are not 29 / 2"
        if op.is_input and "_enable_storage_format_spread" not in op.message.attr:
            yield ERROR, op.place, "an NZ graph input lacks _enable_storage_format_spread"


@rule(28, "device_type is NPU or CPU where it is set")
def devices(c: Context) -> Iterator[Report]:
    for port, desc in _descs(c):
        if desc.device_type not in ("", "NPU", "CPU"):
            yield ERROR, str(port), f"device_type {desc.device_type!r}"
