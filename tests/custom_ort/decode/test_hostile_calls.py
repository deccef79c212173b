"""Calls and plans that make no sense: one line, and the sequences as before."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from custom_ort import DecodeSession
from ir_ops.errors import BadModel, KvfuseError
from tests.custom_ort.decode import soak, tiny

CALLS: dict[str, Callable[[DecodeSession, int], Any]] = {
    "a negative id": lambda session, one: session.step([-1], [one]),
    "an id beyond int64": lambda session, one: session.prefill([np.array([2**63], np.uint64)], [one]),
    "ids of text": lambda session, one: session.prefill([["a"]], [one]),
    "no ids": lambda session, one: session.prefill(None, [one]),  # type: ignore[arg-type]
    "ids of bool": lambda session, one: session.step(np.array([True]), [one]),
    "rows of steps of different lengths": lambda session, one: session.step([[1], [2, 3]], [one]),
    "two ids in a step": lambda session, one: session.step([[1, 2]], [one]),
    "a chunk of text": lambda session, one: session.prefill([[1]], [one], chunk="2"),  # type: ignore[arg-type]
    "a chunk below one": lambda session, one: session.prefill([[1]], [one], chunk=-3),
    "half a token": lambda session, one: session.generate([[1]], max_new_tokens=2.5),  # type: ignore[arg-type]
    "a negative position": lambda session, one: session.prefill([[1]], positions=[[-1]]),
    "a position for the loaded below zero": lambda session, one: session.load(session.export(one), position=-7),
    "only padding": lambda session, one: session.prefill([[1, 2]], attention_mask=np.zeros((1, 2))),
    "a sequence that ended": lambda session, one: session.free(99),
    "a prompt without end": lambda session, one: session.prefill([[1] * 100_000]),
    "more than fits": lambda session, one: session.generate([[1, 2, 3]], max_new_tokens=10**6),
}


@pytest.mark.parametrize("name", CALLS)
def test_a_call_that_makes_no_sense(name: str) -> None:
    session = DecodeSession(tiny.model(True), capacity=12, max_sequences=3)
    (one,), _ = session.prefill([[1, 2, 3]])
    free = session.free_pages
    with pytest.raises(KvfuseError) as caught:
        CALLS[name](session, one)
    assert "\n" not in str(caught.value)
    assert (session.sequences, session.free_pages) == ((one,), free)
    np.testing.assert_allclose(session.step([4], [one])[0], tiny.logits_of([1, 2, 3, 4]), rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("options", [{"capacity": 10**15}, {"capacity": "4"}, {"max_sequences": 1.5}, {"pages": 10**12},
                                     {"capacity": -1}, {"pages": -2}])  # fmt: skip
@pytest.mark.parametrize("paged", [True, False])
def test_sizes_without_sense_or_room(options: dict[str, Any], paged: bool) -> None:
    with pytest.raises(KvfuseError) as caught:
        DecodeSession(tiny.model(paged), **options)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("paged", [True, False])
def test_plans_edited_by_hand(paged: bool) -> None:
    plan = tiny.plan(paged)
    key, value = plan.caches
    plans = [replace(plan, caches=(replace(key, heads=3), value)),
             replace(plan, caches=(replace(key, columns=8), value)),
             replace(plan, caches=(replace(key, shape=(-1, 4, 16)), value)),
             replace(plan, caches=(replace(key, shape=(-1, 5, 2, 16)), value)),
             replace(plan, caches=(replace(key, output=value.output), value)),
             replace(plan, caches=(replace(key, order="other"), value)),
             replace(plan, block_size=-1)]  # fmt: skip
    for wrong in plans + ([replace(plan, block_size=8)] if paged else []):
        with pytest.raises(BadModel) as caught:
            DecodeSession(tiny.model(paged, metadata=wrong.to_json()))
        assert "\n" not in str(caught.value)


def test_an_ended_sequence_takes_no_more_room() -> None:
    """The first ends at once beside its capacity; the second goes on."""
    long, short = [1] * 11, [4]
    end = int(tiny.logits_of(long).argmax())
    wanted = tiny.continuation(short, 6)
    assert end not in wanted
    made = DecodeSession(tiny.model(True), capacity=12).generate([long, short], max_new_tokens=6, eos=end)
    assert made == [long + [end] * 6, short + wanted]


def test_forks_of_forks_freed_in_any_order() -> None:
    for seed in range(6):
        session = DecodeSession(tiny.model(True), capacity=24, max_sequences=8)
        (first,), _ = session.prefill([[1, 2, 3, 4, 5]])
        ids = {first: [1, 2, 3, 4, 5]}
        for parent in (0, 1, 1, 2, 0, 3):
            ids[session.fork(parent)] = list(ids[parent])
            token = len(ids)
            session.step([token], [parent])
            ids[parent].append(token)
        for number in np.random.default_rng(seed).permutation(list(ids)).tolist():
            logits = session.step([7] * len(ids), list(ids))
            for row in ids.values():
                row.append(7)
            wanted = [tiny.logits_of(row) for row in ids.values()]
            np.testing.assert_allclose(logits, wanted, rtol=1e-4, atol=1e-4)
            session.free(number)
            del ids[number]
        assert session.free_pages == 8 * 6


@pytest.mark.parametrize("paged", [True, False])
def test_a_short_soak(paged: bool) -> None:
    assert "300 operations" in soak.run(300, paged)
