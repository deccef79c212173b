"""The joined facts of a KvRmsNormRopeCache site, and how its rows are counted: by batch and token, or one by one."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import onnx_ir as ir

from fusion.candidate import Refused
from fusion.emit import Emitter
from fusion.facts.caches.rows import Row
from fusion.facts.caches.written import WrittenView
from fusion.facts.graph import GraphView, dtype_name
from fusion.facts.norms.norm import NormFact
from fusion.facts.semantics import Conflict, OutOfRange, Unsupported
from fusion.facts.symbols.operand import Table
from fusion.facts.symbols.parameters import Part
from fusion.facts.trial.probe import Numbers, Probe
from fusion.facts.trial.settle import settle, start_sizes
from fusion.facts.trial.sizes import Sizes
from fusion.facts.trial.trials import with_ones
from fusion.region import closure
from fusion.rules import _cache_op as common
from fusion.rules._dims import dim_like
from fusion.rules._tables import TableUse, agreed_table, batch_and_tokens
from ir_ops.dtypes import Array

FRESH_SEED = 5
"""Sizes that no fact is read under (the third row of the small sizes)."""


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


class Frame:
    """What all parts of a site need to know.

    Attributes:
        kind: the operator's float type.
        flat: one token a batch entry, ``[T, N, 1, ..]``; otherwise rows are ``[B, N, S, ..]``.
        heads: N.
        key_columns, value_columns: where the rows come from.
        cos, sin: the tables.
        region: nodes between the sources and the caches; ``region_ids`` their ids.
    """

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
        """The values at which the region begins."""
        found = [self.key_columns.value, self.value_columns.value, self.cos.value, self.sin.value]
        if self.inputs.norm.gamma is not None:
            found.append(self.inputs.norm.gamma)
        for row in self.inputs.rows:
            found += [row.write.cache, row.write.slots.value]
            found += common.parameter_values(row)
        return list({id(value): value for value in found}.values())

    def stops(self) -> set[int]:
        """Ids of the values at which the region begins."""
        return {id(value) for value in self.feeds()}

    def own_probes(self) -> list[Probe]:
        return [entry.view.probe for entry in self.inputs.key.views]

    def having(self) -> list[ir.Value]:
        """Values that have the operator's dims."""
        return [self.key_columns.value, self.inputs.key.write.slots.value]

    def ones(self) -> list[Probe]:
        """Trial sizes of 1 where only broadcasting makes sizes equal."""
        return with_ones(self.view, self.own_probes()[0], [row.write.out for row in self.inputs.rows])

    def shape(self, value: ir.Value) -> tuple[int, ...]:
        """A value's shape under the first probe."""
        return self.own_probes()[0].shape(value) or ()

    def batch_dim(self) -> int | ir.Value:
        """B, as a number or a vector of one element."""
        found = self.dim([self.split(number)[0] for number in range(len(self.inputs.key_parts))], "batch")
        if found is None:
            raise Refused("row-order", "the batch size can be told", "no value has such a dim", "rows by batch", "")
        return found

    def tokens_dim(self) -> int | ir.Value | None:
        """S, as a number or a vector of one element; None when no value has such a dim."""
        return self.dim([self.split(number)[1] for number in range(len(self.inputs.key_parts))], "tokens")

    def dim(self, sizes: list[int], part: str) -> int | ir.Value | None:
        """A dim with these sizes under the probes: of a source of the site, else of a graph input."""
        own = [self.key_columns.value, self.inputs.key.write.slots.value, self.cos.value]
        return dim_like(self.emit, self.own_probes(), sizes, [*own, *self.view.graph.inputs], part, self.ones())

    def probes(self) -> list[Probe]:
        """Trial sizes under which both caches have the shapes that the operator wants of them."""
        return [
            self._fitted(item.probe.seed, item.probe.numbers, item.probe.sizes, item.batch)
            for item in self._key_probes()
        ]

    def fresh_probe(self) -> Probe | None:
        """A trial size that no fact was read under: a number mistaken for static shows there. None when none fits."""
        numbers = self._key_probes()[0].probe.numbers
        try:
            probe = self._fitted(FRESH_SEED, numbers, start_sizes(self.view, FRESH_SEED, self.inputs.key.write.out))
        except (Refused, Conflict, OutOfRange, Unsupported):
            return None
        return probe if common.slots_are_distinct(probe, self.inputs.key.write) else None

    def _key_probes(self) -> list[WrittenView]:
        return self.inputs.key.write.probes

    def _fitted(self, seed: int, numbers: Numbers, sizes: Sizes, batch: int | None = None) -> Probe:
        """A probe for both writes and all sources, caches made equal."""
        key, value = self.inputs.key.write, self.inputs.value.write
        targets = [key.out, value.out, key.cache, value.cache, *self.feeds()]
        while True:
            probe = settle(self.view, seed, numbers, targets, sizes)
            unequal = self._unequal(probe, batch)
            within = common.fitting(numbers, probe, [key, value])
            if unequal is None and within is numbers:
                return probe
            numbers = within
            sizes = probe.sizes.copy()
            if unequal is not None and not sizes.unify(*unequal):
                raise Refused(
                    "kv-sizes-differ",
                    "both caches have the batch, pages and length that the operator wants (KV-14, KV-15)",
                    f"sizes {unequal[0]} and {unequal[1]}",
                    "equal sizes",
                    "give both caches one shape",
                    value.cache,
                )

    def _batch_under(self, probe: Probe) -> int:
        """B under a trial size that was not read: the projected row's first dim, or what rows and tokens leave."""
        shape = probe.shape(self.key_columns.value) or ()
        if len(shape) > 2:
            return shape[0]
        tokens = (probe.shape(self.inputs.key.write.slots.value) or (1,))[-1]
        return shape[0] // tokens if len(shape) == 2 and tokens and shape[0] % tokens == 0 else shape[0]

    def _unequal(self, probe: Probe, batch: int | None) -> tuple[int, int] | None:
        """Two sizes that the operator wants equal and that are not yet."""
        writes = [row.write for row in self.inputs.rows]
        shapes = [probe.shape(write.cache) or () for write in writes]
        rows = [shape[common.rows_axis(write)] for write, shape in zip(writes, shapes, strict=True)]
        pairs = [(shapes[0][0], shapes[1][0]), (rows[0], rows[1])]
        if self.inputs.mode == "Norm":
            pairs.append((shapes[0][0], self._batch_under(probe) if batch is None else batch))
        leads = [(probe.shape(columns.value) or ())[:-1] for columns in (self.key_columns, self.value_columns)]
        if len(leads[0]) == len(leads[1]):
            pairs += zip(*leads, strict=True)
        elif not self.key_columns.by_head and not self.value_columns.by_head:
            pairs.append((int(np.prod(leads[0])), int(np.prod(leads[1]))))
        return next((pair for pair in pairs if pair[0] != pair[1]), None)
