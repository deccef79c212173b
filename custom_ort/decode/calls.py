"""One run of a decoder: the arrays that its inputs take, and binding them with the caches in place."""

from __future__ import annotations

import math
import operator
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from custom_ort.decode.pages import Growth
from custom_ort.sessions import dtype_of, refused
from custom_ort.values import element_type, view_of
from ir_ops.decode_plan import CachePort, DecodePlan
from ir_ops.dtypes import Array, DType, by_name
from ir_ops.errors import BadInput, BadModel, BadUsage

Tokens = Array | Sequence[Sequence[int]] | Sequence[Array]
"""Integers ``[B, S]``, or B rows of any lengths."""


def ragged(tokens: Tokens, mask: Array | None) -> list[Array]:
    """One vector of integers for each row, without what ``mask`` calls padding.

    Raises:
        BadInput: no rows, an empty row, other numbers than integers, or a mask of another shape.
    """
    try:
        rows = [np.asarray(row) for row in tokens]
    except (TypeError, ValueError) as error:
        raise BadInput("these are no rows of integers", found=str(error), wanted="[B, S], or B lists") from None
    if mask is not None:
        keep = np.asarray(mask)
        if keep.shape != (len(rows), len(rows[0]) if rows else 0) or any(len(row) != keep.shape[1] for row in rows):
            raise BadInput(
                "a mask has one number for each id", found=str(list(keep.shape)), wanted=f"[{len(rows)}, ids of a row]"
            )
        rows = [row[keep[number] != 0] for number, row in enumerate(rows)]
    if not rows:
        raise BadInput("no sequence is named", found="0 rows", wanted="1 or more")
    for number, row in enumerate(rows):
        if row.ndim != 1 or not row.size or row.dtype.kind not in "iu":
            found = f"{row.dtype}{list(row.shape)}"
            raise BadInput("a row is a vector of integers", where=f"row {number}", found=found, wanted="1 id or more")
        if row.dtype.kind == "u" and row.max() > np.iinfo(np.int64).max:
            raise BadInput("a number does not fit int64", where=f"row {number}", found=str(row.max()))
    return [row.astype(np.int64) for row in rows]


def one_each(numbers: Any) -> Array:
    """``[B, 1]`` from ``[B]`` or ``[B, 1]``.

    Raises:
        BadInput: another form.
    """
    try:
        array = np.asarray(numbers)
    except (TypeError, ValueError) as error:
        raise BadInput("one number for each sequence", found=str(error), wanted="[B] or [B, 1]") from None
    if array.ndim not in (1, 2) or (array.ndim == 2 and array.shape[1] != 1):
        raise BadInput("one number for each sequence", found=str(list(array.shape)), wanted="[B] or [B, 1]")
    return array.reshape(-1, 1)


def whole(name: str, value: Any, least: int) -> int:
    """A size that somebody gave.

    Raises:
        BadUsage: no integer, or below ``least``.
    """
    try:
        number = operator.index(value)
    except TypeError:
        raise BadUsage(f"{name} is an integer", found=repr(value)) from None
    if number < least:
        raise BadUsage(f"{name} is at least {least}", found=str(number))
    return number


@dataclass
class Batch:
    """The arrays of one run.

    Attributes:
        inputs: role -> array.
        rows: the batch row of each sequence.
        last: the place of the last token in each of these rows.
        window: the pages that the caches are bound with.
    """

    inputs: dict[str, Array]
    rows: list[int]
    last: list[int]
    window: slice


def batch_of(
    plan: DecodePlan, ids: Sequence[Array], positions: Sequence[Array], grown: Sequence[Growth], page_size: int,
    capacity: int, size: int | None = None,
) -> Batch:  # fmt: skip
    """What the roles of :mod:`ir_ops.decode_plan` hold, tokens on the left, padding on the right.

    Caches that are not paged have a batch row for each page: rows between the sequences of the call are there too, with
    no tokens. So are those that a fixed batch has too many.

    Args:
        size: of the batch, None for as few as it takes; where caches are not paged the call is of one sequence then.
    """
    counts = [len(row) for row in ids]
    if plan.paged:
        rows, window = list(range(len(ids))), slice(None)
        size = size or len(ids)
    else:
        pages = [item.pages[0] for item in grown]
        first = min(pages) - (min(pages) % size if size else 0)
        size = size or max(pages) + 1 - first
        rows, window = [page - first for page in pages], slice(first, first + size)
    longest = max(counts)
    inputs: dict[str, Array] = {
        "ids": np.zeros((size, longest), np.int64),
        "positions": np.zeros((size, longest), np.int64),
        "slots": np.full((size, longest), -1, np.int64),
        "block_table": np.zeros((size, -(-capacity // page_size)), np.int32),
        "query_lengths": np.zeros(size, np.int64),
        "kv_lengths": np.zeros(size, np.int64),
    }
    for row, count, tokens, places, item in zip(rows, counts, ids, positions, grown, strict=True):
        inputs["ids"][row, :count] = tokens
        inputs["positions"][row, :count] = places
        token = np.arange(item.length - count, item.length)
        page = np.asarray(item.pages)[token // page_size]
        inputs["slots"][row, :count] = page * page_size + token % page_size if plan.paged else token
        inputs["block_table"][row, : len(item.pages)] = item.pages
        inputs["query_lengths"][row] = count
        inputs["kv_lengths"][row] = item.length
    if plan.paged:
        inputs["slots"] = inputs["slots"].reshape(-1)
    return Batch(inputs, rows, [count - 1 for count in counts], window)


def _check_port(port: CachePort, declared: Sequence[int | str | None], rows: int, where: str) -> None:
    """The dims of a cache in the plan are those of the model, and hold rows of the plan's heads and columns."""
    dims = [dim if isinstance(dim, int) and dim >= 0 else -1 for dim in declared]
    fits = len(dims) == len(port.shape) and all(
        mine == its or -1 in (mine, its) for mine, its in zip(dims, port.shape, strict=True)
    )
    inner = list(port.shape[1:])
    if port.order == "BNSD":
        fits = fits and len(inner) == 3 and (inner[0], inner[2]) == (port.heads, port.columns)
        fits = fits and inner[1] in (-1, *([rows] if rows else []))
    elif rows:
        fits = fits and math.prod(rows if dim < 0 else dim for dim in inner) == rows * port.heads * port.columns
        fits = fits and rows in inner
    if not fits:
        found = f"{list(port.shape)}, {port.order} of {port.heads} x {port.columns}, {rows} rows a page"
        raise BadModel("a cache does not fit its decode plan", where=f"{where}, {port.input}", found=found,
                       wanted=f"dims of the model: {list(declared)}")  # fmt: skip


def _fixed(dims: Sequence[int | str | None], where: str) -> tuple[int | None, bool]:
    """The fixed batch of the ids ``[B, S]``, None where any goes, and whether they are one token of each sequence.

    Raises:
        BadModel: another number of tokens is fixed.
    """
    batch, tokens = (dim if isinstance(dim, int) and dim > 0 else None for dim in (*dims, None, None)[:2])
    if len(dims) != 2 or tokens not in (None, 1):
        raise BadModel("ids of any number of tokens, or of one", where=where, found=str(list(dims)), wanted="[B, S]")
    return batch, tokens == 1


class Call:
    """A session whose inputs are bound by role, with every cache output in the memory of its input.

    Attributes:
        batch: sequences of every run, None for any number.
        one_token: the model was exported for one token of each sequence.

    Raises:
        BadModel: the plan names what the model does not have, or the model has inputs that the plan does not name.
    """

    def __init__(self, session: Any, plan: DecodePlan, where: str) -> None:
        self._session, self._plan = session, plan
        self._types = {entry.name: by_name(dtype_of(entry)) for entry in session.get_inputs()}
        outputs = [entry.name for entry in session.get_outputs()]
        named = [*plan.inputs.values(), *(port.input for port in plan.caches)]
        missing = [name for name in named if name not in self._types]
        missing += [name for name in (plan.logits, *(port.output for port in plan.caches)) if name not in outputs]
        free = [name for name in self._types if name not in named]
        if missing or free:
            found = f"no {missing[0]} in the model" if missing else f"input {free[0]} without a role"
            raise BadModel("the model does not fit its decode plan", where=where, found=found)
        declared = {entry.name: entry.shape for entry in session.get_inputs()}
        self.batch, self.one_token = _fixed(declared[plan.inputs["ids"]], where)
        for port in plan.caches:
            _check_port(port, declared[port.input], plan.block_size, where)
        self._other = [name for name in outputs if name not in {port.output for port in plan.caches}]
        self._io = session.io_binding()
        self._bound: tuple[slice, list[Array]] | None = None
        """The pages that the caches are bound with, and their arrays: onnxruntime keeps pointers only."""

    def check_ids(self, rows: Sequence[Array]) -> None:
        """Refuses what the model would wrap around instead of refusing itself.

        Raises:
            BadInput: a negative id, or one that the model's integers do not hold.
        """
        most = int(np.iinfo(self._types[self._plan.inputs["ids"]].np).max)
        for number, row in enumerate(rows):
            if row.min() < 0 or row.max() > most:
                found = str(int(row.min() if row.min() < 0 else row.max()))
                raise BadInput("an id is out of range", where=f"row {number}", found=found, wanted="0 or more, below V")

    def dtype(self, name: str) -> DType:
        """Element type of an input."""
        return self._types[name]

    def run(self, batch: Batch, caches: Mapping[str, Array]) -> Array:
        """Runs once: logits ``[sequences, V]`` of the last token of each.

        Raises:
            BadInput: onnxruntime or an operator refuses the run.
        """
        arrays = {}  # kept until the run has ended: onnxruntime keeps pointers only
        for role, name in self._plan.inputs.items():
            arrays[name] = array = np.ascontiguousarray(batch.inputs[role], self._types[name].np)
            self._io.bind_input(name, "cpu", 0, self._types[name].onnx, array.shape, array.ctypes.data)
        for name in self._other:
            self._io.bind_output(name, "cpu")
        if self._bound is None or self._bound[0] != batch.window:
            self._bound = batch.window, self._bind_caches(caches, batch.window)
        try:
            self._session.run_with_iobinding(self._io)
        except Exception as error:
            raise refused(error) from None
        place = self._other.index(self._plan.logits)
        logits = view_of(self._io.get_outputs()[place])
        picked: Array = logits[batch.rows, batch.last]  # a copy: the value dies with the next run
        return picked

    def _bind_caches(self, caches: Mapping[str, Array], window: slice) -> list[Array]:
        """Binds each cache and its output to one memory: it takes longer than all else that a call does itself."""
        arrays = [caches[port.input][window] for port in self._plan.caches]
        for port, array in zip(self._plan.caches, arrays, strict=True):
            memory = ("cpu", 0, element_type(array).onnx, array.shape, array.ctypes.data)
            self._io.bind_input(port.input, *memory)
            self._io.bind_output(port.output, *memory)
        return arrays
