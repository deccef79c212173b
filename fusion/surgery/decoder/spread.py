"""Positions that all sequences of a call share, ``[1, S]``, where each is to have its own, ``[B, S]``.

An export without an input of positions counts them from the length of the cache, once for all. What is computed from
them (angles, their cosines, views of these) meets the sequences at last by broadcasting its first axis. Whether that
axis may as well be as long as the batch is tried: entry for entry, the way from the positions of several sequences
must give what it gives for each of them alone. Shapes that are asked for on the way are computed with the rest.
"""

from __future__ import annotations

from collections.abc import Container, Sequence
from dataclasses import dataclass, field

import numpy as np
import onnx_ir as ir

from fusion.evaluate import Evaluation
from fusion.facts.graph import GraphView, dtype_name, uses
from fusion.facts.semantics import Conflict, OutOfRange, Unsupported, lookup
from fusion.surgery.decoder.roles import Trial
from ir_ops.dtypes import Array, by_name

_ASKING = ("Shape", "Size")


@dataclass
class Spread:
    """The way from positions to where the sequences are.

    Attributes:
        inside: values on the way, told from the positions alone.
        sizes: vectors and numbers that are told from the shapes of these.
        ends: values of ``inside`` that meet the sequences; their first axis is 1.
        asking: nodes that ask for a shape on the way.
        views: Reshapes whose constant target says that the first axis is 1: it has to keep what it is given.
    """

    inside: dict[int, ir.Value] = field(default_factory=dict)
    sizes: dict[int, ir.Value] = field(default_factory=dict)
    ends: dict[int, ir.Value] = field(default_factory=dict)
    asking: set[int] = field(default_factory=set)
    views: dict[int, tuple[ir.Node, Array]] = field(default_factory=dict)


def spread(view: GraphView, positions: ir.Value, trial: Trial, living: Container[int]) -> Spread | None:
    """The way from ``[1, S]`` (or with further axes of 1) at a trial of several sequences; None if it must stay 1.

    Args:
        living: ids of the nodes that outputs need; others are no readers.
    """
    way = Spread({id(positions): positions})
    pending = [positions]
    try:
        while pending:
            item = pending.pop()
            if item.is_graph_output():
                return None
            for node, place in ((node, place) for node, place in uses(item) if id(node) in living):
                _note_view(view, way, trial, item, node, place)
                fresh = _follow(way, trial, item, node, place)
                if fresh is None:
                    return None
                pending += fresh
        return way if _entry_for_entry(view, positions, trial, way) else None
    except (Conflict, OutOfRange, Unsupported):
        return None


def _follow(way: Spread, trial: Trial, item: ir.Value, node: ir.Node, place: int) -> list[ir.Value] | None:
    """What is new behind a node on the way; None where the way may not go on."""
    if node.op_type in _ASKING and id(item) in way.inside:
        way.asking.add(id(node))
        return _added(way.sizes, node.outputs)
    if id(item) in way.sizes and all(_is_size(trial, output) for output in node.outputs):
        return _added(way.sizes, node.outputs)
    own, out = trial.probe.shape(item), trial.probe.shape(node.outputs[0])
    if own is None or out is None:
        return None
    if len(own) == len(out) and own[:1] == (1,) and out[:1] == (trial.batch,) and _may_meet(node, place):
        way.ends[id(item)] = item
        return []
    return _added(way.inside, node.outputs)


def _note_view(view: GraphView, way: Spread, trial: Trial, item: ir.Value, node: ir.Node, place: int) -> None:
    """Notes a Reshape from ``[1, ..]`` to a constant ``[1, ..]`` that copies no other dim of its operand."""
    target = view.constant(node.inputs[1]) if node.op_type == "Reshape" and not place else None
    own = trial.probe.shape(item)
    if target is not None and own and own[0] == 1 and target.size and target[0] == 1 and (target[1:] != 0).all():
        way.views[id(node)] = (node, target)


def _may_meet(node: ir.Node, place: int) -> bool:
    """Whether a node broadcasts this operand's first axis over the sequences."""
    definition = lookup(node.domain, node.op_type)
    elementwise = definition is not None and definition.kind == "elementwise"
    return elementwise or node.op_type in ("MatMul", "Where") or (node.op_type == "Expand" and not place)


def _added(known: dict[int, ir.Value], values: Sequence[ir.Value]) -> list[ir.Value]:
    fresh = [value for value in values if id(value) not in known]
    known.update((id(value), value) for value in fresh)
    return fresh


def _is_size(trial: Trial, value: ir.Value) -> bool:
    known = trial.probe.known(value)
    array = known.array
    return array is not None and not known.taint and array.ndim < 2 and array.dtype.kind in "iub"


def _entry_for_entry(view: GraphView, positions: ir.Value, trial: Trial, way: Spread) -> bool:
    """Whether the ends for several sequences are, entry for entry, the ends for each of them."""
    shape = trial.probe.shape(positions)
    assert shape is not None
    places = np.random.default_rng(5).permutation(trial.batch * trial.tokens)
    data = places.reshape(trial.batch, *shape[1:]).astype(by_name(dtype_name(positions)).np)
    anew = {*way.inside, *way.sizes}

    def ends(rows: Array) -> list[Array]:
        feeds = {id(positions): rows}
        for node, target in way.views.values():
            feeds[id(node.inputs[1])] = np.concatenate([[len(rows)], target[1:]])
        run = Evaluation(view, trial.probe, feeds, wide=True, anew=anew)
        return [run.value(value) for value in way.ends.values()]

    together, alone = ends(data), [ends(data[row : row + 1]) for row in range(trial.batch)]
    return all(np.array_equal(whole, np.concatenate(parts)) for whole, *parts in zip(together, *alone, strict=True))
