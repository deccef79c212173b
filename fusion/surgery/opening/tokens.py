"""Tokens of a call whose sequences have lengths: where each begins, what it sees. Shared by the layers of a decoder.

valid[b]    tokens of sequence b after this call
begin[b]    tokens of it in the cache, max(valid - S, 0): a first prompt may have padding behind its tokens
columns     the keys: P cached ones, of which the first begin[b] are those of b, and S new ones
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

import numpy as np
import onnx_ir as ir

from fusion.emit import Emitter

T = TypeVar("T")


@dataclass(frozen=True)
class Tokens:
    """Values of int64.

    Attributes:
        begin: ``[B, 1]``.
        positions: ``[B, S]``: the place of each new token in its sequence.
        columns: ``[T]``: 0 .. P + S - 1.
        cached: ``[1]``: P.
        steps: ``[S]``: 0 .. S - 1.
    """

    begin: ir.Value
    positions: ir.Value
    columns: ir.Value
    cached: ir.Value
    steps: ir.Value


def count_tokens(emit: Emitter, rows: ir.Value, last: ir.Value, total: ir.Value) -> Tokens:
    """Counts the tokens of a call.

    Args:
        rows: any ``[B, S, ..]`` of the call.
        last: ``[B]`` int: ``valid - 1``.
        total: one int: P + S.
    """
    one = emit.ints([1], "one")
    new = emit.dim(rows, 1, "new_tokens")
    whole = emit.reshape(emit.cast(total, "int64", "total_int64"), [1], "total")
    valid = emit.node("Add", [emit.reshape(emit.cast(last, "int64", "last_int64"), [-1, 1], "last"), one], "valid")
    begin = emit.node("Max", [emit.node("Sub", [valid, new], "rest"), emit.ints([0], "none")], "begin")
    steps = _counted(emit, new, "steps")
    return Tokens(
        begin,
        emit.node("Add", [begin, steps], "positions"),
        _counted(emit, whole, "columns"),
        emit.node("Sub", [whole, new], "cached"),
        steps,
    )


def seen(emit: Emitter, tokens: Tokens, window: int) -> ir.Value:
    """Which columns a row sees, ``[B, 1, S, T]`` of bool: its sequence's up to itself, the last ``window`` of them.

    Args:
        window: of columns, the row's own among them; below 0 for all.
    """
    begin = emit.reshape(tokens.begin, [-1, 1, 1, 1], "begin_by_row")
    is_cached = _less(emit, tokens.columns, tokens.cached, "is_cached")
    own = emit.node(
        "Or",
        [_less(emit, tokens.columns, begin, "is_own"), emit.node("Not", [is_cached], "is_new")],
        "own",
    )
    behind = emit.node("Add", [emit.node("Add", [tokens.steps, tokens.cached], "last_column"), emit.ints([1], "next")],
                       "behind")  # fmt: skip
    causal = _less(emit, tokens.columns, emit.reshape(behind, [-1, 1], "behind_by_row"), "causal")
    found = emit.node("And", [own, causal], "seen")
    if window < 0:
        return found
    shift = emit.node("Sub", [begin, tokens.cached], "shift")
    place = emit.node("Where", [is_cached, tokens.columns, emit.node("Add", [tokens.columns, shift], "new_place")],
                      "place", dtype=ir.DataType.INT64)  # fmt: skip
    rows = emit.reshape(tokens.positions, [0, 1, -1, 1], "place_of_row")
    before = emit.node("Sub", [rows, emit.ints([window], "window")], "before")
    return emit.node("And", [found, _less(emit, before, place, "near")], "seen_near")


def _less(emit: Emitter, left: ir.Value, right: ir.Value, part: str) -> ir.Value:
    return emit.node("Less", [left, right], part, dtype=ir.DataType.BOOL)


def _counted(emit: Emitter, count: ir.Value, part: str) -> ir.Value:
    bounds = [emit.constant(np.array(number, np.int64), part + "_bound") for number in (0, 1)]
    stop = emit.reshape(count, emit.ints([], part + "_scalar"), part + "_stop")
    return emit.node("Range", [bounds[0], stop, bounds[1]], part)


class SharedTokens:
    """What the nodes of one decoder have in common: tokens, masks, rows of tables."""

    def __init__(self) -> None:
        self._kept: dict[Hashable, Any] = {}

    def once(self, key: Hashable, build: Callable[[], T]) -> T:
        """What ``build`` emits for the first node that asks for this key."""
        if key not in self._kept:
            self._kept[key] = build()
        found: T = self._kept[key]
        return found

    def tokens(self, emit: Emitter, rows: ir.Value, last: ir.Value, total: ir.Value, form: Sequence[int]) -> Tokens:
        """:func:`count_tokens`, once for rows of one form with the same lengths.

        Args:
            form: dims of the rows in a trial, so that what has another number of tokens is told apart.
        """
        key = ("tokens", id(last), id(total), *form[:2])
        return self.once(key, lambda: count_tokens(emit, rows, last, total))

    def seen(self, emit: Emitter, tokens: Tokens, window: int) -> ir.Value:
        return self.once(("seen", id(tokens.columns), window), lambda: seen(emit, tokens, window))
