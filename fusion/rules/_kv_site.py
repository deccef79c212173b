"""Building a KvRmsNormRopeCache node from the facts that its rule has joined."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import onnx_ir as ir

from fusion.candidate import Candidate, EmitterFactory, Refused
from fusion.facts.analysis import Facts
from fusion.facts.graph import dtype_name
from fusion.facts.norm import NormFact
from fusion.facts.operand import Columns, Table
from fusion.facts.probe import Probe, settle
from fusion.facts.parameters import Part, Scale
from fusion.facts.rows import Row, positions_in
from fusion.region import closure, delivered_outside
from fusion.rules import _cache_op as common
from ir_ops.declaration import Operator
from ir_ops.dtypes import Array, by_name
from ir_ops.ops import DOMAIN


@dataclass
class Inputs:
    """The joined facts.

    Attributes:
        mode: ``cache_mode``.
        key, value: rows of k_cache and ckv_cache.
        norm: the norm of the key (separate) or of the value rows.
        separate: V2.
        key_parts, value_parts: per probe, the elements the rows are made of, norms looked through.
        gamma_columns: gamma element of each normalised column.
    """

    mode: str
    key: Row
    value: Row
    norm: NormFact
    separate: bool
    key_parts: list[Part]
    value_parts: list[Part]
    gamma_columns: Array


def build(facts: Facts, new_emitter: EmitterFactory, inputs: Inputs, operator: Operator) -> Candidate:
    """The fused node and all that goes with it; raises Refused with the first fact that does not fit."""
    return _Site(facts, new_emitter, inputs, operator).candidate()


class _Site:
    def __init__(self, facts: Facts, new_emitter: EmitterFactory, inputs: Inputs, operator: Operator) -> None:
        self.facts, self.view, self.inputs, self.operator = facts, facts.view, inputs, operator
        self.layer = facts.layer(inputs.key.write)
        self.emit = new_emitter(f"{operator.name}_{'x' if self.layer is None else self.layer}")
        self.assumptions: list[str] = []
        self.notes: list[str] = []
        key, value = inputs.key, inputs.value
        self.heads = key.views[0].x.position.shape[1]
        self.key_columns = common.agreed_columns(inputs.key_parts, "keys")
        self.value_columns = common.agreed_columns(inputs.value_parts, "values")
        self.kind = self._kind()
        self.frame = self._frame()
        self.cos, self.sin = (self._table(name) for name in ("cos", "sin"))
        self.region = closure([key.write.out, value.write.out], self._stops())
        self.region_ids = {id(node) for node in self.region}

    # facts ------------------------------------------------------------------------------------------------------

    def _kind(self) -> str:
        """The operator's float type: that of the plain caches, else of the projected row."""
        plain = {dtype_name(row.write.cache) for row in (self.inputs.key, self.inputs.value) if row.peeled is None}
        if len(plain) > 1:
            raise Refused("mixed-types", "both plain caches have one type", " and ".join(sorted(plain)), "one type")
        return plain.pop() if plain else dtype_name(self.key_columns.value)

    def _frame(self) -> str:
        """``batch``: rows are ``[B, N, S, ..]``; ``flat``: one token a batch entry, ``[T, N, 1, ..]``."""
        if self.inputs.mode == "Norm" or self.inputs.mode.startswith("PA_BLK"):
            return "batch"
        lead = self.key_columns.shape[:-1]
        if self.key_columns.by_head:
            return "batch"
        natural = self.heads == 1 and (len(lead) == 2 or (len(lead) == 3 and lead[1] == 1))
        return "batch" if natural else "flat"

    def _split(self, number: int) -> tuple[int, int]:
        """Batch and tokens under one probe, as the frame counts them."""
        written = self.inputs.key.write.probes[number]
        lead = self.inputs.key_parts[number].source.shape[:-1]
        if self.inputs.mode == "Norm" or self.inputs.mode.startswith("PA_BLK"):
            return written.batch, written.tokens
        if self.key_columns.by_head:
            return lead[0], lead[2]
        total = written.batch * written.tokens
        rotation = self.inputs.key.views[number].rotation
        assert rotation is not None
        for shape in (lead, rotation.cos_source.shape[:-1]):
            sizes = [size for size in shape if size != 1]
            if len(sizes) == 2 and sizes[0] * sizes[1] == total:
                return sizes[0], sizes[1]
            if len(sizes) == 1 and 1 < sizes[0] < total and total % sizes[0] == 0:
                return total // sizes[0], sizes[0]
        return written.batch, written.tokens

    def _table(self, name: str) -> Table:
        parts = []
        for number, entry in enumerate(self.inputs.key.views):
            rotation = entry.rotation
            assert rotation is not None
            source, position = (
                (rotation.cos_source, rotation.cos) if name == "cos" else (rotation.sin_source, rotation.sin)
            )
            batch, tokens = self._split(number)
            parts.append((Part(source, position), batch, tokens))
        return common.agreed_table(parts, name)

    def _stops(self) -> set[int]:
        """Ids of the values at which the region begins."""
        return {id(value) for value in self._feeds()}

    def _feeds(self) -> list[ir.Value]:
        inputs = self.inputs
        found = [self.key_columns.value, self.value_columns.value, self.cos.value, self.sin.value]
        if inputs.norm.gamma is not None:
            found.append(inputs.norm.gamma)
        for row in (inputs.key, inputs.value):
            found += [row.write.cache, row.write.slots.value]
            found += common.parameter_values(row)
        return list({id(value): value for value in found}.values())

    # rows ---------------------------------------------------------------------------------------------------------

    def _batch_dim(self) -> int | ir.Value:
        """B, as a number or a vector of one element."""
        batches = [self._split(number)[0] for number in range(len(self.inputs.key_parts))]
        found = common.dim_like(self.emit, self._own_probes(), batches, self._shape_sources(), "batch")
        if found is None:
            raise Refused("row-order", "the batch size can be told", "no value has such a dim", "rows by batch", "")
        return found

    def _own_probes(self) -> list[Probe]:
        return [entry.view.probe for entry in self.inputs.key.views]

    def _shape_sources(self) -> list[ir.Value]:
        """Values whose dims the new nodes may ask for: sources of the site, then graph inputs."""
        own = [self.key_columns.value, self.inputs.key.write.slots.value, self.cos.value]
        return [*own, *self.view.graph.inputs]

    def _spread(self, value: ir.Value, table: Table, name: str) -> ir.Value:
        """cos or sin rows shared by the batch or by its tokens, as one row for each token."""
        width = len(table.columns)
        rows = self.emit.reshape(
            value, [-1 if table.per_batch else 1, -1 if table.per_token else 1, width], name + "_rows"
        )
        tokens = [self._split(number)[1] for number in range(len(self.inputs.key_parts))]
        dim = common.dim_like(self.emit, self._own_probes(), tokens, self._shape_sources(), "tokens")
        if dim is None:
            raise Refused("rope-tables", f"{name} can be spread over the tokens", "unknown token count", "[B, S] rows")
        target = self.emit.shape_vector([self._batch_dim(), dim, 1], name + "_shape")
        return self.emit.node("Expand", [rows, target], name + "_spread")

    def _rows(self, columns: Columns, what: str, picked: Array | None = None) -> ir.Value:
        """Columns of a source as ``[B, N, S, C]`` in the frame."""
        chosen = columns.columns if picked is None else picked
        heads, width = chosen.shape
        value = common.in_type(self.emit, self.view, columns.value, self.kind, self.region_ids, what)
        if columns.by_head:
            return self.emit.pick_columns(value, chosen[0], columns.width, what)
        if value is columns.value and len(columns.shape) != len(self._probe_shape(columns.value)):
            value = self.emit.reshape(value, [*([0] * (len(columns.shape) - 1)), columns.width], what + "_joined")
        value = self.emit.pick_columns(value, chosen.reshape(-1), columns.width, what + "_columns")
        lead = columns.shape[:-1]
        if self.frame == "flat":
            return self.emit.reshape(value, [-1, heads, 1, width], what)
        if heads == 1:
            if len(lead) == 3 and lead[1] == 1:
                return value
            dims: Sequence[int | ir.Value] = [0, 1, -1, width] if len(lead) == 2 else [self._batch_dim(), 1, -1, width]
            return self.emit.reshape(value, self.emit.shape_vector(dims, what + "_shape"), what)
        dims = [0, 0, heads, width] if len(lead) == 2 else [self._batch_dim(), -1, heads, width]
        by_token = self.emit.reshape(value, self.emit.shape_vector(dims, what + "_shape"), what + "_heads")
        return self.emit.node("Transpose", [by_token], what, {"perm": [0, 2, 1, 3]})

    def _probe_shape(self, value: ir.Value) -> tuple[int, ...]:
        return self.inputs.key.views[0].view.probe.shape(value) or ()

    def _kv(self) -> ir.Value:
        key, value = self.key_columns, self.value_columns
        if self.inputs.separate:
            return self._rows(key, "kv")
        if key.value is value.value and key.width == value.width and key.by_head == value.by_head:
            joined = np.concatenate([value.columns, key.columns], axis=1)
            self._note_order(joined[0], key.width)
            return self._rows(key, "kv", joined)
        return self.emit.concat([self._rows(value, "kv_left"), self._rows(key, "kv_right")], "kv")

    def _note_order(self, columns: Array, width: int) -> None:
        if len(columns) == width and sorted(columns.tolist()) == list(range(width)) and (np.diff(columns) != 1).any():
            self.notes.append("the columns of kv are put into the operator's order in front of it")

    def _table_value(self, table: Table, name: str) -> ir.Value:
        value = common.in_type(self.emit, self.view, table.value, self.kind, self.region_ids, name)
        value = self.emit.pick_columns(value, table.columns, table.width, name + "_columns")
        width = len(table.columns)
        shape = self._probe_shape(table.value)
        if self.frame == "flat":
            if not (table.per_batch and table.per_token) and not (table.per_batch and self._split(0)[1] == 1):
                value = self._spread(value, table, name)
                shape = ()
            return (
                value if len(shape) == 4 and shape[1:3] == (1, 1) else self.emit.reshape(value, [-1, 1, 1, width], name)
            )
        if table.per_batch and table.per_token:
            if len(shape) == 4 and shape[1] == 1:
                return value
            dims: Sequence[int | ir.Value] = [0, 1, -1, width] if len(shape) == 3 else [self._batch_dim(), 1, -1, width]
            return self.emit.reshape(value, self.emit.shape_vector(dims, name + "_shape"), name)
        if table.per_batch:
            return self.emit.reshape(value, [-1, 1, 1, width], name)
        rows = [1, 1, -1 if table.per_token else 1, width]
        if not (len(shape) == 4 and shape[:2] == (1, 1)):
            value = self.emit.reshape(value, rows, name + "_rows")
        if self._batch_dim_is_one():
            return value
        target = self.emit.shape_vector([self._batch_dim(), 1, 1, 1], name + "_shape")
        return self.emit.node("Expand", [value, target], name)

    def _batch_dim_is_one(self) -> bool:
        static = common.static_dims(self.key_columns.value)
        return bool(static) and static[0] == 1 and len(self.key_columns.shape) > 2

    def _gamma(self) -> ir.Value:
        columns, gamma = self.inputs.gamma_columns, self.inputs.norm.gamma
        if gamma is None:
            return self.emit.constant(np.ones(len(columns), by_name(self.kind).np), "gamma")
        shape = self._probe_shape(gamma)
        if int(np.prod(shape)) != len(columns) or not shape:
            raise Refused("norm-gamma", "gamma has one number for each column", str(list(shape)), f"[{len(columns)}]")
        value = common.constant_in_type(self.emit, self.view, gamma, self.kind, "gamma")
        if len(shape) > 1:
            value = self.emit.reshape(value, [-1], "gamma_vector")
        return self.emit.pick_columns(value, columns, len(columns), "gamma_columns")

    # quantisation -------------------------------------------------------------------------------------------------

    def _quantisation(self) -> list[ir.Value | None]:
        """k_rope_scale, c_kv_scale, k_rope_offset, c_kv_offset."""
        views = (self.inputs.key.views[0], self.inputs.value.views[0])
        quantised = [row.peeled is not None for row in (self.inputs.key, self.inputs.value)]
        names = ("k_rope", "c_kv")
        scales: list[ir.Value | None] = []
        for entry, name, on in zip(views, names, quantised, strict=True):
            scale = entry.scale if entry.scale is not None else Scale() if on else None
            scales.append(common.parameter(self.emit, self.view, scale, name + "_scale"))
            if scale is not None and scale.divides:
                self.notes.append(f"{name}_scale is the reciprocal of the graph's divisor (int8 within one step)")
        for entry, name in zip(views, names, strict=True):
            scales.append(common.parameter(self.emit, self.view, entry.offset, name + "_offset"))
        return scales

    def _float8_cast(self) -> str:
        modes = {row.peeled.float8_cast for row in (self.inputs.key, self.inputs.value) if row.peeled} - {""}
        if len(modes) > 1:
            raise Refused("quant-form", "both caches are cast to float8 alike", " and ".join(sorted(modes)), "one mode")
        return modes.pop() if modes else ""

    # caches and outputs -------------------------------------------------------------------------------------------

    def _cache(self, row: Row, name: str) -> tuple[ir.Value, bool]:
        dims = common.declared_cache_dims(row.write)
        if dims is None:
            return row.write.cache, False
        self.notes.append(f"{name} is reshaped to the operator's shape {dims}; memory order is unchanged")
        return self.emit.reshape(row.write.cache, dims, name + "_declared"), True

    def _index(self) -> ir.Value:
        write = self.inputs.key.write
        if self.inputs.mode != "Norm":
            return common.flat_index(self.emit, write)
        tokens_axis = 1 if len(self.key_columns.shape) == 3 else 2
        return common.row_index(self.emit, write, self._batch_dim(), (self.key_columns.value, tokens_axis))

    def _delivered_value(self, row: Row, value: ir.Value, output: ir.Value, name: str) -> ir.Value:
        """The operator's output in the shape and order of the value it replaces."""
        order = self._delivered_order(positions_in(self.view, row, value))
        if order == "token" and self.frame == "batch" and self.heads > 1:
            output = self.emit.node("Transpose", [output], name + "_by_token", {"perm": [0, 2, 1, 3]})
        elif order == "head" and self.frame == "flat" and self.heads > 1:
            width = row.write.probes[0].source.shape[2]
            dims = self.emit.shape_vector([self._batch_dim(), -1, self.heads, width], name + "_split_shape")
            split = self.emit.reshape(output, dims, name + "_split")
            output = self.emit.node("Transpose", [split], name + "_by_head", {"perm": [0, 2, 1, 3]})
        shapes = [entry.view.probe.shape(value) or () for entry in row.views]
        own = [self._output_shape(number, row, order) for number in range(len(shapes))]
        if shapes == own:
            return output
        return self.emit.reshape(output, self._target(shapes, value), name)

    def _delivered_order(self, position: list[Array] | None) -> str:
        """``token``: ``[T, N, D]`` in the value; ``head``: ``[B, N, S, D]``; "" for neither."""
        orders = [self._orders(number, item) for number, item in enumerate(position or [])]
        for order in ("head", "token") if self.frame == "batch" else ("token", "head"):
            if orders and all(order in found for found in orders):
                return order
        return ""

    def _orders(self, number: int, position: Array) -> set[str]:
        count, heads, width = position.shape
        batch, tokens = self._split(number)
        found = set()
        if (position.reshape(-1) == np.arange(position.size)).all():
            found.add("token")
        token = np.arange(count)
        row = ((token // tokens)[:, None] * heads + np.arange(heads)) * tokens + (token % tokens)[:, None]
        if (position == row[:, :, None] * width + np.arange(width)).all():
            found.add("head")
        return found

    def _output_shape(self, number: int, row: Row, order: str) -> tuple[int, ...]:
        batch, tokens = self._split(number)
        width = row.write.probes[number].source.shape[2]
        if self.frame == "flat" and not (order == "head" and self.heads > 1):
            return (batch * tokens, self.heads, 1, width)
        return (
            (batch, tokens, self.heads, width)
            if order == "token" and self.heads > 1
            else (batch, self.heads, tokens, width)
        )

    def _target(self, shapes: list[tuple[int, ...]], value: ir.Value) -> ir.Value:
        """A Reshape target from numbers, one -1, and dims of the projected row."""
        varying = [axis for axis in range(len(shapes[0])) if len({shape[axis] for shape in shapes}) > 1]
        dims: list[int | ir.Value] = list(shapes[0])
        for axis in varying[:-1]:
            sizes = [shape[axis] for shape in shapes]
            found = common.dim_like(self.emit, self._own_probes(), sizes, self._shape_sources(), "delivered")
            if found is None:
                raise Refused(
                    "delivered-shape", "the shape of a delivered value can be told", str(shapes[0]), "", "", value
                )
            dims[axis] = found
        if varying:
            dims[varying[-1]] = -1
        return self.emit.shape_vector(dims, "delivered_shape")

    # assembly -----------------------------------------------------------------------------------------------------

    def candidate(self) -> Candidate:
        key, value, emit = self.inputs.key, self.inputs.value, self.emit
        delivered = self._delivered()
        needed = delivered_outside(
            self.view, self.region, self._stops(), [item for _, item, _ in delivered], self._replaced_ids()
        )
        caches = [self._cache(row, name) for row, name in ((key, "k_cache"), (value, "ckv_cache"))]
        operands: list[ir.Value | None] = [
            self._kv(), self._gamma(), self._table_value(self.cos, "cos"), self._table_value(self.sin, "sin"),
            self._index(), caches[0][0], caches[1][0], *self._quantisation(),
            self._rows(self.value_columns, "v") if self.inputs.separate else None,
        ]  # fmt: skip
        while operands[-1] is None:
            operands.pop()
        attrs: dict[str, Any] = {"epsilon": float(np.float32(self.inputs.norm.epsilon)), "cache_mode": self.inputs.mode}
        if needed:
            attrs["is_output_kv"] = 1
        if self._float8_cast() not in ("", "saturate"):
            attrs["float8_cast"] = self._float8_cast()
        node, outputs = self._node(operands, attrs)
        replaced: list[tuple[ir.Value, ir.Value]] = []
        for (_, reshaped), row, output in zip(caches, (key, value), outputs[:2], strict=True):
            new = emit.reshape(output, common.original_dims(row.write.cache), "cache_out") if reshaped else output
            replaced.append((row.write.out, new))
        for row, item, place in delivered:
            if id(item) in needed:
                replaced.append((item, self._delivered_value(row, item, outputs[place], f"delivered_{place}")))
        self._assume()
        return Candidate(
            op=self.operator.name, node=node, emitter=emit, replaced=replaced, region=self.region, feeds=[item for item in self._feeds() if id(item) not in emit.copied],
            probes=self._probes(), place=self.view.place(key.write.out, self.layer),
            layer=self.layer, stand_ins=self._stand_ins(), assumptions=self.assumptions, notes=self.notes, attrs=attrs,
        )  # fmt: skip

    def _stand_ins(self) -> list[tuple[ir.Value, ir.Value]]:
        """Values of the region that others ask for their shape, and a source of the same shape to ask instead."""
        found = []
        sources = [self.key_columns.value, self.value_columns.value, self.cos.value]
        for node in self.region:
            for value in node.outputs:
                if any(use.node.op_type in ("Shape", "Size") for use in value.uses()):
                    for source in sources:
                        pairs = [(probe.shape(value), probe.shape(source)) for probe in self._own_probes()]
                        if all(own is not None and own == other for own, other in pairs):
                            found.append((value, source))
                            break
        return found

    def _delivered(self) -> list[tuple[Row, ir.Value, int]]:
        """Values that the operator delivers beside the caches: (rows, value, output number)."""
        found = []
        for row, place in ((self.inputs.key, 2), (self.inputs.value, 3)):
            if row is self.inputs.value and self.inputs.separate:
                continue
            for item in common.delivered_candidates(self.view, row, self.kind):
                if self._delivered_order(positions_in(self.view, row, item)):
                    found.append((row, item, place))
                    break
        return found

    def _replaced_ids(self) -> set[int]:
        """Values of the spine and the outputs: who reads them is the cache's business."""
        spine = [
            item for row in (self.inputs.key, self.inputs.value) for node in row.write.spine for item in node.outputs
        ]
        return {id(item) for item in spine}

    def _node(self, operands: list[ir.Value | None], attrs: dict[str, Any]) -> tuple[ir.Node, list[ir.Value]]:
        name = self.emit.name("node")
        outputs = []
        for output in self.operator.outputs:
            like = {"k_cache": operands[5], "ckv_cache": operands[6]}.get(output.name, operands[0])
            kind = (
                ir.TensorType(ir.DataType(by_name(self.kind).onnx)) if like is None or like.type is None else like.type
            )
            outputs.append(ir.Value(name=self.emit.name(output.onnx_name), type=kind))
        node = ir.node(self.operator.name, operands, attrs, domain=DOMAIN, outputs=outputs, name=name)
        self.emit.nodes.append(node)
        return node, outputs

    def _probes(self) -> list[Probe]:
        """Trial sizes under which both caches have the shapes that the operator wants of them."""
        key, value = self.inputs.key.write, self.inputs.value.write
        probes = []
        for written in key.probes:
            probe = written.probe
            targets = [key.out, value.out, key.cache, value.cache, *self._feeds()]
            while True:
                probe = settle(self.view, probe.seed, probe.numbers, targets, probe.sizes)
                wanted = self._unequal(probe, written.batch)
                if wanted is None:
                    break
                if not probe.sizes.unify(*wanted):
                    raise Refused(
                        "kv-sizes-differ",
                        "both caches have the batch, pages and length that the operator wants (KV-14, KV-15)",
                        f"sizes {wanted[0]} and {wanted[1]}", "equal sizes", "give both caches one shape", value.cache,
                    )  # fmt: skip
            probes.append(probe)
        return probes

    def _unequal(self, probe: Probe, batch: int) -> tuple[int, int] | None:
        """Two sizes that the operator wants equal and that are not yet."""
        writes = [row.write for row in (self.inputs.key, self.inputs.value)]
        shapes = [probe.shape(write.cache) or () for write in writes]
        rows = [shape[common.rows_axis(write)] for write, shape in zip(writes, shapes, strict=True)]
        pairs = [(shapes[0][0], shapes[1][0]), (rows[0], rows[1])]
        if self.inputs.mode == "Norm":
            pairs.append((shapes[0][0], batch))
        leads = [(probe.shape(columns.value) or ())[:-1] for columns in (self.key_columns, self.value_columns)]
        if len(leads[0]) == len(leads[1]):
            pairs += zip(*leads, strict=True)
        elif not self.key_columns.by_head and not self.value_columns.by_head:
            pairs.append((int(np.prod(leads[0])), int(np.prod(leads[1]))))
        return next((pair for pair in pairs if pair[0] != pair[1]), None)

    def _assume(self) -> None:
        write = self.inputs.key.write
        if (
            "skips" not in (write.negative, self.inputs.value.write.negative)
            or write.negative != self.inputs.value.write.negative
        ):
            self.assumptions.append("slots >= 0: the graph does not skip a slot of -1, the operator does")
        self.assumptions.append(
            "slots are distinct" if self.inputs.mode != "Norm" else "slots are distinct in a batch entry"
        )
        if (
            self.inputs.mode == "Norm"
            and common.static_dims(write.cache)[:1] != common.static_dims(self.key_columns.value)[:1]
        ):
            self.assumptions.append("the cache holds exactly the batch of the call")
