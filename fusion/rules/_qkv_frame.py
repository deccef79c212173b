"""The joined facts of a QkvRmsNormRopeCache site, its trial sizes, and dims that can be told from values."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

import numpy as np
import onnx_ir as ir

from fusion.candidate import Refused
from fusion.emit import Emitter
from fusion.facts.caches.cache_write import CacheWrite
from fusion.facts.caches.rows import Row
from fusion.facts.caches.written import WrittenView
from fusion.facts.graph import GraphView, dtype_name
from fusion.facts.norms.norm import NormFact
from fusion.facts.rotary.heads import Heads
from fusion.facts.rotary.rotation import Rotation
from fusion.facts.symbols.operand import Columns, Table
from fusion.facts.symbols.parameters import Part
from fusion.facts.trial.probe import Probe
from fusion.region import closure
from fusion.rules import _cache_op as common
from fusion.rules._cache_frame import CacheFrame
from fusion.rules._norm_rows import gamma_columns, through_norm
from fusion.rules._tables import TableUse, agreed_table, batch_and_tokens
from ir_ops.dtypes import Array


def halves(position: Array) -> Array:
    """Columns with the pairs of a rotation adjacent, as a low and a high half."""
    return np.concatenate([position[..., 0::2], position[..., 1::2]], axis=-1)


@dataclass
class Turned:
    """Normalised and rotated heads: of the keys or of the queries.

    Attributes:
        norm: their norm.
        probes, rotations: trial sizes, and the rotation under each.
        columns: where they come from, in the operator's column order.
        gamma: the gamma element of each column.
    """

    norm: NormFact
    probes: list[Probe]
    rotations: list[Rotation]
    columns: Columns
    gamma: Array


def turned(
    view: GraphView, norm: NormFact, probes: list[Probe], rotations: list[Rotation], what: str, value: ir.Value
) -> Turned:
    """Looks through rotation and norm to the columns of a source.

    Raises:
        Refused: only some columns are rotated, or the norm spans something else than a head.
    """
    width = rotations[0].position.shape[2]
    if (rotations[0].start, rotations[0].width) != (0, width):
        last = rotations[0].start + rotations[0].width - 1
        raise Refused(
            "rope-columns", f"all columns of the {what} heads are rotated",
            f"columns {rotations[0].start} to {last} of {width}", "all columns", "", value,
        )  # fmt: skip
    rows = [Part(rotation.source, halves(rotation.position)) for rotation in rotations]
    gamma = gamma_columns(rows, norm)
    behind = [through_norm(view, probe, norm, part) for probe, part in zip(probes, rows, strict=True)]
    return Turned(norm, probes, rotations, common.agreed_columns(behind, what), gamma)


class Frame(CacheFrame):
    """What all parts of a site need to know.

    Attributes:
        key, value: rows of the caches; the value rows have heads as wide as the keys'.
        queries: the rotated queries.
        q, k: queries and keys, norms and rotations looked through; v: where the values come from.
        width: D.
        kind: the operator's float type.
        delivered: the value that the operator's q_out stands for.
    """

    EQUAL = "queries, keys and values have the same tokens, both caches the same pages"

    def __init__(
        self, view: GraphView, emit: Emitter, key: Row, value: Row, queries: Heads, k: Turned, q: Turned
    ) -> None:
        self.view, self.emit, self.key, self.value, self.queries, self.k, self.q = (
            view, emit, key, value, queries, k, q,
        )  # fmt: skip
        self.v = common.agreed_columns([entry.x for entry in value.views], "values")
        self.width = k.columns.columns.shape[1]
        self.kind = self._kind()
        self._twins: list[ir.Value] = []
        """The queries' tables, where equal ones are computed twice."""
        self.cos, self.sin = self._table("cos"), self._table("sin")
        self.delivered = queries.value
        self._probes: list[Probe] = []
        self.region: list[ir.Node] = []
        self.region_ids: set[int] = set()

    def deliver(self, value: ir.Value) -> None:
        """Settles which value q_out stands for, and with it the region and the trial sizes."""
        self.delivered = value
        self._probes = self.probes()
        outputs = [self.key.write.out, self.value.write.out, value]
        self.region = closure(outputs, {id(item) for item in self.feeds()})
        self.region_ids = {id(node) for node in self.region}

    @property
    def rows(self) -> tuple[Row, Row]:
        return self.key, self.value

    @property
    def writes(self) -> tuple[CacheWrite, CacheWrite]:
        return self.key.write, self.value.write

    def settled(self) -> list[ir.Value]:
        return [self.delivered, *self.feeds()]

    @property
    def heads(self) -> list[int]:
        """Nq, Nk, Nv."""
        return [len(columns.columns) for columns in (self.q.columns, self.k.columns, self.v)]

    @property
    def key_columns(self) -> Columns:
        return self.k.columns

    @property
    def value_columns(self) -> Columns:
        return self.v

    def _kind(self) -> str:
        """The operator's float type: that of the plain rows, else of the projected row."""
        plain = common.row_types(self.rows, [self.k.columns.value, self.v.value])
        if len(plain) > 1:
            raise Refused("mixed-types", "both plain caches have one type", " and ".join(sorted(plain)), "one type")
        return plain.pop() if plain else dtype_name(self.k.columns.value)

    def split(self, number: int) -> tuple[int, int]:
        """Batch and tokens under one of the trial sizes of the site."""
        return _split(self.own_probes()[number], self.k.columns, self.cos.value)

    def _table(self, name: str) -> Table:
        """cos or sin of the keys; that of the queries must be the same."""
        key, query = (self._own_table(rows, name) for rows in (self.k, self.q))
        same = self.view.number(key.value) == self.view.number(query.value)
        if not same or not key.same_as(replace(query, value=key.value)):
            raise Refused(
                "rope-tables", f"queries and keys are rotated by one {name}",
                f"{query.value.name} and {key.value.name}" if not same else f"other columns of {key.value.name}",
                "one table", "", query.value,
            )  # fmt: skip
        self._twins.append(query.value)
        return key

    def _own_table(self, rows: Turned, name: str) -> Table:
        outs = [self.key.start, self.queries.value]
        sources = [item.rotations[0].source.value for item in (self.k, self.q)]
        uses = [
            TableUse(rotation, *_split(probe, rows.columns, rotation.cos_source.value), probe, outs, sources)
            for probe, rotation in zip(rows.probes, rows.rotations, strict=True)
        ]
        return agreed_table(self.view, uses, name)

    def feeds(self) -> list[ir.Value]:
        found = [self.q.columns.value, self.k.columns.value, self.v.value, self.cos.value, self.sin.value]
        found += [*self._twins, *(norm.gamma for norm in (self.q.norm, self.k.norm) if norm.gamma is not None)]
        for row in self.rows:
            found += [row.write.cache, row.write.slots.value, *common.parameter_values(row)]
        return list({id(value): value for value in found}.values())

    def own_probes(self) -> list[Probe]:
        """Trial sizes of the whole site, under which both caches have the shapes that the operator wants."""
        return self._probes

    def having(self) -> list[ir.Value]:
        return [self.k.columns.value, self.key.write.slots.value]

    def dims(self, part: str) -> tuple[int | ir.Value, int | ir.Value]:
        """B and S, as numbers or vectors of one element."""
        split = [self.split(number) for number in range(len(self.own_probes()))]
        found = [self.dim([sizes[place] for sizes in split], part) for place in (0, 1)]
        batch, tokens = found
        if batch is None or tokens is None:
            raise Refused(
                "rope-tables", "cos and sin can be spread over batch and tokens", "no value has such dims",
                "rows by batch and token", "", self.cos.value,
            )  # fmt: skip
        return batch, tokens

    def unequal(self, probe: Probe, written: WrittenView | None) -> tuple[int, int] | None:
        writes = [row.write for row in self.rows]
        shapes = [probe.shape(write.cache) or () for write in writes]
        rows = [shape[common.rows_axis(write)] for write, shape in zip(writes, shapes, strict=True)]
        pairs = [(shapes[0][0], shapes[1][0]), (rows[0], rows[1])]
        leads = [_lead(probe, columns) for columns in (self.k.columns, self.q.columns, self.v)]
        for lead in leads[1:]:
            same = len(lead) == len(leads[0])
            pairs += zip(leads[0], lead, strict=True) if same else [(math.prod(leads[0]), math.prod(lead))]
        return next((pair for pair in pairs if pair[0] != pair[1]), None)


def _split(probe: Probe, columns: Columns, cos: ir.Value) -> tuple[int, int]:
    """Batch and tokens under a trial size, as the rows' source or cos and sin have them."""
    lead = _lead(probe, columns)
    total = math.prod(lead)
    if columns.by_head:
        return lead[0], lead[1]
    return batch_and_tokens(total, lead, (probe.shape(cos) or ())[:-1]) or (total, 1)


def _lead(probe: Probe, columns: Columns) -> tuple[int, ...]:
    """Batch and token dims of a source."""
    lead = (probe.shape(columns.value) or ())[: len(columns.shape) - 1]
    return (lead[0], lead[2]) if columns.by_head else lead
