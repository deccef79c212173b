"""A MlaPrologV3 site: its joined facts, the trial sizes they hold under, and the nodes it stands for."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
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
from fusion.facts.rotary.rotation import NotARotation, Rotation
from fusion.facts.symbols.operand import Table
from fusion.facts.symbols.parameters import Part, single
from fusion.facts.symbols.symbolic import Symbolic
from fusion.facts.trial.probe import Probe
from fusion.reduction import MATRIX_LIMIT, Numbers, Reduction, numbers_of_norm, small_sizes
from fusion.region import closure
from fusion.rules import _cache_op as common
from fusion.rules._cache_frame import CacheFrame
from fusion.rules._mla_product import Product
from fusion.rules._mla_query import Found, check_rows, check_weight, read_query
from fusion.rules._mla_rope import Rope, read_rope
from fusion.rules._tables import TableUse, agreed_table
from ir_ops.dtypes import Array


@dataclass
class Site:
    """The joined facts.

    Attributes:
        mode: ``cache_mode``.
        key, value: rows of kr_cache and kv_cache; ``norm`` is that of the value rows, times ``kc_scale``.
        key_parts, value_parts: per probe, the elements of the products that they are made of.
        gamma_columns: gamma element of each normalised column.
        key_made, value_made: the products behind them; one for both where a graph has one.
        query: the values of the query.
        tokens: the hidden states that all products read.
    """

    mode: str
    key: Row
    value: Row
    norm: NormFact
    kc_scale: float
    key_parts: list[Part]
    value_parts: list[Part]
    gamma_columns: Array
    key_made: Product
    value_made: Product
    query: Found
    tokens: ir.Value

    @property
    def rows(self) -> tuple[Row, Row]:
        """In the order of the operator's caches."""
        return self.value, self.key

    @property
    def products(self) -> tuple[Product, ...]:
        query = self.query
        return query.skeleton.down, query.up, self.value_made, self.key_made


class Frame(CacheFrame):
    """What all parts of a site need to know.

    Attributes:
        kind: the operator's float type T.
        flat: tokens come as ``[T, He]``, not as ``[B, S, He]``.
        key_columns, value_columns, down_columns: columns of the products.
        absorbed, rope: the query, per probe of ``trials``.
    """

    EQUAL = "both caches have equal pages and rows"

    def __init__(self, view: GraphView, emit: Emitter, site: Site) -> None:
        self.view, self.emit, self.site = view, emit, site
        query = site.query
        self.trials = self._trials()
        for made in site.products:
            check_weight(view, self.trials[0], made)
        self.key_columns = common.agreed_columns(site.key_parts, "keys")
        self.value_columns = common.agreed_columns(site.value_parts, "compressed keys")
        self.down_columns = common.agreed_columns([self._down(probe) for probe in self.trials], "compressed queries")
        self.absorbed = [read_query(view, probe, query) for probe in self.trials]
        self.rope = [self._rope(probe) for probe in self.trials]
        self._check_query()
        self.kind = self._kind()
        self.flat = len(self.shape(site.tokens)) != 3
        self._twins: list[ir.Value] = []
        """The query's tables, where equal ones are computed twice."""
        self.cos, self.sin = self._table("cos"), self._table("sin")
        self.region = closure([row.write.out for row in site.rows] + self.query_values(), self.stops())
        self.region_ids = {id(node) for node in self.region}

    # the query ----------------------------------------------------------------------------------------------------

    @property
    def sizes(self) -> tuple[int, int, int, int]:
        """N, D, Hckv, Dr."""
        return (*self.absorbed[0].sizes, len(self.rope[0].columns))

    def query_values(self) -> list[ir.Value]:
        """The values that hold query and query_rope."""
        return [self.site.query.contraction.out, *self.site.query.rope]

    def _down(self, probe: Probe) -> Part:
        norm, out = self.site.query.skeleton.norm, self.site.query.skeleton.down.out
        symbolic = Symbolic(self.view, probe, {id(out)})
        sym = symbolic.read(norm.x, 0)
        shape = probe.shape(norm.x) or (1,)
        flat = np.arange(int(np.prod(shape))).reshape(-1, 1, shape[-1])
        part = single(symbolic, sym.take(flat))
        if part is None or part.value is not out:
            raise Refused(
                "mla-order", "the compressed query is columns of one product", f"{norm.x.name} has others",
                "rows of one product", "", norm.x,
            )  # fmt: skip
        return part

    def _rope(self, probe: Probe) -> Rope:
        query = self.site.query
        width = self.site.key_parts[0].position.shape[2]
        turned = self.site.key.views[0].rotation
        assert turned is not None
        tables = turned.cos_source.value, turned.sin_source.value
        read = read_rope(self.view, probe, query.up.out, query.rope, query.heads, width, tables)
        if isinstance(read, NotARotation):
            raise Refused("mla-query-rope", read.fact, read.found, read.wanted, "", query.rope[0])
        return read

    def _check_query(self) -> None:
        query, norm = self.site.query, self.site.query.skeleton.norm
        for probe in self.trials:
            check_rows(self.view, probe, query.up.x, norm.y, query.normed_factor, "the normed query")
        for absorbed, rope in zip(self.absorbed, self.rope, strict=True):
            same = np.array_equal(absorbed.nope, self.absorbed[0].nope) and np.array_equal(
                rope.columns, self.rope[0].columns
            )
            if not same or absorbed.sizes != self.absorbed[0].sizes or absorbed.order != self.absorbed[0].order:
                raise Refused("mla-order", "the query's columns are fixed", "other columns by size", "fixed columns")
        columns = np.concatenate([self.absorbed[0].nope, self.rope[0].columns])
        own = self.shape(query.up.out)[-1] // query.heads
        if sorted(columns.tolist()) != list(range(own)):
            raise Refused(
                "mla-query-columns", "a head has its nope columns and its rope columns and no others",
                f"{len(self.absorbed[0].nope)} and {len(self.rope[0].columns)} of {own} columns", "all of them, once",
                "", query.up.out,
            )  # fmt: skip
        if not np.isclose(query.absorbed_factor, self.rope[0].factor, rtol=1e-6):
            raise Refused(
                "mla-scale", "both parts of the query have one factor",
                f"{query.absorbed_factor:g} and {self.rope[0].factor:g}", "one factor", "", query.rope[0],
            )  # fmt: skip

    @property
    def q_scale(self) -> float:
        return self.site.query.normed_factor * self.site.query.absorbed_factor

    # types, tables ------------------------------------------------------------------------------------------------

    def _kind(self) -> str:
        """T: that of the plain rows, else of weight_uk."""
        plain = common.row_types(self.site.rows, [self.site.query.contraction.weight])
        plain |= {dtype_name(self.site.query.contraction.weight)}
        if len(plain) > 1:
            raise Refused(
                "mixed-types", "caches and weights have one type", " and ".join(sorted(plain)), "one type", "",
                self.site.query.contraction.weight,
            )  # fmt: skip
        return plain.pop()

    def _table(self, name: str) -> Table:
        """cos or sin as key and query read it."""
        site = self.site
        turned = [entry.rotation for entry in site.key.views if entry.rotation is not None]
        outs = [site.key.start, *site.query.rope]
        sources = [item.source.value for item in (turned[0], self.rope[0].rotation)]

        def read(probes: Sequence[Probe], rotations: Sequence[Rotation]) -> Table:
            uses = [
                TableUse(rotation, *self._split(probe, rotation.cos_source.shape), probe, outs, sources)
                for probe, rotation in zip(probes, rotations, strict=True)
            ]
            return agreed_table(self.view, uses, name)

        table = read([entry.view.probe for entry in site.key.views], turned)
        own = read(self.trials, [rope.rotation for rope in self.rope])
        same = self.view.number(own.value) == self.view.number(table.value)
        if not same or not table.same_as(replace(own, value=table.value)):
            raise Refused(
                "mla-rope-tables", f"key and query are rotated by one {name}",
                f"{table.value.name} and {own.value.name}" if not same else "other rows or columns",
                "the same rows of one table", "", self.site.query.rope[0],
            )  # fmt: skip
        self._twins.append(own.value)
        return table

    def _split(self, probe: Probe, table: tuple[int, ...]) -> tuple[int, int]:
        """Batch and tokens under one probe; of ``[T, He]`` as a table of that shape lets them be told."""
        lead = (probe.shape(self.site.tokens) or ())[:-1]
        if len(lead) == 2:
            return lead[0], lead[1]
        total, rows = int(np.prod(lead)), int(np.prod(table[:-1]))
        return (total // rows, rows) if 1 < rows < total and total % rows == 0 else (1, total)

    # region -------------------------------------------------------------------------------------------------------

    def feeds(self) -> list[ir.Value]:
        site, query = self.site, self.site.query
        found = [site.tokens, self.cos.value, self.sin.value, *self._twins, query.contraction.weight]
        found += [item for made in site.products for item in (made.weight, made.scale) if item is not None]
        found += [norm.gamma for norm in (site.norm, query.skeleton.norm) if norm.gamma is not None]
        for row in site.rows:
            found += [row.write.cache, row.write.slots.value, *common.parameter_values(row)]
        return list({id(value): value for value in found}.values())

    # trial sizes --------------------------------------------------------------------------------------------------

    def reduction(self) -> Reduction:
        """He and Hcq are taken smaller where weights are large; every other size is the graph's own."""
        site, query = self.site, self.site.query
        down, hidden, rank = query.skeleton, self.shape(site.tokens)[-1], len(self.down_columns.columns[0])
        own = self.down_columns.width == rank and not isinstance(down.norm.count, ir.Value)
        large = [
            size
            for size, weights in ((hidden, (down.down, site.key_made, site.value_made)), (rank, (query.up,)))
            if (own or hidden != rank)
            and (own or size != rank)
            and (size != rank or query.up.scale is None)
            and any(math.prod(self.shape(made.weight)) > MATRIX_LIMIT for made in weights)
        ]
        summed = {id(query.contraction.weight): self.absorbed[0].order[-2]}
        axes: dict[int, tuple[int, ...]] = {id(site.tokens): (len(self.shape(site.tokens)) - 1,)}
        for made in site.products:
            rows, columns = (1, 0) if made.turned else (0, 1)
            if made.scale is None:
                summed[id(made.weight)] = rows
            axes[id(made.weight)] = (rows, columns) if made.out is down.down.out and own else (rows,)
        if down.norm.gamma is not None and own:
            axes[id(down.norm.gamma)] = (len(self.shape(down.norm.gamma)) - 1,)
        front = {id(node): node for node in closure([made.out for made in site.products], self.stops())}
        behind = _operands(node for node in self.region if id(node) not in front)
        used = {size for node in self.region for item in node.outputs for size in self.trials[0].shape(item) or ()}
        sizes = small_sizes(large, used)
        taken = sizes.get(rank, rank) if own else rank
        width = self.absorbed[0].sizes[2]
        numbers = self._scalars_of(site.norm, width, width) | self._scalars_of(down.norm, rank, taken)
        return Reduction(sizes, axes, summed, frozenset(_operands(front.values()) - behind - self.stops()), numbers)

    def _scalars_of(self, norm: NormFact, count: int, taken: int) -> dict[int, Numbers]:
        """Scalars of a norm over ``count`` elements, as they are for ``taken`` elements."""
        nodes = closure([norm.y], self.stops() | {id(norm.x)})
        return dict.fromkeys(_operands(nodes), numbers_of_norm(count, norm.epsilon, taken))

    @property
    def writes(self) -> tuple[CacheWrite, CacheWrite]:
        return self.site.key.write, self.site.value.write

    def settled(self) -> list[ir.Value]:
        site = self.site
        weights = [site.query.contraction.weight, *(made.weight for made in site.products)]
        return [site.tokens, *self.query_values(), *weights, *(row.write.slots.value for row in site.rows)]

    def own_probes(self) -> list[Probe]:
        return self.trials

    def having(self) -> list[ir.Value]:
        return [self.site.tokens, self.site.key.write.slots.value]

    def sized(self) -> list[ir.Value]:
        return [*self.having(), self.site.key.write.cache]

    def _trials(self) -> list[Probe]:
        found = self.probes()
        if any(probe.shape(value) is None for probe in found for value in [self.site.tokens, *self.query_values()]):
            raise Refused("mla-order", "shapes can be told", "an operator that is not understood", "known shapes")
        return found

    def unequal(self, probe: Probe, written: WrittenView | None) -> tuple[int, int] | None:
        shapes = [probe.shape(write.cache) or () for write in self.writes]
        axes = [common.rows_axis(write) for write in self.writes]
        pairs = [(shapes[0][0], shapes[1][0]), (shapes[0][axes[0]], shapes[1][axes[1]])]
        return next((pair for pair in pairs if pair[0] != pair[1]), None)


def _operands(nodes: Iterable[ir.Node]) -> set[int]:
    """Ids of what nodes read."""
    return {id(item) for node in nodes for item in node.inputs if item is not None}
