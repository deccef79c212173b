"""Running an exported decoder with growing caches as it came, and recorded cases through a converted one."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import numpy as np
import onnx

import custom_ort
from custom_ort import DecodeSession
from custom_ort.sessions import dtype_of
from ir_ops.dtypes import Array, by_name
from ir_ops.npz import load_npz


@dataclass
class Grown:
    """One sequence of the original decoder: its caches and how many tokens they hold."""

    caches: dict[str, Array]
    length: int = 0


class Original:
    """An export whose caches grow, one sequence at a time, without padding.

    Args:
        columns: of a head, where the file has only a name for them.
    """

    def __init__(self, model: onnx.ModelProto, columns: int = 0) -> None:
        self._columns = columns
        self._session = custom_ort.session(model)
        self._inputs = {item.name: item for item in self._session.get_inputs()}
        self._pasts = [name for name in self._inputs if "past" in name]
        self._presents = [item.name for item in self._session.get_outputs() if item.name != "logits"]

    def new(self) -> Grown:
        caches = {}
        for name in self._pasts:
            item = self._inputs[name]
            dims = [1, int(item.shape[1]), 0, self._columns or int(item.shape[3])]
            caches[name] = np.zeros(dims, by_name(dtype_of(item)).np)
        return Grown(caches)

    def run(self, state: Grown, ids: list[int]) -> Array:
        """``[V]``: logits of the last of these tokens; the state takes them in."""
        total = state.length + len(ids)
        feeds = {
            "input_ids": np.array([ids], by_name(dtype_of(self._inputs["input_ids"])).np),
            "attention_mask": np.ones((1, total), np.int64),
            "position_ids": np.arange(state.length, total)[None],
            **state.caches,
        }
        results = custom_ort.run(self._session, {name: feeds[name] for name in self._inputs})
        state.caches = {name: results[out] for name, out in zip(self._pasts, self._presents, strict=True)}
        state.length = total
        return results["logits"][0, -1].astype(np.float64)


def recorded_steps(path: Path, session: DecodeSession) -> list[tuple[Array, Array]]:
    """Every recorded case, token by token without padding: (logits of the converted model, recorded logits)."""
    arrays = load_npz(path)
    pairs = []
    for case in sorted({name.split("/")[0] for name in arrays}):
        given = {name.split("/in/")[1]: array for name, array in arrays.items() if name.startswith(f"{case}/in/")}
        wanted = arrays[f"{case}/out/logits"]
        for row, ids in enumerate(given["input_ids"]):
            pairs += _sequence(session, given, row, ids, wanted[row])
    return pairs


def _sequence(
    session: DecodeSession, given: dict[str, Array], row: int, ids: Array, wanted: Array
) -> list[tuple[Array, Array]]:
    total = given["attention_mask"].shape[1]
    past = total - len(ids)
    real = given["attention_mask"][row] != 0
    places = given["position_ids"][row] if "position_ids" in given else real.cumsum()[past:] - 1
    sequence = None
    if real[:past].any():
        rows = {}
        for port in session.plan.caches:
            kept = given[port.input][row].transpose(1, 0, 2)[real[:past]]
            rows[port.input] = kept.astype(session.cache_type(port.input))
        sequence = session.load(rows, position=int(places[0]) - 1)
    pairs = []
    for token, number in enumerate(ids):
        if not real[past + token]:
            continue
        numbers, logits = session.prefill(
            [[int(number)]], None if sequence is None else [sequence], positions=[[int(places[token])]]
        )
        sequence = numbers[0]
        pairs.append((logits[0].astype(np.float64), wanted[token].astype(np.float64)))
    if sequence is not None:
        session.free(sequence)
    return pairs


@dataclass
class Greedy:
    """What ``transformers`` generated: ids of each sequence, tokens of its prompt, logits of each step."""

    ids: list[list[int]]
    lengths: list[int]
    logits: list[Array]

    @property
    def prompts(self) -> list[list[int]]:
        return [ids[:length] for ids, length in zip(self.ids, self.lengths, strict=True)]

    def at(self, step: int) -> list[int]:
        """The ids that are generated in a step."""
        return [ids[length + step] for ids, length in zip(self.ids, self.lengths, strict=True)]


def greedy(path: Path, prompts: str) -> Greedy:
    """The record beside a decoder of ``tests/data/decoders``; ``prompts``: ``one`` or ``three``."""
    with np.load(path.with_suffix(".npz")) as recorded:
        arrays = {name: recorded[name] for name in recorded.files if name.startswith(f"{prompts}/")}
    names = [f"{prompts}/{number}" for number in range(len(arrays) // 3)]
    return Greedy(
        [arrays[f"{name}/ids"].tolist() for name in names],
        [int(arrays[f"{name}/prompt"]) for name in names],
        [arrays[f"{name}/logits"] for name in names],
    )
