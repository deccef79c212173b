"""The operands of a QkvRmsNormRopeCache node, built from the sources of its site."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
import onnx_ir as ir

from fusion.candidate import Refused
from fusion.facts.caches.rows import Row
from fusion.facts.graph import dtype_name
from fusion.facts.symbols.operand import Columns, Table
from fusion.facts.symbols.parameters import Scale
from fusion.rules import _cache_op as common
from fusion.rules._gamma import weight
from fusion.rules._qkv_frame import Frame, Turned
from fusion.rules._tables import table_rows
from fusion.surgery.packing import Join, side_by_side
from ir_ops.dtypes import Array

MOST = 1 << 16
"""Elements of the largest parameter that is read."""


@dataclass
class _Piece:
    """Columns ``picked`` of one source that stand next to each other in the operator's row."""

    columns: Columns
    picked: Array

    @property
    def is_whole(self) -> bool:
        return sorted(self.picked.tolist()) == list(range(self.columns.width))


class Operands:
    """Builds operands in the frame of a site; ``notes`` and ``joins`` collect what the report and packing need."""

    def __init__(self, frame: Frame) -> None:
        self.frame, self.emit, self.view = frame, frame.emit, frame.view
        self.notes: list[str] = []
        self.joins: list[Join] = []

    def all(self, caches: Sequence[ir.Value]) -> list[ir.Value | None]:
        """All operands in the operator's order, without absent ones at the end; q_out is left to the runtime."""
        frame = self.frame
        key, value = frame.rows
        heads = frame.heads
        operands = [
            self.qkv(),
            self.gamma(frame.q, "q_gamma"),
            self.gamma(frame.k, "k_gamma"),
            self.table(frame.cos, "cos"),
            self.table(frame.sin, "sin"),
            common.flat_index(self.emit, key.write),
            None,
            *caches,
            self.divisor(key, heads[1], "k_scale"),
            self.divisor(value, heads[2], "v_scale"),
            self.offset(key, heads[1], "k_offset"),
            self.offset(value, heads[2], "v_offset"),
        ]
        while operands[-1] is None:
            operands.pop()
        return operands

    # rows ----------------------------------------------------------------------------------------------------------

    def qkv(self) -> ir.Value:
        """Queries, keys and values side by side, ``[T, Nqkv * D]``."""
        pieces = self._pieces()
        values = [piece.columns.value for piece in pieces]
        plain = all(not item.columns.by_head and self._is_flat(item.columns) and item.is_whole for item in pieces)
        if plain and all(dtype_name(value) == self.frame.kind for value in values):
            return self._whole(pieces, values)
        rows = [self._rows(piece, f"qkv_part{number}") for number, piece in enumerate(pieces)]
        if len(rows) > 1:
            self.notes.append("parts of qkv are joined by a Concat: they are no whole projections")
        return self.emit.concat(rows, "qkv")

    def _pieces(self) -> list[_Piece]:
        pieces: list[_Piece] = []
        for columns in (self.frame.q.columns, self.frame.k.columns, self.frame.v):
            last = pieces[-1] if pieces else None
            picked = columns.columns.reshape(-1)
            if last is not None and _alike(last.columns, columns) and not columns.by_head:
                last.picked = np.concatenate([last.picked, picked])
            else:
                pieces.append(_Piece(columns, picked))
        return pieces

    def _is_flat(self, columns: Columns) -> bool:
        """Whether a source has its rows along its own last axis."""
        return len(columns.shape) == len(self.frame.shape(columns.value))

    def _whole(self, pieces: list[_Piece], values: list[ir.Value]) -> ir.Value:
        """All columns of each source; what order they need is one Gather behind."""
        joined, join = side_by_side(self.emit, self.view, values, self.frame.own_probes(), "qkv")
        if join is not None:
            self.joins.append(join)
        elif len(values) > 1:
            self.notes.append(
                "parts of qkv are joined by a Concat: they are no projections of one value by constant weights"
            )
        starts = np.cumsum([0, *(piece.columns.width for piece in pieces)])
        order = np.concatenate([piece.picked + start for piece, start in zip(pieces, starts, strict=False)])
        return self._ordered(joined, order, "qkv")

    def _ordered(self, value: ir.Value, order: Array, part: str) -> ir.Value:
        if sorted(order.tolist()) == list(range(len(order))) and (np.diff(order) != 1).any():
            self.notes.append("the columns of qkv are put into the operator's order in front of it")
        return self.emit.pick_columns(value, order, int(order.max()) + 1, part + "_ordered")

    def _rows(self, piece: _Piece, part: str) -> ir.Value:
        """The picked columns of a source as ``[T, columns]`` in token order."""
        columns, frame = piece.columns, self.frame
        value = common.in_type(self.emit, self.view, columns.value, frame.kind, frame.region_ids, part)
        if columns.by_head:
            heads, each = columns.columns.shape
            value = self.emit.pick_columns(value, columns.columns[0], columns.width, part + "_columns")
            value = self.emit.node("Transpose", [value], part + "_by_token", {"perm": [0, 2, 1, 3]})
            return self.emit.reshape(value, [-1, heads * each], part)
        value = self.emit.reshape(value, [-1, columns.width], part)
        return self.emit.pick_columns(value, piece.picked, columns.width, part + "_columns")

    # cos and sin, gamma --------------------------------------------------------------------------------------------

    def table(self, table: Table, name: str) -> ir.Value:
        """cos or sin as ``[T, D]``."""
        frame = self.frame
        value, shape = table_rows(frame, table, name)
        width = len(table.columns)
        if not table.per_batch and self._batch_is_one():
            table = replace(table, per_batch=True)
        if not (table.per_batch and (table.per_token or self._one_token())):
            dims = [-1 if table.per_batch else 1, -1 if table.per_token else 1, width]
            rows = self.emit.reshape(value, dims, name + "_rows")
            batch, tokens = frame.dims(name)
            target = self.emit.shape_vector([batch, tokens, 1], name + "_shape")
            value, shape = self.emit.node("Expand", [rows, target], name + "_spread"), ()
        return value if len(shape) == 2 else self.emit.reshape(value, [-1, width], name)

    def _batch_is_one(self) -> bool:
        return all(self.frame.split(number)[0] == 1 for number in range(len(self.frame.own_probes())))

    def _one_token(self) -> bool:
        return all(self.frame.split(number)[1] == 1 for number in range(len(self.frame.own_probes())))

    def gamma(self, rows: Turned, name: str) -> ir.Value:
        """gamma in column order; ones for a norm without one."""
        gamma, frame = rows.norm.gamma, self.frame
        shape = () if gamma is None else frame.shape(gamma)
        return weight(self.emit, self.view, rows.norm, shape, rows.gamma, frame.kind, name)

    # quantisation --------------------------------------------------------------------------------------------------

    def divisor(self, row: Row, heads: int, name: str) -> ir.Value | None:
        """The scale as the operator wants it, a divisor; ones for an int8 cache without a scale."""
        scale = row.views[0].scale
        if scale is None:
            return self._filled(heads, name, 1.0) if row.peeled is not None else None
        if scale.number == 0:
            raise Refused("quant-scale", f"{name} divides", "a factor of 0", "a finite divisor", "", row.start)
        inverse = Scale(1.0 / scale.number, [(part, not divides) for part, divides in scale.parts])
        value = self._parameter(inverse, heads, name)
        if inverse.divides or inverse.number != 1.0:
            self.notes.append(f"{name} is the reciprocal of the graph's factor (int8 within one step)")
        return value

    def offset(self, row: Row, heads: int, name: str) -> ir.Value | None:
        offset = row.views[0].offset
        return None if offset is None else self._parameter(offset, heads, name)

    def _filled(self, heads: int, name: str, number: float) -> ir.Value:
        return self.emit.constant(np.full((heads, self.frame.width), number, np.float32), name)

    def _parameter(self, scale: Scale, heads: int, name: str) -> ir.Value:
        """A parameter as ``[N, D]`` of float32: the graph's own value where it has that form, else put together."""
        contents = [self.view.folded(part.value, MOST) for part, _ in scale.parts]
        known = [content for content in contents if content is not None]
        if len(known) == len(contents):
            total = np.full((heads, self.frame.width), scale.number)
            with np.errstate(all="ignore"):
                for (part, divides), content in zip(scale.parts, known, strict=True):
                    numbers = content.reshape(-1)[part.position].astype(np.float64)
                    total = total / numbers if divides else total * numbers
            self._refuse_useless(total.astype(np.float32), name, scale)
        own = self._as_it_is(scale, heads)
        if own is not None:
            return own
        if len(known) == len(contents):
            self.emit.copied.update(id(part.value) for part, _ in scale.parts)
            return self.emit.constant(total.astype(np.float32), name)
        result = None if scale.number == 1.0 else self._filled(heads, name + "_number", scale.number)
        for part, divides in scale.parts:
            vector = self._picked(part.value, part.position, name)
            if result is None:
                result = self.emit.node("Reciprocal", [vector], name + "_inverse") if divides else vector
            else:
                result = self.emit.node("Div" if divides else "Mul", [result, vector], name + "_product")
        assert result is not None
        return result

    def _refuse_useless(self, numbers: Array, name: str, scale: Scale) -> None:
        """A divisor of 0, infinity or NaN has no meaning in the operator's contract (QKV-18)."""
        is_scale = name.endswith("_scale")
        if np.isfinite(numbers).all() and not (is_scale and (numbers == 0).any()):
            return
        place = scale.parts[0][0].value if scale.parts else None
        found = "0, infinity or NaN in it"
        raise Refused("quant-scale", f"{name} is finite and not 0", found, "finite numbers other than 0", "", place)

    def _as_it_is(self, scale: Scale, heads: int) -> ir.Value | None:
        """The graph's own value when it is the whole parameter in float32 and in order."""
        if scale.number != 1.0 or len(scale.parts) != 1 or scale.parts[0][1]:
            return None
        part = scale.parts[0][0]
        shape = (heads, self.frame.width)
        in_order = np.array_equal(part.position, np.arange(part.position.size).reshape(shape))
        if not in_order or dtype_name(part.value) != "float32" or int(np.prod(part.source.shape)) != part.position.size:
            return None
        return part.value if part.source.shape == shape else self.emit.reshape(part.value, list(shape), "parameter")

    def _picked(self, value: ir.Value, position: Array, name: str) -> ir.Value:
        if dtype_name(value) not in ("float32", "float16", "bfloat16", "int8"):
            raise Refused("mixed-types", f"{name} is float32", dtype_name(value), "float32", "", value)
        flat = self.emit.reshape(self.emit.cast(value, "float32", name + "_wide"), [-1], name + "_flat")
        places = self.emit.ints(position.reshape(-1).tolist(), name + "_places")
        vector = self.emit.node("Gather", [flat, places], name + "_picked", {"axis": 0})
        return self.emit.reshape(vector, list(position.shape), name)

    # caches --------------------------------------------------------------------------------------------------------

    def cache(self, row: Row, name: str) -> tuple[ir.Value, bool]:
        """The cache with the dims of its memory, ``[P, N*D/d0, rows, d0]``, and whether it was reshaped for that."""
        write, dims = row.write, common.static_dims(row.write.cache)
        geometry = write.probes[0].geometry
        shape = self.frame.key.write.probes[0].probe.shape(write.cache) or ()
        if len(dims) == 4 and shape[3] == geometry.d0 and shape[1] == geometry.heads * geometry.columns // geometry.d0:
            return write.cache, False
        fractals = geometry.heads * geometry.columns // geometry.d0
        wanted = [dims[0], fractals, dims[common.rows_axis(write)], geometry.d0]
        numbers = [-1 if dim is None else dim for dim in wanted]
        if numbers.count(-1) > 1:
            raise Refused("cache-shape", f"{name} can be declared as its memory is", str(dims), "at most one dynamic "
                          "dim", "", write.cache)  # fmt: skip
        self.notes.append(f"{name} is reshaped to the operator's shape {numbers}; memory order is unchanged")
        return self.emit.reshape(write.cache, numbers, name + "_declared"), True


def _alike(a: Columns, b: Columns) -> bool:
    return a.value is b.value and a.width == b.width and a.by_head == b.by_head and len(a.shape) == len(b.shape)
