"""Huge static caches are read at small sizes, and what is emitted names the sizes of the graph."""

from __future__ import annotations

import tracemalloc

import numpy as np
import onnx
import pytest

import fusion
from fusion.facts.trial import large_caches
from fusion.facts.trial.shrunk import Shrunk
from tests.fusion.zoo import spec as zoo
from tests.fusion.zoo.run import run, worst
from tests.fusion.zoo.spec import Spec, expected, feeds
from tests.fusion.zoo.spellings import Preamble
from tests.fusion.zoo.writes import WRITES

SMALL = Shrunk(((8192, 29), (4096, 41)), 8192 * 128 * 576)


def test_sizes_multiples_and_last_positions_are_scaled() -> None:
    numbers = np.array([8192, -1, 8191, 8192 * 128, 8192 * 4096, 128, 576, 0, 2**62, -8192])
    assert SMALL.array(numbers).tolist() == [29, -1, 28, 29 * 128, 29 * 41, 128, 576, 0, 2**62, -29]


def test_tables_along_a_large_dim_are_cut() -> None:
    assert SMALL.array(np.arange(4096)[None]).tolist() == [list(range(41))]
    assert SMALL.shape((8192, 128, 1, 576)) == (29, 128, 1, 576)


def test_without_large_sizes_nothing_changes() -> None:
    numbers = np.array([8192, 3])
    assert Shrunk().array(numbers) is numbers


def big(monkeypatch: pytest.MonkeyPatch, pages: int, block: int, length: int) -> None:
    for name, size in (("PAGES", pages), ("BLOCK", block), ("LENGTH", length)):
        monkeypatch.setattr(zoo, name, size)


@pytest.mark.parametrize("write", WRITES)
def test_every_write_is_read_at_small_sizes_and_right_at_its_own(write: str, monkeypatch: pytest.MonkeyPatch) -> None:
    big(monkeypatch, 320, 4, 160)
    monkeypatch.setattr(large_caches, "LIMIT", 1 << 10)
    how = WRITES[write]
    spec = Spec(write=write, kv="matmul", form="v1" if how.one_head else "v2", opset=max(18, how.since))
    result = fusion.fuse(Preamble(spec).model())
    assert len(result.sites) == 1, result.refusals
    assert isinstance(result.model, onnx.ModelProto)
    given = feeds(spec, 2, 3, seed=9)
    assert worst(run(result.model, given), expected(spec, given), "float32") == ""


@pytest.mark.parametrize(("write", "mode"), [("page_row_pairs", "PA"), ("static_cache", "Norm")])
def test_a_cache_of_gigabytes_costs_megabytes(write: str, mode: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """[8192, 128, 2, 64] and [B, 2, 131072, 64] of float32."""
    big(monkeypatch, 8192, 128, 131072)
    model = Preamble(Spec(write=write, kv="matmul", form="v2")).model()
    tracemalloc.start()
    result = fusion.fuse(model)
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert [site.attrs["cache_mode"] for site in result.sites] == [mode]
    assert peak < 400e6


def test_limits_of_a_product_see_the_real_sizes(monkeypatch: pytest.MonkeyPatch) -> None:
    """A page of 4096 rows is read as a short one, but refused as what it is."""
    big(monkeypatch, 8, 4096, 13)
    monkeypatch.setattr(large_caches, "LIMIT", 1 << 16)
    model = Preamble(Spec(write="page_row_pairs", kv="matmul", dtype="float16")).model()
    assert fusion.fuse(model).count("KvRmsNormRopeCache") == 1
    texts = [refusal.found for refusal in fusion.fuse(model, product="A3").refusals]
    assert texts and not any("29" in text or "37" in text for text in texts)
