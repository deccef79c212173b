"""Means of squares that are no RMSNorm, and what keeps them from being one."""

from __future__ import annotations

from collections.abc import Iterable

import onnx_ir as ir

from fusion.facts.graph import GraphView
from fusion.facts.norms.norm import NormFact, squared_value
from fusion.facts.strip import stripped
from fusion.facts.symbols.parameters import Reason

_FORWARD = ("Mul", "Div", "Pow", "Sqrt", "Reciprocal", "Cast", "Identity", "Add", "Unsqueeze", "Reshape", "Expand")
_REACH = 8
"""How many nodes a norm may have behind its mean."""
_REDUCTIONS = ("ReduceMean", "ReduceSum", "ReduceSumSquare", "ReduceL2")


def near_norms(view: GraphView, norms: Iterable[NormFact]) -> list[Reason]:
    """A reason for every reduction of squares that leads to a root or a division and is part of no norm."""
    known = {view.number(item) for norm in norms for node in norm.nodes for item in node.outputs}
    found = []
    for node in view.graph:
        if node.op_type in _REDUCTIONS and node.domain in ("", "ai.onnx"):
            # computed alike is part of the norm too
            reason = None if view.number(node.outputs[0]) in known else _reason(view, node)
            if reason is not None:
                found.append(reason)
    return found


def _reason(view: GraphView, reduction: ir.Node) -> Reason | None:
    x = squared_value(view, reduction)
    if x is None:
        return None
    behind = _behind(view, reduction.outputs[0])
    names = {node.op_type for node in behind}
    if not names & {"Sqrt", "Pow", "Reciprocal", "Div"} or not names & {"Mul", "Div"}:
        return None
    place, what = reduction.outputs[0], f"{x.name} divided by the root of its mean square"
    axes = _axes(view, reduction)
    if axes != [-1] and axes != [_rank(x) - 1]:
        return Reason("norm-axis", "the mean goes over the last axis", f"axes {axes}", "the last axis alone", place)
    added = [node for node in behind if node.op_type == "Add"]
    rooted = {id(node) for root in behind if root.op_type in ("Sqrt", "Pow") for node in _behind(view, root.outputs[0])}
    under = [node for node in added if id(node) not in rooted]
    if not under:
        found = "added to the root" if added else "none"
        return Reason(
            "norm-epsilon", "epsilon is added to the mean square, under the root", found, "mean + epsilon", place
        )
    if all(view.scalar(item) is None for node in under for item in node.inputs):
        return Reason("norm-epsilon", "epsilon is a constant number", "a computed value", "one number", place)
    return Reason(
        "norm-form", what, "a mean of squares that is used in another product",
        "x * (mean(x^2) + epsilon)^(-1/2) * gamma", place,
    )  # fmt: skip


def _behind(view: GraphView, value: ir.Value) -> list[ir.Node]:
    """Nodes that compute on with a value, nearest first."""
    found: list[ir.Node] = []
    seen: set[int] = set()
    level = [value]
    while level and len(found) < 4 * _REACH:
        nodes = [node for item in level for node, _ in view.following(item) if node.op_type in _FORWARD]
        nodes = [node for node in {id(node): node for node in nodes}.values() if id(node) not in seen]
        seen |= {id(node) for node in nodes}
        found += nodes
        level = [node.outputs[0] for node in nodes]
    return found


def _axes(view: GraphView, reduction: ir.Node) -> list[int] | None:
    axes = view.attrs(reduction).get("axes")
    if axes is None and len(reduction.inputs) > 1:
        constant = view.constant(reduction.inputs[1])
        axes = None if constant is None else constant.reshape(-1).tolist()
    return None if axes is None else [int(axis) for axis in axes]


def _rank(value: ir.Value) -> int:
    return 0 if value.shape is None else len(value.shape)


def is_centred(view: GraphView, x: ir.Value) -> bool:
    """Whether a value has its own mean taken off: then its norm is a layer norm."""
    node = stripped(view, x).producer()
    if node is None or node.op_type != "Sub" or node.inputs[0] is None or node.inputs[1] is None:
        return False
    mean = stripped(view, node.inputs[1]).producer()
    if mean is None or mean.op_type != "ReduceMean" or mean.inputs[0] is None:
        return False
    return view.number(stripped(view, mean.inputs[0])) == view.number(stripped(view, node.inputs[0]))
