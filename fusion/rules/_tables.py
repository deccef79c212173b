"""cos and sin of operators that write caches: which rows of which value they are, and those rows as an operand."""

from __future__ import annotations

from typing import Protocol

import onnx_ir as ir

from fusion.candidate import Refused
from fusion.emit import Emitter
from fusion.facts.graph import GraphView
from fusion.facts.operand import Table, table_of
from fusion.facts.parameters import Part
from fusion.rules import _cache_op as common


class Frame(Protocol):
    """What a site tells of itself: its graph and emitter, the operator's type, its nodes, shapes under a trial."""

    view: GraphView
    emit: Emitter
    kind: str
    region_ids: set[int]

    def shape(self, value: ir.Value) -> tuple[int, ...]: ...


def agreed_table(parts: list[tuple[Part, int, int]], name: str) -> Table:
    """cos or sin that every probe reads alike."""
    read = [table_of(*entry) for entry in parts]
    first = read[0]
    if first is None or any(other is None or not first.same_as(other) for other in read[1:]):
        raise Refused(
            "rope-tables",
            f"{name} has one row for each token, or one for each position",
            f"rows of {parts[0][0].value.name} in another order",
            "token order",
            "",
            parts[0][0].value,
        )
    return first


def table_rows(frame: Frame, table: Table, name: str) -> tuple[ir.Value, tuple[int, ...]]:
    """The rows of a table in the operator's type and order of columns, ``[.., R]``, and their shape under a trial."""
    emit, shape = frame.emit, rows_shape(table, frame.shape(table.value))
    value = common.in_type(emit, frame.view, table.value, frame.kind, frame.region_ids, name)
    if table.joined > 1:
        value = emit.reshape(value, [*[0] * (len(shape) - 1), table.width], name + "_joined")
    return emit.pick_columns(value, table.columns, table.width, name + "_columns"), shape


def rows_shape(table: Table, shape: tuple[int, ...]) -> tuple[int, ...]:
    """Dims of the rows that :func:`table_rows` gives, of the table's own."""
    return (*shape[: len(shape) - table.joined], len(table.columns))
