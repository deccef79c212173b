"""QkvRmsNormRopeCache: rotated, normalised queries beside two NZ caches that are written at the same slots.

k_cache gets normalised rows that are rotated by halves, v_cache plain rows; queries are normalised with a weight of
their own and rotated by the same table. All three come from one value, or from projections of one value, which are
then packed or joined.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable

import numpy as np
import onnx_ir as ir

from fusion.candidate import Candidate, EmitterFactory, Refused, evaluated
from fusion.facts.analysis import Facts
from fusion.facts.attention.projection import is_projected, origin
from fusion.facts.caches.rows import Row, read_row, with_heads
from fusion.facts.caches.same_slots import same_slots
from fusion.facts.graph import GraphView
from fusion.facts.norms.norm import NormFact
from fusion.facts.rotary.heads import Heads, read_heads, values_behind
from fusion.facts.symbols.parameters import Reason
from fusion.facts.trial.probe import Probe
from fusion.facts.trial.settle import settle
from fusion.result import Refusal
from fusion.rules._cache_op import refuse_aliases, slots_text
from fusion.rules._qkv_site import build
from ir_ops.layout import QKV_CACHE_MODES
from ir_ops.ops import OPS

OP = "QkvRmsNormRopeCache"
_LAYOUTS = {(mode.order, mode.slot) for mode in QKV_CACHE_MODES.values()}


class QkvRmsNormRopeCacheRule:
    """See the module's text."""

    op = OP
    size = 30

    def match(self, facts: Facts, new_emitter: EmitterFactory) -> tuple[list[Candidate], list[Refusal]]:
        candidates: list[Candidate] = []
        refusals: list[Refusal] = []
        rows = [row for row in facts.rows if isinstance(row, Row)]
        free = [row for row in rows if not row.rotated]
        keys = [row for row in rows if row.rotated and row.norm is not None]
        queries = _Queries(facts, keys)
        for key in keys:
            try:
                near = queries.of(key)
                if not near:
                    # normalised, rotated keys alone are KvRmsNormRopeCache's
                    continue
                value, candidate = _candidate(facts, new_emitter, key, free, near, queries)
            except Refused as refused:
                refusals.append(refused.refusal(facts.view, OP, key.write.out, facts.layer(key.write)))
                continue
            candidates.append(candidate)
            free = [row for row in free if row.write.out is not value.write.out]
            queries.used.add(id(candidate.replaced[2][0]))
        return candidates, refusals


RULE = QkvRmsNormRopeCacheRule()


class _Queries:
    """Norms that may be those of queries, by the value that their input is projected from."""

    def __init__(self, facts: Facts, keys: Iterable[Row]) -> None:
        self._view = facts.view
        own = {id(row.norm) for row in facts.rows if isinstance(row, Row) and row.norm is not None}
        self._norms: dict[int, list[NormFact]] = defaultdict(list)
        if any(True for _ in keys):
            for norm in facts.norms.values():
                if id(norm) not in own:
                    self._norms[self._origin(norm)].append(norm)
        self.used: set[int] = set()
        """Ids of queries that a site delivers already."""

    @evaluated
    def of(self, key: Row) -> list[NormFact]:
        """Norms of rows from the keys' own origin, as wide as the keys' norm, the next in the graph first."""
        assert key.norm is not None
        found = self._norms.get(self._origin(key.norm), [])
        probe = key.write.probes[0].probe
        width = _width(probe, key.norm)
        fitting = [norm for norm in found if _width(probe, norm) == width]
        place = self._order(key.norm)
        return sorted(fitting, key=lambda norm: abs(self._order(norm) - place))

    def _origin(self, norm: NormFact) -> int:
        """A number of what the rows are projected from; graph inputs that are rows themselves count as one."""
        behind = origin(self._view, norm.x)
        return 0 if behind.is_graph_input() and not is_projected(self._view, norm.x) else id(behind)

    def _order(self, norm: NormFact) -> int:
        node = norm.y.producer()
        return -1 if node is None else self._view.order(node)


def _width(probe: Probe, norm: NormFact) -> int:
    shape = probe.shape(norm.x)
    return shape[-1] if shape else 0


@evaluated
def _candidate(
    facts: Facts, new_emitter: EmitterFactory, key: Row, free: list[Row], near: list[NormFact], queries: _Queries
) -> tuple[Row, Candidate]:
    """The site of a key row, with the nearest norm whose rotation fits; raises Refused with the first reason."""
    view = facts.view
    if (key.write.order, key.write.slots.form) not in _LAYOUTS:
        raise Refused(
            "qkv-layout", "the caches lie in NZ fractals, written by slot (PA_NZ)",
            f"{key.write.cache.name} at {slots_text(key.write)}", "pages [block_num, N*D/d0, block_size, d0]",
            "KvRmsNormRopeCache and the building blocks take this layout", key.write.out,
        )  # fmt: skip
    refuse_aliases(key.write)
    value = _value(facts, key, free)
    refuse_aliases(value.write)
    first: Refused | None = None
    for norm in near:
        try:
            _refuse_other_epsilon(key, norm)
            read = _heads(view, key, norm)
        except Refused as refused:
            first = first or refused
            continue
        for heads in read:
            if id(heads.value) in queries.used:
                continue
            try:
                return value, build(facts, new_emitter, key, value, heads, OPS[OP], RULE.size)
            except Refused as refused:
                first = first or refused
    raise first or Refused("qkv-queries", "queries of their own", "only those of another site", "one set each")


def _refuse_other_epsilon(key: Row, norm: NormFact) -> None:
    assert key.norm is not None
    own, other = np.float32(key.norm.epsilon), np.float32(norm.epsilon)
    if own != other:
        raise Refused(
            "qkv-epsilon", "the norms of queries and keys add one epsilon", f"{other:g} and {own:g}", "one number",
            "export both norms with one epsilon", norm.y,
        )  # fmt: skip


def _heads(view: GraphView, key: Row, norm: NormFact) -> list[Heads]:
    """The rotated queries behind a norm, read under the trial sizes of the keys."""
    assert key.norm is not None
    behind = list(values_behind(view, norm.y))
    probes, tokens = [], []
    for entry in key.views:
        own = entry.view.probe
        probe = settle(view, own.seed, own.numbers, [norm.x, norm.y, key.norm.x, *behind], own.sizes)
        before, after = (_size(item, key.norm.x) for item in (own, probe))
        count = entry.x.position.shape[0] * after
        if not before or count % before:
            raise Refused("qkv-tokens", "queries and keys have the same tokens", "other sizes", "one", "", norm.y)
        probes.append(probe)
        tokens.append(count // before)
    width = key.views[0].x.position.shape[2]
    found = read_heads(view, norm, probes, width, tokens)
    if isinstance(found, Reason):
        raise Refused(found.code, found.fact, found.found, found.wanted, "", found.value)
    return found


def _size(probe: Probe, value: ir.Value) -> int:
    return int(np.prod(probe.shape(value) or (0,)))


def _value(facts: Facts, key: Row, free: list[Row]) -> Row:
    """The plain rows that are written at the keys' slots: from the same value first."""
    plain = [row for row in free if row.norm is None]
    same = [row for row in plain if same_slots(facts.view, key.write, row.write)]
    if not plain or not same:
        other = plain[0] if plain else free[0] if free else None
        found = "no other cache" if other is None else f"{other.write.cache.name} at {slots_text(other.write)}"
        if other is not None and other.norm is not None:
            found = f"normalised rows in {other.write.cache.name}"
        place = key.write.out if other is None else other.write.out
        fact = f"plain value rows are written at the slots of {key.write.cache.name}, {slots_text(key.write)}"
        raise Refused("qkv-values", fact, found, "one slot mapping for keys and values", "", place)
    return _as_wide(facts.view, key, min(same, key=lambda row: _distance(facts, key, row)))


def _distance(facts: Facts, key: Row, row: Row) -> tuple[bool, bool, int]:
    view = facts.view
    assert key.norm is not None
    apart = abs(view.output_place(key.write.out) - view.output_place(row.write.out))
    related = origin(view, key.norm.x) is origin(view, row.x)
    return not related, facts.layer(key.write) != facts.layer(row.write), apart


def _as_wide(view: GraphView, key: Row, value: Row) -> Row:
    """The value rows as heads of the keys' width: an NZ cache does not tell how its columns divide."""
    width = key.views[0].x.position.shape[2]
    geometry = value.write.probes[0].geometry
    columns = geometry.heads * geometry.columns
    if columns % width:
        raise Refused(
            "qkv-heads", "value heads are as wide as key heads", f"{columns} columns of values, heads of {width}",
            "whole heads", "", value.write.cache,
        )  # fmt: skip
    if geometry.columns == width:
        return value
    again = read_row(view, with_heads(value.write, columns // width), {})
    if isinstance(again, Reason):
        raise Refused(again.code, again.fact, again.found, again.wanted, "", again.value)
    return again
