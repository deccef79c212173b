"""What :class:`~fusion.facts.symbols.symbolic.Symbolic` would walk, as a text: sites of one structure share it."""

from __future__ import annotations

from collections.abc import Container

import numpy as np
import onnx_ir as ir

from fusion.facts.graph import GraphView, dtype_name
from fusion.facts.semantics import lookup
from fusion.facts.trial.probe import Probe
from ir_ops.dtypes import Array

_FREE = ("Neg", "Reciprocal", "Cast", "Identity")
_ARITHMETIC = ("Mul", "Div", "Add", "Sub", "Sum")


def outline(
    view: GraphView, probe: Probe, value: ir.Value, budget: int, stops: Container[int] = ()
) -> tuple[str, list[ir.Value]]:
    """A text equal for equal structures, and the values met on the way in the order of their numbers.

    Args:
        stops: ids of values where the walk ends.
    """
    parts: list[str] = []
    values: list[ir.Value] = []
    numbers: dict[tuple[int, int], int] = {}
    first: dict[int, int] = {}

    def visit(item: ir.Value, left: int) -> None:
        key = (id(item), left)
        if key in numbers:
            parts.append(f"#{numbers[key]}")
            return
        numbers[key] = len(values)
        values.append(item)
        constant = view.structural(item)
        if constant is not None:
            parts.append(_content(constant))
            return
        node = item.producer()
        if node is None or id(item) in stops or view.is_constant(item) or not _walked(view, node, left):
            # one value may be met again with more arithmetic left to open: it is the same all the same
            same = first.setdefault(id(item), numbers[key])
            parts.append(f"({'!' if id(item) in stops else ''}{same} {probe.shape(item)} {dtype_name(item)})")
            return
        attrs = sorted((name, str(entry)) for name, entry in view.attrs(node).items())
        parts.append(f"{node.domain}:{node.op_type}{item.index()}{attrs}{dtype_name(item)}[")
        moved = _moved(node)
        for place, operand in enumerate(node.inputs):
            if operand is None:
                parts.append("-")
            elif moved is None or place in moved:
                visit(operand, left - (node.op_type in _ARITHMETIC and not _is_number(view, node)))
            else:
                known = probe.known(operand)
                parts.append("?" if known.array is None or known.taint else _content(known.array))
        parts.append("]")

    visit(value, budget)
    return " ".join(parts), values


def _walked(view: GraphView, node: ir.Node, budget: int) -> bool:
    if node.domain not in ("", "ai.onnx"):
        return False
    if node.op_type in _ARITHMETIC:
        return budget > 0 or _is_number(view, node)
    return node.op_type in _FREE or _moved(node) is not None or (node.op_type == "RotaryEmbedding" and budget >= 2)


def _moved(node: ir.Node) -> tuple[int, ...] | None:
    """Operands whose elements a movement moves; None for other operators."""
    definition = lookup(node.domain, node.op_type)
    if definition is None or definition.moves is None:
        return None
    return tuple(range(len(node.inputs))) if definition.moves == (-1,) else definition.moves


def _is_number(view: GraphView, node: ir.Node) -> bool:
    """Whether one operand is a mask or sign, which :class:`Symbolic` opens for nothing."""
    return any(item is not None and view.structural(view.root(item)) is not None for item in node.inputs)


def _content(array: Array) -> str:
    return f"{array.dtype}{array.shape}{np.ascontiguousarray(array).tobytes().hex()}"
