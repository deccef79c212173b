"""Layers of one structure are read once; the others get the fact with their own names, and only when it is theirs."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import onnx_ir as ir
import pytest

import fusion
from fusion.facts import sharing
from fusion.facts.analysis import analyse
from fusion.facts.cache_write import CacheWrite
from fusion.facts.parameters import Reason
from fusion.facts.rows import Row, read_row
from models.architecture import PRESETS, tiny
from models.decoder import Options, build
from models.weights import RandomWeights
from tests.fusion.zoo.spec import Spec
from tests.fusion.zoo.spellings import Preamble


def graph(name: str, cache: str, layers: int = 3) -> tuple[ir.Graph, int]:
    model = build(replace(tiny(PRESETS[name]), layers=layers), Options("float16", cache), RandomWeights(0))
    return ir.serde.deserialize_model(model).graph, 18


def described(row: Row | Reason) -> object:
    """What a row says, arrays as bytes."""
    if isinstance(row, Reason):
        return row.code, row.fact, row.found, row.value and row.value.name
    views = [
        (entry.x.value.name, entry.position.tobytes(), entry.x.position.tobytes(),
         entry.rotation and (entry.rotation.source.value.name, entry.rotation.cos_source.value.name,
                             entry.rotation.sin_source.value.name, entry.rotation.cos.tobytes()))
        for entry in row.views
    ]  # fmt: skip
    norm = row.norm and (row.norm.y.name, row.norm.gamma and row.norm.gamma.name)
    return row.write.cache.name, row.start.name, norm, views


@pytest.mark.parametrize("cache", ["static", "paged", "growth"])
@pytest.mark.parametrize("name", ["deepseek-v3", "deepseek-v2", "qwen3-8b", "qwen2-7b"])
def test_shared_facts_are_those_of_reading_each_layer(name: str, cache: str, monkeypatch: pytest.MonkeyPatch) -> None:
    shared = analyse(*graph(name, cache))
    monkeypatch.setattr(sharing, "_same_write", lambda *unused: None)
    alone = analyse(*graph(name, cache))
    again = [read_row(alone.view, write, alone.norms) for write in alone.writes]
    assert [described(row) for row in shared.rows] == [described(row) for row in again]
    assert [(item.cache.name, item.reason, item.detail) for item in shared.others] == [
        (item.cache.name, item.reason, item.detail) for item in alone.others
    ]
    for mine, its in zip(shared.writes, alone.writes, strict=True):
        assert (mine.cache.name, mine.out.name, mine.order, mine.negative) == (
            its.cache.name, its.out.name, its.order, its.negative,
        )  # fmt: skip
        assert [value.name for value in mine.updates] == [value.name for value in its.updates]
        assert mine.slots.value.name == its.slots.value.name
        assert all(np.array_equal(a.source, b.source) for a, b in zip(mine.probes, its.probes, strict=True))


def test_slots_that_each_layer_computes_anew_are_its_own() -> None:
    model = ir.from_proto(Preamble(Spec(layers=3, write="from_start")).model())
    found = analyse(model.graph, 18)
    spots = [write.slots.value.producer() for write in found.writes]
    assert len({id(node) for node in spots}) == 6
    assert all(isinstance(row, Row) for row in found.rows)
    assert fusion.fuse(model).count("KvRmsNormRopeCache") == 3


def test_a_write_is_read_once_for_each_form_of_cache(monkeypatch: pytest.MonkeyPatch) -> None:
    read: list[str] = []
    original = sharing.read_write

    def counting(view: sharing.GraphView, spine: sharing.Spine) -> CacheWrite | sharing.NotAWrite:
        read.append(str(spine.cache.name))
        return original(view, spine)

    monkeypatch.setattr(sharing, "read_write", counting)
    assert len(analyse(*graph("deepseek-v3", "static", layers=6)).writes) == 12
    assert read == ["key_cache.0", "value_cache.0"]


def test_a_layer_with_other_sizes_is_read_by_itself() -> None:
    """The third layer's keys have one head more; nothing of the first two is taken for it."""
    facts = analyse(*graph("qwen3-8b", "static"))
    other, opset = graph("qwen3-8b", "static")
    cache = next(value for value in other.inputs if value.name == "key_cache.2")
    cache.shape = ir.Shape([2, 2, 32, 128])
    changed = analyse(other, opset)
    lengths = [item.probes[0].geometry.rows for item in changed.writes]
    assert lengths[4] == 32 and lengths[0] == facts.writes[0].probes[0].geometry.rows == 16
