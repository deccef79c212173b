"""One trial evaluation of the graph: concrete sizes and integers, shapes for everything else.

Integers and booleans are computed, floats only when they come from integers or scalars; a large or unknown float is a
shape. ``taint`` marks what depends on the *data* of a graph input and not only on shapes.
"""

from __future__ import annotations

import math
from collections.abc import Hashable, Sequence
from dataclasses import dataclass, replace

import numpy as np
import onnx_ir as ir

from fusion.facts.graph import GraphView, dims_of, dtype_name
from fusion.facts.semantics import Conflict, OpDef, OutOfRange, Unsupported, lookup
from fusion.facts.semantics.table import broadcast_shape, stand_in
from fusion.facts.trial.sizes import Sizes
from ir_ops.dtypes import Array, by_name

COUNTS = (37, 31, 47)
"""How many elements the data choose, by seed, where they are not known: no size, sum or product of others is one."""
MOST = 1 << 26
"""Numbers of the largest integer input that is given data."""
_WRITTEN_OVER = ("ScatterND", "ScatterElements", "Scatter", "TensorScatter")
"""Operators whose result has the shape of their first operand, whatever else they are given."""
CONCRETE = 1 << 16
"""Float results of more elements are kept as shapes."""


@dataclass
class Known:
    """What a probe knows of a value: its array, or only its shape, or nothing (shape None).

    ``taint`` is of the content; ``loose`` of the shape: it is one that the data may give, another call has another.
    """

    shape: tuple[int, ...] | None
    array: Array | None = None
    taint: bool = False
    why: str = ""
    loose: bool = False


UNKNOWN = Known(None, None, True, "an operator that is not understood")


@dataclass(frozen=True)
class Numbers:
    """Data of integer inputs: distinct numbers below ``cap``, at most one in each run of ``stride``."""

    cap: int
    stride: int = 1

    def draw(self, rng: np.random.Generator, shape: tuple[int, ...]) -> Array:
        """Where the numbers do not suffice for the whole tensor they are distinct along the last axis."""
        count, pool = math.prod(shape), self.cap // self.stride
        if count <= pool:
            data = rng.permutation(pool)[:count]
        else:
            each = shape[-1] if shape else 1
            data = np.concatenate([rng.permutation(max(pool, each))[:each] for _ in range(count // max(each, 1))])
        return (data * self.stride + rng.integers(0, self.stride, count)).reshape(shape)


def _sizes_by_data(node: ir.Node, operands: Sequence[Known | None]) -> bool:
    """Whether the data say how many elements a node gives: those that are not 0, or each of so many."""
    place = {"NonZero": 0, "Slice": 4}.get(node.op_type)
    told = operands[place] if place is not None and place < len(operands) else None
    return told is not None and told.taint


class Probe:
    """Evaluates values on demand and remembers them, by trial number: what is computed alike is computed once.

    Args:
        view: the graph.
        seed: chooses sizes and integer data; two seeds must agree before anything is believed.
        sizes: symbol sizes; they are not changed by the probe, and must not be while it is in use.
        numbers: what integer inputs hold.
    """

    def __init__(self, view: GraphView, seed: int, sizes: Sizes, numbers: Numbers) -> None:
        self.view, self.seed, self.sizes, self.numbers = view, seed, sizes, numbers
        self.overrides: dict[int, Array] = {}
        """Trial number of a value -> what it holds instead of what is computed."""
        self._base: Probe | None = None
        self._memo: dict[int, Known] = {}
        self._given_up: set[int] = set()
        self._alike: dict[Hashable, list[Known]] = {}
        self._one: dict[Hashable, Known] = {}

    def with_data(self, value: ir.Value, data: Array) -> Probe:
        """The same trial with other numbers in one value. Shapes stay: data that changes them is not followed."""
        variant = Probe(self.view, self.seed, self.sizes, self.numbers)
        variant._given_up = self._given_up
        variant.overrides = {**self.overrides, self.view.trial_number(value): data}
        variant._base = self
        return variant

    def resized(self, sizes: Sizes) -> Probe:
        """The same trial with other sizes."""
        variant = Probe(self.view, self.seed, sizes, self.numbers)
        variant._given_up = self._given_up
        return variant

    def input_shape(self, value: ir.Value) -> tuple[int, ...] | None:
        dims = dims_of(value)
        if dims is None:
            return None
        shape = tuple(
            dim if isinstance(dim, int) else self.sizes.size(symbol_name(value, axis, dim))
            for axis, dim in enumerate(dims)
        )
        return self.sizes.shrunk.shape(shape) if id(value) in self.view.shrunk else shape

    def give_up(self, node: object) -> None:
        """From now on the results of a node, and of nodes that compute the same, count as unknown."""
        assert isinstance(node, ir.Node)
        self._given_up.add(self.view.trial_number(node.outputs[0]))

    def known(self, value: ir.Value) -> Known:
        """What the probe knows of ``value``. Raises Conflict when sizes on the way disagree."""
        number, memo = self.view.trial_number, self._memo
        wanted = number(value)
        found = memo.get(wanted)
        if found is not None:
            return found
        stack = [(value, wanted)]
        while stack:
            top, own = stack[-1]
            if own in memo:
                stack.pop()
                continue
            ready = self._ready(top)
            if ready is not None:
                memo[own] = self._shared(ready)
                stack.pop()
                continue
            node = top.producer()
            assert node is not None
            numbers = [None if item is None else number(item) for item in node.inputs]
            missing = {its: item for item, its in zip(node.inputs, numbers, strict=True)
                       if its is not None and its not in memo}  # fmt: skip
            if missing:
                stack.extend((item, its) for its, item in missing.items() if item is not None)
                continue
            stack.pop()
            try:
                results = self._results_of(node, [None if its is None else memo[its] for its in numbers])
            except Conflict as conflict:
                conflict.place = node
                raise
            for output, result in zip(node.outputs, results, strict=True):
                memo[number(output)] = result
        return memo[wanted]

    def _results_of(self, node: ir.Node, operands: list[Known | None]) -> list[Known]:
        """Evaluates a node; one that is known from another layer, with other operands of which as much is known."""
        if self._given_up:
            return self._evaluate(node, operands)
        key = (self.view.trial_kind(node), *map(id, operands))
        results = self._alike.get(key)
        if results is None:
            results = self._alike[key] = [self._shared(item) for item in self._evaluate(node, operands)]
        return results

    def _shared(self, known: Known) -> Known:
        """One object for all values of which the same shape, and nothing else, is known."""
        if known.array is not None:
            return known
        return self._one.setdefault((known.shape, known.taint, known.why, known.loose), known)

    def _ready(self, value: ir.Value) -> Known | None:
        """What is known of a value without evaluating its node."""
        if value.producer() is None or self.view.is_constant(value) or self._override(value) is not None:
            return self._leaf(value)
        if self._base is None:
            return None
        known = self._base.known(value)
        return None if known.taint and known.array is not None else known

    def _override(self, value: ir.Value) -> Array | None:
        return self.overrides.get(self.view.trial_number(value)) if self.overrides else None

    def is_given(self, value: ir.Value) -> bool:
        """Whether the value holds data given by :meth:`with_data`."""
        return self._override(value) is not None

    def shape(self, value: ir.Value) -> tuple[int, ...] | None:
        return self.known(value).shape

    def array(self, value: ir.Value) -> Array | None:
        return self.known(value).array

    def _leaf(self, value: ir.Value) -> Known:
        override = self._override(value)
        if override is not None:
            return Known(override.shape, override, True)
        tensor = self.view.tensor(value)
        if tensor is not None:
            shape, array = tuple(tensor.shape.numpy()), self.view.structural(value)
            if id(value) in self.view.shrunk:
                shape = self.sizes.shrunk.shape(shape)
                array = None if array is None else self.sizes.shrunk.array(array)
            return Known(shape, array)
        shape_or_none = self.input_shape(value)
        if shape_or_none is None:
            return UNKNOWN
        return Known(shape_or_none, self._input_data(value, shape_or_none), True)

    def _input_data(self, value: ir.Value, shape: tuple[int, ...]) -> Array | None:
        name = dtype_name(value)
        if name not in ("int64", "int32") or math.prod(shape) > MOST:
            return None
        rng = np.random.default_rng([self.seed, len(value.name or ""), *map(ord, (value.name or "")[-8:])])
        return self.numbers.draw(rng, shape).astype(by_name(name).np)

    def _evaluate(self, node: ir.Node, operands: list[Known | None]) -> list[Known]:
        """The results of a node; their shapes are loose where those of its operands are, or the data count."""
        results = self._evaluated(node, operands)
        first = operands[0] if operands else None
        if node.op_type in _WRITTEN_OVER:
            loose = first is not None and first.loose
        else:
            loose = _sizes_by_data(node, operands) or any(item is not None and item.loose for item in operands)
        return [replace(item, loose=True) for item in results] if loose else results

    def _evaluated(self, node: ir.Node, operands: list[Known | None]) -> list[Known]:
        definition = lookup(node.domain, node.op_type)
        taint = any(item is not None and item.taint for item in operands)
        given_up = bool(self._given_up) and self.view.trial_number(node.outputs[0]) in self._given_up
        if given_up and (node.op_type == "Where" or (definition is not None and definition.kind == "elementwise")):
            shapes = [item.shape for item in operands if item is not None and item.shape is not None]
            if len(shapes) == len(operands):
                return [Known(_widest(shapes), None, True, "sizes that contradict each other", loose=True)]
        if definition is None or given_up:
            return [self._declared(output, taint) for output in node.outputs]
        if node.op_type in ("Shape", "Size"):
            taint = any(item is not None and item.loose for item in operands)
        if any(item is not None and item.shape is None for item in operands):
            first = operands[0]
            if node.op_type in _WRITTEN_OVER and first is not None and first.shape is not None:
                return [Known(first.shape, None, True)]
            return [self._declared(output, taint) for output in node.outputs]
        try:
            return self._results(node, definition, operands, taint)
        except Conflict:
            # where a size of a cache has been shrunk, what meets the cache has to be
            shrunk = [None if item is None else self._shrunk(item) for item in operands]
            if all(small is item for small, item in zip(shrunk, operands, strict=True)):
                raise
            return self._results(node, definition, shrunk, taint)

    def _shrunk(self, known: Known) -> Known:
        """The same with small sizes for large ones; itself when it has no large ones."""
        shrunk = self.sizes.shrunk
        shape, array = shrunk.shape(known.shape or ()), known.array
        if array is not None:
            array = shrunk.array(array)
            same = array.shape == known.shape and np.array_equal(array, known.array)  # type: ignore[arg-type]
        else:
            same = shape == known.shape
        return known if same else Known(shape, array, known.taint, known.why)

    def _results(self, node: ir.Node, definition: OpDef, operands: list[Known | None], taint: bool) -> list[Known]:
        attrs = self.view.attrs(node)
        try:
            if self._computable(node, operands):
                arrays = [None if item is None else _stand_in(item) for item in operands]
                with np.errstate(all="ignore"):
                    results = definition.run(attrs, arrays)
                return self._pad(node, [Known(item.shape, item, taint) for item in map(np.asarray, results)])
            return self._pad(node, self._shapes_only(node, definition, operands, taint))
        except OutOfRange as error:
            # position and block tables are indexed by numbers that were chosen for slots: the shape is enough
            return self._pad(
                node, [Known(item.shape, None, True, str(error)) for item in self._index_unknown(node, operands, True)]
            )
        except Unsupported as error:
            try:
                return self._pad(node, self._shapes_only(node, definition, operands, taint))
            except (OutOfRange, Unsupported):
                known = [self._declared(output, taint) for output in node.outputs]
                return [Known(item.shape, None, True, str(error)) for item in known]

    def _computable(self, node: ir.Node, operands: list[Known | None]) -> bool:
        if node.op_type in ("Shape", "Size"):
            return True
        if any(item is not None and item.array is None for item in operands):
            return False
        return all(item is None or item.array is None or item.array.size <= CONCRETE for item in operands)

    def _shapes_only(self, node: ir.Node, definition: OpDef, operands: list[Known | None], taint: bool) -> list[Known]:
        """Shapes of the outputs, from dummies of no storage in place of what is not concrete."""
        if definition.kind == "elementwise" and definition.shapes is None:
            shapes = [item.shape for item in operands if item is not None and item.shape is not None]
            return [Known(broadcast_shape(*shapes), None, taint)]
        moves = definition.moves
        moved = set(range(len(operands))) if moves == (-1,) else set(moves or ())
        dummies: list[Array | None] = []
        for position, item in enumerate(operands):
            if item is None:
                dummies.append(None)
            elif position in moved or item.array is None:
                if definition.kind == "move" and position not in moved:
                    return self._index_unknown(node, operands, taint)
                dummies.append(stand_in(item.shape or ()))
            else:
                dummies.append(item.array)
        attrs = {**self.view.attrs(node), "@some": COUNTS[self.seed % len(COUNTS)]}
        if definition.kind == "move":
            return [Known(item.shape, None, taint) for item in definition.run(attrs, dummies)]
        if definition.shapes is not None:
            return [Known(shape, None, taint) for shape in definition.shapes(attrs, dummies)]
        return [Known(broadcast_shape(*(item.shape for item in dummies if item is not None)), None, taint)]

    def _index_unknown(self, node: ir.Node, operands: list[Known | None], taint: bool) -> list[Known]:
        """A gather or scatter whose index has no value: its shape can still be told."""
        first, second = operands[0], operands[1] if len(operands) > 1 else None
        assert first is not None and first.shape is not None
        if node.op_type == "Gather" and second is not None and second.shape is not None:
            axis = int(self.view.attrs(node).get("axis", 0)) % max(len(first.shape), 1)
            return [Known(first.shape[:axis] + second.shape + first.shape[axis + 1 :], None, True)]
        if node.op_type == "GatherND" and second is not None and second.shape is not None:
            batch = int(self.view.attrs(node).get("batch_dims", 0))
            return [Known(second.shape[:-1] + first.shape[batch + second.shape[-1] :], None, True)]
        if node.op_type == "GatherElements" and second is not None:
            return [Known(second.shape, None, True)]
        if node.op_type in _WRITTEN_OVER:
            return [Known(first.shape, None, True)]
        if node.op_type == "Where":
            return [
                Known(
                    broadcast_shape(*(item.shape for item in operands if item and item.shape is not None)), None, True
                )
            ]
        return [self._declared(output, True) for output in node.outputs]

    def _declared(self, value: ir.Value, taint: bool) -> Known:
        """What value_info says, when every dim is static and none is 0 (exporters print unknown dims as 0)."""
        dims = self.view.declared(value)
        if dims is None:
            return Known(None, None, taint, "its shape is not known")
        return Known(dims, None, taint)

    @staticmethod
    def _pad(node: ir.Node, results: list[Known]) -> list[Known]:
        return (results + [UNKNOWN] * len(node.outputs))[: len(node.outputs)]


def _widest(shapes: Sequence[tuple[int, ...]]) -> tuple[int, ...]:
    """The broadcast of shapes that do not agree: what is behind the node runs at other sizes, and has this rank."""
    rank = max(len(shape) for shape in shapes)
    padded = [(1,) * (rank - len(shape)) + shape for shape in shapes]
    return tuple(max(sizes) for sizes in zip(*padded, strict=True))


def _stand_in(known: Known) -> Array:
    """The array, or one of no storage that has its shape."""
    return known.array if known.array is not None else stand_in(known.shape or ())


def symbol_name(value: ir.Value, axis: int, dim: str | None) -> str:
    """The symbol of a graph input's dim; a dim without a name is a symbol of its own."""
    return dim if dim else f"{value.name}.{axis}"
