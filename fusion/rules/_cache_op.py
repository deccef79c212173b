"""What operators that write caches need from the graph: caches as declared, slots, cos and sin, delivered rows."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import onnx_ir as ir

from fusion.candidate import Refused
from fusion.emit import Emitter
from fusion.facts.caches.cache_write import CacheWrite
from fusion.facts.caches.rows import Row
from fusion.facts.graph import GraphView, dims_of, dtype_name, uses
from fusion.facts.semantics import lookup
from fusion.facts.spine import half_written_readers, old_content_readers
from fusion.facts.symbols.operand import Columns, columns_of
from fusion.facts.symbols.parameters import Part, Scale
from fusion.facts.trial.probe import Numbers, Probe
from ir_ops.dtypes import Array, by_name

Dims = list[int]
VIEWS = ("Identity", "Reshape", "Unsqueeze", "Squeeze")
"""Operators that keep every element in its order."""


def refuse_aliases(write: CacheWrite) -> None:
    """Refuses a cache whose old or half-written content somebody else reads: the operator writes in place."""
    readers = old_content_readers(write.spine)
    if readers:
        node = readers[0]
        raise Refused(
            "alias-second-reader",
            f"the old content of {write.cache.name} has no other reader",
            f"read by {node.op_type} {node.name or node.outputs[0].name}",
            "only the write",
            "read the updated cache instead",
            write.cache,
        )
    if write.cache.is_graph_output():
        raise Refused(
            "alias-second-reader", f"the old content of {write.cache.name} has no other reader",
            "it is a graph output", "only the write", "drop the output", write.cache,
        )  # fmt: skip
    for value, node in half_written_readers(write.spine):
        raise Refused(
            "alias-second-reader", f"{write.cache.name} is written in place and read in its final form only",
            f"{value.name} is read by {node.op_type} {node.name or node.outputs[0].name}", "the updated cache",
            "read the updated cache instead", value,
        )  # fmt: skip


def slots_text(write: CacheWrite) -> str:
    """Slots and layout of a write, for messages."""
    return f"{write.slots.value.name} ({write.slots.form}, {write.order})"


def static_dims(value: ir.Value, dims: tuple[int, ...] | None = None) -> tuple[int | None, ...]:
    """Declared dims, None where they are symbolic."""
    declared = dims_of(value) or ()
    return tuple(dim if isinstance(dim, int) else None for dim in declared)


def declared_cache_dims(write: CacheWrite) -> Dims | None:
    """The four dims in which the operator declares the cache, -1 for the one dynamic; None when it is declared so.

    Raises:
        Refused: more than one dim that is not static would have to change.
    """
    dims, geometry = static_dims(write.cache), write.probes[0].geometry
    _, heads, width = write.probes[0].source.shape
    shape = write.probes[0].probe.shape(write.cache) or ()
    wanted: list[int | None]
    if len(dims) == 4 and (geometry.order != "NZ" or shape[2:] == (heads, width)):
        return None
    if geometry.order == "BNSD":
        wanted = [dims[0], heads, dims[1], dims[2]]
    elif geometry.order == "BSND":
        pageless = geometry.pages == 1 and geometry.rows == shape[0]
        wanted = [1, dims[0], dims[1], dims[2]] if pageless else [dims[0], dims[1], heads, dims[2]]
    else:
        wanted = [dims[0], dims[3] if len(dims) == 5 else dims[2], heads, width]
    numbers = [-1 if dim is None else dim for dim in wanted]
    if numbers.count(-1) > 1:
        raise Refused("cache-shape", "the cache can be declared in four dims", str(dims), "at most one dynamic dim")
    return numbers


def rows_axis(write: CacheWrite) -> int:
    """The axis of the cache that counts rows of a page."""
    shape, geometry = write.probes[0].probe.shape(write.cache) or (), write.probes[0].geometry
    if geometry.order == "BNSD":
        return len(shape) - 2
    if geometry.order == "BSND":
        return 0 if len(shape) == 3 and geometry.pages == 1 and geometry.rows == shape[0] else 1
    return 3 if len(shape) == 5 else 1 if shape[2:] == write.probes[0].source.shape[1:] else 2


def original_dims(value: ir.Value) -> Dims:
    """Reshape target that gives a cache its own shape back."""
    numbers = [-1 if dim is None else dim for dim in static_dims(value)]
    if numbers.count(-1) > 1:
        raise Refused(
            "cache-shape", "the cache shape can be restored", str(numbers), "at most one dynamic dim", "", value
        )
    return numbers


def row_index(emit: Emitter, write: CacheWrite, batch_dim: int | ir.Value, tokens_of: tuple[ir.Value, int]) -> ir.Value:
    """index ``[B, S]`` for caches with a row per token of the batch.

    Args:
        batch_dim: B, a number or a one-element vector.
        tokens_of: a value and the axis of it that has S tokens.
    """
    slots = write.slots
    value = emit.cast(slots.value, "int64", "slots")
    rank = len(write.probes[0].probe.shape(slots.value) or ())
    if slots.start:
        tokens = emit.reshape(emit.dim(*tokens_of, part="tokens"), emit.ints([], "scalar"), "tokens_scalar")
        zero, one = (emit.constant(np.array(number, np.int64), part) for number, part in ((0, "zero"), (1, "one")))
        run = emit.node("Range", [zero, tokens, one], "run", dtype=ir.DataType.INT64)
        value = emit.node("Add", [emit.reshape(value, [-1, 1], "starts"), run], "slots_run")
    elif rank != 2 and not slots.shared:
        value = emit.reshape(value, emit.shape_vector([batch_dim, -1], "slots_shape"), "slots_by_batch")
    if slots.shared:
        if rank > 1:
            value = emit.reshape(value, [1, -1], "slots_row")
        value = emit.node("Expand", [value, emit.shape_vector([batch_dim, 1], "slots_shape")], "slots_by_batch")
    return value


def slots_of_rows(
    emit: Emitter, write: CacheWrite, batch_dim: int | ir.Value, tokens_of: tuple[ir.Value, int]
) -> ir.Value:
    """Flat slots ``[B, S]`` of caches ``[B, M, N, D]`` with a row per token: row + entry * M. Arguments as above."""
    value = row_index(emit, write, batch_dim, tokens_of)
    zero, one = (emit.constant(np.array(number, np.int64), part) for number, part in ((0, "zero"), (1, "one")))
    count = emit.constant(np.array(batch_dim, np.int64), "batch") if isinstance(batch_dim, int) else (
        emit.reshape(batch_dim, emit.ints([], "scalar"), "batch_scalar"))  # fmt: skip
    entry = emit.node("Range", [zero, count, one], "entries", dtype=ir.DataType.INT64)
    first = emit.node("Mul", [emit.reshape(entry, [-1, 1], "entries_column"), rows_dim(emit, write)], "first_slots")
    return kept_negative(emit, value, emit.node("Add", [value, first], "slots_of_batch"))


def rows_dim(emit: Emitter, write: CacheWrite) -> ir.Value:
    """Rows of a page, as a vector of one element."""
    axis = rows_axis(write)
    static = static_dims(write.cache)[axis]
    return emit.ints([static], "rows") if static is not None else emit.dim(write.cache, axis, "rows")


def kept_negative(emit: Emitter, before: ir.Value, after: ir.Value) -> ir.Value:
    """``after``, but -1 where ``before`` is negative: what is computed from a slot of -1 must not be a slot."""
    negative = emit.node("Less", [before, emit.ints([0], "none")], "skipped", dtype=ir.DataType.BOOL)
    return emit.node("Where", [negative, emit.ints([-1], "skip"), after], "guarded", dtype=ir.DataType.INT64)


def flat_index(emit: Emitter, write: CacheWrite) -> ir.Value:
    """index as a vector of slots or page starts."""
    value = emit.cast(write.slots.value, "int64", "slots")
    rank = len(write.probes[0].probe.shape(write.slots.value) or ())
    return value if rank == 1 else emit.reshape(value, [-1], "slots_flat")


LONGEST_RUN = 16
"""Tokens of a trial that are written behind a start."""


def fitting(numbers: Numbers, probe: Probe, writes: Sequence[CacheWrite]) -> Numbers:
    """Slot numbers that stay inside the caches, whose sizes may have become smaller since the numbers were chosen."""
    for write in writes:
        shape, axis, array = probe.shape(write.cache) or (), rows_axis(write), probe.array(write.slots.value)
        slots = shape[axis] if write.slots.form == "row" or not axis else shape[0] * shape[axis]
        most = max(slots - LONGEST_RUN, slots // 2) if write.slots.start else slots
        if array is not None and array.max(initial=0) >= most and most < numbers.cap:
            stride = shape[axis] if write.slots.form == "block" else numbers.stride
            numbers = replace(numbers, cap=most, stride=stride)
    return numbers


def slots_are_distinct(probe: Probe, write: CacheWrite) -> bool:
    """Whether the numbers sufficed: operators want distinct slots, or distinct pages."""
    slots, array = write.slots, probe.array(write.slots.value)
    if array is None or slots.start:
        return array is not None
    lines = array.reshape(-1, array.shape[-1]) if slots.form == "row" and array.ndim else array.reshape(1, -1)
    unit = (probe.shape(write.cache) or ())[rows_axis(write)] if slots.form == "block" else 1
    return all(len(np.unique(line // unit)) == len(line) for line in lines)


def agreed_columns(parts: list[Part], what: str) -> Columns:
    """Columns that every probe reads alike."""
    read = [columns_of(part) for part in parts]
    first = read[0]
    if first is None or any(other is None or not first.same_as(other) for other in read[1:]):
        raise Refused(
            "row-order",
            f"{what} are rows of one value in token and head order",
            f"rows of {parts[0].value.name} in another order",
            "token t of the value goes to slot t",
            "",
            parts[0].value,
        )
    return first


def facing_types(view: GraphView, source: ir.Value, region: set[int]) -> set[str]:
    """Element types in which a source's elements meet arithmetic inside the region."""
    return {kind for kind, _ in _meeting_types(source, region)}


def rounded_types(view: GraphView, source: ir.Value, region: set[int]) -> set[str]:
    """The narrowest types that a source's elements have been rounded to when they meet arithmetic in the region."""
    return {narrowest for _, narrowest in _meeting_types(source, region)}


def _meeting_types(source: ir.Value, region: set[int]) -> set[tuple[str, str]]:
    """Type, and narrowest type so far, wherever a source's elements meet arithmetic in the region."""
    own = dtype_name(source)
    found: set[tuple[str, str]] = set()
    pending, seen = [(source, own)], {(id(source), own)}
    while pending:
        value, narrowest = pending.pop()
        for node, _ in uses(value):
            if id(node) not in region or node.op_type in ("Shape", "Size"):
                continue
            definition = lookup(node.domain, node.op_type)
            moves = definition is not None and (definition.moves is not None or node.op_type == "Cast")
            if not moves:
                found.add((dtype_name(value), narrowest))
                continue
            for output in node.outputs:
                held = dtype_name(output) if widens(dtype_name(output), narrowest) else narrowest
                if (id(output), held) not in seen:
                    seen.add((id(output), held))
                    pending.append((output, held))
    return found or {(own, own)}


def in_type(emit: Emitter, view: GraphView, value: ir.Value, kind: str, region: set[int], what: str) -> ir.Value:
    """An activation in the operator's type, converted only where the graph itself rounds so, or without loss."""
    own = dtype_name(value)
    if own == kind:
        return value
    facing = facing_types(view, value, region)
    if facing == {kind} or widens(own, kind) or rounded_types(view, value, region) == {kind}:
        return emit.cast(value, kind, what)
    raise Refused(
        "mixed-types",
        f"{what} has the element type of the operator",
        f"{own} used as {' and '.join(sorted(facing))}",
        kind,
        f"cast {what} to {kind} before the rotation",
        value,
    )


def widens(narrow: str, wide: str) -> bool:
    """Whether every number of one float type is a number of the other."""
    return (wide == "float32" and narrow in ("float16", "bfloat16")) or (wide == "float64" and "float" in narrow)


def row_types(rows: Sequence[Row], sources: Sequence[ir.Value]) -> set[str]:
    """The float types of plain rows: those of their caches, or float32 where these keep float32 rows narrower."""
    plain = [row for row in rows if row.peeled is None]
    kept = {dtype_name(row.write.cache) for row in plain}
    wide = all(dtype_name(source) == "float32" for source in sources)
    if wide and plain and all(widens(kind, "float32") for kind in kept):
        stops = {id(source) for source in sources}
        if all(_rounded_once(row, stops) for row in plain):
            return {"float32"}
    return kept


def _rounded_once(row: Row, stops: set[int]) -> bool:
    """Whether rows are float32 until they are rounded for their cache, and nothing on the way to there is narrower."""
    value: ir.Value | None = row.start
    while value is not None and dtype_name(value) != "float32":
        node = value.producer()
        value = None if node is None else _moved(node)
    pending, seen = [value], {*stops, id(None)}
    while pending:
        item = pending.pop()
        node = None if item is None or id(item) in seen else item.producer()
        seen.add(id(item))
        if node is None:
            continue
        if node.op_type == "Cast" and _narrows(node):
            return False
        pending += node.inputs
    return value is not None


def _narrows(cast: ir.Node) -> bool:
    """Whether a Cast rounds floats to 16 bits."""
    given = cast.inputs[0]
    kinds = ["" if item is None else dtype_name(item) for item in (given, cast.outputs[0])]
    return kinds[1] in ("float16", "bfloat16") and kinds[0] not in ("", kinds[1]) and not kinds[0].startswith("int")


def constant_in_type(emit: Emitter, view: GraphView, value: ir.Value, kind: str, what: str) -> ir.Value:
    """A parameter in the operator's type; one of a wider type only when its numbers fit without loss."""
    own = dtype_name(value)
    if own == kind:
        return value
    if widens(own, kind):
        return emit.cast(value, kind, what)
    content = view.folded(value, 1 << 16)
    if content is not None:
        narrowed = content.astype(by_name(kind).np)
        if np.array_equal(narrowed.astype(np.float64), content.astype(np.float64)):
            emit.copied.add(id(value))
            return emit.constant(narrowed, what)
    raise Refused(
        "mixed-types",
        f"{what} has the element type of the operator",
        f"{own} with numbers that {kind} cannot hold" if content is not None else own,
        kind,
        f"store {what} as {kind}",
        value,
    )


def parameter_values(row: Row) -> list[ir.Value]:
    """The values behind scale and offset."""
    scales = [scale for scale in (row.views[0].scale, row.views[0].offset) if scale is not None]
    return [part.value for scale in scales for part, _ in scale.parts]


def delivered_candidates(view: GraphView, row: Row, kind: str) -> list[ir.Value]:
    """Values of the operator's type with all elements of the rows before scale and rounding, the earliest first."""
    probe, count = row.write.probes[0].probe, row.write.probes[0].source.size
    parameters = {id(value) for value in parameter_values(row)}
    value: ir.Value | None = row.start
    found: list[ir.Value] = []
    while value is not None:
        shape = probe.shape(value)
        if shape is None or int(np.prod(shape)) != count:
            break
        if dtype_name(value) == kind:
            found.append(value)
        node = value.producer()
        if node is None or value is row.x or (row.norm is not None and value is row.norm.y):
            break
        value = _carried(view, node, parameters)
        if value is not None and node.op_type in ("Mul", "Div", "Add", "Sub", "Sum"):
            found = []
    return found[::-1]


def _moved(node: ir.Node) -> ir.Value | None:
    """The operand whose elements a node only moves, or rounds to another type."""
    definition = lookup(node.domain, node.op_type)
    if definition is not None and definition.moves is not None and (definition.moves != (-1,) or len(node.inputs) == 1):
        return node.inputs[0]
    return node.inputs[0] if node.op_type == "Cast" else None


def _carried(view: GraphView, node: ir.Node, parameters: set[int]) -> ir.Value | None:
    """The operand whose elements a node only moves, or scales by a quantisation parameter."""
    moved = _moved(node)
    if moved is not None:
        return moved
    if node.op_type in ("Mul", "Div", "Add", "Sub"):
        for data, other in ((0, 1), (1, 0)):
            side = node.inputs[other]
            if side is not None and (_comes_from(view, side, parameters) or view.scalar(side) is not None):
                return node.inputs[data]
    return None


def _comes_from(view: GraphView, value: ir.Value, parameters: set[int], depth: int = 6) -> bool:
    """Whether a value is computed from quantisation parameters and constants alone."""
    if id(value) in parameters or view.is_constant(value):
        return True
    node = value.producer()
    if node is None or not depth:
        return False
    return all(item is None or _comes_from(view, item, parameters, depth - 1) for item in node.inputs)


def parameter(emit: Emitter, view: GraphView, scale: Scale | None, what: str) -> ir.Value | None:
    """A quantisation parameter that multiplies (or is added), as ``[1]``, ``[D]`` or ``[N, D]`` of float32."""
    if scale is None:
        return None
    picked = [(part.value, _smallest(part.position), inverse) for part, inverse in scale.parts]
    contents = [view.folded(value, 1 << 16) for value, _, _ in picked]
    if all(content is not None for content in contents):
        total = np.array([scale.number])
        with np.errstate(divide="ignore"):
            for (value, position, inverse), content in zip(picked, contents, strict=True):
                assert content is not None
                emit.copied.add(id(value))
                numbers = content.reshape(-1)[position].astype(np.float64)
                total = total / numbers if inverse else total * numbers
        return emit.constant(total.astype(np.float32), what)
    result: ir.Value | None = None
    if scale.number != 1.0:
        result = emit.constant(np.array([scale.number], np.float32), what + "_number")
    for value, position, inverse in picked:
        vector = _picked(emit, value, position, what)
        if result is None:
            result = emit.node("Reciprocal", [vector], what + "_inverse") if inverse else vector
        else:
            result = emit.node("Div" if inverse else "Mul", [result, vector], what + "_product")
    return result


def _smallest(position: Array) -> Array:
    """``[N, D]`` positions as ``[1]`` or ``[D]`` where they repeat."""
    if (position == position.reshape(-1)[0]).all():
        return position.reshape(-1)[:1]
    return position[0] if (position == position[:1]).all() else position


def _picked(emit: Emitter, value: ir.Value, position: Array, what: str) -> ir.Value:
    if dtype_name(value) not in ("float32", "float16", "bfloat16", "int8"):
        raise Refused("mixed-types", f"{what} is float32", dtype_name(value), "float32", "", value)
    flat = emit.reshape(emit.cast(value, "float32", what + "_wide"), [-1], what + "_flat")
    vector = emit.node("Gather", [flat, emit.ints(position.reshape(-1).tolist(), what + "_index")], what, {"axis": 0})
    return vector if position.ndim == 1 else emit.reshape(vector, list(position.shape), what + "_shaped")
