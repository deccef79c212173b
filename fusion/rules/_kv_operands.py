"""The operands of a KvRmsNormRopeCache node, built from the sources of its site."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import onnx_ir as ir

from fusion.candidate import Refused
from fusion.facts.caches.rows import Row
from fusion.facts.symbols.operand import Columns, Table
from fusion.facts.symbols.parameters import Scale
from fusion.rules import _cache_op as common
from fusion.rules._gamma import weight
from fusion.rules._kv_frame import Frame
from fusion.rules._tables import table_rows
from ir_ops.dtypes import Array

Dims = Sequence[int | ir.Value]


class Operands:
    """Builds operands in the frame of a site; ``notes`` collects what the report should say of them."""

    def __init__(self, frame: Frame) -> None:
        self.frame, self.emit, self.inputs = frame, frame.emit, frame.inputs
        self.notes: list[str] = []

    def all(self, caches: Sequence[ir.Value]) -> list[ir.Value | None]:
        """All operands in the operator's order, without absent ones at the end."""
        frame = self.frame
        operands = [
            self.kv(),
            self.gamma(),
            self.table(frame.cos, "cos"),
            self.table(frame.sin, "sin"),
            self.index(),
            *caches,
            *self.quantisation(),
            self.rows(frame.value_columns, "v") if self.inputs.separate else None,
        ]
        while operands[-1] is None:
            operands.pop()
        return operands

    # rows ---------------------------------------------------------------------------------------------------------

    def kv(self) -> ir.Value:
        """The rows of V2's key, or normalised and rotated columns side by side."""
        key, value = self.frame.key_columns, self.frame.value_columns
        if self.inputs.separate:
            return self.rows(key, "kv")
        if key.value is value.value and key.width == value.width and key.by_head == value.by_head:
            joined = np.concatenate([value.columns, key.columns], axis=1)
            self._note_order(joined[0], key.width)
            return self.rows(key, "kv", joined)
        return self.emit.concat([self.rows(value, "kv_left"), self.rows(key, "kv_right")], "kv")

    def _note_order(self, columns: Array, width: int) -> None:
        if len(columns) == width and sorted(columns.tolist()) == list(range(width)) and (np.diff(columns) != 1).any():
            self.notes.append("the columns of kv are put into the operator's order in front of it")

    def rows(self, columns: Columns, what: str, picked: Array | None = None) -> ir.Value:
        """Columns of a source as ``[B, N, S, C]`` in the frame."""
        chosen = columns.columns if picked is None else picked
        value = self._in_type(columns.value, what)
        if columns.by_head:
            return self.emit.pick_columns(value, chosen[0], columns.width, what)
        if value is columns.value and len(columns.shape) != len(self.frame.shape(columns.value)):
            value = self.emit.reshape(value, [*([0] * (len(columns.shape) - 1)), columns.width], what + "_joined")
        value = self.emit.pick_columns(value, chosen.reshape(-1), columns.width, what + "_columns")
        return self._framed(value, columns.shape[:-1], chosen.shape, what)

    def _framed(self, value: ir.Value, lead: tuple[int, ...], picked: tuple[int, ...], what: str) -> ir.Value:
        """Rows in token order with the heads side by side, as ``[B, N, S, C]``."""
        heads, width = picked
        if self.frame.flat:
            return self.emit.reshape(value, [-1, heads, 1, width], what)
        if heads == 1 and len(lead) == 3 and lead[1] == 1:
            return value
        if heads == 1:
            return self._shaped(value, [0, 1, -1, width] if len(lead) == 2 else [None, 1, -1, width], what)
        dims = [0, 0, heads, width] if len(lead) == 2 else [None, -1, heads, width]
        return self.emit.node("Transpose", [self._shaped(value, dims, what, "_heads")], what, {"perm": [0, 2, 1, 3]})

    def _shaped(self, value: ir.Value, dims: Sequence[int | None], what: str, suffix: str = "") -> ir.Value:
        """``value`` reshaped; None stands for the batch size."""
        known: Dims = [self.frame.batch_dim() if dim is None else dim for dim in dims]
        return self.emit.reshape(value, self.emit.shape_vector(known, what + "_shape"), what + suffix)

    def _in_type(self, value: ir.Value, what: str) -> ir.Value:
        frame = self.frame
        return common.in_type(self.emit, frame.view, value, frame.kind, frame.region_ids, what)

    # cos and sin --------------------------------------------------------------------------------------------------

    def table(self, table: Table, name: str) -> ir.Value:
        """cos or sin as ``[B, 1, S, width]`` in the frame."""
        value, shape = table_rows(self.frame, table, name)
        form = self._flat_table if self.frame.flat else self._batch_table
        return form(value, shape, table, name)

    def _flat_table(self, value: ir.Value, shape: tuple[int, ...], table: Table, name: str) -> ir.Value:
        if not (table.per_batch and (table.per_token or self.frame.split(0)[1] == 1)):
            value, shape = self._spread(value, table, name), ()
        if len(shape) == 4 and shape[1:3] == (1, 1):
            return value
        return self.emit.reshape(value, [-1, 1, 1, len(table.columns)], name)

    def _spread(self, value: ir.Value, table: Table, name: str) -> ir.Value:
        """Rows shared by the batch or by its tokens, as one row for each token."""
        width = len(table.columns)
        dims = [-1 if table.per_batch else 1, -1 if table.per_token else 1, width]
        rows = self.emit.reshape(value, dims, name + "_rows")
        tokens = self.frame.tokens_dim()
        if tokens is None:
            raise Refused("rope-tables", f"{name} can be spread over the tokens", "unknown token count", "[B, S] rows")
        target = self.emit.shape_vector([self.frame.batch_dim(), tokens, 1], name + "_shape")
        return self.emit.node("Expand", [rows, target], name + "_spread")

    def _batch_table(self, value: ir.Value, shape: tuple[int, ...], table: Table, name: str) -> ir.Value:
        width = len(table.columns)
        if table.per_batch and table.per_token:
            if len(shape) == 4 and shape[1] == 1:
                return value
            return self._shaped(value, [0 if len(shape) == 3 else None, 1, -1, width], name)
        if table.per_batch:
            return self.emit.reshape(value, [-1, 1, 1, width], name)
        if not (len(shape) == 4 and shape[:2] == (1, 1)):
            value = self.emit.reshape(value, [1, 1, -1 if table.per_token else 1, width], name + "_rows")
        if self._batch_is_one():
            return value
        target = self.emit.shape_vector([self.frame.batch_dim(), 1, 1, 1], name + "_shape")
        return self.emit.node("Expand", [value, target], name)

    def _batch_is_one(self) -> bool:
        static = common.static_dims(self.frame.key_columns.value)
        return bool(static) and static[0] == 1 and len(self.frame.key_columns.shape) > 2

    # parameters, slots, caches ------------------------------------------------------------------------------------

    def gamma(self) -> ir.Value:
        """gamma in column order; ones for a norm without one."""
        norm, frame = self.inputs.norm, self.frame
        shape = () if norm.gamma is None else frame.shape(norm.gamma)
        return weight(self.emit, frame.view, norm, shape, self.inputs.gamma_columns, frame.kind, "gamma")

    def quantisation(self) -> list[ir.Value | None]:
        """k_rope_scale, c_kv_scale, k_rope_offset, c_kv_offset."""
        scales = [self._scale(row, name) for row, name in zip(self.inputs.rows, ("k_rope", "c_kv"), strict=True)]
        offsets = [
            common.parameter(self.emit, self.frame.view, row.views[0].offset, name + "_offset")
            for row, name in zip(self.inputs.rows, ("k_rope", "c_kv"), strict=True)
        ]
        return [*scales, *offsets]

    def _scale(self, row: Row, name: str) -> ir.Value | None:
        scale = row.views[0].scale
        if scale is None and row.peeled is not None:
            scale = Scale()
        if scale is not None and scale.divides:
            self.notes.append(f"{name}_scale is the reciprocal of the graph's divisor (int8 within one step)")
        return common.parameter(self.emit, self.frame.view, scale, name + "_scale")

    def index(self) -> ir.Value:
        """The slot numbers as the mode wants them."""
        write, columns = self.inputs.key.write, self.frame.key_columns
        if write.slots.form != "row":
            return common.flat_index(self.emit, write)
        tokens_of = columns.value, 1 if len(columns.shape) == 3 else 2
        if write.slots.start and len(columns.shape) < 3:
            raise Refused("kv-layout", "rows from a start go with rows by batch", "rows by token", "[B, S, ..]", "",
                          columns.value)  # fmt: skip
        if self.inputs.mode == "Norm":
            return common.row_index(self.emit, write, self.frame.batch_dim(), tokens_of)
        self.notes.append("rows of each batch entry are counted as slots of the whole cache")
        slots = common.slots_of_rows(self.emit, write, self.frame.batch_dim(), tokens_of)
        return self.emit.reshape(slots, [-1], "slots_flat")

    def cache(self, row: Row, name: str) -> tuple[ir.Value, bool]:
        """The cache as the operator declares it, and whether it had to be reshaped for that."""
        dims = common.declared_cache_dims(row.write)
        if dims is None:
            return row.write.cache, False
        self.notes.append(f"{name} is reshaped to the operator's shape {dims}; memory order is unchanged")
        return self.emit.reshape(row.write.cache, dims, name + "_declared"), True
