"""The kernel writes where ir_ops.layout says, and nowhere else; graphs know the shapes of its outputs."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from ir_ops.dtypes import Array
from ir_ops.layout import KV_CACHE_MODES, address, nz_block
from tests.custom_ort import one_node
from tests.custom_ort.calls import NAME


def identity_call(mode: str, batch: int, heads: int, tokens: int, width: int) -> tuple[dict[str, Array], Array]:
    """A V2 call whose v carries the number of every element, into caches of zeros. Also returns those numbers."""
    rng = np.random.default_rng(17)
    rows, pages = (4, 2 * batch * tokens) if KV_CACHE_MODES[mode].paged else (tokens + 2, batch)
    shape = (pages, rows, heads, width) if KV_CACHE_MODES[mode].paged else (batch, heads, rows, width)
    numbers = np.arange(1, batch * heads * tokens * width + 1, dtype=np.float32).reshape(batch, heads, tokens, width)
    meaning = KV_CACHE_MODES[mode].slot
    if meaning == "row":
        index = np.stack([rng.permutation(rows)[:tokens] for _ in range(batch)])
    elif meaning == "slot":
        index = rng.permutation(pages * rows)[: batch * tokens]
    else:
        index = rng.permutation(pages)[: batch * -(-tokens // rows)] * rows
    inputs = {
        "kv": np.ones((batch, heads, tokens, width), np.float32),
        "gamma": np.ones(width, np.float32),
        "cos": np.ones((batch, 1, 1, width), np.float32),
        "sin": np.zeros((batch, 1, 1, width), np.float32),
        "index": index.astype(np.int64),
        "k_cache": np.zeros(shape, np.float32),
        "ckv_cache": np.zeros(shape, np.float32),
        "v": numbers,
    }
    return inputs, numbers


@pytest.mark.parametrize("mode", KV_CACHE_MODES)
def test_addresses(mode: str) -> None:
    batch, heads, tokens, width = 2, 3, 6, 16
    inputs, numbers = identity_call(mode, batch, heads, tokens, width)
    cache = one_node.run(NAME, inputs, {"cache_mode": mode})["ckv_cache"].reshape(-1)
    layout, shape, index = KV_CACHE_MODES[mode], inputs["ckv_cache"].shape, inputs["index"].reshape(-1)
    rows = shape[1] if layout.paged else shape[2]
    expected = np.zeros_like(cache)
    for b, n, s, d in np.ndindex(batch, heads, tokens, width):
        if layout.slot == "row":
            page, row = b, index[b * tokens + s]
        elif layout.slot == "slot":
            page, row = divmod(index[b * tokens + s], rows)
        else:
            page, row = index[b * -(-tokens // rows) + s // rows] // rows, s % rows
        place = address(layout.order, page, row, n, d, rows=rows, heads=heads, columns=width, d0=nz_block("float32"))
        assert expected[place] == 0
        expected[place] = numbers[b, n, s, d]
    assert np.array_equal(cache, expected)


@pytest.mark.parametrize("separate", [False, True])
def test_inferred_shapes(separate: bool) -> None:
    """Known sizes and names of dims go from the inputs to the outputs; runtimes before 1.24 are not asked to infer."""
    shapes: dict[str, Any] = {
        "kv": ["B", 2 if separate else 1, "S", 32 if separate else 96],
        "gamma": [32 if separate else 64],
        "cos": ["B", 1, "S", 32],
        "sin": ["B", 1, "S", 32],
        "index": ["T"],
        "k_cache": ["pages", 16, 2 if separate else 1, 32],
        "ckv_cache": ["pages", 16, 2 if separate else 1, 64],
    }
    if separate:
        shapes["v"] = ["B", 2, "S", 64]
    types = {name: "int64" if name == "index" else "float16" for name in shapes}
    session = one_node.session(one_node.model(NAME, types, {"cache_mode": "PA"}, shapes=shapes))
    found = {output.name: output.shape for output in session.get_outputs()}
    if not one_node.INFERS:
        assert not any(found.values())
        return
    assert found == {
        "k_cache_out": shapes["k_cache"],
        "ckv_cache_out": shapes["ckv_cache"],
        "k_rope": [*shapes["kv"][:3], 32],
        "c_kv": [*shapes["kv"][:3], 64],
    }
