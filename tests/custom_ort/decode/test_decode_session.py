"""Decoding: every logit equals the formula, whatever happened to other sequences before."""

from __future__ import annotations

import numpy as np
import onnx
import pytest

import custom_ort
from custom_ort import DecodeSession
from ir_ops.errors import BadInput, BadModel, BadUsage, KvfuseError
from tests.custom_ort.decode import tiny

KINDS = [True, False]
"""Paged, contiguous."""
CLOSE = {"rtol": 1e-4, "atol": 1e-4}


def decoder(paged: bool = True, **options: int) -> DecodeSession:
    return DecodeSession(tiny.model(paged), **{"capacity": 40, "max_sequences": 6, **options})


def same(logits: np.ndarray, *prompts: list[int]) -> None:
    np.testing.assert_allclose(logits, [tiny.logits_of(prompt) for prompt in prompts], **CLOSE)


@pytest.mark.parametrize("paged", KINDS)
def test_prompts_of_different_lengths_then_steps(paged: bool) -> None:
    session = decoder(paged)
    sequences, logits = session.prefill([[1, 2, 3, 4, 5], [7], [9, 8]])
    same(logits, [1, 2, 3, 4, 5], [7], [9, 8])
    same(session.step([6, 6, 6], sequences), [1, 2, 3, 4, 5, 6], [7, 6], [9, 8, 6])
    assert [session.length(number) for number in sequences] == [6, 2, 3]
    same(session.step([[4], [3]], [sequences[2], sequences[0]]), [9, 8, 6, 4], [1, 2, 3, 4, 5, 6, 3])


@pytest.mark.parametrize("paged", KINDS)
@pytest.mark.parametrize("chunk", [1, 2, 3, 100])
def test_a_prompt_in_chunks(paged: bool, chunk: int) -> None:
    _, logits = decoder(paged).prefill([[1, 2, 3, 4, 5, 6, 7], [9, 8, 7]], chunk=chunk)
    same(logits, [1, 2, 3, 4, 5, 6, 7], [9, 8, 7])


@pytest.mark.parametrize("paged", KINDS)
def test_further_tokens_of_living_sequences(paged: bool) -> None:
    session = decoder(paged)
    (first, second), _ = session.prefill([[1, 2], [3]])
    numbers, logits = session.prefill([[4, 5, 6], [7, 8]], [second, first])
    assert numbers == (second, first)
    same(logits, [3, 4, 5, 6], [1, 2, 7, 8])


@pytest.mark.parametrize("side", ["left", "right"])
def test_padding_is_left_out(side: str) -> None:
    ids, mask = np.array([[0, 0, 5, 6], [1, 2, 3, 4]]), np.array([[0, 0, 1, 1], [1, 1, 1, 1]])
    if side == "right":
        ids, mask = np.array([[5, 6, 0, 0], [1, 2, 3, 4]]), mask[:, ::-1]
    _, logits = decoder().prefill(ids, attention_mask=mask)
    same(logits, [5, 6], [1, 2, 3, 4])


@pytest.mark.parametrize("paged", KINDS)
def test_generated_ids_are_those_of_the_formula(paged: bool) -> None:
    session = decoder(paged)
    prompts = [[1, 2, 3], [4], [5, 6]]
    wanted = [prompt + tiny.continuation(prompt, 12) for prompt in prompts]
    assert session.generate(prompts, max_new_tokens=12) == wanted
    assert session.sequences == ()
    array = session.generate(np.array([[1, 2, 3], [3, 2, 1]]), max_new_tokens=4)
    assert array.tolist() == [row + tiny.continuation(row, 4) for row in ([1, 2, 3], [3, 2, 1])]


def test_an_ended_sequence_is_filled_up() -> None:
    plain = tiny.continuation([1, 2, 3], 12)
    end = plain[2]
    ids = decoder().generate([[1, 2, 3]], max_new_tokens=12, eos=end)[0][3:]
    assert ids == plain[: plain.index(end) + 1]
    both = decoder().generate([[1, 2, 3], [4]], max_new_tokens=12, eos=end)
    length = len(both[0])
    assert both[0][3:] == (plain[: plain.index(end) + 1] + [end] * 12)[: length - 3]


def test_other_choices_than_the_likeliest() -> None:
    ids = decoder().generate([[1, 2]], max_new_tokens=3, select=lambda logits: logits.argmin(-1))[0]
    assert ids[2] == int(tiny.logits_of([1, 2]).argmin())


@pytest.mark.parametrize("paged", KINDS)
def test_a_fork_goes_its_own_way(paged: bool) -> None:
    session = decoder(paged)
    (parent,), _ = session.prefill([[1, 2, 3, 4, 5, 6]])
    child = session.fork(parent)
    same(session.step([7, 8], [parent, child]), [1, 2, 3, 4, 5, 6, 7], [1, 2, 3, 4, 5, 6, 8])
    session.free(parent)
    same(session.step([9], [child]), [1, 2, 3, 4, 5, 6, 8, 9])


@pytest.mark.parametrize(("source", "target"), [(True, False), (False, True), (True, True)])
def test_rows_move_between_sessions(source: bool, target: bool) -> None:
    giver, taker = decoder(source), decoder(target)
    (number,), _ = giver.prefill([[1, 2, 3, 4, 5]])
    rows = giver.export(number)
    assert {name: array.shape for name, array in rows.items()} == {"key": (5, 2, 16), "value": (5, 2, 16)}
    again = taker.load(rows)
    same(taker.step([6], [again]), [1, 2, 3, 4, 5, 6])
    same(giver.step([6], [number]), [1, 2, 3, 4, 5, 6])


def test_positions_may_be_told() -> None:
    session = decoder()
    (number,), logits = session.prefill([[1, 2, 3]], positions=[[0, 4, 9]])
    np.testing.assert_allclose(logits[0], tiny.logits_of([1, 2, 3], [0, 4, 9]), **CLOSE)
    np.testing.assert_allclose(session.step([5], [number])[0], tiny.logits_of([1, 2, 3, 5], [0, 4, 9, 10]), **CLOSE)
    with pytest.raises(BadInput, match=r"positions increase.*\[10\] after 10"):
        session.step([5], [number], positions=[10])


@pytest.mark.parametrize("paged", KINDS)
def test_a_refused_call_changes_nothing(paged: bool) -> None:
    session = decoder(paged, capacity=8, max_sequences=2)
    (first, second), _ = session.prefill([[1, 2, 3, 4], [5, 6]])
    rows = session.export(first)
    refusals = [
        ("longer than its capacity", lambda: session.prefill([[1, 2, 3], [1, 2, 3, 4, 5, 6, 7]], [first, second])),
        ("longer than its capacity", lambda: session.prefill([[1] * 5], [first], chunk=1)),
        ("too many sequences", lambda: session.prefill([[1]])),
        ("too many sequences", lambda: session.fork(first)),
        ("no such sequence", lambda: session.step([1], [99])),
        ("named twice", lambda: session.step([1, 2], [first, first])),
        ("one row of ids for each sequence", lambda: session.step([1])),
        ("no sequence is named", lambda: session.step([], [])),
        ("onnxruntime refuses the run", lambda: session.step([tiny.VOCABULARY], [first])),
        ("vector of integers", lambda: session.prefill([[1.5]], [first])),
        ("vector of integers", lambda: session.prefill([[]], [first])),
        ("no sequence is named", lambda: session.prefill([], [])),
        ("a mask has one number", lambda: session.prefill([[1]], [first], attention_mask=np.ones((1, 2)))),
        ("a chunk is at least 1", lambda: session.prefill([[1]], [first], chunk=0)),
        ("not those of the model's caches", lambda: session.load({})),
        ("max_new_tokens is at least 1", lambda: session.generate([[1]], max_new_tokens=0)),
    ]
    free = session.free_pages
    for text, call in refusals:
        with pytest.raises(KvfuseError, match=text) as caught:
            call()
        assert "\n" not in str(caught.value)
        assert (session.sequences, session.free_pages) == ((first, second), free), text
    assert all(np.array_equal(session.export(first)[name], rows[name]) for name in rows)
    same(session.step([5, 7], [first, second]), [1, 2, 3, 4, 5], [5, 6, 7])


def test_pages_of_all_sequences_may_be_fewer() -> None:
    session = decoder(pages=3)
    (number,), _ = session.prefill([[1] * 8])
    with pytest.raises(BadInput, match=r"caches are full.*1 free pages"):
        session.prefill([[1] * 5])
    session.free(number)
    session.prefill([[1] * 12])


def test_models_without_or_with_a_wrong_plan_are_refused() -> None:
    with pytest.raises(BadModel, match="no decode plan"):
        DecodeSession(tiny.model(True, metadata=""))
    wrong = tiny.plan(True, logits="scores")
    with pytest.raises(BadModel, match=r"does not fit its decode plan.*no scores"):
        DecodeSession(tiny.model(True, metadata=wrong.to_json()))
    less = tiny.plan(True, inputs={role: role for role in ("ids", "slots", "kv_lengths", "block_table", "positions")})
    with pytest.raises(BadModel, match="input query_lengths without a role"):
        DecodeSession(tiny.model(True, metadata=less.to_json()))


@pytest.mark.parametrize("options", [{"capacity": 0}, {"max_sequences": 0}, {"pages": 0}, {"paged": False, "pages": 4}])
def test_sizes_that_make_no_sense(options: dict[str, int]) -> None:
    with pytest.raises(BadUsage):
        decoder(**{"paged": True, **options})


def test_a_file_is_opened_too(tmp_path: object) -> None:
    path = tmp_path / "m.onnx"  # type: ignore[operator]
    onnx.save(tiny.model(True), path)
    assert custom_ort.DecodeSession(path).capacity == 4096


@pytest.mark.parametrize("paged", KINDS)
def test_many_random_operations(paged: bool) -> None:
    """Every step's logits equal the formula; nothing is left when all sequences are freed."""
    rng = np.random.default_rng(17)
    session = decoder(paged, max_sequences=12)
    alive: dict[int, list[int]] = {}
    for _ in range(400):
        kind = rng.integers(6)
        if kind == 0 and len(alive) < 10:
            prompts = [rng.integers(0, tiny.VOCABULARY, rng.integers(1, 7)).tolist() for _ in range(2)]
            numbers, logits = session.prefill(prompts, chunk=int(rng.integers(1, 8)))
            alive |= dict(zip(numbers, prompts, strict=True))
            same(logits, *prompts)
        elif kind == 1 and alive and len(alive) < 12:
            parent = int(rng.choice(list(alive)))
            alive[session.fork(parent)] = list(alive[parent])
        elif kind == 2 and alive:
            number = int(rng.choice(list(alive)))
            session.free(number)
            del alive[number]
        elif alive:
            some = [int(number) for number in rng.permutation(list(alive))[: rng.integers(1, 6)]]
            some = [number for number in some if len(alive[number]) < 39]
            if some:
                ids = rng.integers(0, tiny.VOCABULARY, len(some))
                logits = session.step(ids, some)
                for number, token in zip(some, ids, strict=True):
                    alive[number].append(int(token))
                same(logits, *(alive[number] for number in some))
    everything = session.free_pages
    for number in list(alive):
        session.free(number)
    assert session.free_pages >= everything
    assert session.sequences == ()
    session.prefill([[1] * 39 for _ in range(12)])
