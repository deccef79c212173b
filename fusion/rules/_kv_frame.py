"""The joined facts of a KvRmsNormRopeCache site, and how its rows are counted: by batch and token, or one by one."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import onnx_ir as ir

from fusion.candidate import Refused
from fusion.emit import Emitter
from fusion.facts.caches.cache_write import CacheWrite
from fusion.facts.caches.rows import Row
from fusion.facts.caches.written import WrittenView
from fusion.facts.graph import GraphView, dtype_name
from fusion.facts.norms.norm import NormFact
from fusion.facts.symbols.operand import Table
from fusion.facts.symbols.parameters import Part
from fusion.facts.trial.probe import Probe
from fusion.region import closure
from fusion.rules import _cache_op as common
from fusion.rules._cache_frame import CacheFrame
from fusion.rules._tables import TableUse, agreed_table, batch_and_tokens
from ir_ops.dtypes import Array


@dataclass
class Inputs:
    """The joined facts.

    Attributes:
        mode: ``cache_mode``.
        key, value: rows of k_cache and ckv_cache.
        norm: the norm of the key (separate) or of the value rows.
        separate: V2.
        key_parts, value_parts: per probe, the elements the rows are made of, norms looked through.
        gamma_columns: gamma element of each normalised column.
    """

    mode: str
    key: Row
    value: Row
    norm: NormFact
    separate: bool
    key_parts: list[Part]
    value_parts: list[Part]
    gamma_columns: Array

    @property
    def rows(self) -> tuple[Row, Row]:
        return self.key, self.value

    @property
    def by_batch(self) -> bool:
        """Whether the mode itself counts tokens by batch."""
        return self.mode == "Norm" or self.mode.startswith("PA_BLK")


class Frame(CacheFrame):
    """What all parts of a site need to know.

    Attributes:
        kind: the operator's float type.
        flat: one token a batch entry, ``[T, N, 1, ..]``; otherwise rows are ``[B, N, S, ..]``.
        heads: N.
        key_columns, value_columns: where the rows come from.
    """

    EQUAL = "both caches have the batch, pages and length that the operator wants (KV-14, KV-15)"

    def __init__(self, view: GraphView, emit: Emitter, inputs: Inputs) -> None:
        self.view, self.emit, self.inputs = view, emit, inputs
        self.heads = inputs.key.views[0].x.position.shape[1]
        self.key_columns = common.agreed_columns(inputs.key_parts, "keys")
        self.value_columns = common.agreed_columns(inputs.value_parts, "values")
        self.kind = self._kind()
        self.flat = self._is_flat()
        self.cos, self.sin = (self._table(name) for name in ("cos", "sin"))
        self.region = closure([row.write.out for row in inputs.rows], self.stops())
        self.region_ids = {id(node) for node in self.region}

    def _kind(self) -> str:
        """The operator's float type: that of the plain rows, else of the projected row."""
        plain = common.row_types(self.inputs.rows, [self.key_columns.value, self.value_columns.value])
        if len(plain) > 1:
            raise Refused("mixed-types", "both plain caches have one type", " and ".join(sorted(plain)), "one type")
        return plain.pop() if plain else dtype_name(self.key_columns.value)

    def _is_flat(self) -> bool:
        if self.inputs.by_batch or self.key_columns.by_head:
            return False
        lead = self.key_columns.shape[:-1]
        return not (self.heads == 1 and (len(lead) == 2 or (len(lead) == 3 and lead[1] == 1)))

    def split(self, number: int) -> tuple[int, int]:
        """Batch and tokens under one probe."""
        written = self.inputs.key.write.probes[number]
        lead = self.inputs.key_parts[number].source.shape[:-1]
        if self.inputs.by_batch or self.inputs.key.write.slots.form == "row":
            return written.batch, written.tokens
        if self.key_columns.by_head:
            return lead[0], lead[2]
        total = written.batch * written.tokens
        rotation = self.inputs.key.views[number].rotation
        assert rotation is not None
        told = batch_and_tokens(total, lead, rotation.cos_source.shape[:-1])
        return told or (written.batch, written.tokens)

    def _table(self, name: str) -> Table:
        uses = []
        for number, entry in enumerate(self.inputs.key.views):
            assert entry.rotation is not None
            uses.append(TableUse(entry.rotation, *self.split(number), entry.view.probe, [self.inputs.key.start]))
        return agreed_table(self.view, uses, name)

    def feeds(self) -> list[ir.Value]:
        found = [self.key_columns.value, self.value_columns.value, self.cos.value, self.sin.value]
        if self.inputs.norm.gamma is not None:
            found.append(self.inputs.norm.gamma)
        for row in self.inputs.rows:
            found += [row.write.cache, row.write.slots.value]
            found += common.parameter_values(row)
        return list({id(value): value for value in found}.values())

    @property
    def writes(self) -> tuple[CacheWrite, CacheWrite]:
        return self.inputs.key.write, self.inputs.value.write

    def settled(self) -> list[ir.Value]:
        return self.feeds()

    def own_probes(self) -> list[Probe]:
        return [entry.view.probe for entry in self.inputs.key.views]

    def having(self) -> list[ir.Value]:
        return [self.key_columns.value, self.inputs.key.write.slots.value]

    def batch_dim(self) -> int | ir.Value:
        """B, as a number or a vector of one element."""
        found = self.dim([self.split(number)[0] for number in range(len(self.inputs.key_parts))], "batch")
        if found is None:
            raise Refused("row-order", "the batch size can be told", "no value has such a dim", "rows by batch", "")
        return found

    def tokens_dim(self) -> int | ir.Value | None:
        """S, as a number or a vector of one element; None when no value has such a dim."""
        return self.dim([self.split(number)[1] for number in range(len(self.inputs.key_parts))], "tokens")

    def _batch_under(self, probe: Probe) -> int:
        """B under a trial size that was not read: the projected row's first dim, or what rows and tokens leave."""
        shape = probe.shape(self.key_columns.value) or ()
        if len(shape) > 2:
            return shape[0]
        tokens = (probe.shape(self.inputs.key.write.slots.value) or (1,))[-1]
        return shape[0] // tokens if len(shape) == 2 and tokens and shape[0] % tokens == 0 else shape[0]

    def unequal(self, probe: Probe, written: WrittenView | None) -> tuple[int, int] | None:
        writes = [row.write for row in self.inputs.rows]
        shapes = [probe.shape(write.cache) or () for write in writes]
        rows = [shape[common.rows_axis(write)] for write, shape in zip(writes, shapes, strict=True)]
        pairs = [(shapes[0][0], shapes[1][0]), (rows[0], rows[1])]
        if self.inputs.mode == "Norm":
            pairs.append((shapes[0][0], self._batch_under(probe) if written is None else written.batch))
        leads = [(probe.shape(columns.value) or ())[:-1] for columns in (self.key_columns, self.value_columns)]
        if len(leads[0]) == len(leads[1]):
            pairs += zip(*leads, strict=True)
        elif not self.key_columns.by_head and not self.value_columns.by_head:
            pairs.append((int(np.prod(leads[0])), int(np.prod(leads[1]))))
        return next((pair for pair in pairs if pair[0] != pair[1]), None)
