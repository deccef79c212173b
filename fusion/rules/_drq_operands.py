"""The other operands of a DequantRopeQuantKvcache node: tables, caches, slots, quantisation."""

from __future__ import annotations

import numpy as np
import onnx_ir as ir

from fusion.candidate import Refused
from fusion.facts.caches.rows import Row
from fusion.facts.graph import dtype_name
from fusion.facts.symbols.operand import Table
from fusion.facts.symbols.parameters import Scale
from fusion.rules import _cache_op as common
from fusion.rules._drq_frame import CONTIGUOUS, Frame
from fusion.rules._drq_rows import RowOperands
from fusion.rules._tables import table_rows


class Operands:
    """Builds operands in the frame of a site; ``notes`` collects what the report should say of them."""

    def __init__(self, frame: Frame) -> None:
        self.frame, self.emit, self.inputs = frame, frame.emit, frame.inputs
        self.notes: list[str] = []
        self.x_rows = RowOperands(frame, self.notes)

    def all(self, caches: list[ir.Value]) -> list[ir.Value | None]:
        """All operands in the operator's order, without absent ones at the end."""
        frame = self.frame
        operands = [
            self.x_rows.x(),
            self.table(frame.cos, "cos"),
            self.table(frame.sin, "sin"),
            *caches,
            self.indices(),
            *(self.scale(row, name) for row, name in zip(self.inputs.rows, ("k", "v"), strict=True)),
            *(self.offset(row, name) for row, name in zip(self.inputs.rows, ("k", "v"), strict=True)),
            *self.x_rows.dequantisation(),
        ]
        while operands[-1] is None:
            operands.pop()
        return operands

    # cos and sin ----------------------------------------------------------------------------------------------------

    def table(self, table: Table, name: str) -> ir.Value:
        """cos or sin as ``[B, S, 1, D]`` or ``[T, D]``."""
        frame, width = self.frame, len(table.columns)
        value, shape = table_rows(frame, table, name)
        batch, tokens = frame.split(0)
        if not (table.per_batch and table.per_token):
            value, shape = self._spread(value, table, name), (batch, tokens, width)
        if frame.flat:
            return value if len(shape) == 2 else self.emit.reshape(value, [-1, width], name)
        if shape[:3] == (batch, tokens, 1) and len(shape) == 4:
            return value
        if shape and shape[0] == batch:
            return self.emit.reshape(value, [0, -1, 1, width], name)
        dims = self.emit.shape_vector([frame.batch_dim(), -1, 1, width], name + "_shape")
        return self.emit.reshape(value, dims, name)

    def _spread(self, value: ir.Value, table: Table, name: str) -> ir.Value:
        """Rows shared by the batch or by its tokens, as one row for each token."""
        dims = [-1 if table.per_batch else 1, -1 if table.per_token else 1, len(table.columns)]
        rows = self.emit.reshape(value, dims, name + "_rows")
        target = self.emit.shape_vector([self.frame.batch_dim(), self.frame.tokens_dim(), 1], name + "_spread_shape")
        return self.emit.node("Expand", [rows, target], name + "_spread")

    # slots and caches -----------------------------------------------------------------------------------------------

    def indices(self) -> ir.Value:
        """The slot numbers as the mode wants them, in int32: products take no other type."""
        write = self.inputs.key.write
        if self.inputs.mode == CONTIGUOUS:
            value = self._starts()
        elif write.slots.form == "slot":
            value = common.flat_index(self.emit, write)
        else:
            value = self._slots_of_rows()
            self.notes.append("rows of each batch entry are counted as slots of the whole cache")
        return self.emit.cast(value, "int32", "indices")

    def _starts(self) -> ir.Value:
        write = self.inputs.key.write
        value, rank = write.slots.value, len(self.frame.shape(write.slots.value))
        if write.slots.shared:
            if rank != 1:
                value = self.emit.reshape(value, [1], "start")
            return self.emit.node(
                "Expand", [value, self.emit.shape_vector([self.frame.batch_dim()], "starts_shape")], "starts"
            )
        return value if rank == 1 else self.emit.reshape(value, [-1], "starts")

    def _slots_of_rows(self) -> ir.Value:
        """``batch * C2 + row`` for rows of a batch's own cache."""
        emit, frame, write = self.emit, self.frame, self.inputs.key.write
        batch = frame.batch_dim()
        tokens_axis = 2 if frame.key_columns.by_head else 1
        rows = common.row_index(emit, write, batch, (frame.key_columns.value, tokens_axis))
        axis = common.rows_axis(write)
        static = common.static_dims(write.cache)[axis]
        length = emit.ints([static], "rows") if static is not None else emit.dim(write.cache, axis, "rows")
        zero, one = (emit.constant(np.array(number, np.int64), part) for number, part in ((0, "zero"), (1, "one")))
        count = emit.constant(np.array(batch, np.int64), "batches") if isinstance(batch, int) else None
        if count is None:
            assert isinstance(batch, ir.Value)
            count = emit.reshape(batch, emit.ints([], "scalar"), "batches")
        run = emit.node("Range", [zero, count, one], "batch_numbers", dtype=ir.DataType.INT64)
        first = emit.node("Mul", [emit.reshape(run, [-1, 1], "batch_column"), length], "batch_starts")
        return emit.reshape(emit.node("Add", [rows, first], "slots_by_batch"), [-1], "slots_flat")

    def cache(self, row: Row, name: str) -> tuple[ir.Value, bool]:
        """The cache as the operator declares it, and whether it had to be reshaped for that."""
        dims = _declared(row)
        if dims is None:
            return row.write.cache, False
        self.notes.append(f"{name} is reshaped to the operator's shape {dims}; memory order is unchanged")
        return self.emit.reshape(row.write.cache, dims, name + "_declared"), True

    # quantisation ---------------------------------------------------------------------------------------------------

    def scale(self, row: Row, name: str) -> ir.Value:
        """The divisor of the rows, ``[Nkv, D]``."""
        scale = row.views[0].scale or Scale()
        if scale.number != 1 or any(not divides for _, divides in scale.parts):
            self.notes.append(f"scale_{name} is the reciprocal of the graph's multiplier (int8 within one step)")
        number = 1.0 / scale.number if scale.number else np.inf
        divisor = Scale(number, [(part, not divides) for part, divides in scale.parts])
        return self._by_column(divisor, f"scale_{name}", divisor=True)

    def offset(self, row: Row, name: str) -> ir.Value | None:
        offset = row.views[0].offset
        return None if offset is None else self._by_column(offset, f"offset_{name}", divisor=False)

    def _by_column(self, scale: Scale, what: str, divisor: bool) -> ir.Value:
        frame = self.frame
        for part, _ in scale.parts:
            if dtype_name(part.value) not in ("float32", "float16", "bfloat16", "int8"):
                raise Refused("mixed-types", f"{what} is float32", dtype_name(part.value), "float32", "", part.value)
        own = self._own_vector(scale)
        if own is not None:
            return own
        vector = self.x_rows.vector(scale, frame.heads * frame.width, what, exact=False)
        if isinstance(vector, ir.Value):
            return self.emit.reshape(vector, [frame.heads, frame.width], what + "_shaped")
        if divisor and not (np.isfinite(vector).all() and vector.all()):
            raise Refused(
                "quant-scale", f"{what} divides", "a divisor that is 0 or not finite", "finite numbers, not 0"
            )
        return self.emit.constant(vector.reshape(frame.heads, frame.width), what)

    def _own_vector(self, scale: Scale) -> ir.Value | None:
        """The graph's own parameter, where it has one number for each head and column."""
        if scale.number != 1 or len(scale.parts) != 1 or scale.parts[0][1]:
            return None
        part, count = scale.parts[0][0], self.frame.heads * self.frame.width
        in_order = part.position.size == count and (part.position.reshape(-1) == np.arange(count)).all()
        if not in_order or int(np.prod(part.source.shape)) != count or dtype_name(part.value) != "float32":
            return None
        shaped = part.source.shape == (self.frame.heads, self.frame.width)
        return (
            part.value if shaped else self.emit.reshape(part.value, [self.frame.heads, self.frame.width], "parameter")
        )


def _declared(row: Row) -> list[int] | None:
    """The four dims in which the operator declares the cache, None when it is declared so."""
    write = row.write
    if write.order == "BSND":
        return common.declared_cache_dims(write)
    # one head: the memory of [B, 1, S, D] is that of [B, S, 1, D]
    first, *_, length, width = common.static_dims(write.cache)
    return [0 if first is None else first, -1 if length is None else length, 1, -1 if width is None else width]


def original(row: Row) -> list[int]:
    """Reshape target that gives a cache its own shape back."""
    if row.write.order == "BSND":
        return common.original_dims(row.write.cache)
    first, *rest = common.static_dims(row.write.cache)
    return [0 if first is None else first, *(-1 if dim is None else dim for dim in rest)]
