"""Products of rows with a weight, as MlaPrologV3 has them inside: which rows, which weight, stored which way."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import onnx_ir as ir

from fusion.facts.graph import GraphView, dtype_name
from fusion.facts.semantics import lookup

_VIEWS = ("Identity", "Reshape", "Squeeze", "Unsqueeze", "Flatten")
"""Operators that keep every element in its order."""
FAR = 16
"""Nodes between a product of integers and its rows."""
MOST = 96
"""Values that a walk looks at: a preamble has fewer."""


@dataclass(frozen=True)
class Product:
    """``out = x @ weight``, row by row.

    Attributes:
        weight: the operand of the product, whatever computes it.
        turned: it comes as ``[columns, hidden]``, not ``[hidden, columns]``.
        bias: what is added, None without.
        scale: of the weight's columns, where it is of int8 and x is quantised by row; None for products of floats.
    """

    out: ir.Value
    x: ir.Value
    weight: ir.Value
    turned: bool
    bias: ir.Value | None = None
    scale: ir.Value | None = None


def product_of(view: GraphView, value: ir.Value) -> Product | None:
    """The product of rows with a matrix that computes ``value``; None for anything else.

    Whether the weight is a matrix is for the caller to ask: it is a question of shapes.
    """
    node = value.producer()
    if node is None or node.domain not in ("", "ai.onnx") or len(node.inputs) < 2:
        return None
    x, weight = node.inputs[0], node.inputs[1]
    if x is None or weight is None:
        return None
    attrs = view.attrs(node)
    if node.op_type == "MatMul":
        return Product(value, x, weight, False)
    if node.op_type == "Gemm":
        if attrs.get("alpha", 1.0) != 1.0 or attrs.get("transA", 0):
            return None
        bias = node.inputs[2] if len(node.inputs) > 2 and attrs.get("beta", 1.0) != 0 else None
        return Product(value, x, weight, bool(attrs.get("transB", 0)), bias)
    if node.op_type == "Einsum" and len(node.inputs) == 2:
        return _einsum(value, x, weight, str(attrs["equation"]))
    if node.op_type == "Add":
        for inner, other in ((x, weight), (weight, x)):
            # asked first: else sums of layers would be walked back to the first one
            made = product_of(view, source_of(view, inner)) if view.is_constant(view.root(other)) else None
            if made is not None and made.bias is None:
                return Product(value, made.x, made.weight, made.turned, other)
    return None


def _einsum(value: ir.Value, x: ir.Value, weight: ir.Value, equation: str) -> Product | None:
    """A product spelled as Einsum: rows keep their axes, the last one is summed with one of the weight's two."""
    left, _, out = equation.replace(" ", "").partition("->")
    rows, _, matrix = left.partition(",")
    if matrix and len(matrix) == 2 and "." not in rows and out[:-1] == rows[:-1] and rows[-1:] in matrix:
        made = matrix.replace(rows[-1], "", 1)
        if made == out[-1:] and made not in rows and len(set(rows)) == len(rows):
            return Product(value, x, weight, matrix[0] == made)
    return None


def rounded_product(view: GraphView, value: ir.Value) -> str:
    """How the operands of the product behind a value were rounded to integers, "" for one of floats or none at all."""
    for _ in range(FAR):
        node = view.root(value).producer()
        if node is None or node.inputs[0] is None:
            return ""
        x, op = node.inputs[0], node.op_type
        by = view.root(x).producer()
        if op == "MatMulInteger":
            whole = by is not None and by.op_type == "DynamicQuantizeLinear"
            return f"MatMulInteger of {x.name}, " + ("one scale for all tokens" if whole else "integers in the graph")
        if op in ("QLinearMatMul", "QGemm"):
            return f"{op} of {x.name}, rounded to constant steps"
        if op in ("MatMul", "Gemm"):
            constant = by is not None and by.op_type == "DequantizeLinear" and not view.is_constant(view.root(x))
            return f"{op} of {x.name}, rounded to constant steps" if constant else ""
        data = [item for item in node.inputs if item is not None and not view.is_constant(view.root(item))]
        value = next((item for item in data if item.producer() is not None), x)
    return ""


def source_of(view: GraphView, value: ir.Value) -> ir.Value:
    """What a value's elements were moved from, through operators that move those of one operand."""
    for _ in range(MOST):
        node = value.producer()
        inner = None if node is None else moved_operand(view, node)
        if inner is None:
            return value
        value = inner
    return value


def moved_operand(view: GraphView, node: ir.Node) -> ir.Value | None:
    """The one operand whose elements a node moves on, None where it computes or joins several."""
    definition = lookup(node.domain, node.op_type)
    if definition is None or node.domain not in ("", "ai.onnx"):
        return None
    if node.op_type == "Cast":
        return node.inputs[0] if "float" in dtype_name(node.outputs[0]) else None
    if definition.moves is None or (len(node.inputs) > 1 and len(definition.moves) != 1):
        return None
    return None if definition.moves == (-1,) and len(node.inputs) > 1 else node.inputs[0]


def views_behind(view: GraphView, value: ir.Value) -> list[ir.Value]:
    """The value, and what it is a view of: the same rows in the same order."""
    found = [value]
    node = value.producer()
    while node is not None and node.op_type in _VIEWS and node.domain in ("", "ai.onnx") and node.inputs[0] is not None:
        found.append(node.inputs[0])
        node = node.inputs[0].producer()
    return found


@dataclass(frozen=True)
class Moved:
    """A value that holds elements of another one and nothing else, times a number."""

    value: ir.Value
    factor: float = 1.0


def moved_forward(view: GraphView, start: ir.Value) -> list[Moved]:
    """Values that hold elements of ``start`` alone, ``start`` first."""
    found = [Moved(start)]
    for item in found:
        for node, _ in view.following(item.value):
            known = {id(other.value): other.factor for other in found}
            outputs, factor = _moved_by(view, node, item.value)
            if not outputs and node.op_type == "Concat" and _joins(node, known):
                outputs = list(node.outputs)
            found += [Moved(out, item.factor * factor) for out in outputs if id(out) not in known]
        if len(found) > MOST:
            break
    return found


def _joins(node: ir.Node, known: dict[int, float]) -> bool:
    """Whether a Concat puts elements of the same source together, all times one number."""
    factors = {known.get(id(item)) for item in node.inputs}
    return len(factors) == 1 and None not in factors


def _moved_by(view: GraphView, node: ir.Node, value: ir.Value) -> tuple[list[ir.Value], float]:
    if node.op_type in ("Shape", "Size"):
        return [], 1.0
    if moved_operand(view, node) is value:
        return list(node.outputs), 1.0
    if node.op_type in ("Mul", "Div") and len(node.inputs) == 2 and node.domain in ("", "ai.onnx"):
        left, right = node.inputs
        number = view.scalar(right if left is value else left)
        if number and (node.op_type == "Mul" or left is value):
            return list(node.outputs), number if node.op_type == "Mul" else 1.0 / number
    return [], 1.0


def readers_of(view: GraphView, moved: list[Moved]) -> Iterator[tuple[ir.Node, Moved]]:
    """Who reads the moved values."""
    for item in moved:
        for node, _ in view.following(item.value):
            yield node, item
