"""Does a converted decoder give the logits of the export it came from? Both decode the same random prompts.

The export runs one sequence at a time, with the caches that it returned before. The converted decoder runs all of them
in one batch of different lengths, in chunks, then step by step. Where it expands long first prompts, some of these
follow in one run.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import onnx_ir as ir
from numpy.typing import DTypeLike
from onnx_ir.passes.common import InlinePass

from fusion.candidate import Refused
from fusion.compare import compare
from fusion.facts.caches.growth import Growth
from fusion.facts.graph import GraphView, dims_of, dtype_name
from fusion.model_io import ModelLike, load, to_proto
from fusion.result import Difference, VerifyResult
from fusion.runtime import UNROUNDED, Runner, open_model, options_for, unrounded
from fusion.surgery.decoder.convert import read_decoder
from fusion.surgery.decoder.meaning import vocabulary
from fusion.surgery.decoder.roles import Roles
from fusion.surgery.prompts import least_tokens
from ir_ops.decode_plan import KEY, DecodePlan, read_plan
from ir_ops.dtypes import Array
from ir_ops.errors import BadInput

if TYPE_CHECKING:
    from custom_ort import DecodeSession

LENGTHS, STEPS, CHUNK = (5, 1, 11), 3, 4
"""Tokens of the prompts, single tokens after them, and most tokens in one run."""
ROOM = 64
"""Tokens that a sequence has room for, unless prompts are longer."""
LONGEST = 2048
"""Tokens of the longest prompt that the export is asked for: its attention takes their square in memory."""


def is_decoder(model: ir.Model) -> bool:
    """Whether a model carries a decode plan."""
    return KEY in model.metadata_props


def verify_decoder(original: ModelLike, converted: ModelLike, *, seed: int = 0, cases: int = 3) -> VerifyResult:
    """Compares the logits of ``converted`` with those of ``original``, token by token.

    Args:
        original: path, ModelProto or ir.Model of an export with growing caches.
        converted: path, ModelProto or ir.Model with a decode plan.
        seed, cases: of the random prompts; each case has prompts of :data:`LENGTHS` tokens.

    Raises:
        BadModel: a model cannot be loaded.
        BadInput: the original is no decoder with growing caches.
    """
    from custom_ort import DecodeSession

    source, target = load(original), load(converted)
    as_they_are = not (unrounded(source.model) | unrounded(target.model))
    runner = open_model(original if source.path is not None and as_they_are else to_proto(source.model), kernels=False,
                        folder=source.folder, bf16="round")  # fmt: skip
    InlinePass()(source.model)
    try:
        view, growths, _, roles = read_decoder(source.model)
    except Refused as refused:
        raise BadInput(
            "the original is no decoder with growing caches", found=f"{refused.fact}: {refused.found}"
        ) from None
    plan = read_plan(target.model.metadata_props, "the converted model")
    given = target.path if target.path is not None and as_they_are else to_proto(target.model)
    long = _long_prompts(target.model, plan)
    capacity = max(ROOM, *(length + STEPS for length in long)) if long else ROOM
    decoder = DecodeSession(given, max_sequences=len(LENGTHS), capacity=min(plan.capacity or capacity, capacity),
                            sess_options=options_for(None if isinstance(given, Path) else target.folder))  # fmt: skip
    state = _Grown(runner, view, growths, roles)
    kept = _narrowest(target.model, plan)
    records: list[Difference] = []
    for case in range(cases):
        rng = np.random.default_rng([seed, case])
        records += _decoded(f"case{case}", decoder, state, rng, LENGTHS, CHUNK, kept)
    if long:
        records += _decoded("long", decoder, state, np.random.default_rng(seed), long, None, kept)
    return VerifyResult(records, _HOW if as_they_are else _HOW + UNROUNDED)


def _long_prompts(model: ir.Model, plan: DecodePlan) -> tuple[int, ...]:
    """Tokens of prompts that the model expands, of different lengths; none where it expands none, or too long ones."""
    least = least_tokens(model.metadata_props)
    most = min(plan.capacity or LONGEST, LONGEST) - STEPS
    return (least, 2, least + 1) if 0 < least < most else ()


def _decoded(
    case: str, decoder: DecodeSession, state: _Grown, rng: np.random.Generator, lengths: Sequence[int],
    chunk: int | None, kept: str | None,
) -> Iterator[Difference]:  # fmt: skip
    """Random prompts, then single tokens, through both."""
    prompts = [rng.integers(0, state.vocabulary, length).tolist() for length in lengths]
    sequences, logits = decoder.prefill(prompts, chunk=chunk)
    rows = [state.new() for _ in prompts]
    wanted = [row.run(prompt) for row, prompt in zip(rows, prompts, strict=True)]
    yield from _compared(f"{case} prompts", decoder.plan.logits, logits, wanted, kept)
    for step in range(STEPS):
        ids = rng.integers(0, state.vocabulary, len(prompts))
        logits = decoder.step(ids, sequences)
        wanted = [row.run([int(number)]) for row, number in zip(rows, ids, strict=True)]
        yield from _compared(f"{case} step{step}", decoder.plan.logits, logits, wanted, kept)
    for sequence in sequences:
        decoder.free(sequence)


_HOW = "the export one sequence at a time with its growing caches, the converted decoder as a batch in chunks and steps"


def _compared(case: str, name: str, got: Array, wanted: list[Array], kept: str | None) -> Iterator[Difference]:
    # rows of 16 bits are rounded by both at steps of their own, and experts may be chosen by what is left of them
    yield compare(case, name, got, np.stack(wanted), "original", kind=kept, times=2.0 if kept else 1.0)


def _narrowest(model: ir.Model, plan: DecodePlan) -> str | None:
    """The 16-bit float type that caches keep rows in: as precise as logits can be, of whatever type. None: none."""
    caches = {port.input for port in plan.caches}
    kinds = {dtype_name(value) for value in model.graph.inputs if value.name in caches}
    return next((kind for kind in ("bfloat16", "float16") if kind in kinds), None)


class _Grown:
    """The original decoder; :meth:`new` begins a sequence."""

    def __init__(self, runner: Runner, view: GraphView, growths: list[Growth], roles: Roles) -> None:
        self.runner, self.growths, self.roles = runner, growths, roles
        rows = vocabulary(view, roles.ids)
        assert rows is not None, "that ids pick rows of a table is how they are found"
        self.vocabulary = rows
        batch, tokens = dims_of(roles.ids) or (None, None)
        self.batch = batch if isinstance(batch, int) else 1
        self.by_token = tokens == 1

    def new(self) -> _Sequence:
        return _Sequence(self)


class _Sequence:
    """Tokens of one sequence and the caches that hold them; a fixed batch is as many times the same."""

    def __init__(self, decoder: _Grown) -> None:
        self._decoder, self._length = decoder, 0
        self._caches: dict[str, Array] = {}
        for growth in decoder.growths:
            name = str(growth.past.name)
            dims = [size if isinstance(size, int) else 0 for size in dims_of(growth.past) or ()]
            kind = decoder.runner.types[name].np
            self._caches[name] = np.zeros((decoder.batch, dims[1], 0, dims[3]), kind)

    def run(self, ids: list[int]) -> Array:
        """``[V]``: logits of the last of these tokens."""
        if self._decoder.by_token:
            for number in ids[:-1]:
                self._run([number])
            ids = ids[-1:]
        return self._run(ids)

    def _run(self, ids: list[int]) -> Array:
        runner, roles, batch = self._decoder.runner, self._decoder.roles, self._decoder.batch
        total = self._length + len(ids)
        feeds: dict[str, Array] = {**self._caches, str(roles.ids.name): np.array([ids] * batch)}
        if roles.positions is not None:
            feeds[str(roles.positions.name)] = np.tile(np.arange(self._length, total), (batch, 1))
        if roles.padding is not None:
            feeds[str(roles.padding.name)] = np.ones((batch, total))
        typed = {name: array.astype(_np(runner, name)) for name, array in feeds.items()}
        results = runner.run(typed)
        self._length = total
        for growth in self._decoder.growths:
            self._caches[str(growth.past.name)] = results[str(growth.present.name)]
        presents = {growth.present.name for growth in self._decoder.growths}
        logits: Array = next(array for name, array in results.items() if name not in presents)[0, -1]
        return logits


def _np(runner: Runner, name: str) -> DTypeLike:
    kind = runner.types[name].np
    assert kind is not None
    return kind
