"""Caches that grow: an output that is an input with the rows of the new tokens behind it."""

from __future__ import annotations

from dataclasses import dataclass

import onnx_ir as ir

from fusion.facts.graph import GraphView, dims_of, uses
from fusion.facts.semantics import lookup
from fusion.facts.spine import Spine
from fusion.facts.trial.settle import Survey
from ir_ops.ops import DOMAIN


@dataclass(frozen=True)
class Growth:
    """``present = Concat(past, new)`` along the tokens.

    Attributes:
        past: graph input ``[B, N, P, D]``.
        present: graph output ``[B, N, P + S, D]``.
        joined: what the Concat gives, behind Identity.
        new: rows of the new tokens, ``[B, N, S, D]``.
        layer: decoder layer, by the names; None when they do not tell.
    """

    past: ir.Value
    present: ir.Value
    joined: ir.Value
    new: ir.Value
    layer: int | None


_KEEPERS = ("GroupQueryAttention", "MultiHeadAttention", "Attention")
"""Attentions that take the past and give the present themselves, behind their first output."""


def kept_inside(view: GraphView) -> list[ir.Value]:
    """Graph outputs that an attention operator writes as the present of a past that it takes from a graph input."""
    found = []
    for out in view.graph.outputs:
        node = view.root(out).producer()
        if node is None or node.op_type not in _KEEPERS or view.root(out) is node.outputs[0]:
            continue
        if any(item is not None and item.is_graph_input() and len(item.shape or ()) == 4 for item in node.inputs):
            found.append(out)
    return found


def told_widths(view: GraphView) -> dict[str, int]:
    """Columns of the caches that attention operators keep, where the file has but a name for them: by this name."""
    survey, found = Survey(view), {}
    for node in view.graph:
        if node.op_type != "GroupQueryAttention":
            continue
        for past, present in zip(node.inputs[3:5], node.outputs[1:3], strict=False):
            dims, shape = None if past is None else dims_of(past), survey.shape(present)
            if dims and shape and isinstance(dims[-1], str):
                found[dims[-1]] = shape[-1]
    return found


def unknown_reader(growth: Growth) -> ir.Node | None:
    """The first operator behind a growing cache of which nothing is known; None where all are known."""
    pending, seen = [growth.joined], {id(growth.joined)}
    while pending:
        for node, _ in uses(pending.pop(0)):
            if lookup(node.domain, node.op_type) is None and node.domain != DOMAIN:
                return node
            fresh = [item for item in node.outputs if id(item) not in seen]
            seen |= {id(item) for item in fresh}
            pending += fresh
    return None


def find_growths(view: GraphView, spines: list[Spine]) -> list[Growth]:
    """The growing caches among the spines, in the order of the graph's outputs."""
    return [growth for spine in spines if (growth := _growth(view, spine)) is not None]


def _growth(view: GraphView, spine: Spine) -> Growth | None:
    joined = view.root(spine.out)
    node = joined.producer()
    if node is None or node.op_type != "Concat" or len(node.inputs) != 2 or spine.cache.shape is None:
        return None
    old, new = node.inputs
    if old is None or new is None or view.root(old) is not spine.cache:
        return None
    rank = len(spine.cache.shape)
    if rank != 4 or int(view.attrs(node).get("axis", 0)) not in (-2, rank - 2):
        return None
    return Growth(spine.cache, spine.out, joined, new, view.layer_of(spine.cache, spine.out))
