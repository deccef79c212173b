"""DequantRopeQuantKvcache: rotated keys and plain values, quantised to int8 and written at the same slots.

Queries beside them are rotated by the same angles and delivered. All come from one row of heads: int32 sums that are
dequantised, or floats.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from fusion.candidate import Candidate, EmitterFactory, Refused, evaluated
from fusion.facts.analysis import Facts
from fusion.facts.caches.cache_write import CacheWrite
from fusion.facts.caches.rows import Row
from fusion.facts.caches.same_slots import same_slots
from fusion.facts.graph import GraphView, dtype_name
from fusion.facts.quantised.dequantised import Dequantised, NotDequantised, read_dequantised
from fusion.facts.rotary.rotated import Rotated, from_one_value, projected_from, rotated_from
from fusion.facts.rotary.rotation import Rotation
from fusion.facts.symbols.operand import columns_of
from fusion.facts.symbols.parameters import Part
from fusion.result import Refusal
from fusion.rules import _cache_op as common
from fusion.rules._drq_frame import CONTIGUOUS, PAGE, Inputs, halves
from fusion.rules._drq_site import build
from ir_ops.dtypes import Array
from ir_ops.ops import OPS

OP = "DequantRopeQuantKvcache"


class DequantRopeQuantKvcacheRule:
    """See the module's text."""

    op = OP
    size = 25

    def match(self, facts: Facts, new_emitter: EmitterFactory) -> tuple[list[Candidate], list[Refusal]]:
        candidates: list[Candidate] = []
        refusals: list[Refusal] = []
        rows = [row for row in facts.rows if isinstance(row, Row) and row.norm is None]
        free = {id(row): row for row in rows if not row.rotated}
        for key in (row for row in rows if row.rotated):
            layer = facts.layer(key.write)
            try:
                partner = _partner(facts, key, list(free.values()))
                if partner is None:
                    continue
                del free[id(partner)]
                candidates.append(_candidate(facts, new_emitter, *_as_runs(facts.view, key, partner)))
            except Refused as refused:
                refusals.append(refused.refusal(facts.view, OP, key.write.out, layer))
        return candidates, refusals


RULE = DequantRopeQuantKvcacheRule()


def _as_runs(view: GraphView, key: Row, value: Row) -> tuple[Row, Row]:
    """The same rows with the starts of their runs for slots, where both are runs from the same starts."""
    writes = [row.write for row in (key, value)]
    if any(write.run is None for write in writes):
        return key, value
    left, right = (replace(write, slots=write.run) for write in writes if write.run is not None)
    return (replace(key, write=left), replace(value, write=right)) if same_slots(view, left, right) else (key, value)


@evaluated
def _candidate(facts: Facts, new_emitter: EmitterFactory, key: Row, value: Row) -> Candidate:
    """The site on int32 sums where they can be had, else on float rows."""
    inputs = _inputs(facts, key, value)
    sums = _sums(facts.view, inputs)
    if isinstance(sums, Inputs):
        try:
            return build(facts, new_emitter, sums, OPS[OP], RULE.size)
        except Refused as refused:
            reason = str(refused)
    else:
        reason = "" if sums is None else f"{sums.fact}: found {sums.found}"
    candidate = build(facts, new_emitter, inputs, OPS[OP], RULE.size)
    if reason:
        candidate.notes.append(f"x is taken after dequantisation: {reason}")
    return candidate


def _sums(view: GraphView, inputs: Inputs) -> Inputs | NotDequantised | None:
    """The same rows as int32 sums; a reason where they nearly are, None where there are none."""
    found: list[list[Dequantised]] = []
    for parts in inputs.parts:
        read = [read_dequantised(view, entry.view.probe, part)
                for entry, part in zip(inputs.key.views, parts, strict=True)]  # fmt: skip
        good = [item for item in read if isinstance(item, Dequantised)]
        if len(good) < len(read):
            reason = next(item for item in read if isinstance(item, NotDequantised))
            return reason if reason.value is not None else None
        sources = [[id(value) for value in item.sources] for item in good]
        if any(other != sources[0] for other in sources[1:]):
            return None
        found.append(good)
    query, key, value = found
    return Inputs(inputs.mode, inputs.key, inputs.value, inputs.queries, inputs.parts, (query, key, value))


def _partner(facts: Facts, key: Row, values: list[Row]) -> Row | None:
    """The plain rows written with rotated ones: at the same slots, from the same value if there is one.

    None where no cache is int8, or where normalised rows are the partner: that is another operator's place.
    """
    view, write = facts.view, key.write
    same = [row for row in values if same_slots(view, write, row.write)]
    if same:
        return min(same, key=lambda row: _distance(facts, key, row))
    others = [row for row in facts.rows if isinstance(row, Row) and row.norm is not None]
    if dtype_name(write.cache) != "int8" or any(same_slots(view, write, row.write) for row in others):
        return None
    if not values:
        raise Refused(
            "kv-no-partner", f"rotated rows in {write.cache.name} have a partner cache", "no cache with plain rows",
            "an int8 cache with plain rows at the same slots", "", write.out,
        )  # fmt: skip
    other = min(values, key=lambda row: _distance(facts, key, row)).write
    raise Refused(
        "kv-slots-differ", "both caches are written at the same slots in the same layout",
        f"{write.cache.name} at {_slots_text(write)}, {other.cache.name} at {_slots_text(other)}",
        "one slot value and one layout", "write both caches with one slot mapping", other.out,
    )  # fmt: skip


def _slots_text(write: CacheWrite) -> str:
    return f"{write.slots.value.name} ({write.slots.form}, {write.order})"


def _distance(facts: Facts, key: Row, row: Row) -> tuple[bool, bool, bool, int]:
    """Nearer relations first: same source, same projected value, same layer, neighbouring outputs."""
    apart = abs(facts.view.output_place(key.write.out) - facts.view.output_place(row.write.out))
    siblings = from_one_value(facts.view, key.x, row.x)
    return key.x is not row.x, not siblings, facts.layer(key.write) != facts.layer(row.write), apart


def _inputs(facts: Facts, key: Row, value: Row) -> Inputs:
    """Everything the operator needs, as facts; raises Refused with the first fact that does not fit."""
    for row, what in ((key, "keys"), (value, "values")):
        _refuse_cache_type(row, what)
        common.refuse_aliases(row.write)
        if row.write.negative == "skips":
            raise Refused(
                "slots-negative", "slots are never negative: the operator refuses such", "a guard that skips slot -1",
                "slots >= 0", "drop padding tokens before the call", row.write.out,
            )  # fmt: skip
    mode = _mode(key.write)
    _refuse_shapes(key, value)
    if not from_one_value(facts.view, key.x, value.x):
        raise Refused(
            "x-sources", "keys and values come from one value, or are projected from one",
            f"{key.x.name} and {value.x.name}", "one row of heads", "", value.start,
        )  # fmt: skip
    queries = _queries(facts, key)
    rotations = [entry.rotation for entry in key.views if entry.rotation is not None]
    parts = (_turned(queries.rotations), _turned(rotations), [entry.x for entry in value.views])
    return Inputs(mode, key, value, queries, parts)


def _turned(rotations: list[Rotation]) -> list[Part]:
    return [Part(item.source, halves(item.position)) for item in rotations]


def _refuse_cache_type(row: Row, what: str) -> None:
    kind = dtype_name(row.write.cache)
    if row.peeled is None or kind != "int8":
        raise Refused(
            "cache-type", f"{what} are quantised to int8 and cached so", f"a cache of {kind}", "int8",
            "quantise the rows that are written", row.write.cache,
        )  # fmt: skip


def _mode(write: CacheWrite) -> str:
    """The operator's cache mode; rows of a batch that are no run are slots of a whole cache."""
    heads = write.probes[0].source.shape[1]
    if write.order == "BSND" or (write.order == "BNSD" and heads == 1):
        if write.slots.form == "row" and write.slots.start:
            return CONTIGUOUS
        if write.slots.form in ("row", "slot"):
            return PAGE
    raise Refused(
        "kv-layout", "the cache layout is one of the operator's", _slots_text(write),
        "[B, S, N, D] by row, or [pages, rows, N, D] by slot", "write the cache in the order of tokens", write.out,
    )  # fmt: skip


def _refuse_shapes(key: Row, value: Row) -> None:
    """Heads and columns: all columns rotated, as many in both caches."""
    shapes = [row.write.probes[0].source.shape[1:] for row in (key, value)]
    if shapes[0] != shapes[1]:
        raise Refused(
            "kv-heads", "both caches have the same heads and columns", f"{list(shapes[0])} and {list(shapes[1])}",
            "equal rows", "", value.write.cache,
        )  # fmt: skip
    ranks = [len(row.write.probes[0].probe.shape(row.write.cache) or ()) for row in (key, value)]
    if ranks[0] != ranks[1]:
        raise Refused("cache-shape", "both caches have one shape", f"rank {ranks[0]} and {ranks[1]}", "one rank", "",
                      value.write.cache)  # fmt: skip
    rotation, width = key.views[0].rotation, shapes[0][1]
    assert rotation is not None
    if (rotation.start, rotation.width) != (0, width):
        raise Refused(
            "rope-columns", "all columns of a head are rotated", f"columns {rotation.start} to "
            f"{rotation.start + rotation.width - 1} of {width}", "all columns", "", key.start,
        )  # fmt: skip


def _queries(facts: Facts, key: Row) -> Rotated:
    """The rows beside the keys that are rotated by the same angles and not written."""
    view = facts.view
    rotations = [entry.rotation for entry in key.views if entry.rotation is not None]
    probes = [entry.view.probe for entry in key.views]
    tokens, width = [item.position.shape[0] for item in rotations], rotations[0].width
    starts = [key.x, projected_from(view, key.x)]
    reason = Refused(
        "query-missing", "queries are rotated beside the keys", f"no rotated rows of {width} columns from {key.x.name}",
        "queries from the same row of heads, by the same cos and sin", "", key.start,
    )  # fmt: skip
    stops = set(facts.norms)
    for start in (item for item in starts if item is not None):
        for found in rotated_from(view, start, probes, width, tokens, stops):
            if _is_keys(found, rotations):
                continue
            problem = _unlike(view, found, rotations)
            if problem is None:
                return found
            reason = problem
    raise reason


def _is_keys(found: Rotated, rotations: list[Rotation]) -> bool:
    """Whether these are the keys themselves, or some of their heads."""
    mine, its = found.rotations[0], rotations[0]
    return mine.source.value is its.source.value and bool(np.isin(mine.position, its.position).all())


def _unlike(view: GraphView, found: Rotated, rotations: list[Rotation]) -> Refused | None:
    """Why rotated rows are not the queries of these keys."""
    for mine, its in zip(found.rotations, rotations, strict=True):
        if (mine.start, mine.width) != (its.start, its.width) or mine.position.shape[2] != its.width:
            columns = f"columns {mine.start} to {mine.start + mine.width - 1} of {mine.position.shape[2]}"
            return Refused("rope-columns", "queries are rotated like keys", columns, "all columns", "", found.value)
        tables = (
            ("cos", mine.cos_source.value, mine.cos, its.cos_source.value, its.cos),
            ("sin", mine.sin_source.value, mine.sin, its.sin_source.value, its.sin),
        )
        for name, own, place, other, place_there in tables:
            if view.number(own) != view.number(other) or not _same_rows(place, place_there):
                return Refused(
                    "rope-tables", f"queries and keys are rotated by one {name}", f"{own.name} and {other.name}",
                    "one table, the same row for each token", "", found.value,
                )  # fmt: skip
    if not all(columns_of(Part(item.source, halves(item.position))) for item in found.rotations):
        return Refused(
            "row-order", "queries are rows of one value in token and head order", "another order",
            "token t of the value is token t of the queries", "", found.value,
        )  # fmt: skip
    return None


def _same_rows(a: Array, b: Array) -> bool:
    """Whether two tables are read alike by all heads."""
    alike = bool((a == a[:, :1]).all() and (b == b[:, :1]).all())
    return alike and np.array_equal(a[:, 0], b[:, 0])
