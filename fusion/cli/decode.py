"""A greedy decode loop over the demo graph, run the plain way or with its caches bound in place."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from ir_ops.dtypes import Array

Step = Callable[[Array, Array], Array]
"""Tokens [B, S] and their positions [S] -> logits [B, S, V]; the caches are the callable's own."""

CACHES = {"key_cache.0": "key_cache_out.0", "value_cache.0": "value_cache_out.0"}


@dataclass(frozen=True)
class Decoded:
    """Tokens [B, steps + 1] that a loop chose, the last logits, and seconds of one decode step (median)."""

    tokens: Array
    logits: Array
    seconds: float


def empty_caches(shapes: Mapping[str, tuple[int, ...]]) -> dict[str, Array]:
    """Caches of float16 zeros."""
    return {name: np.zeros(shape, np.float16) for name, shape in shapes.items()}


def plain(session: Any, caches: dict[str, Array]) -> Step:
    """Every step is an ordinary run: caches go in, new caches come out."""
    names = ["logits", *CACHES.values()]

    def step(tokens: Array, positions: Array) -> Array:
        logits, *new = session.run(names, {"input_ids": tokens, "cache_position": positions, **caches})
        caches.update(zip(CACHES, new, strict=True))
        return np.asarray(logits)

    return step


def in_place(session: Any, caches: dict[str, Array]) -> Step:
    """Caches are bound once as input and output: a step writes its rows into them and copies nothing."""
    import custom_ort

    start = {"input_ids": np.zeros((2, 1), np.int64), "cache_position": np.zeros(1, np.int64)}
    binding = custom_ort.bind(session, {**start, **caches}, aliases=CACHES)

    def step(tokens: Array, positions: Array) -> Array:
        binding["input_ids"], binding["cache_position"] = tokens, positions
        return binding.run()["logits"]

    return step


def greedy(step: Step, prompt: Array, steps: int) -> Decoded:
    """Prefills ``prompt`` [B, S], then decodes ``steps`` tokens, each the likeliest."""
    length = prompt.shape[1]
    logits = step(prompt, np.arange(length))
    chosen, spent = [logits[:, -1].argmax(-1)], []
    for position in range(length, length + steps):
        began = time.perf_counter()
        logits = step(chosen[-1][:, None], np.asarray([position]))
        spent.append(time.perf_counter() - began)
        chosen.append(logits[:, -1].argmax(-1))
    return Decoded(np.stack(chosen, 1), logits, float(np.median(spent)))
