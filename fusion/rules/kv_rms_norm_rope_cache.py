"""KvRmsNormRopeCache: two caches written at the same slots, one with rotated rows, one with normalised or plain rows.

V1: k_cache gets rotated columns, ckv_cache gets normalised columns. V2: k_cache gets a normalised row of which the
first columns are rotated, ckv_cache gets plain rows.
"""

from __future__ import annotations

import onnx_ir as ir

from fusion.candidate import Candidate, EmitterFactory, Refused, evaluated
from fusion.facts.analysis import Facts
from fusion.facts.caches.cache_write import CacheWrite
from fusion.facts.caches.growth import kept_inside
from fusion.facts.caches.rows import Row, read_row, with_heads
from fusion.facts.caches.write_map import NotAWrite
from fusion.facts.graph import GraphView
from fusion.facts.symbols.parameters import Reason
from fusion.result import Refusal
from fusion.rules import _cache_op as common
from fusion.rules._kv_frame import Inputs
from fusion.rules._kv_site import build
from fusion.rules._latent_rows import partner_of
from fusion.rules._norm_rows import gamma_columns, through_norm
from fusion.surgery.opening import OPENERS
from ir_ops.ops import OPS

OP = "KvRmsNormRopeCache"
MODES = {
    ("BNSD", "row"): "Norm",
    ("BSND", "slot"): "PA",
    ("BSND", "row"): "PA",
    ("NZ", "slot"): "PA_NZ",
    ("BSND", "block"): "PA_BLK_BNSD",
    ("NZ", "block"): "PA_BLK_NZ",
}
"""Rows of a batch entry's own cache ``[B, M, N, D]`` are slots too: the entry is the page."""


_BIAS = ("Add",)
"""What may stand between a projection and its rows."""


class KvRmsNormRopeCacheRule:
    """See the module's text."""

    op = OP
    size = 20

    def match(self, facts: Facts, new_emitter: EmitterFactory) -> tuple[list[Candidate], list[Refusal]]:
        candidates: list[Candidate] = []
        refusals = [_not_in_place(facts, other) for other in facts.others]
        refusals += [_inside(facts, out) for out in kept_inside(facts.view)]
        keys = [row for row in facts.rows if isinstance(row, Row) and row.rotated]
        values = [row for row in facts.rows if isinstance(row, Row) and not row.rotated]
        free = {id(row): row for row in values}
        for key in keys:
            layer = facts.layer(key.write)
            try:
                partner = partner_of(facts, key, list(free.values()))
                del free[id(partner)]
                candidates.append(build(facts, new_emitter, _inputs(facts, key, partner), OPS[OP]))
            except Refused as refused:
                refusals.append(refused.refusal(facts.view, OP, key.write.out, layer))
        refusals += [_unread(facts, write, row) for write, row in zip(facts.writes, facts.rows, strict=True)
                     if isinstance(row, Reason)]  # fmt: skip
        refusals += [_alone(facts, row, bool(keys)) for row in free.values()]
        return candidates, refusals


RULE = KvRmsNormRopeCacheRule()


def _not_in_place(facts: Facts, other: NotAWrite) -> Refusal:
    layer = facts.layer(other)
    suggestion = {
        "cache-grows": "fuse with --cache auto, or export with a static cache",
        "cache-unwritten": "the export dropped the write; write with index_put or index_copy",
    }.get(other.reason, "write rows by slot number")
    place = facts.view.place(other.out, layer)
    return Refusal(
        other.reason, place, layer, OP, f"{other.out.name} is {other.cache.name} with rows written in place",
        other.detail, "rows written at slot numbers", suggestion,
    )  # fmt: skip


def _inside(facts: Facts, out: ir.Value) -> Refusal:
    node = facts.view.root(out).producer()
    assert node is not None
    found = f"{node.op_type}, which appends to its past and attends in one operator"
    layer = facts.view.layer_of(out)
    known = (node.domain, node.op_type) in OPENERS
    return Refusal(
        "cache-in-operator", facts.view.place(out, layer), layer, OP, f"{out.name} is written by the graph", found,
        "rows written at slot numbers",
        "fuse with --cache auto, which takes the operator apart" if known else "export with standard operators",
    )  # fmt: skip


def _unread(facts: Facts, write: CacheWrite, reason: Reason) -> Refusal:
    layer = facts.layer(write)
    place = facts.view.place(reason.value if reason.value is not None else write.out, layer)
    fact = f"rows written to {write.cache.name} (slots {write.slots.value.name}): {reason.fact}"
    suggestion = "convert a growing export with --cache auto: its caches may hold halves"
    inside_out = reason.code == "rope-interleaved-out"
    return Refusal(reason.code, place, layer, OP, fact, reason.found, reason.wanted, suggestion if inside_out else "")


def _alone(facts: Facts, row: Row, any_key: bool) -> Refusal:
    layer = facts.layer(row.write)
    place = facts.view.place(row.start, layer)
    fact = f"rows written to {row.write.cache.name}"
    try:
        common.refuse_aliases(row.write)
    except Refused as refused:
        return refused.refusal(facts.view, OP, row.write.out, layer)
    node = row.x.producer()
    if row.norm is None and node is not None and node.op_type not in ("MatMul", "Gemm", *_BIAS):
        found = f"plain rows that {node.op_type} computes: neither normalised nor rotated nor quantised in a known form"
        wanted = "a norm, a rotation or a projection, then scale, round and clip to int8 in an 8-bit cache"
        return Refusal("row-plain", place, layer, OP, fact, found, wanted, "")
    kind = "normalised" if row.norm is not None else "plain"
    found = f"{kind} rows and no partner" + ("" if any_key else "; no rows that are rotated as the operator does")
    return Refusal("kv-no-partner", place, layer, OP, fact, found, "a cache with rotated rows at the same slots", "")


@evaluated
def _inputs(facts: Facts, key: Row, value: Row) -> Inputs:
    """Everything the operator needs, as facts; raises Refused with the first fact that does not fit."""
    view = facts.view
    mode = MODES.get((key.write.order, key.write.slots.form))
    if mode is None:
        raise Refused(
            "kv-layout", "the cache layout is one of the operator's", common.slots_text(key.write),
            "a row per token of the batch in [B, N, S, D], or paged", "", key.write.out,
        )  # fmt: skip
    for write in (key.write, value.write):
        common.refuse_aliases(write)
    separate = key.norm is not None
    value = _same_heads(view, key, value)
    norm = key.norm if separate else value.norm
    assert norm is not None
    normalised = key if separate else value
    behind = [through_norm(view, entry.view.probe, norm, entry.x) for entry in normalised.views]
    key_rows = behind if separate else [row.x for row in key.views]
    value_rows = [row.x for row in value.views] if separate else behind
    rotation = key.views[0].rotation
    assert rotation is not None
    if rotation.start != 0:
        raise Refused(
            "rope-columns", "the rotated columns come first in the key row",
            f"columns {rotation.start} to {rotation.start + rotation.width - 1}", "columns from 0", "", key.start,
        )  # fmt: skip
    if not separate and rotation.width != key.views[0].x.position.shape[2]:
        raise Refused(
            "rope-columns", "the whole row of k_cache is rotated",
            f"{rotation.width} of {key.views[0].x.position.shape[2]} columns", "all columns", "", key.start,
        )  # fmt: skip
    heads = [row.views[0].x.position.shape[1] for row in (key, value)]
    if heads[0] != heads[1]:
        raise Refused(
            "kv-heads", "both caches have the same heads", f"{heads[0]} and {heads[1]}", "equal head counts", "",
            value.write.cache,
        )  # fmt: skip
    gamma = gamma_columns([entry.x for entry in normalised.views], norm)
    return Inputs(
        mode=mode, key=key, value=value, norm=norm, separate=separate, key_parts=key_rows, value_parts=value_rows,
        gamma_columns=gamma,
    )  # fmt: skip


def _same_heads(view: GraphView, key: Row, value: Row) -> Row:
    """The value rows with as many heads as the key rows, where the cache's shape leaves that open (NZ)."""
    heads, own = (row.views[0].x.position.shape[1] for row in (key, value))
    if heads == own or key.write.order != "NZ" or own != 1 or value.norm is not None:
        return value
    columns = value.write.probes[0].geometry.columns
    if columns % heads:
        return value
    again = read_row(view, with_heads(value.write, heads), {})
    return again if isinstance(again, Row) else value
