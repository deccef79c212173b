"""A cache write: which rows of which value go to which slots of a cache, whatever operators spell it.

The cache's elements are tagged 0, 1, 2, ... and the elements of everything written into it with numbers above; the
movement operators between cache input and cache output are run on the tags. The result *is* the address map. It is
compared with what :mod:`ir_ops.layout` predicts for each candidate slot value: an exact match is the fact.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass, field

import numpy as np
import onnx_ir as ir

from fusion.facts.graph import GraphView, dtype_name, uses
from fusion.facts.probe import Numbers, Probe, settle, start_sizes
from fusion.facts.sizes import Sizes
from fusion.facts.semantics import Conflict, OutOfRange, Unsupported, lookup
from ir_ops.dtypes import Array, by_name
from ir_ops.layout import address

SEEDS = (0, 1)


@dataclass(frozen=True)
class Slots:
    """How slot numbers are given.

    Attributes:
        value: the integer value that holds them.
        form: ``row`` (position in the batch's own cache), ``slot`` (flat slot), ``block`` (first slot of a page).
        shared: the value has one entry a token and the batch shares it.
        start: the value is where a run of tokens starts.
    """

    value: ir.Value
    form: str
    shared: bool = False
    start: bool = False


@dataclass(frozen=True)
class Geometry:
    """A reading of the cache's shape: memory order, and which axes are pages, rows, heads and columns."""

    order: str
    pages: int
    rows: int
    heads: int
    columns: int
    d0: int = 1


@dataclass
class CacheWrite:
    """A write that both probes agree on.

    Attributes:
        cache: the graph input that holds the old content.
        out: the graph output with the new content.
        spine: nodes between the two.
        updates: values whose elements are written, in tag order.
        order: memory order of :mod:`ir_ops.layout`.
        slots: the slot value and its meaning.
        negative: what the graph does with slot -1: ``skips``, ``wraps`` (writes somewhere) or ``unknown``.
        views: per probe, the evaluated form.
    """

    cache: ir.Value
    out: ir.Value
    spine: tuple[ir.Node, ...]
    updates: tuple[ir.Value, ...]
    order: str
    slots: Slots
    negative: str = "unknown"
    probes: list[WrittenView] = field(default_factory=list)


@dataclass
class WrittenView:
    """A write under one probe: sizes and, per token, head and column, the written element of each update."""

    probe: Probe
    geometry: Geometry
    batch: int
    tokens: int
    source: Array
    """``[T, N, D]`` flat position in the concatenated updates."""


@dataclass(frozen=True)
class NotAWrite:
    """A graph output that is moved from a cache input but is not an in-place write, and why."""

    cache: ir.Value
    out: ir.Value
    reason: str
    detail: str


def find_writes(view: GraphView) -> tuple[list[CacheWrite], list[NotAWrite]]:
    """All cache writes of a graph: outputs that reach a float or 8-bit graph input through movement."""
    writes: list[CacheWrite] = []
    others: list[NotAWrite] = []
    pairs = [
        (cache, out)
        for out in view.graph.outputs
        if (cache := cache_behind(view, out)) is not None and _is_cache(view, cache, out)
    ]
    view.caches = {id(cache) for cache, _ in pairs}
    for cache, out in pairs:
        found = read_write(view, cache, out)
        if isinstance(found, CacheWrite):
            writes.append(found)
        else:
            others.append(found)
    return writes, others


def cache_behind(view: GraphView, out: ir.Value) -> ir.Value | None:
    """The graph input whose elements an output carries on, None when it carries none through an operator."""
    pending, seen = [out], {id(out)}
    while pending:
        value = pending.pop()
        node = value.producer()
        if node is None:
            if value is not out and value.is_graph_input() and _is_cache_type(value):
                return value
            continue
        for operand in _movable(node):
            if id(operand) not in seen:
                seen.add(id(operand))
                pending.insert(0, operand)
    return None


def _is_cache(view: GraphView, cache: ir.Value, out: ir.Value) -> bool:
    """Whether something is written on the way, or nothing else is done with the input: a write that got lost."""
    spine = _spine(view, cache, out)
    carried = {id(cache)} | {id(value) for node in spine for value in node.outputs}
    if any(id(item) not in carried for node in spine for item in _data_operands(node)):
        return True
    inside = {id(node) for node in spine}
    return all(id(node) in inside for node, _ in uses(cache))


def _movable(node: ir.Node) -> list[ir.Value]:
    """Operands through which a node may carry a cache on; of scatters the destination only."""
    definition = lookup(node.domain, node.op_type)
    if definition is None or definition.moves is None or node.domain not in ("", "ai.onnx"):
        return []
    if definition.moves == (-1,):
        return [item for item in node.inputs if item is not None]
    places = definition.moves if node.op_type == "Where" else definition.moves[:1]
    return [item for place in places if place < len(node.inputs) and (item := node.inputs[place]) is not None]


def _is_cache_type(value: ir.Value) -> bool:
    name = dtype_name(value)
    rank = len(value.shape) if value.shape is not None else 0
    return rank >= 3 and (name.startswith(("float", "bfloat")) or name in ("int8", "uint8"))


def read_write(view: GraphView, cache: ir.Value, out: ir.Value) -> CacheWrite | NotAWrite:
    """Reads how ``out`` is written over ``cache``: two trial sizes must agree.

    Writes by page are tried with runs of tokens longer than a page, which also decide where the plain sizes do not fit.
    """
    spine = _spine(view, cache, out)
    trials = [_trial(view, cache, out, spine, start_sizes(view, seed, out), seed) for seed in SEEDS]
    read = [trial for trial in trials if isinstance(trial, _Trial)]
    if len(read) < len(SEEDS) or any(slots.form == "block" for trial in read for slots, _ in trial.matches):
        read += _long_runs(view, cache, out, spine)
    if len(read) < len(SEEDS):
        return next(trial for trial in trials if isinstance(trial, NotAWrite))
    for slots, here in sorted(read[0].matches, key=_preference):
        agreed = [item for trial in read if (item := trial.view_of(slots, here.geometry.order)) is not None]
        needed = any(item.probe.sizes.run for item in agreed) if slots.form == "block" else len(agreed) >= len(SEEDS)
        if needed and len(agreed) >= len(SEEDS):
            write = CacheWrite(cache, out, spine, read[0].updates, here.geometry.order, slots, "unknown", agreed[:2])
            if slots.form == "block":
                write.probes = [here, next(item for item in agreed if item.probe.sizes.run)]
            write.negative = _negative(view, write)
            return write
    return NotAWrite(cache, out, "write-layout", "the trial sizes read different layouts")


def _long_runs(view: GraphView, cache: ir.Value, out: ir.Value, spine: tuple[ir.Node, ...]) -> list[_Trial]:
    """The first trial with runs one token longer than a page, for each size a page may have."""
    shape = Probe(view, 0, start_sizes(view, 0), Numbers(1)).input_shape(cache) or ()
    for rows in sorted({size for size in shape[1:-1] if 1 < size <= 512}):
        for multiple in (1, 2):
            sizes = start_sizes(view, len(SEEDS), out, rows + 1, multiple)
            trial = _trial(view, cache, out, spine, sizes, len(SEEDS))
            if isinstance(trial, _Trial):
                return [trial]
    return []


def _preference(match: tuple[Slots, WrittenView]) -> tuple[bool, bool, bool]:
    """Slots that are given before slots that are computed, and before the start of a run.

    In a paged cache, numbers that happen to fall into the first page read as rows of one batch entry too.
    """
    slots, written = match
    ambiguous = written.geometry.order == "BSND" and slots.form == "row"
    return slots.start, slots.value.producer() is not None, ambiguous


@dataclass
class _Trial:
    """What one seed found: every reading that predicts the written addresses."""

    updates: tuple[ir.Value, ...]
    matches: list[tuple[Slots, WrittenView]]

    def view_of(self, slots: Slots, order: str) -> WrittenView | None:
        return next((item for own, item in self.matches if own == slots and item.geometry.order == order), None)


def _trial(
    view: GraphView, cache: ir.Value, out: ir.Value, spine: tuple[ir.Node, ...], sizes: Sizes, seed: int
) -> _Trial | NotAWrite:
    reason = NotAWrite(cache, out, "write-unreadable", "no slot numbers fit the cache")
    unread: set[int] = set()
    for numbers in _number_choices(view, cache, seed):
        try:
            probe = settle(view, seed, numbers, [cache, out, *_index_operands(spine)], sizes)
            tagged = _run_tags(view, cache, out, spine, probe)
        except (Conflict, OutOfRange, Unsupported) as error:
            if reason.reason == "write-unreadable":
                reason = NotAWrite(cache, out, "write-unreadable", str(error))
            continue
        if isinstance(tagged, NotAWrite):
            reason = tagged
            if tagged.reason in ("cache-grows", "cache-unwritten"):
                return tagged
            continue
        matches = list(_match(view, tagged))
        if numbers.stride in unread:
            # larger numbers fit no layout, so these may only be rows of a batch entry, over their whole range
            matches = [match for match in matches if _whole_rows(match, numbers)]
        if matches:
            return _Trial(tagged.updates, matches)
        reason = NotAWrite(cache, out, "write-layout", "no cache layout predicts the written addresses")
        unread.add(numbers.stride)
    return reason


def _whole_rows(match: tuple[Slots, WrittenView], numbers: Numbers) -> bool:
    slots, written = match
    return slots.form == "row" and written.batch > 1 and numbers.cap == written.geometry.rows


def _spine(view: GraphView, cache: ir.Value, out: ir.Value) -> tuple[ir.Node, ...]:
    """Nodes on the way from cache to out that depend on the cache by movement, in graph order."""
    depends: dict[int, bool] = {id(cache): True}
    stack = [out]
    nodes: dict[int, ir.Node] = {}
    while stack:
        value = stack[-1]
        if id(value) in depends:
            stack.pop()
            continue
        node = value.producer()
        operands = [] if node is None else _data_operands(node)
        missing = [item for item in operands if id(item) not in depends]
        if missing:
            stack.extend(missing)
            continue
        stack.pop()
        depends[id(value)] = any(depends[id(item)] for item in operands)
        if depends[id(value)] and node is not None:
            nodes[id(node)] = node
    return tuple(sorted(nodes.values(), key=view.order))


def _data_operands(node: ir.Node) -> list[ir.Value]:
    definition = lookup(node.domain, node.op_type)
    if definition is None or definition.moves is None or node.domain not in ("", "ai.onnx"):
        return []
    places = range(len(node.inputs)) if definition.moves == (-1,) else definition.moves
    return [item for place in places if place < len(node.inputs) and (item := node.inputs[place]) is not None]


def _index_operands(spine: tuple[ir.Node, ...]) -> list[ir.Value]:
    found: dict[int, ir.Value] = {}
    for node in spine:
        data = {id(item) for item in _data_operands(node)}
        for item in node.inputs:
            if item is not None and id(item) not in data:
                found[id(item)] = item
    return list(found.values())


def _number_choices(view: GraphView, cache: ir.Value, seed: int) -> Iterator[Numbers]:
    """Integer data to try: bounds from products of cache dims, the largest first, with room for a run of tokens.

    Large bounds come first: small ones would hide pages. Last come numbers that fall into distinct pages, as writes
    by page need them.
    """
    probe = Probe(view, seed, start_sizes(view, seed), Numbers(1))
    shape = probe.input_shape(cache) or ()
    runs = {math.prod(shape[low:high]) for low in range(len(shape)) for high in range(low + 1, len(shape) + 1)}
    caps = sorted({cap for product in runs for cap in (product, product - 8) if 2 <= cap <= 1 << 20}, reverse=True)
    yield from (Numbers(cap) for cap in caps)
    yield from (Numbers(cap, stride) for stride in sorted(set(shape[1:])) for cap in caps if 1 < stride < cap)


@dataclass
class _Tagged:
    cache: ir.Value
    out: ir.Value
    probe: Probe
    tags: Array
    cache_shape: tuple[int, ...]
    updates: tuple[ir.Value, ...]
    index_operands: list[ir.Value]


def _run_tags(
    view: GraphView, cache: ir.Value, out: ir.Value, spine: tuple[ir.Node, ...], probe: Probe
) -> _Tagged | NotAWrite:
    shape = probe.shape(cache)
    if shape is None:
        raise Unsupported("a cache of unknown rank")
    count = math.prod(shape)
    tags: dict[int, Array] = {id(cache): np.arange(count).reshape(shape)}
    updates: list[ir.Value] = []
    fresh = count
    for node in spine:
        definition = lookup(node.domain, node.op_type)
        assert definition is not None and definition.moves is not None
        data = {id(item) for item in _data_operands(node)}
        operands: list[Array | None] = []
        for item in node.inputs:
            if item is None:
                operands.append(None)
            elif id(item) in data:
                if id(item) not in tags:
                    item_shape = probe.shape(item)
                    if item_shape is None:
                        raise Unsupported(f"the shape of {item.name} is not known")
                    size = math.prod(item_shape)
                    tags[id(item)] = fresh + np.arange(size).reshape(item_shape)
                    updates.append(item)
                    fresh += size
                operands.append(tags[id(item)])
            else:
                array = probe.array(item)
                if array is None:
                    raise Unsupported(f"the index {item.name} cannot be computed ({probe.known(item).why or 'data'})")
                operands.append(array)
        try:
            results = definition.run(view.attrs(node), operands)
        except Conflict as conflict:
            conflict.place = node
            if not probe.sizes.unify(conflict.left, conflict.right, conflict.divides):
                raise
            again = settle(view, probe.seed, probe.numbers, [cache, out, *_index_operands(spine)], probe.sizes)
            return _run_tags(view, cache, out, spine, again)
        for value, result in zip(node.outputs, results, strict=False):
            tags[id(value)] = np.asarray(result)
    final = tags[id(out)]
    refusal = _not_in_place(cache, out, final, shape, count)
    return refusal or _Tagged(cache, out, probe, final, shape, tuple(updates), _index_operands(spine))


def _not_in_place(cache: ir.Value, out: ir.Value, final: Array, shape: tuple[int, ...], count: int) -> NotAWrite | None:
    if final.shape != shape:
        longer = [axis for axis, (a, b) in enumerate(zip(shape, final.shape, strict=False)) if b > a]
        if len(final.shape) == len(shape) and len(longer) == 1:
            axis = longer[0]
            return NotAWrite(cache, out, "cache-grows", f"Concat growth along axis {axis}")
        return NotAWrite(cache, out, "cache-reshaped", f"shape {list(final.shape)} from {list(shape)}")
    flat = final.reshape(-1)
    kept = flat < count
    if (flat[kept] != np.arange(count)[kept]).any():
        return NotAWrite(cache, out, "cache-moved", "elements that are not written change their place")
    if kept.all():
        return NotAWrite(cache, out, "cache-unwritten", "nothing is written")
    return None


def _geometries(shape: tuple[int, ...], itemsize: int) -> Iterator[Geometry]:
    """Readings of a cache shape that the layouts know."""
    d0 = 32 // itemsize
    if len(shape) == 4:
        a, b, c, d = shape
        yield Geometry("BNSD", a, c, b, d)
        yield Geometry("BSND", a, b, c, d)
        if d == d0:
            yield Geometry("NZ", a, c, 1, b * d0, d0)
        if d % d0 == 0:
            yield Geometry("NZ", a, b, c, d, d0)
    elif len(shape) == 3:
        a, b, c = shape
        yield Geometry("BNSD", a, b, 1, c)
        yield Geometry("BSND", a, b, 1, c)
        yield Geometry("BSND", 1, a, b, c)
    elif len(shape) == 5 and shape[4] == d0:
        yield Geometry("NZ", shape[0], shape[3], shape[1], shape[2] * d0, d0)


def _match(view: GraphView, tagged: _Tagged) -> Iterator[tuple[Slots, WrittenView]]:
    """Every (slots, geometry) that predicts exactly the written addresses."""
    flat = tagged.tags.reshape(-1)
    count = flat.size
    written = np.flatnonzero(flat >= count)
    written_set = np.zeros(count, np.bool_)
    written_set[written] = True
    itemsize = by_name(dtype_name(tagged.cache)).itemsize
    for candidate in _candidates(view, tagged):
        numbers = tagged.probe.array(candidate)
        assert numbers is not None
        for geometry in _geometries(tagged.cache_shape, itemsize):
            row = geometry.heads * geometry.columns
            if len(written) % row:
                continue
            for slots, page, line, batch in _readings(
                candidate, numbers.astype(np.int64), geometry, len(written) // row
            ):
                if line.min() < 0 or line.max() >= geometry.rows:
                    continue
                place = _places(geometry, page, line)
                if place.min() < 0 or place.max() >= count or not written_set[place].all():
                    continue
                if len(np.unique(place)) != len(written):
                    continue
                tokens = len(page) // batch
                yield slots, WrittenView(tagged.probe, geometry, batch, tokens, flat[place] - count)


def _places(geometry: Geometry, page: Array, line: Array) -> Array:
    """Flat cache position of every (token, head, column)."""
    head, column = np.arange(geometry.heads)[None, :, None], np.arange(geometry.columns)[None, None, :]
    sizes = {"rows": geometry.rows, "heads": geometry.heads, "columns": geometry.columns, "d0": geometry.d0}
    place: Array = address(geometry.order, page[:, None, None], line[:, None, None], head, column, **sizes)
    return place


def _readings(
    candidate: ir.Value, numbers: Array, geometry: Geometry, total: int
) -> Iterator[tuple[Slots, Array, Array, int]]:
    """Meanings of a candidate's numbers: (slots, page of each token, row of each token, batch)."""
    flat = numbers.reshape(-1)
    if geometry.order != "NZ":
        yield from _row_readings(candidate, numbers, geometry, total)
    if geometry.order != "BNSD":
        yield from _slot_readings(candidate, numbers, flat, geometry.rows, total)


def _row_readings(
    candidate: ir.Value, numbers: Array, geometry: Geometry, total: int
) -> Iterator[tuple[Slots, Array, Array, int]]:
    """The page is the batch, the numbers are rows in it."""
    flat = numbers.reshape(-1)
    for batch in _batches(geometry.pages, total):
        tokens = total // batch
        page = np.repeat(np.arange(batch), tokens)
        if len(flat) == tokens and batch > 1:
            yield Slots(candidate, "row", shared=True), page, np.tile(flat, batch), batch
        elif len(flat) == total and (numbers.ndim < 2 or numbers.shape[0] == batch):
            yield Slots(candidate, "row"), page, flat, batch
        run = np.tile(np.arange(tokens), batch)
        if len(flat) == batch:
            yield Slots(candidate, "row", start=True), page, np.repeat(flat, tokens) + run, batch
        elif len(flat) == 1:
            yield Slots(candidate, "row", shared=True, start=True), page, flat[0] + run, batch


def _slot_readings(
    candidate: ir.Value, numbers: Array, flat: Array, rows: int, total: int
) -> Iterator[tuple[Slots, Array, Array, int]]:
    """The numbers are flat slots, or first slots of pages."""
    if len(flat) == total:
        batch = numbers.shape[0] if numbers.ndim == 2 else total
        yield Slots(candidate, "slot"), flat // rows, flat % rows, batch
    for batch in range(1, total):
        tokens = total // batch
        pages = -(-tokens // rows)
        if batch * tokens == total and len(flat) == batch * pages:
            token = np.tile(np.arange(tokens), batch)
            start = flat[np.repeat(np.arange(batch), tokens) * pages + token // rows]
            yield Slots(candidate, "block"), start // rows, token % rows, batch


def _batches(pages: int, total: int) -> list[int]:
    """Batch sizes that a row-per-batch cache of ``pages`` allows; usually all of it."""
    return [batch for batch in range(pages, 0, -1) if total % batch == 0]


def _candidates(view: GraphView, tagged: _Tagged) -> list[ir.Value]:
    """Integer values behind the index operands that carry data of graph inputs: inputs first, then by graph order."""
    pending = list(tagged.index_operands)
    seen: dict[int, ir.Value] = {}
    while pending:
        value = view.root(pending.pop())
        if id(value) in seen:
            continue
        known = tagged.probe.known(value)
        if not known.taint:
            continue
        seen[id(value)] = value
        node = value.producer()
        if node is not None:
            pending.extend(item for item in node.inputs if item is not None)
    numeric = [
        value
        for value in seen.values()
        if (array := tagged.probe.array(value)) is not None and array.dtype.kind == "i" and array.size
    ]
    return sorted(numeric, key=lambda value: -1 if (node := value.producer()) is None else view.order(node))


def _negative(view: GraphView, write: CacheWrite) -> str:
    """What the graph does with slot -1, over several choices of the other slots.

    A guard redirects -1 to some row and writes the old content there. That is a skip only as long as no other token
    targets that row, so the likely rows are tried both free and taken, with -1 before and behind them.
    """
    first = write.probes[0]
    numbers = first.probe.array(write.slots.value)
    if numbers is None or write.slots.start or numbers.size < 2:
        return "unknown"
    return (
        "skips"
        if all(_with_slots(view, write, first, trial) for trial in _negative_trials(write, numbers))
        else "wraps"
    )


def _negative_trials(write: CacheWrite, numbers: Array) -> Iterator[Array]:
    """Slot numbers with one -1."""
    geometry = write.probes[0].geometry
    step = geometry.rows if write.slots.form == "block" else 1
    limit = geometry.rows if write.slots.form == "row" else geometry.pages * geometry.rows // step
    lines = numbers.reshape(-1, numbers.shape[-1]) if write.slots.form == "row" else numbers.reshape(1, -1)
    rng = np.random.default_rng(0)
    likely = [0, limit - 1, min(geometry.rows, limit) - 1]
    for trial in range(8):
        result = lines.copy()
        for line in result:
            chosen = rng.permutation(limit)
            if trial >= 6:
                rest = [slot for slot in chosen if slot not in likely]
                chosen = np.array([*dict.fromkeys(likely), *rest])
            if len(chosen) < len(line):
                return
            line[:] = chosen[: len(line)] * step
        result.reshape(-1)[-1 if trial % 2 else 0] = -1
        yield result.reshape(numbers.shape)


def _with_slots(view: GraphView, write: CacheWrite, first: WrittenView, numbers: Array) -> bool:
    """Whether the write with these slot numbers leaves alone what the negative ones would address."""
    probe = Probe(view, first.probe.seed, first.probe.sizes, first.probe.numbers)
    probe.given_up = first.probe.given_up
    probe.overrides[id(write.slots.value)] = numbers
    try:
        tagged = _run_tags(view, write.cache, write.out, write.spine, probe)
    except (Conflict, OutOfRange, Unsupported):
        return False
    if isinstance(tagged, NotAWrite):
        return False
    valid = numbers.reshape(-1) >= 0
    for slots, page, line, batch in _readings(
        write.slots.value, numbers.astype(np.int64), first.geometry, first.source.shape[0]
    ):
        if slots == write.slots and batch == first.batch:
            break
    else:
        return False
    geometry = first.geometry
    wanted = np.arange(tagged.tags.size)
    per_token = valid if len(valid) == len(page) else np.tile(valid, len(page) // len(valid))
    place = _places(geometry, page, line)
    wanted[place[per_token]] = first.source[per_token] + tagged.tags.size
    return bool((tagged.tags.reshape(-1) == wanted).all())


def other_readers(write: CacheWrite) -> list[ir.Node]:
    """Nodes outside the spine that read the old content; asking for its shape is no reading."""
    inside = {id(node) for node in write.spine}
    return [node for node, _ in uses(write.cache) if id(node) not in inside and node.op_type not in ("Shape", "Size")]


def view_readers(write: CacheWrite) -> list[tuple[ir.Value, ir.Node]]:
    """Readers outside the spine of the cache while it is being written: neither the old content nor the final one."""
    inside = {id(node) for node in write.spine}
    values = [value for node in write.spine for value in node.outputs if value is not write.out]
    return [
        (value, node)
        for value in values
        for node, _ in uses(value)
        if id(node) not in inside and node.op_type not in ("Shape", "Size")
    ]


def same_numbers(view: GraphView, a: CacheWrite, b: CacheWrite) -> bool:
    """Whether two writes use the same slot numbers: one value, or equal computations on equal shapes.

    Exporters compute ``start + Range(0, tokens)`` once for each cache, from shapes of different values.
    """
    left, right = a.slots.value, b.slots.value
    if view.number(left) == view.number(right):
        return True
    for written in a.probes:
        probe = written.probe
        while True:
            probe = settle(view, probe.seed, probe.numbers, [left, right], probe.sizes)
            shapes = (probe.shape(left), probe.shape(right))
            if shapes[0] is None or shapes[1] is None or len(shapes[0]) != len(shapes[1]):
                return False
            unequal = next((pair for pair in zip(*shapes, strict=True) if pair[0] != pair[1]), None)
            if unequal is None:
                break
            if not probe.sizes.unify(*unequal):
                return False
        if _computation(view, probe, left) != _computation(view, probe, right):
            return False
    return True


def _computation(view: GraphView, probe: Probe, value: ir.Value) -> object:
    """How a value is computed, with everything that follows from shapes alone as its numbers."""
    value = view.root(value)
    known = probe.known(value)
    if known.array is not None and not known.taint:
        return known.array.dtype.str, known.array.shape, known.array.tobytes()
    node = value.producer()
    if node is None:
        return id(value)
    attrs = tuple(sorted((name, str(item)) for name, item in view.attrs(node).items()))
    operands = tuple(None if item is None else _computation(view, probe, item) for item in node.inputs)
    return node.op_type, attrs, operands, value.index()
