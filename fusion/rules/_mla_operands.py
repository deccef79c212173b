"""The operands of a MlaPrologV3 node, built from the sources of its site."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import onnx_ir as ir

from fusion.candidate import Refused
from fusion.facts.caches.rows import Row
from fusion.facts.graph import dims_of, dtype_name
from fusion.facts.norms.norm import NormFact
from fusion.facts.symbols.operand import Table
from fusion.facts.symbols.parameters import Scale
from fusion.rules import _cache_op as common
from fusion.rules._gamma import weight
from fusion.rules._mla_frame import Frame
from fusion.rules._mla_product import Product
from fusion.rules._tables import rows_shape, table_rows
from ir_ops.dtypes import Array

NAMES = ("kv_cache", "kr_cache")
"""The caches in the operator's order, that of ``Site.rows``."""


class Operands:
    """Builds operands in the frame of a site; ``notes`` collects what the report should say of them."""

    def __init__(self, frame: Frame) -> None:
        self.frame, self.emit, self.site = frame, frame.emit, frame.site
        self.notes: list[str] = []

    def all(self, caches: Sequence[ir.Value]) -> list[ir.Value | None]:
        """All operands in the operator's order, without absent ones at the end."""
        query, frame = self.site.query, self.frame
        operands: list[ir.Value | None] = [
            self.tokens(),
            self.weight(query.skeleton.down, frame.down_columns.columns[0], "weight_dq"),
            self.weight(query.up, self._up_columns(), "weight_uq_qr"),
            self.absorbed(),
            self.key_weight(),
            self.gamma(query.skeleton.norm, np.arange(len(frame.down_columns.columns[0])), "gamma_cq"),
            self.gamma(self.site.norm, self.site.gamma_columns, "gamma_ckv"),
            self.table(frame.sin, "sin"),
            self.table(frame.cos, "cos"),
            *caches,
            self.index(),
            *[None] * 2,
            self.weight_scale(query.up, self._up_columns()),
            None,
            *self.scales(),
        ]
        while operands[-1] is None:
            operands.pop()
        return operands

    # weights ------------------------------------------------------------------------------------------------------

    def _up_columns(self) -> Array:
        """Columns of the up-projection in the operator's order: by head the nope part, then pairs."""
        heads = self.frame.sizes[0]
        own = np.concatenate([self.frame.absorbed[0].nope, self.frame.rope[0].columns])
        columns: Array = (np.arange(heads)[:, None] * len(own) + own).reshape(-1)
        return columns

    def weight(self, made: Product, columns: Array, what: str) -> ir.Value:
        """A product's weight as ``[K, columns]``."""
        value = made.weight if made.scale is not None else self._typed(made.weight, what)
        width = self.frame.shape(made.weight)[0 if made.turned else 1]
        picked = self._picked(value, columns, width, 0 if made.turned else 1, what)
        if not made.turned:
            return picked
        return self.emit.node("Transpose", [picked], what, {"perm": [1, 0]})

    def weight_scale(self, made: Product, columns: Array) -> ir.Value | None:
        """dequant_scale_w_uq_qr ``[1, columns]`` of an int8 weight."""
        if made.scale is None:
            return None
        emit, what, width = self.emit, "dequant_scale_w_uq_qr", self.frame.shape(made.weight)[1]
        value = emit.cast(made.scale, "float32", what + "_wide")
        if int(np.prod(self.frame.shape(made.scale))) != width:
            return emit.node("Expand", [value, emit.ints([1, width], what + "_shape")], what)
        return emit.pick_columns(emit.reshape(value, [1, -1], what), columns, width, what)

    def _picked(self, value: ir.Value, columns: Array, width: int, axis: int, what: str) -> ir.Value:
        """Columns along an axis: nothing for all in order, a Slice for a range, else a Gather."""
        if np.array_equal(columns, np.arange(width)):
            return value
        if (np.diff(columns) == 1).all():
            bounds = [
                self.emit.ints([number], f"{what}_{end}")
                for number, end in ((columns[0], "from"), (columns[-1] + 1, "to"), (axis, "axis"))
            ]
            return self.emit.node("Slice", [value, *bounds], what + "_part")
        self.notes.append(f"the columns of {what} are put into the operator's order; a constant weight is so only once")
        return self.emit.node(
            "Gather", [value, self.emit.ints(columns.tolist(), what + "_columns")], what + "_ordered", {"axis": axis}
        )

    def key_weight(self) -> ir.Value:
        """weight_dkv_kr: compressed columns, then rope columns, of one product or of two."""
        site, frame = self.site, self.frame
        value, key = frame.value_columns.columns[0], frame.key_columns.columns[0]
        if site.value_made.out is site.key_made.out:
            return self.weight(site.key_made, np.concatenate([value, key]), "weight_dkv_kr")
        parts = [self.weight(site.value_made, value, "weight_dkv"), self.weight(site.key_made, key, "weight_kr")]
        self.notes.append("weight_dkv_kr is put together from two weights; constant ones are so only once")
        return self.emit.concat(parts, "weight_dkv_kr", axis=1)

    def absorbed(self) -> ir.Value:
        """weight_uk as ``[N, D, Hckv]``."""
        absorbed, weight = self.frame.absorbed[0], self.site.query.contraction.weight
        shape = self.frame.shape(weight)
        rest = [axis for axis in range(len(shape)) if axis not in absorbed.order]
        perm = [*rest, *absorbed.order]
        value = weight
        if perm != list(range(len(shape))):
            value = self.emit.node("Transpose", [value], "weight_uk_turned", {"perm": perm})
        if tuple(shape[axis] for axis in perm) == absorbed.sizes:
            return value
        return self.emit.reshape(value, list(absorbed.sizes), "weight_uk")

    def _typed(self, value: ir.Value, what: str) -> ir.Value:
        if dtype_name(value) != self.frame.kind:
            raise Refused(
                "mixed-types", f"{what} has the type of the operator", dtype_name(value), self.frame.kind,
                "one float type from the hidden states to the caches", value,
            )  # fmt: skip
        return value

    def gamma(self, norm: NormFact, columns: Array, what: str) -> ir.Value:
        """gamma in column order; ones for a norm without one."""
        shape = () if norm.gamma is None else self.frame.shape(norm.gamma)
        return weight(self.emit, self.frame.view, norm, shape, columns, self.frame.kind, what)

    # rows ---------------------------------------------------------------------------------------------------------

    def tokens(self) -> ir.Value:
        """token_x as ``[T, He]`` or ``[B, S, He]``."""
        value = self._typed(self.site.tokens, "token_x")
        shape = self.frame.shape(value)
        return value if len(shape) in (2, 3) else self.emit.reshape(value, [-1, shape[-1]], "token_x")

    def batch_dim(self, axis: int) -> int | ir.Value:
        """B or S, of tokens that come as ``[B, S, He]``."""
        static = dims_of(self.site.tokens)
        size = static[axis] if static is not None and len(static) == 3 else None
        return size if isinstance(size, int) else self.emit.dim(self.site.tokens, axis, ("batch", "tokens")[axis])

    def table(self, table: Table, name: str) -> ir.Value:
        """cos or sin as ``[T, Dr]`` or ``[B, S, Dr]``."""
        frame, emit = self.frame, self.emit
        value, _ = table_rows(frame, table, name)
        width = len(table.columns)
        shapes = [rows_shape(table, probe.shape(table.value) or ()) for probe in frame.trials]
        leads = [(probe.shape(self.site.tokens) or ())[:-1] for probe in frame.trials]
        if frame.flat:
            leads = [(int(np.prod(lead)),) for lead in leads]
        if [shape[:-1] for shape in shapes] == leads:
            return value
        if frame.flat:
            return self._flat_table(table, value, shapes, width, name)
        if table.per_batch and table.per_token:
            dims = emit.shape_vector([self.batch_dim(0), -1, width], name + "_shape")
            return emit.reshape(value, dims, name)
        rows = emit.reshape(value, [-1 if table.per_batch else 1, -1 if table.per_token else 1, width], name + "_rows")
        spread = emit.shape_vector([self.batch_dim(0), self.batch_dim(1), 1], name + "_shape")
        return emit.node("Expand", [rows, spread], name)

    def _flat_table(
        self, table: Table, value: ir.Value, shapes: list[tuple[int, ...]], width: int, name: str
    ) -> ir.Value:
        emit = self.emit
        rows = emit.reshape(value, [-1, width], name + "_rows")
        if table.per_batch and table.per_token:
            return rows
        total = [int(np.prod((probe.shape(self.site.tokens) or ())[:-1])) for probe in self.frame.trials]
        count = emit.dim(self.tokens(), 0, "tokens")
        if not table.per_batch and not table.per_token:
            return emit.node("Expand", [rows, emit.shape_vector([count, 1], name + "_shape")], name)
        if table.per_batch or any(size % int(np.prod(shape[:-1])) for size, shape in zip(total, shapes, strict=True)):
            raise Refused("rope-tables", f"{name} has a row for each token", "one for each batch entry", "[T, Dr]")
        each = emit.dim(rows, 0, name + "_count")
        times = emit.node("Div", [count, each], name + "_times")
        spread = emit.concat([times, emit.ints([1, 1], name + "_ones")], name + "_shape", axis=0)
        return emit.reshape(emit.node("Expand", [rows, spread], name + "_spread"), [-1, width], name)

    # caches -------------------------------------------------------------------------------------------------------

    def cache(self, row: Row, name: str) -> tuple[ir.Value, bool]:
        """The cache as ``[block_num, block_size, 1, width]``, and whether it had to be reshaped for that."""
        write, cache = row.write, row.write.cache
        geometry, shape = write.probes[0].geometry, write.probes[0].probe.shape(row.write.cache) or ()
        width = write.probes[0].source.shape[2]
        if len(shape) == 4 and shape == (geometry.pages, geometry.rows, 1, width):
            return cache, False
        pageless = geometry.pages == 1 and shape[0] != 1
        self.notes.append(f"{name} is reshaped to [block_num, block_size, 1, {width}]; memory order is unchanged")
        return self.emit.reshape(cache, [1 if pageless else 0, -1, 1, width], name + "_declared"), True

    def own_shape(self, row: Row, output: ir.Value, name: str) -> ir.Value:
        """A cache that was reshaped, as the graph declares it."""
        dims = [-1 if dim is None else dim for dim in common.static_dims(row.write.cache)]
        if dims.count(-1) <= 1:
            return self.emit.reshape(output, dims, name + "_out")
        shape = self.emit.node("Shape", [row.write.cache], name + "_dims", dtype=ir.DataType.INT64)
        return self.emit.reshape(output, shape, name + "_out")

    def index(self) -> ir.Value:
        """cache_index in the form of token_x: slots, or numbers of pages."""
        write = self.site.key.write
        if write.slots.form == "row":
            return self._row_slots()
        value = common.flat_index(self.emit, write) if self.frame.flat else self._by_batch()
        return self._page_numbers(value) if write.slots.form == "block" else value

    def _by_batch(self) -> ir.Value:
        slots = self.site.key.write.slots.value
        value = self.emit.cast(slots, "int64", "slots")
        if len(self.frame.shape(slots)) == 2:
            return value
        return self.emit.reshape(value, self.emit.shape_vector([self.batch_dim(0), -1], "slots_shape"), "slots_batch")

    def _page_numbers(self, value: ir.Value) -> ir.Value:
        """Numbers of pages from their first slots."""
        rows = common.rows_dim(self.emit, self.site.key.write)
        return common.kept_negative(self.emit, value, self.emit.node("Div", [value, rows], "pages"))

    def _row_slots(self) -> ir.Value:
        """Flat slots from rows of each batch entry's own cache."""
        if self.frame.flat:
            raise Refused(
                "mla-cache-mode", "rows by batch go with hidden states by batch", "hidden states [T, He]",
                "[B, S, He]", "", self.site.tokens,
            )  # fmt: skip
        return common.slots_of_rows(self.emit, self.site.key.write, self.batch_dim(0), (self.site.tokens, 1))

    # quantisation -------------------------------------------------------------------------------------------------

    def scales(self) -> list[ir.Value | None]:
        """quant_scale_ckv and quant_scale_ckr."""
        site = self.site
        if site.value.peeled is None:
            return [None, None]
        if site.key.peeled is None:
            return [self._scale(site.value, "quant_scale_ckv", None), None]
        return [
            self._scale(row, name, width)
            for row, name, width in zip(
                site.rows, ("quant_scale_ckv", "quant_scale_ckr"), self.frame.sizes[2:], strict=True
            )
        ]

    def _scale(self, row: Row, what: str, width: int | None) -> ir.Value:
        """A multiplier as ``[1]``, or as ``[1, width]``."""
        scale = row.views[0].scale or Scale()
        if scale.divides:
            self.notes.append(f"{what} is the reciprocal of the graph's divisor (int8 within one step)")
        value = common.parameter(self.emit, self.frame.view, scale, what)
        assert value is not None
        if width is None:
            return value
        return self.emit.node("Expand", [value, self.emit.ints([1, width], what + "_shape")], what + "_row")


def is_one_number(row: Row) -> bool:
    """Whether the scale of quantised rows is the same for all columns."""
    scale = row.views[0].scale
    return scale is None or all((part.position == part.position.reshape(-1)[0]).all() for part, _ in scale.parts)
