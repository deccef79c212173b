"""Rotated rows that are not written to a cache: the queries beside the keys of a layer.

They are looked for forwards from the value that both were projected from, through projections by constant weights,
elementwise arithmetic and movement. What is found is read as a rotation, element by element, as keys are.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import onnx_ir as ir

from fusion.facts.graph import GraphView
from fusion.facts.rotary.rotation import NotARotation, Rotation, read_rotation
from fusion.facts.semantics import Conflict, lookup
from fusion.facts.symbols.operand import columns_of
from fusion.facts.symbols.parameters import Part
from fusion.facts.symbols.symbolic import Symbolic
from fusion.facts.symbols.terms import Unreadable
from fusion.facts.trial.probe import Probe
from ir_ops.dtypes import Array

BUDGET = 4
MOST = 400
"""Nodes of one search: a layer's preamble has fewer."""

_PRODUCTS = ("MatMul", "Gemm", "MatMulInteger", "QLinearMatMul", "MatMulNBits", "DynamicQuantizeMatMul")
_WEIGHTS = {"QLinearMatMul": 3}
_ARITHMETIC = ("Mul", "Div", "Add", "Sub", "Sum", "Neg", "RotaryEmbedding")
_QUANTISING = ("QuantizeLinear", "DequantizeLinear", "DynamicQuantizeLinear", "Cast")
_SUMS = ("Add", "Sub", "Sum", "RotaryEmbedding")


@dataclass
class Rotated:
    """Rotated rows of ``value`` in token order.

    Attributes:
        order: ``token`` for ``[.., T, N*D]`` elements in memory order, ``head`` for ``[B, N, S, D]``.
        rotations: per probe, with positions ``[T, N, D]``.
    """

    value: ir.Value
    order: str
    rotations: list[Rotation]


def projected_from(view: GraphView, value: ir.Value) -> ir.Value | None:
    """The value that rows were projected from by a constant weight, seen through movement, scales and bias."""
    projected, _ = _behind(view, value)
    return projected


def from_one_value(view: GraphView, a: ir.Value, b: ir.Value) -> bool:
    """Whether rows are parts of one value, were projected from one, or are arithmetic on the same values."""
    if view.number(a) == view.number(b):
        return True
    (left, left_ends), (right, right_ends) = _behind(view, a), _behind(view, b)
    if left is not None and right is not None:
        return view.number(left) == view.number(right)
    return left is right and left_ends == right_ends


def _behind(view: GraphView, value: ir.Value) -> tuple[ir.Value | None, set[int]]:
    """The projected value, and the numbers of the values where the way back ends without a projection."""
    pending, seen, ends = [value], {id(value)}, set()
    while pending and len(seen) < MOST:
        item = view.root(pending.pop())
        node = item.producer()
        if node is not None and _is_projection(view, node) and node.inputs[0] is not None:
            return _before_quantising(view, node.inputs[0]), set()
        operands = [] if node is None else _inner_operands(view, node)
        if not operands:
            ends.add(view.number(item))
        for operand in operands:
            if id(operand) not in seen:
                seen.add(id(operand))
                pending.append(operand)
    return None, ends


def _inner_operands(view: GraphView, node: ir.Node) -> list[ir.Value]:
    """Operands through which rows may come: data of movement, factors and summands that are no constants."""
    definition = lookup(node.domain, node.op_type)
    if definition is not None and definition.moves is not None:
        places = range(len(node.inputs)) if definition.moves == (-1,) else definition.moves
        return [item for place in places if place < len(node.inputs) and (item := node.inputs[place]) is not None]
    if node.op_type in ("Cast", "DequantizeLinear", "QuantizeLinear"):
        return [item for item in node.inputs[:1] if item is not None]
    if node.op_type in ("Mul", "Div", "Add", "Sub"):
        return [item for item in node.inputs if item is not None and not view.is_constant(item)]
    return []


def _is_projection(view: GraphView, node: ir.Node) -> bool:
    if node.op_type not in _PRODUCTS:
        return False
    weight = node.inputs[_WEIGHTS.get(node.op_type, 1)]
    for _ in range(8):
        if weight is None or view.is_constant(weight):
            return weight is not None
        inner = weight.producer()
        if inner is None or inner.op_type not in ("Identity", "Transpose", "Cast", "DequantizeLinear", "Reshape"):
            return False
        weight = inner.inputs[0]
    return False


def _before_quantising(view: GraphView, value: ir.Value) -> ir.Value:
    """The float value behind the 8-bit operand of a product."""
    while True:
        value = view.root(value)
        node = value.producer()
        if node is None or node.op_type not in _QUANTISING or node.inputs[0] is None:
            return value
        value = node.inputs[0]


def rotated_from(view: GraphView, start: ir.Value, probes: Sequence[Probe], width: int, tokens: Sequence[int],
                 stops: set[int]) -> list[Rotated]:  # fmt: skip
    """All values of rotated rows of ``width`` columns that are computed from ``start``, each rotation once.

    Args:
        tokens: number of rows under each probe.
        stops: ids of values that are sources (results of norms).
    """
    found: list[Rotated] = []
    symbolics = [Symbolic(view, probe, stops) for probe in probes]
    known: set[tuple[int, bytes]] = set()
    for value in _candidates(view, start):
        for order in ("token", "head"):
            rotations = _read(value, order, symbolics, width, tokens)
            if rotations is None:
                continue
            first = rotations[0]
            key = (id(first.source.value), first.position.tobytes())
            if key not in known:
                known.add(key)
                found.append(Rotated(value, order, rotations))
            break
    return found


def _candidates(view: GraphView, start: ir.Value) -> Iterator[ir.Value]:
    """Sums of products computed from ``start``, and what movement makes of them, in graph order."""
    reached = _forward(view, start)
    sums: set[int] = set()
    for node in sorted(reached, key=view.order):
        definition = lookup(node.domain, node.op_type)
        moves = definition is not None and definition.moves is not None
        from_sum = any(item is not None and id(item) in sums for item in node.inputs)
        if node.op_type in _SUMS or ((moves or node.op_type == "Cast") and from_sum):
            for item in node.outputs:
                sums.add(id(item))
                yield item


def _forward(view: GraphView, start: ir.Value) -> list[ir.Node]:
    nodes: dict[int, ir.Node] = {}
    pending = [start]
    while pending and len(nodes) < MOST:
        value = pending.pop(0)
        for node, place in view.following(value):
            if id(node) not in nodes and _may_pass(view, node, place):
                nodes[id(node)] = node
                pending += node.outputs
    return list(nodes.values())


def _may_pass(view: GraphView, node: ir.Node, place: int) -> bool:
    if node.op_type in _PRODUCTS:
        return place == 0 and _is_projection(view, node)
    definition = lookup(node.domain, node.op_type)
    if definition is not None and definition.moves is not None:
        return node.op_type not in ("ScatterND", "ScatterElements", "TensorScatter", "Scatter")
    return node.op_type in _ARITHMETIC or (node.op_type in _QUANTISING and place == 0)


def _read(
    value: ir.Value, order: str, symbolics: Sequence[Symbolic], width: int, tokens: Sequence[int]
) -> list[Rotation] | None:
    rotations = []
    for symbolic, count in zip(symbolics, tokens, strict=True):
        try:
            shape = symbolic.probe.shape(value)
            position = None if shape is None else rows_in(shape, order, width, count)
            rotation = None if position is None else _rotation(symbolic, value, position)
        except (Unreadable, Conflict):
            return None
        if rotation is None:
            return None
        rotations.append(rotation)
    first = rotations[0]
    same = all(item.source.value is first.source.value for item in rotations[1:])
    return rotations if same else None


def _rotation(symbolic: Symbolic, value: ir.Value, position: Array) -> Rotation | None:
    for budget in range(1, BUDGET + 1):
        found = read_rotation(symbolic, symbolic.read(value, budget).take(position))
        if not isinstance(found, NotARotation):
            in_order = columns_of(Part(found.source, found.position)) is not None
            return found if in_order else None
    return None


def rows_in(shape: tuple[int, ...], order: str, width: int, tokens: int) -> Array | None:
    """``[T, N, D]`` flat positions of all rows in a value, None where its shape does not divide into them."""
    size = math.prod(shape)
    heads = size // (tokens * width) if tokens * width else 0
    if not heads or heads * tokens * width != size:
        return None
    flat: Array = np.arange(size)
    if order == "token":
        return flat.reshape(tokens, heads, width) if shape[-1] in (width, heads * width) else None
    if len(shape) != 4 or shape[1] != heads or shape[3] != width or shape[0] * shape[2] != tokens:
        return None
    by_token: Array = flat.reshape(shape).transpose(0, 2, 1, 3).reshape(tokens, heads, width)
    return by_token
