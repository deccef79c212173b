"""Decoding with a converted model: ids in, logits or ids out, caches written in place."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import DTypeLike

from custom_ort.decode.calls import Call, Tokens, batch_of, one_each, ragged, whole
from custom_ort.decode.memory import CacheMemory, check_rows
from custom_ort.decode.pages import PagePool, check_distinct
from custom_ort.sessions import BFloat16, session
from ir_ops.decode_plan import DecodePlan, read_plan
from ir_ops.dtypes import Array
from ir_ops.errors import BadInput, BadUsage

CAPACITY = 4096
"""Tokens of a sequence where neither the model nor the caller says."""
MOST_PAGES = 1 << 24
"""Pages of a session: block tables and the books about them stay small beside the caches."""


def greedy(logits: Array) -> Array:
    """The likeliest id of each row, ``[B, V]`` -> ``[B]``; of equal ones the first."""
    chosen: Array = np.argmax(logits.astype(np.float32, copy=False), axis=-1)
    return chosen


class DecodeSession:
    """A converted model with its caches and the sequences in them.

        decoder = custom_ort.DecodeSession("decoder.onnx", capacity=4096)
        ids = decoder.generate([[1, 5, 9], [1, 7]], max_new_tokens=64)

        sequences, logits = decoder.prefill([[1, 5, 9], [1, 7]])     # logits [2, V], of the last tokens
        logits = decoder.step(logits.argmax(-1), sequences)          # one more token each
        twin = decoder.fork(sequences[0])                            # shares pages until one of both writes
        decoder.free(twin)

    Args:
        model: file, serialised model or ModelProto with a decode plan (``kvfuse fuse --cache``).
        max_sequences: most sequences that live at a time.
        capacity: most tokens of a sequence; default: the model's, else 4096.
        pages: pages of all sequences together, where caches are paged; default: all sequences at full capacity.
            Memory is taken when it is written.
        sess_options, bf16: as of :func:`custom_ort.session`.

    Raises:
        BadModel: the file cannot be run, or has no plan, or a plan that its inputs and outputs do not fit.
        BadUsage: a size below 1, or a capacity above the model's.
    """

    def __init__(
        self,
        model: str | os.PathLike[str] | bytes | Any,
        *,
        max_sequences: int = 8,
        capacity: int | None = None,
        pages: int | None = None,
        sess_options: Any = None,
        bf16: BFloat16 = "auto",
    ) -> None:
        self._session = session(model, sess_options=sess_options, bf16=bf16)
        where = str(model) if isinstance(model, (str, os.PathLike)) else "model"
        self.plan: DecodePlan = read_plan(self._session.get_modelmeta().custom_metadata_map, where)
        self.capacity = _capacity(self.plan, capacity)
        whole("max_sequences", max_sequences, 1)
        whole("pages", 1 if pages is None else pages, 1)
        page_size = self.plan.block_size or self.capacity
        full = max_sequences * -(-self.capacity // page_size)
        if pages is not None and not self.plan.paged:
            raise BadUsage("the caches of this model are not paged", found=f"pages {pages}", wanted="no pages")
        self.max_sequences = max_sequences
        self._call = Call(self._session, self.plan, where)
        if self._call.batch and not self.plan.paged:
            full += -full % self._call.batch  # a run takes neighbouring caches, as many as there are in a batch
        count = full if pages is None else pages
        if count > MOST_PAGES:
            raise BadUsage(
                "too many pages", found=str(count), wanted=f"at most {MOST_PAGES}", hint="a smaller capacity"
            )
        try:
            self._memory = {
                port.input: CacheMemory(port, self._call.dtype(port.input), count, page_size)
                for port in self.plan.caches
            }
        except (MemoryError, ValueError):
            found = f"{count} pages of {page_size} tokens"
            raise BadUsage("the caches have no room in memory", found=found, hint="a smaller capacity") from None
        self._pool = PagePool(count, page_size, self.capacity)

    @property
    def sequences(self) -> tuple[int, ...]:
        """Numbers of the living sequences, the oldest first."""
        return self._pool.sequences

    @property
    def free_pages(self) -> int:
        """Pages that no sequence holds."""
        return self._pool.free_pages

    def length(self, sequence: int) -> int:
        """How many tokens of a sequence are in the caches."""
        return self._pool[sequence].length

    def pages_of(self, sequence: int) -> tuple[int, ...]:
        """The pages of a sequence, in the order of its tokens."""
        return tuple(self._pool[sequence].pages)

    def cache_type(self, name: str) -> DTypeLike:
        """The numpy type of a cache's elements, by the name of its input."""
        return self._memory[name].array.dtype

    def prefill(
        self,
        ids: Tokens,
        sequences: Sequence[int] | None = None,
        *,
        attention_mask: Array | None = None,
        positions: Tokens | None = None,
        chunk: int | None = None,
    ) -> tuple[tuple[int, ...], Array]:
        """Takes prompts, or further tokens of living sequences.

        Args:
            ids: ``[B, S]``, or B lists of any lengths.
            sequences: whose tokens these are; None begins B new ones.
            attention_mask: ``[B, S]``, 0 where an id is padding (left, right or both), for ids of one length.
            positions: of each token, as long as ``ids``; default: from the last one on.
            chunk: most tokens of a sequence in one run of the model.

        Returns:
            The numbers of the sequences, and the logits of the last token of each, ``[B, V]``.

        Raises:
            BadInput: the caches have no room, a sequence is unknown, ids or positions do not fit, or onnxruntime
                refuses the run. All sequences are then as before; new ones do not exist.
        """
        rows = ragged(ids, attention_mask)
        places = None if positions is None else ragged(positions, attention_mask)
        new = sequences is None
        numbers = self._begin(len(rows)) if sequences is None else tuple(sequences)
        kept = {number: self._state(number) for number in numbers} if not new else {}
        try:
            step = max((len(row) for row in rows), default=1) if chunk is None else whole("a chunk", chunk, 1)
            logits = self._in_chunks(numbers, rows, places, step)
        except Exception:
            if new:
                for number in numbers:
                    self._pool.free(number)
            self._put_back(kept)
            raise
        return numbers, logits

    def step(self, ids: Tokens, sequences: Sequence[int] | None = None, *, positions: Tokens | None = None) -> Array:
        """One more token of each sequence.

        Args:
            ids: ``[B]`` or ``[B, 1]``.
            sequences: default: all that live, the oldest first.
            positions: of the tokens, ``[B]``; default: the next ones.

        Returns:
            Logits ``[B, V]``.

        Raises:
            BadInput: as :meth:`prefill`.
        """
        numbers = self.sequences if sequences is None else tuple(sequences)
        rows = ragged(one_each(ids), None)
        places = None if positions is None else ragged(one_each(positions), None)
        return self._run(numbers, rows, places)

    def generate(
        self,
        ids: Tokens,
        *,
        max_new_tokens: int,
        attention_mask: Array | None = None,
        eos: int | Sequence[int] | None = None,
        select: Callable[[Array], Array] = greedy,
        chunk: int | None = None,
    ) -> Any:
        """Prompts in, prompts with their continuations out. The sequences are freed afterwards.

        Args:
            ids: ``[B, S]``, or B lists of any lengths.
            max_new_tokens: how many ids to add.
            attention_mask: as of :meth:`prefill`.
            eos: ids that end a sequence; an ended one is filled up with the first of them.
            select: logits ``[B, V]`` -> next ids ``[B]``.
            chunk: as of :meth:`prefill`.

        Returns:
            ``[B, S + max_new_tokens]`` for an array, B lists for lists. Fewer new ids when all sequences have ended.

        Raises:
            BadInput: as :meth:`prefill`.
            BadUsage: less than one new token.
        """
        whole("max_new_tokens", max_new_tokens, 1)
        ends = np.atleast_1d(np.asarray([] if eos is None else eos, np.int64))
        sequences, logits = self.prefill(ids, attention_mask=attention_mask, chunk=chunk)
        made: list[Array] = []
        try:
            alive = np.ones(len(sequences), bool)
            for number in range(max_new_tokens):
                chosen = np.asarray(select(logits), np.int64).reshape(-1)
                if ends.size:
                    chosen = np.where(alive, chosen, ends[0])
                    alive &= ~np.isin(chosen, ends)
                made.append(chosen)
                if number + 1 == max_new_tokens or not alive.any():
                    break
                going = np.flatnonzero(alive)  # an ended one takes no more room
                logits[going] = self.step(chosen[going], [sequences[row] for row in going])
        finally:
            for sequence in sequences:
                self.free(sequence)
        new = np.stack(made, axis=1)
        if isinstance(ids, np.ndarray):
            return np.concatenate([ids.astype(np.int64), new], axis=1)
        return [[*map(int, row), *map(int, added)] for row, added in zip(ids, new, strict=True)]

    def fork(self, sequence: int) -> int:
        """A new sequence with the same tokens; pages are shared until one of both writes to them.

        Raises:
            BadInput: there is no such sequence, or the session has as many as it may.
        """
        self._pool[sequence]
        self._room(1)
        return self._pool.fork(sequence)

    def free(self, sequence: int) -> None:
        """Ends a sequence; its pages are free when no fork needs them.

        Raises:
            BadInput: there is no such sequence.
        """
        self._pool.free(sequence)

    def export(self, sequence: int) -> dict[str, Array]:
        """The cached rows of a sequence: name of the cache input -> ``[tokens, heads, columns]``, whatever the layout.

        Raises:
            BadInput: there is no such sequence.
        """
        held = self._pool[sequence]
        return {name: memory.read(held.pages, held.length) for name, memory in self._memory.items()}

    def load(self, rows: Mapping[str, Array], *, position: int | None = None) -> int:
        """A new sequence from rows that :meth:`export` gave, of this or of another session of the model.

        Args:
            position: of the last token; default: the number of tokens less one.

        Raises:
            BadInput: rows are missing, or of another type or shape, or the caches have no room.
        """
        count = check_rows(rows, self._memory)
        last = count - 1 if position is None else whole("a position", position, 0)
        (number,) = self._begin(1)
        try:
            grown = self._pool.grow([(number, count)])
        except BadInput:
            self._pool.free(number)
            raise
        for name, memory in self._memory.items():
            memory.write(grown[0].pages, np.asarray(rows[name]))
        self._pool.commit(grown)
        self._pool[number].position = last
        return number

    def _begin(self, count: int) -> tuple[int, ...]:
        self._room(count)
        return tuple(self._pool.new() for _ in range(count))

    def _room(self, count: int) -> None:
        alive = len(self.sequences)
        if alive + count > self.max_sequences:
            raise BadInput(
                "too many sequences", found=f"{alive} that live, {count} new", wanted=f"at most {self.max_sequences}",
                hint="free one, or make the session with more max_sequences",
            )  # fmt: skip

    def _state(self, number: int) -> tuple[int, int]:
        held = self._pool[number]
        return held.length, held.position

    def _put_back(self, kept: Mapping[int, tuple[int, int]]) -> None:
        """Sequences as :meth:`_state` saw them."""
        for number, state in kept.items():
            self._pool.shrink(number, *state)

    def _in_chunks(self, numbers: tuple[int, ...], rows: list[Array], places: list[Array] | None, step: int) -> Array:
        """Runs all tokens, at most ``step`` of a sequence at a time; the logits of the last tokens."""
        if len(rows) != len(numbers):
            raise BadInput("one row of ids for each sequence", found=f"{len(rows)} rows", wanted=str(len(numbers)))
        logits: Array | None = None
        step = 1 if self._call.one_token else step
        for start in range(0, max(len(row) for row in rows), step):
            some = [place for place, row in enumerate(rows) if len(row) > start]
            part = self._run(
                tuple(numbers[place] for place in some),
                [rows[place][start : start + step] for place in some],
                None if places is None else [places[place][start : start + step] for place in some],
            )
            if logits is None:
                logits = np.empty((len(rows), part.shape[1]), part.dtype)
            logits[some] = part
        assert logits is not None
        return logits

    def _run(self, numbers: tuple[int, ...], rows: list[Array], places: list[Array] | None) -> Array:
        """Logits of the last token of each sequence: in one run, or as many as it takes with a fixed batch."""
        self._call.check_ids(rows)
        places = self._positions(numbers, rows, places)
        size = (self._call.batch if self.plan.paged else 1) or len(numbers)
        if self._call.batch is None or len(numbers) <= size:
            return self._run_together(numbers, rows, places)
        check_distinct(numbers)
        kept = {number: self._state(number) for number in numbers}
        try:
            parts = [slice(start, start + size) for start in range(0, len(numbers), size)]
            return np.concatenate([self._run_together(numbers[part], rows[part], places[part]) for part in parts])
        except Exception:
            self._put_back(kept)
            raise

    def _run_together(self, numbers: tuple[int, ...], rows: list[Array], places: list[Array]) -> Array:
        """One run of the model, at positions that have been checked."""
        grown = self._pool.grow([(number, len(row)) for number, row in zip(numbers, rows, strict=True)])
        try:
            for item in grown:
                if item.copy is not None:
                    used = self._pool[item.sequence].length % self._pool.page_size
                    for memory in self._memory.values():
                        memory.copy_page(*item.copy, used)
            batch = batch_of(self.plan, rows, places, grown, self._pool.page_size, self.capacity,
                             self._call.batch)  # fmt: skip
            logits = self._call.run(batch, {name: memory.array for name, memory in self._memory.items()})
        except Exception:
            self._pool.drop(grown)
            raise
        self._pool.commit(grown)
        for number, row in zip(numbers, places, strict=True):
            self._pool[number].position = int(row[-1])
        return logits

    def _positions(self, numbers: tuple[int, ...], rows: list[Array], places: list[Array] | None) -> list[Array]:
        """Positions as given, or the next ones.

        Raises:
            BadInput: not one row a sequence, another number than ids, or not increasing.
        """
        if len(rows) != len(numbers) or not numbers:
            found = f"{len(rows)} rows of ids"
            raise BadInput("one row of ids for each sequence", found=found, wanted=str(len(numbers) or "1 or more"))
        before = [self._pool[number].position for number in numbers]
        if places is None:
            return [np.arange(last + 1, last + 1 + len(row)) for last, row in zip(before, rows, strict=True)]
        if [len(row) for row in places] != [len(row) for row in rows]:
            raise BadInput("one position for each id", found=str([len(row) for row in places]))
        for number, last, row in zip(numbers, before, places, strict=True):
            if (np.diff(np.concatenate([[last], row])) <= 0).any():
                raise BadInput(
                    "positions increase", where=f"sequence {number}", found=f"{row.tolist()} after {last}",
                    wanted=f"numbers above {last}, each above the one before",
                )  # fmt: skip
        return places


def _capacity(plan: DecodePlan, wanted: int | None) -> int:
    """Tokens of a sequence.

    Raises:
        BadUsage: below 1, or more than the model can hold.
    """
    if wanted is None:
        return plan.capacity or CAPACITY
    wanted = whole("capacity", wanted, 1)
    if plan.capacity and wanted > plan.capacity:
        raise BadUsage("no such capacity", found=str(wanted), wanted=f"1 to {plan.capacity}")
    return wanted
