"""Greedy decoding with the demo graph, the plain way and with its caches bound in place, and what a step costs."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from onnx.utils import Extractor

from ir_ops.dtypes import Array

Step = Callable[[Array, Array], Array]
"""Tokens [B, S] and their positions [S] -> logits [B, S, V]; the caches are the callable's own."""

CACHES = {"key_cache.0": "key_cache_out.0", "value_cache.0": "value_cache_out.0"}
SHAPES = {"key_cache.0": (2, 1, 16, 512), "value_cache.0": (2, 1, 16, 64)}
PROJECTED = "linear_2"
"""The row that the attention preamble starts from: [2, S, 512 + 64]."""


def open_session(model: Path | onnx.ModelProto) -> Any:
    """A session of one thread with the kvfuse kernels."""
    import custom_ort
    from custom_ort.library import runtime

    options = runtime().SessionOptions()
    options.intra_op_num_threads, options.log_severity_level = 1, 4
    return custom_ort.session(model, sess_options=options)


def empty_caches() -> dict[str, Array]:
    """Both caches, zero."""
    return {name: np.zeros(shape, np.float16) for name, shape in SHAPES.items()}


def plain(session: Any, caches: dict[str, Array]) -> Step:
    """Every step is an ordinary run: caches go in, new caches come out."""
    names = ["logits", *CACHES.values()]

    def step(tokens: Array, positions: Array) -> Array:
        logits, *new = session.run(names, {"input_ids": tokens, "cache_position": positions, **caches})
        caches.update(zip(CACHES, new, strict=True))
        return np.asarray(logits)

    return step


def in_place(session: Any, caches: dict[str, Array]) -> Step:
    """Caches are bound once, as input and as output: a step writes its rows into them and copies nothing."""
    import custom_ort

    start = {"input_ids": np.zeros((2, 1), np.int64), "cache_position": np.zeros(1, np.int64)}
    binding = custom_ort.bind(session, {**start, **caches}, aliases=CACHES)

    def step(tokens: Array, positions: Array) -> Array:
        for name, array in (("input_ids", tokens), ("cache_position", positions)):
            if binding[name].shape == array.shape:
                binding[name][...] = array  # the bound memory is the array's own
            else:
                binding[name] = array.copy()
        return binding.run()["logits"]

    return step


def greedy(step: Step, prompt: Array, steps: int) -> Array:
    """Prefills ``prompt`` [B, S], then decodes; gives the likeliest tokens [B, steps + 1]."""
    length = prompt.shape[1]
    logits = step(prompt, np.arange(length))
    chosen = [logits[:, -1].argmax(-1)]
    for position in range(length, length + steps):
        logits = step(chosen[-1][:, None], np.asarray([position]))
        chosen.append(logits[:, -1].argmax(-1))
    return np.stack(chosen, 1)


def preamble(path: Path) -> onnx.ModelProto:
    """The part of a model between the projected row and the written caches."""
    return Extractor(onnx.load_model(path)).extract_model([PROJECTED, "cache_position", *CACHES], list(CACHES.values()))


def costs(graph: Path, fused: Path, seconds: float = 1.0) -> dict[str, float]:
    """Seconds of one decode step, measured in turns: ``layer`` and ``preamble``, each ``plain`` and ``in place``."""
    import custom_ort
    from benchmarks.timing import interleaved

    token, position = np.zeros((2, 1), np.int64), np.asarray([9])
    whole = plain(open_session(graph), empty_caches())
    bound = in_place(open_session(fused), empty_caches())
    row = np.random.default_rng(0).standard_normal((2, 1, 576)).astype(np.float16)
    feeds = {PROJECTED: row, "cache_position": position, **empty_caches()}
    part = open_session(preamble(graph))
    binding = custom_ort.bind(open_session(preamble(fused)), {**feeds, **empty_caches()}, aliases=CACHES)
    return interleaved(
        {
            "layer plain": lambda: whole(token, position),
            "layer in place": lambda: bound(token, position),
            "preamble plain": lambda: part.run(None, feeds),
            "preamble in place": binding.step,
        },
        seconds=seconds,
    )
