"""Gated activations: ``gate * sigmoid(gate) * up``, in whatever order the product is written."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import onnx_ir as ir

from fusion.facts.graph import GraphView
from fusion.facts.strip import stripped
from fusion.facts.symbols.parameters import Reason

_DEPTH = 4
"""How many products may stand between the sigmoid and the result."""


@dataclass(frozen=True)
class GatedFact:
    """``y = gate * sigmoid(gate) * up``.

    Attributes:
        heart: the nodes that apply the sigmoid.
    """

    y: ir.Value
    gate: ir.Value
    up: ir.Value
    heart: tuple[ir.Node, ...]


def activations(view: GraphView) -> list[tuple[ir.Node, ir.Value]]:
    """Nodes that apply a sigmoid, each with what it is applied to, in graph order."""
    found = []
    for node in view.graph:
        gate = _activated(view, node)
        if gate is not None:
            found.append((node, gate))
    return found


def _activated(view: GraphView, node: ir.Node) -> ir.Value | None:
    """What a Sigmoid, or a Swish with alpha 1, is applied to; None for other nodes."""
    if node.op_type not in ("Sigmoid", "Swish", "QuickGelu"):
        return None
    standard = node.domain in ("", "ai.onnx")
    if (standard and node.op_type == "Sigmoid") or _is_swish(view, node):
        return None if node.inputs[0] is None else stripped(view, node.inputs[0])
    return None


def _is_swish(view: GraphView, node: ir.Node) -> bool:
    kinds = {("", "Swish"): 1.0, ("ai.onnx", "Swish"): 1.0, ("com.microsoft", "QuickGelu"): 1.702}
    default = kinds.get((node.domain, node.op_type))
    return default is not None and float(view.attrs(node).get("alpha", default)) == 1.0


def read_gated(view: GraphView, node: ir.Node) -> GatedFact | Reason | None:
    """The gated activation that a sigmoid is part of; a Reason for a product of three that is none."""
    gate = _activated(view, node)
    assert gate is not None
    # Swish is gate * sigmoid(gate) already
    count, reason = 2 if _is_swish(view, node) else 3, None
    for product in _products(view, node.outputs[0]):
        factors = _factors(view, product, view.number(gate))
        rest = [item for item in factors or () if isinstance(item, ir.Value)]
        if factors is None or len(factors) != count or len(rest) != count - 1:
            continue
        if count == 2:
            return GatedFact(product, gate, rest[0], (node,))
        same = [view.number(item) == view.number(gate) for item in rest]
        if any(same):
            return GatedFact(product, gate, rest[same.index(True) - 1], (node,))
        reason = reason or Reason(
            "swiglu-form", "the activated value is the sigmoid's operand",
            f"sigmoid of {gate.name} times {rest[0].name} and {rest[1].name}", "gate * sigmoid(gate) * up", product,
        )  # fmt: skip
    return reason


def _products(view: GraphView, value: ir.Value) -> Iterator[ir.Value]:
    """Products that a value is part of, nearest first."""
    level = [value]
    for _ in range(_DEPTH):
        following = []
        for item in level:
            for node, _ in view.following(item):
                if node.domain not in ("", "ai.onnx"):
                    continue
                if node.op_type in ("Mul", "Cast", "Identity"):
                    following.append(node.outputs[0])
                if node.op_type == "Mul":
                    yield node.outputs[0]
        level = following


def _factors(view: GraphView, value: ir.Value, gate: int, depth: int = 3) -> list[ir.Value | ir.Node] | None:
    """The factors of a product: values, and the activating nodes; None where there are more than three.

    Only products with the gate (a value number) or its sigmoid in them are taken apart: gate and up may be products.
    """
    value = stripped(view, value)
    node = value.producer()
    if node is not None and _activated(view, node) is not None:
        return [node]
    if node is None or not depth or not _holds(view, value, gate, depth):
        return [value]
    found: list[ir.Value | ir.Node] = []
    for item in node.inputs:
        part = None if item is None else _factors(view, item, gate, depth - 1)
        if part is None or len(found) + len(part) > 3:
            return None
        found += part
    return found


def _holds(view: GraphView, value: ir.Value, gate: int, depth: int) -> bool:
    """Whether a value is a product with the gate or an activation among its factors."""
    node = value.producer()
    if node is None or node.op_type != "Mul" or node.domain not in ("", "ai.onnx") or view.number(value) == gate:
        return False
    for item in node.inputs:
        inner = None if item is None else stripped(view, item)
        made = None if inner is None else inner.producer()
        if inner is None:
            continue
        if view.number(inner) == gate or (made is not None and _activated(view, made) is not None):
            return True
        if depth > 1 and _holds(view, inner, gate, depth - 1):
            return True
    return False
