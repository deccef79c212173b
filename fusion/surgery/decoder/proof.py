"""That a piece of the graph is causal attention with padding left out: evaluated at several sizes beside a formula."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import onnx_ir as ir

from fusion.candidate import Refused
from fusion.evaluate import Evaluation, NoFeed
from fusion.facts.attention.attention import Attention
from fusion.facts.graph import GraphView
from fusion.facts.semantics import Conflict, OutOfRange, Unsupported
from fusion.result import Proof
from fusion.surgery.decoder.roles import Roles, Trial, role_feeds, whole_feeds
from ir_ops.dtypes import Array

MASKED = -1e4
"""A score that far below the others has no weight in float32."""
BOUND = 1e-6
SPREAD = 3
"""Scores up to this power of ten are tried: what clips or bends them begins far from 1."""


@dataclass(frozen=True)
class Proven:
    """The factor of the scores, ``q . k``, in front of the softmax, and how near the results were."""

    scale: float
    proof: Proof


def prove(view: GraphView, attention: Attention, roles: Roles, trials: Sequence[Trial]) -> Proven:
    """Evaluates an attention beside the formula at all trials.

    Raises:
        Refused: the graph computes something else than causal attention over all tokens that are no padding.
    """
    rng = np.random.default_rng(7)
    results = [_prove_at(view, attention, roles, trial, rng) for trial in trials]
    factors = [factor for factor, _ in results]
    if max(factors) - min(factors) > BOUND * abs(factors[0]):
        raise Refused("attention-scale", "one scale at all sizes", ", ".join(f"{item:g}" for item in factors), "one",
                      "", attention.inner)  # fmt: skip
    text = "chunks, steps and first prompts, with and without padding"
    worst = max(error for _, error in results)
    return Proven(factors[0], Proof(len(trials), worst, BOUND, "float64", text=text))


def _prove_at(
    view: GraphView, attention: Attention, roles: Roles, trial: Trial, rng: np.random.Generator
) -> tuple[float, float]:
    """The factor, and the largest difference of a result."""
    feeds, real = role_feeds(roles, trial, rng)
    batch, heads, width = trial.batch, attention.heads, attention.width
    shape = trial.probe.shape(attention.query)
    if shape is None or np.prod(shape) != batch * heads * trial.tokens * width:
        raise Refused("attention-form", "queries [B, N, S, D]", str(shape), f"{[batch, heads, trial.tokens, width]}",
                      "", attention.query)  # fmt: skip
    query = rng.standard_normal(shape)
    rows, keys, values = _rows(attention, trial, rng)
    seen = real[:, None, None, :] & np.tri(trial.tokens, trial.total, trial.past, dtype=bool)
    scale = attention.scale * attention.key.factor * _chain(view, attention, trial, feeds, seen, real, rng)
    got = _value(view, trial, {**feeds, **rows, id(attention.query): query}, attention.out)
    scores = query.reshape(batch, heads, trial.tokens, width) @ keys.swapaxes(-1, -2)
    scores = np.where(seen, scores * scale, -np.inf)
    with np.errstate(invalid="ignore"):
        weights = np.exp(scores - scores.max(-1, keepdims=True))
    weights = weights / weights.sum(-1, keepdims=True)
    wanted = weights @ values
    if got.size != wanted.size:
        raise Refused("attention-form", "a row for each head of each token", str(list(got.shape)),
                      str(list(wanted.shape)), "", attention.out)  # fmt: skip
    keep = np.broadcast_to(real[:, None, trial.past :, None], wanted.shape)
    error = float(np.abs(got.reshape(wanted.shape) - wanted)[keep].max(initial=0.0))
    if not error <= BOUND:
        raise Refused("attention-proof", "softmax(scale * q k^T) v over the tokens up to each", f"{error:.3g} apart",
                      f"{BOUND:g}", "", attention.out)  # fmt: skip
    if attention.guard is not None:
        _check_guard(view, attention, trial, feeds, real)
    return scale, error


def prove_far(view: GraphView, attention: Attention, roles: Roles, near: Sequence[Trial], far: Trial) -> None:
    """That nothing begins far away: what masks and scales at seen tokens is one number, however many there are.

    Attention itself is proven at small sizes; there a window of 4096 tokens hides nothing.

    Raises:
        Refused: a mask changes with the distance or the number of tokens.
    """
    for mask in attention.masks:
        inside: set[float] = set()
        hidden: set[float] = set()
        for trial in (*near, far):
            value = np.asarray(_value(view, trial, whole_feeds(roles, trial), mask), np.float64)
            if trial.tokens == 1 and value.shape[-2:-1] > (1,):  # heads that stand where tokens would
                value = value[..., None, :]
            value = np.broadcast_to(value, np.broadcast_shapes(value.shape, (trial.tokens, trial.total)))
            seen = np.tri(trial.tokens, trial.total, trial.past, dtype=bool)
            inside |= set(np.unique(value[..., seen]).tolist())
            behind = set(np.unique(value[..., ~seen]).tolist())
            if trial is not far:
                hidden |= behind
        if len(inside) > 1 or not behind <= hidden:
            found = ", ".join(f"{item:g}" for item in sorted(inside)[:3])
            raise Refused(
                "attention-mask", "each token sees all tokens up to itself that are no padding",
                f"{mask.name} holds {found} for tokens that should all be seen, of {far.total}", "one number",
                "windows, biases and other masks are not converted", mask,
            )  # fmt: skip


def _rows(attention: Attention, trial: Trial, rng: np.random.Generator) -> tuple[dict[int, Array], Array, Array]:
    """Random cached rows by value, and the keys ``[B, N, T, D]`` and values ``[B, N, T, Dv]`` that they are."""
    batch, total, latent = trial.batch, trial.total, attention.latent
    if latent is None:
        rows, sides = {}, []
        for operand in (attention.key, attention.value):
            past = trial.probe.shape(operand.growth.past)
            assert past is not None
            cached = rng.standard_normal((*past[:2], total, past[3]))
            rows[id(operand.growth.joined)] = cached
            sides.append(cached.repeat(operand.groups, axis=1))
        return rows, sides[0], sides[1] * attention.value.factor
    # the projection itself is not evaluated: whatever it gives, keys and values are its columns
    shapes = [trial.probe.shape(latent.up), (batch, 1, total, attention.value.columns)]
    assert shapes[0] is not None
    up, rope = (rng.standard_normal(shape) for shape in shapes)
    flat, turned = up.reshape(batch, total, -1), rope.reshape(batch, 1, total, -1)[..., latent.rope_columns]
    nope, values = (flat[:, :, columns].transpose(0, 2, 1, 3) for columns in (latent.key_columns, latent.value_columns))
    parts = [nope, np.broadcast_to(turned, (*nope.shape[:3], turned.shape[-1]))]
    keys = np.concatenate(parts if latent.nope_first else parts[::-1], axis=-1)
    return {id(latent.up): up, id(attention.value.growth.joined): rope}, keys, values


def _check_guard(view: GraphView, attention: Attention, trial: Trial, feeds: Mapping[int, Array], real: Array) -> None:
    """The guard lets every row pass that is no padding."""
    assert attention.guard is not None
    node, place = attention.guard
    shape = trial.probe.shape(attention.out)
    assert shape is not None
    code = np.where(real[:, None, trial.past :, None], 1.0, 2.0)
    form = (trial.batch, attention.heads, trial.tokens, attention.value_width)
    coded = {**feeds, id(attention.out): np.broadcast_to(code, form).reshape(shape).copy()}
    operand = node.inputs[place]
    assert operand is not None
    passed, given = (_value(view, trial, coded, value) for value in (node.outputs[0], operand))
    if ((given == 1.0) & (passed != 1.0)).any():
        raise Refused("attention-form", "results that are only set to 0 where a row is padding", "other rows are too",
                      "rows that are no padding pass", "", node.outputs[0])  # fmt: skip


def _chain(
    view: GraphView, attention: Attention, trial: Trial, feeds: Mapping[int, Array], seen: Array, real: Array,
    rng: np.random.Generator,
) -> float:  # fmt: skip
    """The factor between the product and the softmax; refused where what is masked is not exactly the unseen."""
    if attention.start is None:
        _operator_mask(view, attention, trial, feeds, seen, real)
        return 1.0
    shape = trial.probe.shape(attention.start)
    assert shape is not None and attention.inner is not None
    form = (trial.batch, attention.heads, trial.tokens, trial.total)
    idle = _value(view, trial, {**feeds, id(attention.start): np.zeros(shape)}, attention.inner).reshape(form)
    _check_mask(attention, idle, seen, real, trial)
    scores = rng.standard_normal(shape) * 10.0 ** rng.uniform(-1, SPREAD, shape)
    moved = _value(view, trial, {**feeds, id(attention.start): scores}, attention.inner).reshape(form)
    keep = np.broadcast_to(seen & real[:, None, trial.past :, None], form)
    ratio = (moved[keep] - idle[keep]) / scores.reshape(form)[keep]
    factor = float(np.median(ratio))
    if not np.abs(ratio - factor).max() <= BOUND * abs(factor):
        raise Refused("attention-form", "scores that are only scaled and masked", "another function of the scores",
                      "one factor", "", attention.inner)  # fmt: skip
    return factor


def _operator_mask(
    view: GraphView, attention: Attention, trial: Trial, feeds: Mapping[int, Array], seen: Array, real: Array
) -> None:
    form = (trial.batch, attention.heads, trial.tokens, trial.total)
    added = np.zeros(form)
    for mask in attention.masks:
        value = _value(view, trial, feeds, mask)
        added = added + (np.where(value, 0.0, -np.inf) if value.dtype == bool else value)
    if attention.causal:  # the operator aligns at the first key, whatever is cached
        added = np.where(np.tri(trial.tokens, trial.total, dtype=bool), added, -np.inf)
    _check_mask(attention, added, seen, real, trial)


def _check_mask(attention: Attention, added: Array, seen: Array, real: Array, trial: Trial) -> None:
    """What is added to the scores of tokens that are no padding: 0 where seen, far below elsewhere."""
    rows = np.broadcast_to(real[:, None, trial.past :, None], added.shape)
    seen = np.broadcast_to(seen, added.shape)
    wrong = rows & np.where(seen, added != 0, ~(added <= MASKED))
    if wrong.any():
        entry, _, row, column = (int(item) for item in np.argwhere(wrong)[0])
        place = attention.masks[0] if attention.masks else attention.out
        hidden = "seen" if seen[tuple(np.argwhere(wrong)[0])] else "hidden"
        raise Refused(
            "attention-mask", "each token sees all tokens up to itself that are no padding",
            f"{added[entry, 0, row, column]:g} is added for new token {row} and token {column} of sequence {entry}, "
            f"{trial.past} cached, where it should be {hidden}",
            "a causal mask with padding", "windows, biases and other masks are not converted", place,
        )  # fmt: skip


def _value(view: GraphView, trial: Trial, feeds: Mapping[int, Array], value: ir.Value) -> Array:
    try:
        return Evaluation(view, trial.probe, feeds, wide=True).value(value)
    except NoFeed as error:
        raise Refused("attention-form", "scores and masks follow from queries, keys, ids, positions and padding",
                      f"{value.name}, which is computed from {error.value.name} too", "nothing else",
                      "masks and biases that come from other values are not converted", value) from None  # fmt: skip
    except (Unsupported, OutOfRange, Conflict) as error:
        raise Refused("attention-proof", f"{value.name} can be evaluated", str(error), "known operators", "",
                      value) from None  # fmt: skip
