"""ApplyRotaryPosEmb: query and key of a layer rotated together, with the same tables."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Hashable

import onnx_ir as ir

from fusion.candidate import Candidate, EmitterFactory, Refused, evaluated
from fusion.facts.analysis import Facts
from fusion.facts.rotary.rotations import Rotated
from fusion.facts.rotary.turned import Tabled
from fusion.result import Refusal
from fusion.rules import _block as block
from fusion.rules import _cache_op as common
from fusion.rules import _turn_block as turns

OP = "ApplyRotaryPosEmb"
MODES = ("half", "interleave")
_HEADS = {1: 2, 3: 1, 4: 1}
"""Axis of the heads in each layout."""


class ApplyRotaryPosEmbRule:
    """See the module's text. What does not pair is left to operators for one value, which say what is wrong."""

    op = OP
    size = 9

    def match(self, facts: Facts, new_emitter: EmitterFactory) -> tuple[list[Candidate], list[Refusal]]:
        groups: dict[Hashable, list[Rotated]] = defaultdict(list)
        for rotated in facts.rotations.found():
            turned = rotated.turned
            if turned.mode in MODES and not turned.heads and facts.standing.stands(turned.out):
                groups[turned.mode, turned.width, _key(turned.cos), _key(turned.sin)].append(rotated)
        candidates = []
        for members in groups.values():
            while len(members) > 1:
                pair = members[:2]
                try:
                    made = _build(facts, new_emitter, *pair)
                except Refused:
                    made = None
                if made is not None:
                    candidates.append(made)
                del members[: 1 if made is None else 2]
        return candidates, []


RULE = ApplyRotaryPosEmbRule()


def _key(table: Tabled) -> Hashable:
    return id(table.value), table.columns, table.axes, table.joined, id(table.positions)


@evaluated
def _build(facts: Facts, new_emitter: EmitterFactory, one: Rotated, other: Rotated) -> Candidate | None:
    layer = facts.view.layer_of(one.turned.out, one.turned.x)
    try:
        sites = [turns.read_site(facts, rotated, rotated.turned) for rotated in (one, other)]
    except Refused:
        return None
    looked_up = one.turned.cos.positions is not None
    probes = one.probes if looked_up else facts.trials.probes([site.turned.out for site in sites])
    if not probes or sites[0].kind != sites[1].kind or not _independent(facts, *sites):
        return None
    for site in sites:
        site.probes = probes
    layout = _layout(sites)
    if layout is None or not all(_is_owned(facts, site) and not site.may_broadcast for site in sites):
        return None
    axis = _HEADS[layout]
    query, key = sorted(sites, key=lambda site: -site.shapes[0][axis])
    asked = [pair for site in sites for pair in turns.same_shaped(site)]
    try:
        for site in sites:
            turns.refuse_kept(facts, site, asked)
        emit = new_emitter(f"{OP}_{'x' if layer is None else layer}")
        rows = [turns.Rows(facts, emit, site) for site in (query, key)]
        operands = [rows[0].x(), rows[1].x(), rows[0].table("cos"), rows[0].table("sin")]
        attrs = {"layout": layout, "rotary_mode": query.turned.mode}
        node, outputs = block.fused_node(OP, emit, operands, attrs)
        replaced = [*rows[0].restored(outputs["query"]), *rows[1].restored(outputs["key"])]
    except Refused:
        return None
    made = block.Block(OP, query.results[0], layer, emit, node, outputs, attrs)
    region = list({id(node): node for site in sites for node in site.region}.values())
    feeds = [*query.feeds, *key.feeds]
    is_new = one.fresh is not None or other.fresh is not None
    fresh = facts.trials.fresh([site.turned.out for site in sites]) if is_new and not looked_up else None
    return block.candidate(facts, made, replaced, feeds, region, (probes, fresh), RULE.size, asked)


def _layout(sites: list[turns.TurnSite]) -> int | None:
    """The layout in which both are rows with one row of cos for each token; None for none."""
    shapes, tables = sites[0].shapes, sites[0].table_shapes[0]
    rank = len(shapes[0])
    if any(site.turned.width != shape[-1] for site in sites for shape in site.shapes):
        return None
    for layout, axis in _HEADS.items():
        if rank != (3 if layout == 4 else 4):
            continue
        tokens = {1: 1, 3: 2, 4: 0}[layout]
        fits = all(
            table[axis] == 1 and table[tokens] == shape[tokens]
            and all(table[at] in (1, shape[at]) for at in range(rank - 1))
            for shape, table in zip(shapes, tables, strict=True)
        )  # fmt: skip
        alike = all(
            [*mine[:axis], *mine[axis + 1 :]] == [*its[:axis], *its[axis + 1 :]]
            for mine, its in zip(shapes, sites[1].shapes, strict=True)
        )
        if fits and alike:
            return layout
    return None


def _is_owned(facts: Facts, site: turns.TurnSite) -> bool:
    """Whether nobody but the rotation reads x or what it is a view of: the operator overwrites it."""
    inside = {id(node) for node in site.region}
    value = site.x
    while True:
        readers = [node for node in facts.standing.readers(value) if id(node) not in inside]
        if value.is_graph_output() or value.is_graph_input() or facts.view.is_constant(value):
            return False
        node = value.producer()
        if any(reader.op_type not in ("Shape", "Size") for reader in readers) or node is None:
            return False
        if node.op_type not in common.VIEWS or node.inputs[0] is None:
            return True
        inside, value = {id(node)}, node.inputs[0]


def _independent(facts: Facts, one: turns.TurnSite, other: turns.TurnSite) -> bool:
    """Whether neither rotation's operands are computed from the other's result."""
    return not (_leads(facts, one.results, other.feeds) or _leads(facts, other.results, one.feeds))


def _leads(facts: Facts, sources: list[ir.Value], targets: list[ir.Value]) -> bool:
    order = facts.view.order
    first = min(order(node) for value in sources if (node := value.producer()) is not None)
    wanted = {id(value) for value in sources}
    pending, seen = list(targets), {id(value) for value in targets}
    while pending:
        value = pending.pop()
        if id(value) in wanted:
            return True
        node = value.producer()
        if node is None or node.graph is None or order(node) < first:
            continue
        for item in node.inputs:
            if item is not None and id(item) not in seen:
                seen.add(id(item))
                pending.append(item)
    return False
