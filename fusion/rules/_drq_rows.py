"""x of a DequantRopeQuantKvcache node, and what an int32 x is dequantised with."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import onnx_ir as ir

from fusion.candidate import Refused
from fusion.facts.graph import dtype_name, uses
from fusion.facts.quantised.dequantised import Dequantised
from fusion.facts.semantics import lookup
from fusion.facts.symbols.operand import Columns
from fusion.facts.symbols.parameters import Part, Scale
from fusion.rules import _cache_op as common
from fusion.rules._drq_frame import Frame
from fusion.surgery.packing import Join, side_by_side
from ir_ops.dtypes import Array, by_name

CONTENT = 1 << 16
"""Elements of the longest parameter vector that is read."""


class RowOperands:
    """Builds x, weight_scale, activation_scale and bias; ``joins`` is what packing needs."""

    def __init__(self, frame: Frame, notes: list[str]) -> None:
        self.frame, self.emit, self.notes = frame, frame.emit, notes
        self.joins: list[Join] = []

    # x --------------------------------------------------------------------------------------------------------------

    def x(self) -> ir.Value:
        """Query, key and value heads side by side, ``[B, S, H]`` or ``[T, H]``."""
        columns = self.frame.columns
        first = columns[0]
        side_by_side = all(
            item.value is first.value and not item.by_head and item.width == first.width for item in columns
        )
        if side_by_side:
            picked = np.concatenate([item.columns.reshape(-1) for item in columns])
            if (np.diff(picked) != 1).any():
                self.notes.append("the columns of x are put into the operator's order in front of it")
            return self._by_token(first, picked, "x")
        if all(self._is_whole(item) for item in columns):
            return self._projections(columns)
        names = ("x_query", "x_key", "x_value")
        parts = [self._heads(item, name) for item, name in zip(columns, names, strict=True)]
        self.notes.append("query, key and value rows are joined in front of the operator")
        return self.emit.concat(parts, "x")

    def _is_whole(self, columns: Columns) -> bool:
        """Whether the rows are all columns of a value with a row for each token, in the operator's type."""
        frame, value = self.frame, columns.value
        of_type = id(value) in frame.sums() or (dtype_name(value) == frame.kind and not self._narrow_on_way(value))
        whole = sorted(columns.columns.reshape(-1).tolist()) == list(range(columns.width))
        return of_type and whole and not columns.by_head and len(columns.shape) == len(frame.shape(value))

    def _projections(self, columns: Sequence[Columns]) -> ir.Value:
        """Whole projections side by side: packed into one, where that is wanted, once the fusion is in the graph."""
        frame, emit = self.frame, self.emit
        rows, join = side_by_side(emit, frame.view, [item.value for item in columns], frame.own_probes(), "x")
        if join is not None:
            self.joins.append(join)
        else:
            self.notes.append("query, key and value rows are joined by a Concat: they are no projections of one value")
        starts = np.cumsum([0, *(item.width for item in columns)])
        order = np.concatenate([item.columns.reshape(-1) + at for item, at in zip(columns, starts, strict=False)])
        by_batch = join is not None and not join.flat and not frame.flat and len(columns[0].shape) == 3
        if join is not None and by_batch:
            return emit.pick_columns(join.value, order, len(order), "x_ordered")
        rows = emit.pick_columns(rows, order, len(order), "x_ordered")
        if frame.flat:
            return rows
        return emit.reshape(rows, emit.shape_vector([frame.batch_dim(), -1, len(order)], "x_shape"), "x")

    def _heads(self, columns: Columns, what: str) -> ir.Value:
        if not columns.by_head:
            return self._by_token(columns, columns.columns.reshape(-1), what)
        value = self.emit.pick_columns(self._in_type(columns.value, what), columns.columns[0], columns.width, what)
        value = self.emit.node("Transpose", [value], what + "_by_token", {"perm": [0, 2, 1, 3]})
        width = columns.columns.size
        return self.emit.reshape(value, [-1, width] if self.frame.flat else [0, 0, width], what + "_rows")

    def _by_token(self, columns: Columns, picked: Array, what: str) -> ir.Value:
        """Columns of a source whose rows are tokens."""
        value, lead = self._in_type(columns.value, what), columns.shape[:-1]
        if len(columns.shape) != len(self.frame.shape(columns.value)):
            value = self.emit.reshape(value, [*([0] * len(lead)), columns.width], what + "_joined")
        value = self.emit.pick_columns(value, picked, columns.width, what + "_columns")
        if self.frame.flat:
            return value if len(lead) == 1 else self.emit.reshape(value, [-1, len(picked)], what)
        if len(lead) == 2 and lead == self.frame.split(0):
            return value
        dims = self.emit.shape_vector([self.frame.batch_dim(), -1, len(picked)], what + "_shape")
        return self.emit.reshape(value, dims, what)

    def _in_type(self, value: ir.Value, what: str) -> ir.Value:
        """An int32 value as it is; a float one in the operator's type, converted where the graph rounds so."""
        frame, own = self.frame, dtype_name(value)
        if id(value) in frame.sums():
            return value
        narrow = self._narrow_on_way(value)
        rounded = next((kind for kind in narrow if {kind} == narrow and self._rounded(value, kind)), "")
        if rounded:
            return self.emit.cast(self.emit.cast(value, rounded, what + "_rounded"), frame.kind, what)
        if not narrow and own == frame.kind:
            return value
        if not narrow and (common.widens(own, frame.kind) or self._rounded(value, frame.kind)):
            return self.emit.cast(value, frame.kind, what)
        raise Refused(
            "mixed-types", "rows have the element type of cos", f"{own} that meets arithmetic as such", frame.kind,
            f"cast {value.name} to {frame.kind} before it is split", value,
        )  # fmt: skip

    def _rounded(self, source: ir.Value, kind: str) -> bool:
        """Whether the graph rounds the rows to a type wherever it reads them."""
        return all(dtype_name(item) == kind for item in self._way(source, kind)[1])

    def _narrow_on_way(self, source: ir.Value) -> set[str]:
        """Types narrower than the operator's that the graph rounds rows to before it computes with them."""
        kinds = {dtype_name(item) for item in self._way(source, "")[0]}
        return {kind for kind in kinds if common.widens(kind, self.frame.kind)} - {dtype_name(source)}

    def _way(self, source: ir.Value, kind: str) -> tuple[list[ir.Value], list[ir.Value]]:
        """Values that movement and Casts make of a source, up to those of type ``kind``, and the last ones among them:
        those of that type, and those that meet arithmetic.
        """
        passed, last = [source], []
        for value in passed:
            if dtype_name(value) == kind:
                last.append(value)
                continue
            for node, _ in uses(value):
                if id(node) not in self.frame.region_ids or node.op_type in ("Shape", "Size"):
                    continue
                definition = lookup(node.domain, node.op_type)
                if node.op_type == "Cast" or (definition is not None and definition.moves is not None):
                    passed += [item for item in node.outputs if all(item is not other for other in passed)]
                else:
                    last.append(value)
        return passed, last

    def _refuse_rounding(self) -> None:
        """Refuses sums whose dequantised rows the graph rounds to a type narrower than the rotation's."""
        for parts in self.frame.inputs.parts:
            root = parts[0].value
            narrow = self._narrow_on_way(root)
            if narrow:
                raise Refused(
                    "mixed-types", "dequantised rows are rotated as they are", f"rounded to {' and '.join(narrow)}",
                    self.frame.kind, "", root,
                )  # fmt: skip

    # dequantisation -------------------------------------------------------------------------------------------------

    def dequantisation(self) -> list[ir.Value | None]:
        """weight_scale, activation_scale and bias; nothing for a float x."""
        rows = self.frame.inputs.dequantised
        if rows is None:
            return [None, None, None]
        self._refuse_rounding()
        activation, left = self._activation([items[0] for items in rows])
        return [self._weight_scale([items[0] for items in rows], left), activation, self._bias([i[0] for i in rows])]

    def _activation(self, rows: Sequence[Dequantised]) -> tuple[ir.Value | None, list[list[tuple[Part, bool]]]]:
        """The scale of tokens that all rows share, and the scales of single numbers that go with the weights."""
        common_to_all = [
            factor for factor in rows[0].activation if all(_holds(other.activation, factor) for other in rows[1:])
        ]
        chosen = next((factor for factor in common_to_all if _by_token(factor[0])), None)
        chosen = chosen or next(iter(common_to_all), None)
        left = [[item for item in row.activation if chosen is None or not _same(item, chosen)] for row in rows]
        for item, _ in (factor for factors in left for factor in factors):
            if _by_token(item):
                raise Refused(
                    "dequant-scale", "one scale of tokens for queries, keys and values", f"{item.value.name} besides",
                    "one value", "", item.value,
                )  # fmt: skip
        if chosen is None:
            return None, left
        part, divides = chosen
        value = self._float32(part.value, "activation_scale")
        if divides:
            value = self.emit.node("Reciprocal", [value], "activation_scale_inverse")
        return self._per_token(value, part), left

    def _per_token(self, value: ir.Value, part: Part) -> ir.Value:
        """A scale with one element for each token."""
        position, count = part.position.reshape(-1), int(np.prod(part.source.shape))
        tokens = self.frame.inputs.key.write.probes[0].source.shape[0]
        if not _by_token(part):
            flat = self.emit.reshape(value, [-1], "activation_flat")
            number = self.emit.pick_columns(flat, position[:1], count, "activation_number")
            return self.emit.node("Expand", [number, self._count()], "activation_scale")
        if count == tokens and (position == np.arange(tokens)).all():
            return value if len(part.source.shape) == 1 else self.emit.reshape(value, [-1], "activation_scale")
        raise Refused(
            "dequant-scale", "the scale of tokens has one element for each, in their order",
            f"{list(part.source.shape)}", f"[{tokens}]", "", part.value,
        )  # fmt: skip

    def _count(self) -> ir.Value:
        """The number of tokens as a shape."""
        frame = self.frame
        dims = [frame.batch_dim(), frame.tokens_dim()]
        if all(isinstance(dim, int) for dim in dims):
            return self.emit.ints([int(np.prod([dim for dim in dims if isinstance(dim, int)]))], "token_count")
        vectors = [self.emit.ints([dim], "token_dim") if isinstance(dim, int) else dim for dim in dims]
        return self.emit.node("Mul", vectors, "token_count", dtype=ir.DataType.INT64)

    def _weight_scale(self, rows: Sequence[Dequantised], numbers: list[list[tuple[Part, bool]]]) -> ir.Value:
        whole = self._whole([row.weight for row in rows]) if not any(numbers) else None
        if whole is not None:
            return whole
        scales = []
        for row, factors in zip(rows, numbers, strict=True):
            count = row.sums.position[0].size
            scale = Scale(1.0 if row.weight is None else row.weight.number, [])
            scale.parts += [] if row.weight is None else row.weight.parts
            scale.parts += [(Part(part.source, part.position[0]), divides) for part, divides in factors]
            scales.append(self.vector(scale, count, "weight_scale"))
        return self._joined(scales, "weight_scale")

    def _whole(self, scales: Sequence[Scale | None]) -> ir.Value | None:
        """The graph's own vector, where it has one number for each column of x in the operator's order."""
        parts = [
            scale.parts[0] for scale in scales if scale is not None and len(scale.parts) == 1 and scale.number == 1
        ]
        if len(parts) != len(scales) or any(divides for _, divides in parts):
            return None
        return self._whole_value([part for part, _ in parts], "weight_scale")

    def _whole_value(self, parts: Sequence[Part], what: str) -> ir.Value | None:
        value, shape = parts[0].value, parts[0].source.shape
        position = np.concatenate([part.position.reshape(-1) for part in parts])
        in_order = len(position) == int(np.prod(shape)) and (position == np.arange(len(position))).all()
        if not in_order or any(part.value is not value for part in parts):
            return None
        if what == "weight_scale":
            value = self._float32(value, what)
        return value if len(shape) == 1 else self.emit.reshape(value, [-1], what)

    def _bias(self, rows: Sequence[Dequantised]) -> ir.Value | None:
        biases = [row.bias for row in rows]
        if all(bias is None for bias in biases):
            return None
        kinds = {dtype_name(bias.value) for bias in biases if bias is not None}
        if len(kinds) > 1 and "int32" in kinds:
            raise Refused(
                "dequant-bias", "the biases are of one kind", "int32 and float biases", "all int32 or all float"
            )
        kind = kinds.pop() if len(kinds) == 1 else "float32"
        given = [bias for bias in biases if bias is not None]
        whole = self._whole_value(given, "bias") if len(given) == len(biases) else None
        if whole is not None:
            return whole
        vectors: list[Array | ir.Value] = []
        for row in rows:
            count = row.sums.position[0].size
            if row.bias is None:
                vectors.append(np.zeros(count, by_name(kind).np))
            else:
                vectors.append(self._picked(row.bias, count, kind, "bias"))
        return self._joined(vectors, "bias")

    # vectors --------------------------------------------------------------------------------------------------------

    def vector(self, scale: Scale, count: int, what: str, exact: bool = True) -> Array | ir.Value:
        """``count`` float32 numbers: a constant where they are constants that can be read.

        Args:
            exact: a constant only where float32 holds the product as it is; else it is computed in the graph.
        """
        total = self._folded(scale, count)
        if total is not None:
            rounded = np.asarray(total.astype(np.float32))
            if not exact or np.array_equal(rounded.astype(np.float64), total):
                self.emit.copied |= {id(part.value) for part, _ in scale.parts}
                return rounded
        result: ir.Value | None = None
        if scale.number != 1:
            result = self.emit.constant(np.full(count, scale.number, np.float32), what + "_number")
        for part, divides in scale.parts:
            picked = self._picked(part, count, "float32", what)
            vector = self.emit.constant(picked, what) if isinstance(picked, np.ndarray) else picked
            if result is None:
                result = self.emit.node("Reciprocal", [vector], what + "_inverse") if divides else vector
            else:
                result = self.emit.node("Div" if divides else "Mul", [result, vector], what + "_product")
        assert result is not None
        return result

    def _folded(self, scale: Scale, count: int) -> Array | None:
        total = np.full(count, scale.number)
        for part, divides in scale.parts:
            content = self.frame.view.folded(part.value, CONTENT)
            if content is None:
                return None
            numbers = content.reshape(-1)[np.broadcast_to(part.position, _shape(part, count)).reshape(-1)]
            with np.errstate(divide="ignore"):
                total = total / numbers.astype(np.float64) if divides else total * numbers.astype(np.float64)
        return total

    def _picked(self, part: Part, count: int, kind: str, what: str) -> Array | ir.Value:
        position = np.broadcast_to(part.position, _shape(part, count)).reshape(-1)
        content = self.frame.view.folded(part.value, CONTENT)
        if content is not None:
            self.emit.copied.add(id(part.value))
            return np.asarray(content.reshape(-1)[position].astype(by_name(kind).np))
        flat = self.emit.reshape(self.emit.cast(part.value, kind, what + "_wide"), [-1], what + "_flat")
        return self.emit.pick_columns(flat, position, int(np.prod(part.source.shape)), what + "_picked")

    def _joined(self, vectors: Sequence[Array | ir.Value], what: str) -> ir.Value:
        arrays = [item for item in vectors if isinstance(item, np.ndarray)]
        if len(arrays) == len(vectors):
            return self.emit.constant(np.concatenate(arrays), what)
        values = [
            self.emit.constant(item, what + "_part") if isinstance(item, np.ndarray) else item for item in vectors
        ]
        return self.emit.concat(values, what, axis=0)

    def _float32(self, value: ir.Value, what: str) -> ir.Value:
        return self.emit.cast(value, "float32", what + "_wide")


def _shape(part: Part, count: int) -> tuple[int, ...]:
    """What ``part.position`` is broadcast to for ``count`` columns."""
    return (count // part.position.shape[-1], part.position.shape[-1]) if part.position.size != 1 else (1, count)


def _by_token(part: Part) -> bool:
    return bool((part.position != part.position[:1]).any())


def _same(a: tuple[Part, bool], b: tuple[Part, bool]) -> bool:
    return a[0].value is b[0].value and a[1] == b[1] and np.array_equal(a[0].position, b[0].position)


def _holds(factors: Sequence[tuple[Part, bool]], factor: tuple[Part, bool]) -> bool:
    return any(_same(item, factor) for item in factors)
