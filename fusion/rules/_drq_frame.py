"""The joined facts of a DequantRopeQuantKvcache site, and how its rows are counted: by batch, or one by one."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import onnx_ir as ir

from fusion.candidate import Refused
from fusion.emit import Emitter
from fusion.facts.caches.cache_write import CacheWrite
from fusion.facts.caches.rows import Row
from fusion.facts.caches.written import WrittenView
from fusion.facts.graph import GraphView
from fusion.facts.quantised.dequantised import Dequantised
from fusion.facts.rotary.rotated import Rotated
from fusion.facts.rotary.rotation import Rotation
from fusion.facts.symbols.operand import Columns, Table
from fusion.facts.symbols.parameters import Part
from fusion.facts.trial.probe import Probe
from fusion.region import closure
from fusion.rules import _cache_op as common
from fusion.rules._cache_frame import CacheFrame
from fusion.rules._tables import TableUse, agreed_table, batch_and_tokens
from ir_ops.dtypes import Array

CONTIGUOUS, PAGE = "contiguous", "page"


@dataclass
class Inputs:
    """The joined facts.

    Attributes:
        mode: ``cache_mode``.
        key, value: rows of k_cache and v_cache.
        queries: rotated rows that are delivered.
        parts: per kind of rows (query, key, value), per probe, the elements of one value that they are made of, in
            the operator's column order.
        dequantised: the same rows as int32 sums; None where x is a float value.
    """

    mode: str
    key: Row
    value: Row
    queries: Rotated
    parts: tuple[list[Part], list[Part], list[Part]]
    dequantised: tuple[list[Dequantised], list[Dequantised], list[Dequantised]] | None = None

    @property
    def rows(self) -> tuple[Row, Row]:
        return self.key, self.value

    @property
    def x_parts(self) -> tuple[list[Part], list[Part], list[Part]]:
        """The elements that x holds."""
        if self.dequantised is None:
            return self.parts
        query, key, value = ([item.sums for item in rows] for rows in self.dequantised)
        return query, key, value

    @property
    def rotations(self) -> list[Rotation]:
        """The keys' rotation under each probe."""
        return [entry.rotation for entry in self.key.views if entry.rotation is not None]

    def sources(self) -> list[ir.Value]:
        """What the rows are computed from."""
        if self.dequantised is None:
            return [parts[0].value for parts in self.parts]
        return [value for rows in self.dequantised for value in rows[0].sources]


def halves(position: Array) -> Array:
    """Columns of adjacent pairs in the order of the operator: first elements, then second ones."""
    return np.concatenate([position[..., 0::2], position[..., 1::2]], axis=-1)


class Frame(CacheFrame):
    """What all parts of a site need to know.

    Attributes:
        columns: where query, key and value rows come from.
        width, heads, query_heads: D, Nkv and Nq.
        flat: x is ``[T, H]``; otherwise ``[B, S, H]``.
        kind: the float type of the rotation.
    """

    EQUAL = "both caches have one shape, and all rows the same tokens (DRQ-07)"

    def __init__(self, view: GraphView, emit: Emitter, inputs: Inputs) -> None:
        self.view, self.emit, self.inputs = view, emit, inputs
        _, self.heads, self.width = inputs.key.write.probes[0].source.shape
        self.query_heads = inputs.parts[0][0].position.shape[1]
        self.columns = [
            common.agreed_columns(parts, what)
            for parts, what in zip(inputs.x_parts, ("queries", "keys", "values"), strict=True)
        ]
        self.flat = self._is_flat()
        self.cos, self.sin = (self._table(name) for name in ("cos", "sin"))
        ends = [*(row.write.out for row in inputs.rows), inputs.queries.value]
        self.region = closure(ends, self.stops())
        self.region_ids = {id(node) for node in self.region}
        self.kind = self._kind()

    @property
    def key_columns(self) -> Columns:
        return self.columns[1]

    @property
    def value_columns(self) -> Columns:
        return self.columns[2]

    def _is_flat(self) -> bool:
        """Rows one by one, where x has them so and no run of rows is counted."""
        if self.inputs.mode == CONTIGUOUS or self.key_columns.by_head:
            return False
        return len(self.key_columns.shape) != 3

    def _kind(self) -> str:
        """The type in which cos and sin meet rows."""
        found = set()
        for table in (self.cos, self.sin):
            found |= common.facing_types(self.view, table.value, self.region_ids)
        if len(found) != 1:
            raise Refused(
                "mixed-types", "cos and sin meet the rows in one element type", " and ".join(sorted(found)), "one type",
                "", self.cos.value,
            )  # fmt: skip
        return found.pop()

    def split(self, number: int) -> tuple[int, int]:
        """Batch and tokens under one probe."""
        written = self.inputs.key.write.probes[number]
        if self.inputs.mode == CONTIGUOUS:
            return written.batch, written.tokens
        lead = self.inputs.x_parts[1][number].source.shape[:-1]
        if self.key_columns.by_head:
            return lead[0], lead[2]
        total = written.source.shape[0]
        told = batch_and_tokens(total, lead, self.inputs.rotations[number].cos_source.shape[:-1])
        if told is not None:
            return told
        if len(lead) == 2 and lead[0] * lead[1] == total:
            return lead[0], lead[1]
        return written.batch, written.tokens

    def _table(self, name: str) -> Table:
        key, queries = self.inputs.key, self.inputs.queries
        uses = [
            TableUse(rotation, *self.split(number), key.write.probes[number].probe, [key.start, queries.value],
                     [queries.rotations[number].source.value])
            for number, rotation in enumerate(self.inputs.rotations)
        ]  # fmt: skip
        return agreed_table(self.view, uses, name)

    def feeds(self) -> list[ir.Value]:
        found = [*self.inputs.sources(), self.cos.value, self.sin.value]
        for row in self.inputs.rows:
            found += [row.write.cache, row.write.slots.value]
            found += common.parameter_values(row)
        return list({id(value): value for value in found}.values())

    def sums(self) -> set[int]:
        """Ids of the int32 values that are data."""
        if self.inputs.dequantised is None:
            return set()
        return {id(rows[0].sums.value) for rows in self.inputs.dequantised}

    def draws(self) -> dict[int, str]:
        """What the proof feeds as int32 data, and what as scales."""
        scales = [
            part for row in self.inputs.rows if (scale := row.views[0].scale) is not None for part, _ in scale.parts
        ]
        for rows in self.inputs.dequantised or ():
            scales += [part for part, _ in (rows[0].weight.parts if rows[0].weight is not None else [])]
            scales += [part for part, _ in rows[0].activation]
        linear = [row.peeled.linear[0] for row in self.inputs.rows if row.peeled is not None and row.peeled.linear]
        found = {id(value): "scale" for value in (*(part.value for part in scales), *linear)}
        return found | dict.fromkeys(self.sums(), "sums")

    @property
    def writes(self) -> tuple[CacheWrite, CacheWrite]:
        return self.inputs.key.write, self.inputs.value.write

    def settled(self) -> list[ir.Value]:
        return [self.inputs.queries.value, *self.feeds()]

    def own_probes(self) -> list[Probe]:
        return [entry.view.probe for entry in self.inputs.key.views]

    def having(self) -> list[ir.Value]:
        return [self.key_columns.value, self.inputs.key.write.slots.value]

    # dims -----------------------------------------------------------------------------------------------------------

    def batch_dim(self) -> int | ir.Value:
        """B, as a number or a vector of one element."""
        return self._told([self.split(number)[0] for number in range(len(self.inputs.rotations))], "batch")

    def tokens_dim(self) -> int | ir.Value:
        """S, as a number or a vector of one element."""
        return self._told([self.split(number)[1] for number in range(len(self.inputs.rotations))], "tokens")

    def _told(self, sizes: list[int], what: str) -> int | ir.Value:
        found = self.dim(sizes, what)
        if found is None:
            raise Refused(
                "row-order", f"the size of {what} can be told", "no value has such a dim", "rows by batch", ""
            )
        return found

    def unequal(self, probe: Probe, written: WrittenView | None) -> tuple[int, int] | None:
        left, right = (probe.shape(row.write.cache) or () for row in self.inputs.rows)
        pairs = list(zip(left, right, strict=False))
        leads = [_lead(columns, probe.shape(columns.value) or ()) for columns in self.columns]
        for lead in (leads[0], leads[2]):
            if len(lead) == len(leads[1]):
                pairs += zip(leads[1], lead, strict=True)
        return next((pair for pair in pairs if pair[0] != pair[1]), None)


def _lead(columns: Columns, shape: tuple[int, ...]) -> tuple[int, ...]:
    """The sizes in front of the columns and heads."""
    if columns.by_head:
        return shape[:1] + shape[2:3]
    return shape[: len(columns.shape) - 1]
