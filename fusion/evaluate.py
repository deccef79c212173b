"""Running a piece of a graph in numpy, in float64 or in its own types, from given values upwards."""

from __future__ import annotations

from collections.abc import Container, Mapping, Sequence
from typing import Any

import numpy as np
import onnx_ir as ir

from fusion.facts.graph import GraphView, dtype_name
from fusion.facts.semantics import Unsupported, lookup
from fusion.facts.trial.probe import Probe
from fusion.reduction import NONE, Reduction
from ir_ops.dtypes import Array, by_name, by_onnx
from ir_ops.numeric import NumpyNumeric
from ir_ops.ops import DOMAIN, OPS

MAX_RANK = 8
"""Elements of the longest constant that is taken for a shape."""


class NoFeed(Unsupported):
    """A graph input that is needed and not given."""

    def __init__(self, value: ir.Value) -> None:
        super().__init__(f"no feed for {value.name}")
        self.value = value


class WideNumeric(NumpyNumeric):
    """The numpy backend with float64 in place of every float type but the 8-bit ones.

    Args:
        names: id of an input array -> the type it stands for; layouts depend on it.
    """

    def __init__(self, names: Mapping[int, str]) -> None:
        self._names = names

    def dtype(self, x: Array) -> str:
        return self._names.get(id(x)) or super().dtype(x)

    def cast(self, x: Array, dtype: str) -> Array:
        target = by_name(dtype)
        if target.is_float and not target.is_8bit_float:
            return x.astype(np.float64)
        return super().cast(x, dtype)

    def zeros(self, dims: Sequence[int], dtype: str) -> Array:
        return np.zeros(tuple(dims), np.float64)


class Evaluation:
    """Evaluates values from feeds.

    Args:
        view: the graph; new nodes need not be in it.
        probe: freezes integers that depend on shapes only, so that nothing outside the piece is needed.
        feeds: id of a value -> its array.
        wide: float64 instead of the graph's float types.
        reduction: sizes that the feeds have smaller than the graph.
        anew: ids of values that feeds change the shapes of: the probe is not asked for them.
    """

    def __init__(
        self, view: GraphView, probe: Probe, feeds: Mapping[int, Array], wide: bool, reduction: Reduction = NONE,
        anew: Container[int] = (),
    ) -> None:  # fmt: skip
        self.view, self.probe, self.wide, self.reduction, self._anew = view, probe, wide, reduction, anew
        self._memo: dict[int, Array] = dict(feeds)

    def value(self, value: ir.Value) -> Array:
        """The array of a value.

        Raises:
            Unsupported: an operator that numpy is not taught, or a graph input without a feed.
        """
        stack = [value]
        operands: list[Array | None]
        while stack:
            top = stack[-1]
            if id(top) in self._memo:
                stack.pop()
                continue
            leaf = self._leaf(top)
            if leaf is not None:
                self._memo[id(top)] = leaf
                stack.pop()
                continue
            node = top.producer()
            if node is None:
                raise NoFeed(top)
            missing = [item for item in node.inputs if item is not None and id(item) not in self._memo]
            if missing and node.op_type in ("Shape", "Size") and id(missing[0]) not in self._anew:
                # the content may be asked for later: only the shape is known
                operands = [self._shape_only(missing[0])]
            elif missing:
                stack.extend(missing)
                continue
            else:
                operands = [None if item is None else self._memo[id(item)] for item in node.inputs]
            stack.pop()
            with np.errstate(all="ignore"):
                results = self._run(node, operands)
            for output, result in zip(node.outputs, results, strict=False):
                self._memo[id(output)] = np.asarray(result)
        return self._memo[id(value)]

    def _shape_only(self, value: ir.Value) -> Array:
        """An array without storage for a value of which only the shape is asked."""
        shape = self.probe.shape(value)
        if shape is None:
            raise Unsupported(f"the shape of {value.name} is not known")
        return np.broadcast_to(np.zeros((), np.float64), shape)

    def _leaf(self, value: ir.Value) -> Array | None:
        tensor = self.view.tensor(value) if value.const_value is None else value.const_value
        if tensor is not None:
            array = self._at_trial_size(value, np.asarray(tensor.numpy()))
            return self.reduction.constant(id(value), self._typed(array))
        node = value.producer()
        if node is None or node.graph is None or id(value) in self._anew or self.probe.is_given(value):
            return None
        known = self.probe.known(value)
        if known.array is not None and not known.taint:
            return self.reduction.constant(id(value), self._typed(known.array))
        return None

    def _at_trial_size(self, value: ir.Value, array: Array) -> Array:
        """A constant of the graph as the probe reads it; in a new one, shapes may name the sizes that it shrinks."""
        is_new_shape = value.producer() is None and not value.is_initializer() and array.size <= MAX_RANK
        shrinks = id(value) in self.view.shrunk or is_new_shape
        return self.probe.sizes.shrunk.array(array) if shrinks else array

    def _typed(self, array: Array) -> Array:
        if self.wide and array.dtype.kind in "fV" and array.dtype.itemsize > 1:
            return array.astype(np.float64)
        return array

    def _run(self, node: ir.Node, operands: Sequence[Array | None]) -> Sequence[Array]:
        return run_node(node, operands, self.view.attrs(node), self.wide)


def run_node(node: ir.Node, operands: Sequence[Array | None], attrs: Mapping[str, Any], wide: bool) -> Sequence[Array]:
    """The results of one node, fused or not; ``wide``: in float64.

    Raises:
        Unsupported: an operator that numpy is not taught.
    """
    if node.domain == DOMAIN:
        return _run_fused(node, operands, attrs, wide)
    definition = lookup(node.domain, node.op_type)
    if definition is None:
        raise Unsupported(f"{node.op_type} is not understood")
    return definition.run({**attrs, "@wide": wide}, list(operands))


def _run_fused(
    node: ir.Node, operands: Sequence[Array | None], attrs: Mapping[str, Any], wide: bool
) -> Sequence[Array]:
    operator = OPS[node.op_type]
    inputs = {entry.name: item for entry, item in zip(operator.inputs, operands, strict=False) if item is not None}
    given = {name: item for name, item in attrs.items() if not name.startswith("@")}
    if wide:
        names = {id(array): dtype_name(value) for array, value in zip(operands, node.inputs, strict=True)}
        results = operator.compute(WideNumeric(names), inputs, operator.with_defaults(given))
    else:
        results = operator.reference(inputs, given)
    return [results[output.name] for output in operator.outputs]


def typed(array: Array, value: ir.Value, wide: bool) -> Array:
    """``array`` in the type a value has, or in float64 for floats when ``wide``."""
    if value.dtype is None:
        return array
    target = by_onnx(int(value.dtype))
    if wide and target.is_float and not target.is_8bit_float:
        return array.astype(np.float64, copy=False)
    return array.astype(target.np, copy=False)
