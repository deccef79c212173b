"""Feeds for a model nobody gave inputs for: sensible values, and sizes under which the model really runs.

What an integer input means is read off the graph (does it reach a scatter's indices, a gather's, a rotation's angles?)
and off its name. Symbolic sizes are a search: exporters give one logical size several names, so candidates built from
batch, new tokens and past tokens are tried, likeliest first, until the model runs. Sizes of one name always agree.
"""

from __future__ import annotations

import heapq
import itertools
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import onnx_ir as ir

from fusion.facts.caches.growth import told_widths
from fusion.facts.graph import GraphView
from ir_ops.dtypes import Array, DType, by_onnx
from ir_ops.errors import BadInput

Feeds = dict[str, Array]
Run = Callable[[Feeds], Any]

_TRIES = 400
_CARRY = {
    "Add",
    "Cast",
    "Clip",
    "Concat",
    "Div",
    "Expand",
    "Flatten",
    "Floor",
    "Identity",
    "Max",
    "Min",
    "Mod",
    "Mul",
} | {*("Reshape", "Slice", "Split", "Squeeze", "Sub", "Tile", "Transpose", "Unsqueeze", "Where")}
_INDEX_OPERAND = {
    "Gather": 1,
    "GatherElements": 1,
    "GatherND": 1,
    "ScatterND": 1,
    "ScatterElements": 1,
    "TensorScatter": 2,
}
_SIZES = ((2, 3, 4), (1, 1, 5), (3, 2, 3), (4, 1, 6), (1, 7, 2), (2, 1, 9))
"""Batch, new tokens and past tokens of the cases, in the order they are tried."""
_WIDTHS = ("128", "64", "512", "256", "192")
"""Head sizes to try for a cache whose width is symbolic too."""
_LIMIT = "#limit"
_LIMIT_CHOICES = 4


@dataclass(frozen=True)
class Feed:
    """Inputs of one run, with a name for reports."""

    name: str
    inputs: Feeds


@dataclass
class _Input:
    """A graph input: its type, its sizes (numbers or symbols), what its integers mean and the range they must keep."""

    name: str
    dtype: DType
    dims: list[int | str]
    role: str = "data"
    limit: int | None = None
    scattered: bool = False


@dataclass
class _Sizes:
    """Logical sizes of one case, and which of them each symbol stands for."""

    batch: int
    tokens: int
    past: int

    def value(self, expression: str) -> int:
        """The size that ``expression`` (B, S, P, T = B*S, L = P+S, or a number) stands for."""
        if expression.isdigit():
            return int(expression)
        both = {"T": self.batch * self.tokens, "L": self.past + self.tokens}
        return {"B": self.batch, "S": self.tokens, "P": self.past, **both}[expression]


def generate(
    model: ir.Model, run: Run, *, seed: int = 0, cases: int = 3, skip_slots: bool = False
) -> Iterator[tuple[Feed, Any]]:
    """Yields feeds on which ``run`` succeeds, with what it returned.

    Args:
        model: the model that ``run`` runs.
        run: takes feeds; any exception means that these sizes or values do not fit together.
        seed: of the random values.
        cases: how many feeds; sizes differ between them where the model is dynamic.
        skip_slots: add one case in which a cache slot is -1 (for models whose meaning of -1 is "skip").

    Raises:
        BadInput: no feed was found that the model runs on.
    """
    inputs = [describe(value) for value in model.graph.inputs if not value.is_initializer()]
    view = GraphView(model.graph, model.opset_imports.get("", 0))
    learned = {name: str(width) for name, width in told_widths(view).items()}
    failure: Exception | None = None
    found = 0
    for index in range(cases):
        sizes = _Sizes(*_SIZES[index % len(_SIZES)])
        try:
            feed, result = _search(inputs, sizes, learned, np.random.default_rng([seed, index]), run)
        except _NothingFitsError as error:
            failure = error.last
            continue
        found += 1
        yield Feed(_label(index, inputs, feed), feed), result
        if skip_slots and found == 1:
            yield from _skipping(inputs, feed, run)
    if not found:
        raise BadInput(
            "no generated inputs fit the model",
            found=str(failure).splitlines()[0] if failure else "nothing to try",
            hint="give inputs with --inputs F.npz",
        )


class _NothingFitsError(Exception):
    def __init__(self, last: Exception | None) -> None:
        self.last = last
        super().__init__(str(last))


def _search(
    inputs: Sequence[_Input], sizes: _Sizes, learned: dict[str, str], rng: np.random.Generator, run: Run
) -> tuple[Feeds, Any]:
    last: Exception | None = None
    for choice in itertools.islice(_choices(inputs, learned), _TRIES):
        shapes = {item.name: _shape(item, sizes, choice) for item in inputs}
        limit = _slot_limit(inputs, shapes, int(choice[_LIMIT]))
        feed = {item.name: _values(item, shapes[item.name], limit, rng) for item in inputs}
        try:
            result = run(feed)
        except Exception as error:  # a runtime refuses wrong sizes with exceptions of its own
            last = error
            continue
        learned.update(choice)
        return feed, result
    raise _NothingFitsError(last)


def _label(index: int, inputs: Sequence[_Input], feed: Feeds) -> str:
    shown = [
        f"{item.name}{list(feed[item.name].shape)}"
        for item in inputs
        if any(isinstance(size, str) for size in item.dims)
    ]
    return f"generated {index}" + (f" ({', '.join(shown[:3])}{', ...' if len(shown) > 3 else ''})" if shown else "")


# --- what an input means ---------------------------------------------------------------------------------------------


def describe(value: ir.Value) -> _Input:
    """Reads a graph input's type, sizes and role.

    Raises:
        BadInput: it has no tensor type or no known rank.
    """
    name = value.name or ""
    if value.dtype is None or value.shape is None:
        raise BadInput("cannot make up values", where=name, found="no element type or rank", hint="give --inputs F.npz")
    try:
        dtype = by_onnx(value.dtype.value)
    except KeyError:
        raise BadInput(
            "cannot make up values of this type", where=name, found=value.dtype.name, hint="give --inputs F.npz"
        ) from None
    dims = [_size(size, f"{name}#{axis}") for axis, size in enumerate(value.shape)]
    item = _Input(name, dtype, dims)
    if dtype.is_float or (dtype.name in ("int8", "uint8", "int4") and len(dims) > 2):
        item.role = "mask" if "mask" in name.lower() else "scale" if "scale" in name.lower() else "data"
        return item
    angles, limits = _follow(value, item)
    item.limit = min(limits, default=None)
    item.role = _role(name.lower(), item, angles)
    return item


def _size(size: int | ir.SymbolicDim, anonymous: str) -> int | str:
    """A number, or the symbol's name; some exporters write numbers as symbols ("512")."""
    if isinstance(size, int):
        return size
    text = str(size.value or anonymous)
    return int(text) if text.isdigit() else text


def _follow(value: ir.Value, item: _Input) -> tuple[bool, list[int]]:
    """Follows integers through arithmetic and movement; gives whether they become angles, and the ranges they index."""
    angles, limits, seen, pending = False, [], {value}, [value]
    while pending:
        current = pending.pop()
        for node, position in current.uses():
            if _INDEX_OPERAND.get(node.op_type) == position:
                item.scattered |= "Scatter" in node.op_type
                limits += _indexed_size(node)
            elif node.op_type in _CARRY or (node.op_type == "Gather" and position == 0):
                angles |= any(out.dtype is not None and out.dtype.is_floating_point() for out in node.outputs)
                fresh = [
                    out for out in node.outputs if out not in seen and (out.dtype is None or out.dtype.is_integer())
                ]
                seen.update(fresh)
                pending += fresh
    return angles, limits


def _indexed_size(node: ir.Node) -> list[int]:
    """Size of the axis that a gather's or scatter's indices count along, as far as it is known."""
    data = node.inputs[0]
    if data is None or data.shape is None or not len(data.shape):
        return []
    axis = 0
    if node.op_type in ("GatherND", "ScatterND"):
        indices = node.inputs[1]
        if indices is None or indices.shape is None or indices.shape[-1] != 1:
            return []  # several coordinates: none of them is the slot itself
    else:
        axis = node.attributes.get_int("axis", 0)
    axis = -2 if node.op_type == "TensorScatter" else axis
    size = data.shape[axis] if -len(data.shape) <= axis < len(data.shape) else None
    return [size] if isinstance(size, int) and size > 0 else []


def _role(name: str, item: _Input, angles: bool) -> str:
    if "mask" in name or item.dtype.name == "bool":
        return "mask"
    if "table" in name:
        return "table"
    if "pos" in name or (angles and not item.scattered):
        return "position"
    if any(part in name for part in ("len", "total")):
        return "length"
    if item.scattered or any(part in name for part in ("slot", "index")):
        return "slot"
    return "token"


# --- sizes -----------------------------------------------------------------------------------------------------------


def _choices(inputs: Sequence[_Input], learned: Mapping[str, str]) -> Iterator[dict[str, str]]:
    """All assignments of logical sizes to symbols, likeliest first; what worked before comes before everything."""
    options: dict[str, list[str]] = {_LIMIT: [str(index) for index in range(_LIMIT_CHOICES)]}
    for item in inputs:
        for axis, size in enumerate(item.dims):
            if isinstance(size, str) and size not in options:
                options[size] = _likely(item, axis, size)
    for name, worked in learned.items():
        options[name] = [worked, *(other for other in options[name] if other != worked)]
    names = list(options)
    start = (0,) * len(names)
    heap, seen = [(0, start)], {start}
    while heap:
        cost, ranks = heapq.heappop(heap)
        yield {name: options[name][rank] for name, rank in zip(names, ranks, strict=True)}
        for position, name in enumerate(names):
            if ranks[position] + 1 < len(options[name]):
                longer = (*ranks[:position], ranks[position] + 1, *ranks[position + 1 :])
                if longer not in seen:
                    seen.add(longer)
                    heapq.heappush(heap, (cost + 1, longer))


def _likely(item: _Input, axis: int, symbol: str) -> list[str]:
    """Logical sizes that a symbol may stand for, likeliest first, by its name, then by where it stands."""
    word, rank = symbol.lower(), len(item.dims)
    if "batch" in word:
        first = "B"
    elif ("past" in word and "+" in word) or "total" in word:
        first = "L"
    elif "past" in word:
        first = "P"
    elif "seq" in word:
        first = "S"
    elif "token" in word:
        first = "T"
    elif rank == 1:
        first = "S" if item.role == "position" else "T"
    elif axis == 0:
        first = "T" if rank == 2 and item.role == "data" else "B"
    elif item.role == "mask":
        first = "L"
    else:
        cache = any(part in item.name.lower() for part in ("past", "cache", "key", "value"))
        first = "P" if cache and rank >= 3 and axis >= rank - 2 else "S"
    widths = _WIDTHS if rank >= 3 and axis == rank - 1 and item.role == "data" else ()
    return [*widths, first, *(other for other in "BSTPL" if other != first)]


def _shape(item: _Input, sizes: _Sizes, choice: Mapping[str, str]) -> tuple[int, ...]:
    return tuple(size if isinstance(size, int) else sizes.value(choice[size]) for size in item.dims)


def _slot_limit(inputs: Sequence[_Input], shapes: Mapping[str, tuple[int, ...]], rank: int) -> int:
    """The ``rank``-th candidate for the number of cache slots, where the graph does not tell: sizes of the caches."""
    sizes: set[int] = set()
    for item in inputs:
        shape = shapes[item.name]
        if item.role == "data" and len(shape) == 4:
            sizes |= {shape[0] * shape[1], shape[0] * shape[2], shape[1], shape[2]}
    ordered = sorted(sizes, reverse=True)
    return ordered[rank] if rank < len(ordered) else 1 << 30


# --- values ----------------------------------------------------------------------------------------------------------


def _values(item: _Input, shape: tuple[int, ...], slot_limit: int, rng: np.random.Generator) -> Array:
    assert item.dtype.np is not None
    count = math.prod(shape)
    if item.role in ("position", "slot", "table"):
        limit = item.limit or (slot_limit if item.scattered else 64)
        limit = min(limit, slot_limit) if item.scattered else limit
        values = _positions(shape, limit, rng) if item.role == "position" else _distinct(shape, limit, rng)
    elif item.role == "token":
        values = rng.integers(0, min(item.limit or 8, 2**31), shape)
    elif item.role == "length":
        values = np.full(shape, 1)
    elif item.role == "mask":
        values = _mask(item, shape)
    elif item.role == "scale":
        values = rng.uniform(0.5, 2.0, shape)
    elif item.dtype.is_float:
        values = rng.standard_normal(shape)
    else:
        info = np.iinfo(item.dtype.np) if item.dtype.name != "int4" else None
        low, high = (info.min, info.max) if info else (-8, 7)
        values = rng.integers(max(low, -128), min(high, 127) + 1, count).reshape(shape)
    return np.asarray(values).astype(item.dtype.np)


def _positions(shape: tuple[int, ...], limit: int, rng: np.random.Generator) -> Array:
    """Consecutive along the last axis, every row from a start of its own."""
    if not shape:
        return np.asarray(int(rng.integers(0, max(1, min(limit, 64)))))
    starts = rng.integers(0, max(1, min(limit, 64) - shape[-1] + 1), (*shape[:-1], 1))
    return starts + np.arange(shape[-1])


def _distinct(shape: tuple[int, ...], limit: int, rng: np.random.Generator) -> Array:
    """Different values below ``limit``: over the whole tensor where it is large enough, else along the last axis."""
    count, limit = math.prod(shape), min(limit, 2**20)
    if count <= limit:
        return rng.permutation(limit)[:count].reshape(shape)
    last = shape[-1] if shape else 1
    rows = [rng.permutation(max(limit, last))[:last] for _ in range(count // max(last, 1))]
    return np.asarray(rows, dtype=np.int64).reshape(shape)


def _mask(item: _Input, shape: tuple[int, ...]) -> Array:
    """Attends to everything but one padded position at the start of the first row (0 or False; floats are additive)."""
    values = np.zeros(shape) if item.dtype.is_float else np.ones(shape)
    if len(shape) >= 2 and shape[0] > 1 and shape[-1] > 2:
        values[0, ..., 0] = -1e4 if item.dtype.is_float else 0
    return values


def _skipping(inputs: Sequence[_Input], feed: Feeds, run: Run) -> Iterator[tuple[Feed, Any]]:
    """The feed again with one slot -1, if the model takes it."""
    slots = [item.name for item in inputs if item.role == "slot" and item.scattered]
    if not slots:
        return
    changed = dict(feed)
    for name in slots:
        changed[name] = feed[name].copy()
        changed[name].flat[-1] = -1
    try:
        result = run(changed)
    except Exception:  # the model does not take it: nothing to compare
        return
    yield Feed("generated with a slot of -1", changed), result
