"""cos and sin of operators that write caches: which rows of which value they are, and those rows as an operand."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Protocol

import numpy as np
import onnx_ir as ir

from fusion.candidate import Refused
from fusion.emit import Emitter
from fusion.facts.graph import GraphView
from fusion.facts.rotary.near import values_near
from fusion.facts.rotary.rotation import Rotation
from fusion.facts.symbols.operand import Table, table_in, table_of
from fusion.facts.symbols.parameters import Part
from fusion.facts.symbols.symbolic import Symbolic
from fusion.facts.trial.probe import Probe
from fusion.rules import _cache_op as common
from fusion.rules._dims import all_rows
from ir_ops.dtypes import Array


class Frame(Protocol):
    """What a site tells of itself: its graph and emitter, the operator's type, its nodes, shapes under a trial."""

    view: GraphView
    emit: Emitter
    kind: str
    region_ids: set[int]

    def shape(self, value: ir.Value) -> tuple[int, ...]: ...
    def own_probes(self) -> Sequence[Probe]: ...
    def ones(self) -> Sequence[Probe]: ...
    def having(self) -> list[ir.Value]: ...


@dataclass(frozen=True)
class TableUse:
    """How rows are rotated under one trial size.

    Attributes:
        rotation: of ``[T, N, D]`` rows.
        batch, tokens: how the T rows are counted.
        outs: the values of all rows that are rotated with the table.
        sources: what else these rows are computed from.
    """

    rotation: Rotation
    batch: int
    tokens: int
    probe: Probe
    outs: Sequence[ir.Value]
    sources: Sequence[ir.Value] = ()

    def part(self, name: str) -> Part:
        """``cos`` or ``sin``."""
        rotation = self.rotation
        return Part(*((rotation.cos_source, rotation.cos) if name == "cos" else (rotation.sin_source, rotation.sin)))

    def near(self, view: GraphView, name: str) -> Iterator[tuple[ir.Value, Array]]:
        """Values between the table's source and the rows."""
        source, rotation = self.part(name).value, self.rotation
        symbolic = Symbolic(view, self.probe, {id(source)})
        symbolic.read(source, 0)
        roots = [rotation.source.value, rotation.cos_source.value, rotation.sin_source.value, *self.sources]
        return values_near(symbolic, symbolic.sources[0], self.outs, [root for root in roots if root is not source])


def agreed_table(view: GraphView, uses: Sequence[TableUse], name: str) -> Table:
    """cos or sin that every trial reads alike: at its source, else in what is moved from there nearer to the rows.

    Positions of text, of image rows and of image columns, which Qwen3.5 has a cosine for each, are such a source:
    the columns of a row come from three places of it.
    """
    parts = [use.part(name) for use in uses]
    found = _alike([table_of(part, use.batch, use.tokens) for part, use in zip(parts, uses, strict=True)])
    if found is not None:
        return found
    near = [{id(value): (value, held) for value, held in use.near(view, name)} for use in uses]
    tables = []
    for key in near[0]:
        found = _alike([
            table_in(*values[key], part.position, use.batch, use.tokens) if key in values else None
            for values, part, use in zip(near, parts, uses, strict=True)
        ])  # fmt: skip
        tables += [] if found is None else [found]
    if not tables:
        value = parts[0].value
        raise Refused(
            "rope-tables", f"{name} has one row for each token, or one for each position",
            f"rows of {value.name} in another order", "token order", "", value,
        )  # fmt: skip
    # the farther from the rows, the likelier others read the same
    in_order = [table for table in tables if np.array_equal(table.columns, np.arange(table.width))]
    return (in_order or tables)[-1]


def _alike(read: list[Table | None]) -> Table | None:
    first = read[0]
    return first if first is not None and all(other is not None and first.same_as(other) for other in read) else None


def batch_and_tokens(total: int, *shapes: tuple[int, ...]) -> tuple[int, int] | None:
    """How ``total`` rows are counted, as one of the shapes has it: leading dims of rows, or dims of a table."""
    for shape in shapes:
        sizes = [size for size in shape if size != 1]
        for pair in reversed([*pairwise(sizes)]):
            if math.prod(pair) == total:
                return pair
        if len(sizes) == 1 and 1 < sizes[0] < total and total % sizes[0] == 0:
            return total // sizes[0], sizes[0]
        if sizes == [total] and len(shape) > 1:  # one batch entry, or one token of each
            return (total, 1) if shape[0] == total else (1, total)
    return None


def table_rows(frame: Frame, table: Table, name: str) -> tuple[ir.Value, tuple[int, ...]]:
    """The rows of a table in the operator's type and order of columns, ``[.., R]``, and their shape under a trial."""
    emit, shape = frame.emit, rows_shape(table, frame.shape(table.value))
    value = common.in_type(emit, frame.view, table.value, frame.kind, frame.region_ids, name)
    if table.joined > 1:
        value = emit.reshape(value, [*[0] * (len(shape) - 1), table.width], name + "_joined")
    rows = emit.pick_columns(value, table.columns, table.width, name + "_columns")
    whole = all_rows(emit, frame.own_probes(), frame.ones(), table.value, rows, len(shape) - 1, frame.having(), name)
    return whole, shape


def rows_shape(table: Table, shape: tuple[int, ...]) -> tuple[int, ...]:
    """Dims of the rows that :func:`table_rows` gives, of the table's own."""
    return (*shape[: len(shape) - table.joined], len(table.columns))
