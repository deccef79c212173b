"""Putting fusions that were found into a graph."""

from __future__ import annotations

from bisect import bisect_right
from collections import Counter
from collections.abc import Iterable

import onnx_ir as ir
from onnx_ir.passes.common import RemoveUnusedNodesPass

from fusion.candidate import Candidate
from fusion.facts.types import clear_types
from fusion.once import compute_once
from fusion.result import ASSUMPTIONS_KEY, Proof, Site
from fusion.search import Found
from fusion.surgery import packing
from fusion.surgery.packing import Pack
from ir_ops.ops import DOMAIN, DOMAIN_VERSION, OPS


def site_of(candidate: Candidate, proof: Proof, removed: int) -> Site:
    """The record of a fusion for the report."""
    return Site(
        op=candidate.op,
        name=candidate.node.name or "",
        place=candidate.place,
        layer=candidate.layer,
        inputs=tuple("" if item is None else item.name or "" for item in candidate.node.inputs),
        outputs=tuple(item.name or "" for item in candidate.node.outputs),
        attrs=dict(candidate.attrs),
        assumptions=tuple(candidate.assumptions),
        proof=proof,
        removed=removed,
        notes=tuple(candidate.notes),
    )


def apply(model: ir.Model, found: Found, pack: Pack = "auto", *, report_only: bool = False) -> list[Site]:
    """Puts all proven candidates into the graph, in place, and removes what nobody reads any more.

    Args:
        pack: whether projections that fused operators want side by side are packed into one.
        report_only: the model is not wanted afterwards: nodes may stay that nobody reads, in any order.
    """
    graph, candidates = model.graph, [candidate for candidate, _ in found.proven]
    _keep_shortcuts(found)
    # what fused nodes read and deliver keeps its type: their bodies are made for it
    needed = {id(item) for candidate in candidates for node in candidate.emitter.nodes for item in node.inputs}
    clear_types([value for value in found.typed if id(value) not in needed])
    starts = _starts(candidates, found.order)
    for candidate in candidates:
        _insert(graph, candidate, found.order, starts)
        _tell_ranks(candidate)
    if not candidates:
        return []
    model.opset_imports.setdefault(DOMAIN, DOMAIN_VERSION)
    compute_once(candidates)
    if not report_only or any(candidate.joins for candidate in candidates):
        _tidy(model)
        if _pack(graph, candidates, pack):
            _tidy(model)
    read = _read(graph)
    return [
        site_of(candidate, proof, sum(id(node) not in read for node in candidate.region))
        for candidate, proof in found.proven
    ]


def _keep_shortcuts(found: Found) -> None:
    """Readers of what fusions deliver, or whose shape is asked of another value, read it where it was found."""
    left = {
        id(old)
        for candidate, _ in found.proven
        for old, _ in (*candidate.replaced, *candidate.shapes, *candidate.stand_ins)
    }
    for node, place, source in found.shortcuts:
        if id(source) in left:
            node.replace_input_with(place, source)


def _tell_ranks(candidate: Candidate) -> None:
    """Gives operands without a shape the rank that the proof has seen: function bodies depend on it."""
    for entry, value in zip(OPS[candidate.op].inputs, candidate.node.inputs, strict=False):
        spec = candidate.specs.get(entry.name)
        if value is not None and value.shape is None and spec is not None and spec.shape is not None:
            value.shape = ir.Shape([None] * len(spec.shape))


def _tidy(model: ir.Model) -> None:
    """Sorts the main graph and removes what nobody reads, which goes from the last node to the first."""
    model.graph.sort()
    RemoveUnusedNodesPass()(model)


def _read(graph: ir.Graph) -> set[int]:
    """Ids of the nodes from which a result of the graph is computed."""
    found: set[int] = set()
    pending = [item.producer() for item in graph.outputs]
    while pending:
        node = pending.pop()
        if node is None or id(node) in found:
            continue
        found.add(id(node))
        readers = [node, *(inner for part in _parts(node) for inner in part.all_nodes())]
        pending += [item.producer() for reader in readers for item in reader.inputs if item is not None]
        pending += [item.producer() for part in _parts(node) for item in part.outputs]
    return found


def _parts(node: ir.Node) -> list[ir.Graph]:
    """The subgraphs of a node."""
    found: list[ir.Graph] = []
    for attr in node.attributes.values():
        if attr.type == ir.AttributeType.GRAPH:
            found.append(attr.as_graph())
        elif attr.type == ir.AttributeType.GRAPHS:
            found += attr.as_graphs()
    return found


def _pack(graph: ir.Graph, candidates: list[Candidate], how: Pack) -> bool:
    """Packs projections and notes it with the sites; whether there was anything to decide."""
    joins = [(candidate, join) for candidate in candidates for join in candidate.joins]
    for (candidate, _), note in zip(joins, packing.pack(graph, [join for _, join in joins], how), strict=True):
        candidate.notes.append(note)
    return bool(joins)


def _insert(graph: ir.Graph, candidate: Candidate, order: dict[int, int], starts: list[int]) -> None:
    used = {id(item) for node in candidate.emitter.nodes for item in node.inputs if item is not None}
    used |= {id(new) for _, new in candidate.shapes}
    for constant in candidate.emitter.constants:
        if id(constant) in used:
            graph.register_initializer(constant)
    if candidate.assumptions:
        candidate.node.metadata_props[ASSUMPTIONS_KEY] = "; ".join(candidate.assumptions)
    graph.extend(candidate.emitter.nodes)
    for old, source in candidate.stand_ins:
        node = source.producer()
        for use in tuple(old.uses()):
            # a reader in front of the source may be what computes it
            behind = node is None or order.get(id(use.node), 0) > order.get(id(node), 0)
            if use.node.op_type in ("Shape", "Size") and behind:
                use.node.replace_input_with(use.idx, source)
    for old, new in candidate.shapes:
        _replace(graph, old, new, set())
    before = _computing(candidate, order, starts)
    for old, new in candidate.replaced:
        _replace(graph, old, new, before)


def _replace(graph: ir.Graph, old: ir.Value, new: ir.Value, before: set[int]) -> None:
    """Readers of ``old`` read ``new``, but those that ``new`` is computed from; a graph output keeps its name."""
    if new.shape is None:
        new.shape = old.shape
    if new.type is None or old.is_graph_output():
        new.type = old.type or new.type
    for use in tuple(old.uses()):
        if id(use.node) not in before:
            use.node.replace_input_with(use.idx, new)
    places = [place for place, output in enumerate(graph.outputs) if output is old]
    if places:
        name, old.name = old.name, f"{old.name}/unfused"
        new.name = name
        for place in places:
            graph.outputs[place] = new


def _computing(candidate: Candidate, order: dict[int, int], starts: list[int]) -> set[int]:
    """Ids of the new nodes and of the nodes they are computed from, back to where the replaced values come from."""
    first, _ = _span(candidate, order)
    first = starts[bisect_right(starts, first) - 1] if starts else first
    pending = list(candidate.emitter.nodes)
    found = {id(node) for node in pending}
    while pending:
        for item in pending.pop().inputs:
            node = item.producer() if item is not None else None
            if node is not None and id(node) not in found and order.get(id(node), first) >= first:
                found.add(id(node))
                pending.append(node)
    return found


def _span(candidate: Candidate, order: dict[int, int]) -> tuple[int, int]:
    """From the first of the nodes whose results are replaced to the last of the nodes that the new ones read."""
    replaced = [order.get(id(old.producer()), 0) for old, _ in candidate.replaced]
    read = [order.get(id(item.producer()), 0) for node in candidate.emitter.nodes for item in node.inputs
            if item is not None]  # fmt: skip
    return min(replaced, default=0), max((*replaced, *read), default=0)


def _starts(candidates: Iterable[Candidate], order: dict[int, int]) -> list[int]:
    """Where the spans begin, overlapping ones taken together.

    A node in front of all spans that overlap reads nothing that a fused node behind it computes.
    """
    starts: list[int] = []
    end = -1
    for first, last in sorted(_span(candidate, order) for candidate in candidates):
        if first > end:
            starts.append(first)
        end = max(end, last)
    return starts


def count_ops(model: ir.Model) -> Counter[str]:
    """Operator -> number of nodes, subgraphs included; operators of other domains with their domain."""
    counted: Counter[str] = Counter()
    for node in model.graph.all_nodes():
        counted[node.op_type if node.domain in ("", "ai.onnx") else f"{node.domain}::{node.op_type}"] += 1
    return counted
