"""What the inputs of an exported decoder are, and trials at chosen sizes."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import onnx_ir as ir
from numpy.typing import DTypeLike

from fusion.candidate import Refused
from fusion.facts.caches.growth import Growth
from fusion.facts.graph import GraphView, dims_of, dtype_name
from fusion.facts.semantics import Conflict, OutOfRange, Unsupported
from fusion.facts.trial.probe import Numbers, Probe, symbol_name
from fusion.facts.trial.settle import settle, start_sizes
from fusion.facts.trial.sizes import Sizes
from ir_ops.dtypes import Array, by_name

SIZES = ((2, 3, 4), (3, 1, 5), (1, 4, 0), (2, 5, 1))
"""Batch, new tokens, tokens in the cache: chunks, a step, a first prompt."""
FAR = (1 << 17, 1 << 15, 1 << 12, 1 << 10)
"""Tokens in the cache where windows and other things that begin far away show; the largest that the graph allows."""
SEED = 0
_INTEGERS = Numbers(64)


@dataclass(frozen=True)
class Roles:
    """Graph inputs by meaning.

    Attributes:
        ids: token ids ``[B, S]``.
        positions: ``[B, S]``; None where the graph counts them from the length of the cache.
        padding: ``[B, P + S]``, 0 where a token is padding; None where the graph knows no padding.
        counted: how much padding a sequence has is all that counts, not where: its tokens lie in front of it, in the
            cache and in a first prompt.
    """

    ids: ir.Value
    positions: ir.Value | None
    padding: ir.Value | None
    counted: bool = False


@dataclass(frozen=True)
class Trial:
    """A graph evaluated at chosen sizes."""

    probe: Probe
    batch: int
    tokens: int
    past: int

    @property
    def total(self) -> int:
        return self.past + self.tokens


def first_trial(view: GraphView, growths: Sequence[Growth]) -> Trial:
    """A trial with a size of its own for each dim; all caches are as long as the first, whatever their dims are called.

    Raises:
        Refused: the sizes do not settle.
    """
    try:
        probe = settle(view, SEED, _INTEGERS, list(view.graph.outputs), start_sizes(view, SEED))
        long = _equally_long(growths, probe)
        if long is not None:
            probe = settle(view, SEED, _INTEGERS, list(view.graph.outputs), long)
        past, new = probe.shape(growths[0].past), probe.shape(growths[0].new)
    except (OutOfRange, Unsupported, Conflict) as error:
        raise Refused(
            "decode-sizes", "sizes that do not contradict each other", str(error), "consistent shapes"
        ) from None
    if past is None or new is None:
        raise Refused("decode-sizes", "the shape of the new rows is known", "unknown", "[B, N, S, D]")
    return Trial(probe, past[0], new[2], past[2])


def _equally_long(growths: Sequence[Growth], probe: Probe) -> Sizes | None:
    """Sizes with the cache length of the first cache for all; None where a dim is fixed, or tied otherwise."""
    dims = [(growth.past, (dims_of(growth.past) or (0, 0, 0))[2]) for growth in growths]
    shape = probe.shape(growths[0].past)
    if shape is None:
        return None
    wanted = {symbol_name(past, 2, dim): shape[2] for past, dim in dims if not isinstance(dim, int)}
    return probe.sizes.resized(wanted)


def trials(view: GraphView, growths: Sequence[Growth], roles: Roles, first: Trial) -> list[Trial]:
    """Trials at all :data:`SIZES` that the graph's fixed dims allow; a fixed batch, or one token, in place of theirs.

    Raises:
        Refused: less than two sizes can be tried.
    """
    sizes = dict.fromkeys((*_allowed(roles, batch, tokens), past) for batch, tokens, past in SIZES)
    found = [trial for size in sizes if (trial := _trial_of(view, growths, roles, first, *size)) is not None]
    if len(found) < 2:
        raise Refused("decode-sizes", "the graph runs at several sizes", f"{len(found)} of {len(SIZES)}",
                      "dynamic tokens (or 1) and cache length", "export with dynamic shapes")  # fmt: skip
    return found


def far_trial(view: GraphView, growths: Sequence[Growth], roles: Roles, first: Trial, batch: int) -> Trial | None:
    """A trial with very many tokens in the cache; None where the graph runs at no such size."""
    found = (_trial_of(view, growths, roles, first, *_allowed(roles, batch, 2), past) for past in FAR)
    return next((trial for trial in found if trial is not None), None)


def _allowed(roles: Roles, batch: int, tokens: int) -> tuple[int, int]:
    """Batch and new tokens: the batch of the ids where it is fixed, one token where they have one."""
    first, second = dims_of(roles.ids) or (None, None)
    return (first if isinstance(first, int) else batch), (1 if second == 1 else tokens)


def _trial_of(
    view: GraphView, growths: Sequence[Growth], roles: Roles, first: Trial, batch: int, tokens: int, past: int
) -> Trial | None:
    wanted = _symbols(growths, roles, batch, tokens, past)
    sizes = None if wanted is None else first.probe.sizes.resized(wanted)
    if sizes is None:
        return None
    try:
        probe = settle(view, SEED, _INTEGERS, _shapes_needed(view), sizes)
    except (OutOfRange, Unsupported, Conflict):
        return None
    trial = Trial(probe, batch, tokens, past)
    return trial if _as_wanted(growths, roles, trial) else None


def _as_wanted(growths: Sequence[Growth], roles: Roles, trial: Trial) -> bool:
    """Whether no conflict has changed a size: what the graph cannot run at is not tried."""
    told = [(roles.ids, (trial.batch, trial.tokens)), (roles.positions, (trial.batch, trial.tokens)),
            (roles.padding, (trial.batch, trial.total))]  # fmt: skip
    if any(value is not None and trial.probe.shape(value) != shape for value, shape in told):
        return False
    shapes = [trial.probe.shape(growth.past) for growth in growths]
    return all(shape is not None and (shape[0], shape[2]) == (trial.batch, trial.past) for shape in shapes)


def _shapes_needed(view: GraphView) -> Iterable[ir.Value]:
    return view.graph.outputs


def _symbols(growths: Sequence[Growth], roles: Roles, batch: int, tokens: int, past: int) -> dict[str, int] | None:
    """Sizes of the symbols of ids and caches; None where a fixed dim is another."""
    wanted: dict[str, int] = {}
    shapes: list[tuple[ir.Value, tuple[int | None, ...]]] = [(roles.ids, (batch, tokens))]
    shapes += [(growth.past, (batch, None, past, None)) for growth in growths]
    if roles.positions is not None:
        shapes.append((roles.positions, (batch, tokens)))
    if roles.padding is not None:
        shapes.append((roles.padding, (batch, past + tokens)))
    for value, sizes in shapes:
        for axis, (dim, size) in enumerate(zip(dims_of(value) or (), sizes, strict=False)):
            if size is None:
                continue
            if isinstance(dim, int):
                if dim != size:
                    return None
            else:
                wanted[symbol_name(value, axis, dim)] = size
    return wanted


def role_feeds(roles: Roles, trial: Trial, rng: np.random.Generator) -> tuple[Mapping[int, Array], Array]:
    """Data of the inputs with roles, and which tokens are no padding, ``[B, P + S]`` of bool."""
    real = rng.random((trial.batch, trial.total)) < 0.7
    real[:, -1] = True
    if roles.counted:
        real = _in_front(trial, rng)
    if roles.padding is None:
        real[:] = True
    places = np.maximum(real.cumsum(axis=1) - 1, 0)[:, trial.past :]
    feeds: dict[int, Array] = {id(roles.ids): np.zeros((trial.batch, trial.tokens), _np(roles.ids))}
    if roles.positions is not None:
        feeds[id(roles.positions)] = places.astype(_np(roles.positions))
    if roles.padding is not None:
        feeds[id(roles.padding)] = real.astype(_np(roles.padding))
    return feeds, real


def _in_front(trial: Trial, rng: np.random.Generator) -> Array:
    """Tokens in front of the padding: of what is cached, or of a first prompt."""
    places = np.arange(trial.total)
    if not trial.past:
        found: Array = places < rng.integers(1, trial.tokens, (trial.batch, 1), endpoint=True)
        return found
    cached = rng.integers(0, trial.past, (trial.batch, 1), endpoint=True)
    return (places < cached) | (places >= trial.past)


def whole_feeds(roles: Roles, trial: Trial) -> Mapping[int, Array]:
    """Data of the inputs with roles, nothing padded."""
    form = (trial.batch, trial.tokens)
    feeds: dict[int, Array] = {id(roles.ids): np.zeros(form, _np(roles.ids))}
    if roles.positions is not None:
        places = np.broadcast_to(trial.past + np.arange(trial.tokens), form)
        feeds[id(roles.positions)] = places.astype(_np(roles.positions))
    if roles.padding is not None:
        feeds[id(roles.padding)] = np.ones((trial.batch, trial.total), _np(roles.padding))
    return feeds


def _np(value: ir.Value) -> DTypeLike:
    kind = by_name(dtype_name(value)).np
    assert kind is not None
    return kind
