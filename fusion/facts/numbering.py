"""Numbering of values: equal for values that are computed in the same way, in one pass over the graph.

Two kinds. *Exact* numbers are equal when the values are: weights count as themselves, constants as their content,
Identity and casts to the own type as what is behind them, products by their factors (:mod:`fusion.facts.factors`).
*Trial* numbers are equal when a trial evaluation, which looks at shapes and integers only, cannot tell the values
apart: weights count as their shape. The experts of a layer have one trial number, so that a layer with 256 of them is
evaluated like a layer with one.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterator
from hashlib import blake2b
from typing import Any, Protocol

import numpy as np
import onnx_ir as ir

from fusion.facts.factors import Factors
from ir_ops.ops import DOMAIN

COMMUTATIVE = frozenset(("Add", "Mul", "Max", "Min", "Equal", "And", "Or"))
RANDOM = frozenset(("RandomNormal", "RandomNormalLike", "RandomUniform", "RandomUniformLike", "Multinomial",
                     "Bernoulli", "Dropout", "BiasDropout", "BitmaskDropout", "BitmaskBiasDropout",
                     "Sampling"))  # fmt: skip
"""Operators that may give something else each time."""
_TELLING = frozenset(("", "ai.onnx", "com.microsoft", DOMAIN))
"""Domains of whose operators it is known that the others do not."""
_PLAIN = (ir.AttributeType.FLOAT, ir.AttributeType.FLOATS, ir.AttributeType.INT, ir.AttributeType.INTS,
          ir.AttributeType.STRING, ir.AttributeType.STRINGS)  # fmt: skip
"""Attributes that are told apart by their numbers or text."""
_SQUARE = "square"
SMALL = 64
"""Float constants up to this many elements may be read, and only then when they are masks or scalars."""
LARGE = 1 << 22
"""Bytes of the longest constant of which it is asked whether another has the same content: tables are shorter."""


class View(Protocol):
    """What is asked of a graph: the part of :class:`fusion.facts.graph.GraphView` that numbering needs."""

    graph: ir.Graph
    shrunk: set[int]

    def tensor(self, value: ir.Value | None) -> ir.TensorProtocol | None: ...
    def structural(self, value: ir.Value) -> np.ndarray[Any, Any] | None: ...
    def declared(self, value: ir.Value) -> tuple[int, ...] | None: ...


class Numbering:
    """Numbers by identity of the value.

    Args:
        view: the graph.
        leaf: what stands for a value without operands.
        root: the value that another counts as.
        declared: whether values of different declared dims differ.
    """

    def __init__(
        self,
        view: View,
        leaf: Callable[[ir.Value], Hashable],
        root: Callable[[ir.Value], ir.Value] | None = None,
        declared: bool = False,
    ) -> None:
        self._view, self._leaf, self._root, self._declared = view, leaf, root, declared
        self._number: dict[int, int] = {}
        self._of_key: dict[Hashable, int] = {}
        self._kind: dict[int, Hashable] = {}
        self._kept: list[ir.Value] = []
        self._complete = False
        self._factors = None if root is None else Factors(self._number_of, self._short_floats, self._is_square)

    def of(self, value: ir.Value) -> int:
        """The number of a value; of one outside the graph too."""
        found = self._number.get(id(value))
        if found is not None:
            return found
        if not self._complete:
            self._complete = True
            for node in self._view.graph:
                self._visit(node)
            found = self._number.get(id(value))
            if found is not None:
                return found
        for missing in self._unnumbered(value):
            self._kept.append(missing)
            producer = missing.producer()
            if producer is None:
                self._give(missing, self._leaf(missing))
            else:
                self._visit(producer)
        return self._number[id(value)]

    def kind(self, node: ir.Node) -> Hashable:
        """Equal for nodes that compute the same from the same operands; of nodes whose results are numbered."""
        return self._kind[id(node)]

    def _unnumbered(self, value: ir.Value) -> Iterator[ir.Value]:
        """Values without a number behind ``value``, operands first."""
        stack = [value]
        while stack:
            top = stack[-1]
            node = top.producer()
            operands = () if node is None else node.inputs
            missing = [item for item in operands if item is not None and id(item) not in self._number]
            if id(top) in self._number or not missing:
                stack.pop()
                if id(top) not in self._number:
                    yield top
            else:
                stack.extend(missing)

    def _give(self, value: ir.Value, key: Hashable) -> int:
        number = self._number[id(value)] = self._number_of(key)
        return number

    def _number_of(self, key: Hashable) -> int:
        return self._of_key.setdefault(key, len(self._of_key))

    def _short_floats(self, value: ir.Value) -> np.ndarray[Any, Any] | None:
        """A constant of the file that is not too large to be looked at."""
        tensor = self._view.tensor(value)
        if tensor is None or isinstance(tensor, ir.ExternalTensor) or tensor.nbytes > LARGE:
            return None
        return np.asarray(tensor.numpy())

    def _visit(self, node: ir.Node) -> None:
        numbers, outputs = self._number, node.outputs
        operands = []
        for item in node.inputs:
            if item is None:
                operands.append(-1)
                continue
            number = numbers.get(id(item))
            operands.append(self._give(item, self._leaf(item)) if number is None else number)
        if self._root is not None and self._root(outputs[0]) is not outputs[0]:
            numbers[id(outputs[0])] = operands[0]
            return
        if node.op_type == "Constant" and node.domain in ("", "ai.onnx"):
            self._give(outputs[0], self._leaf(outputs[0]))
            return
        product = None if self._factors is None else self._factors.number(node, operands)
        if product is not None:
            numbers[id(outputs[0])] = product
            return
        if self._root is not None and node.op_type in COMMUTATIVE:
            operands.sort()
        dims = [self._view.declared(output) if self._declared else None for output in outputs]
        kind = self._kind[id(node)] = (*_kind(node), *dims)
        # x^2 is x * x, whatever else tells nodes apart
        key = (_SQUARE, operands[0]) if self._is_square(node) else (kind, *operands)
        for place, output in enumerate(outputs):
            numbers[id(output)] = self._number_of((key, place) if place else key)

    def _is_square(self, node: ir.Node) -> bool:
        if self._root is None or node.op_type not in ("Mul", "Pow") or node.domain not in ("", "ai.onnx"):
            return False
        left, right = node.inputs
        if node.op_type == "Mul":
            return self._number.get(id(left)) == self._number.get(id(right))
        power = None if right is None else self._view.structural(right)
        if left is None or power is None or power.size != 1 or float(power.reshape(-1)[0]) != 2:
            return False
        # a power of more axes gives the result axes that x * x does not have
        return power.ndim == 0 or (left.shape is not None and left.shape.rank() >= power.ndim)


def gives_one_result(node: ir.Node) -> bool:
    """Whether the operator is known to give the same from the same operands each time."""
    return node.op_type not in RANDOM and node.domain in _TELLING


def _kind(node: ir.Node) -> tuple[Hashable, ...]:
    """What a node does with its operands; a node with subgraphs is like no other."""
    if not gives_one_result(node):
        return ("node", id(node))
    frozen = sorted((name, _frozen(attr)) for name, attr in node.attributes.items()) if node.attributes else ()
    if any(item is None for _, item in frozen):
        return ("node", id(node))
    return (node.domain, node.op_type, len(node.outputs), *frozen)


def exact_leaf(view: View) -> Callable[[ir.Value], Hashable]:
    """Numbers of the file by content (the largest by identity), external ones by place, the rest by identity."""

    def leaf(value: ir.Value) -> Hashable:
        tensor = view.tensor(value)
        if tensor is None:
            return ("value", id(value))
        if isinstance(tensor, ir.ExternalTensor):
            return ("external", tensor.location, tensor.offset, int(tensor.dtype), tuple(tensor.shape))
        if tensor.dtype == ir.DataType.STRING or tensor.nbytes > LARGE:
            return ("value", id(value))
        content = _content(np.asarray(tensor.numpy()))
        return content if tensor.size <= SMALL else (*content[:-1], blake2b(tensor.tobytes()).digest())

    return leaf


def trial_leaf(view: View) -> Callable[[ir.Value], Hashable]:
    """Structural constants by content, weights by type and shape, graph inputs by identity."""

    def leaf(value: ir.Value) -> Hashable:
        tensor = view.tensor(value)
        if tensor is None:
            return ("value", id(value))
        array = view.structural(value)
        shrinks = id(value) in view.shrunk
        if array is None:
            return ("weight", shrinks, int(tensor.dtype), tuple(tensor.shape.numpy()))
        return (shrinks, *_content(array))

    return leaf


def _content(array: np.ndarray[Any, Any]) -> tuple[Hashable, ...]:
    return ("constant", str(array.dtype), array.shape, array.tobytes())


def _frozen(attr: ir.Attr) -> Hashable:
    """The content of an attribute; None for graphs, texts in tensors, types and what else is not compared."""
    if attr.type == ir.AttributeType.TENSOR and attr.value.dtype != ir.DataType.STRING:
        return _content(np.asarray(attr.value.numpy()))
    if attr.type not in _PLAIN:
        return None
    return tuple(attr.value) if isinstance(attr.value, (list, tuple)) else (attr.value,)
