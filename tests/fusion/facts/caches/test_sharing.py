"""Layers of one structure are read once; the others get the fact with their own names, and only when it is theirs."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from typing import Any

import numpy as np
import onnx_ir as ir
import pytest

import fusion
from fusion.facts.analysis import analyse
from fusion.facts.attention.attention import AttentionReader
from fusion.facts.caches import sharing
from fusion.facts.caches.cache_write import CacheWrite
from fusion.facts.caches.rows import Row, read_row
from fusion.facts.graph import GraphView
from fusion.facts.rotary import heads
from fusion.facts.symbols.parameters import Reason
from models.architecture import PRESETS, tiny
from models.decoder import Options, build
from models.weights import RandomWeights
from tests.fusion.zoo.spec import Spec
from tests.fusion.zoo.spellings import Preamble


def graph(name: str, cache: str, layers: int = 3) -> tuple[ir.Graph, int]:
    model = build(replace(tiny(PRESETS[name]), layers=layers), Options("float16", cache), RandomWeights(0))
    return ir.serde.deserialize_model(model).graph, 18


def view(name: str, cache: str, layers: int = 3) -> GraphView:
    return GraphView(*graph(name, cache, layers))


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
    shared = analyse(view(name, cache))
    monkeypatch.setattr(sharing, "_same_write", lambda *unused: None)
    alone = analyse(view(name, cache))
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
    found = analyse(GraphView(model.graph, 18))
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
    assert len(analyse(view("deepseek-v3", "static", layers=6)).writes) == 12
    assert read == ["key_cache.0", "value_cache.0"]


def test_a_layer_with_other_sizes_is_read_by_itself() -> None:
    """The third layer's keys have one head more; nothing of the first two is taken for it."""
    facts = analyse(view("qwen3-8b", "static"))
    other, opset = graph("qwen3-8b", "static")
    cache = next(value for value in other.inputs if value.name == "key_cache.2")
    cache.shape = ir.Shape([2, 2, 32, 128])
    changed = analyse(GraphView(other, opset))
    lengths = [item.probes[0].geometry.rows for item in changed.writes]
    assert lengths[4] == 32 and lengths[0] == facts.writes[0].probes[0].geometry.rows == 16


# --- queries and attention --------------------------------------------------------------------------------------------


def converted(name: str, layers: int) -> dict[str, Any]:
    """What is said of a decoder whose growing caches are made pages."""
    model = build(replace(tiny(PRESETS[name]), layers=layers), Options("float16", "growth"), RandomWeights(0))
    told = fusion.fuse(model, cache="paged").to_json()
    del told["timings"]
    return told


@pytest.mark.parametrize("name", ["qwen3-8b", "qwen2-7b", "deepseek-v3"])
def test_shared_queries_and_operands_are_those_of_reading_each(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    shared = converted(name, 3)
    monkeypatch.setattr(heads, "_heads_at", heads._read_heads_at)
    monkeypatch.setattr(AttentionReader, "_operand", lambda self, value, tokens, *, turned, heads=0:
                        self._read_operand(value, tokens, turned=turned, heads=heads))  # fmt: skip
    assert converted(name, 3) == shared


def test_queries_and_operands_are_read_once_for_all_layers(monkeypatch: pytest.MonkeyPatch) -> None:
    counted: Counter[str] = Counter()

    def count(owner: Any, name: str) -> None:
        original = getattr(owner, name)

        def counting(*args: Any, **named: Any) -> Any:
            counted[name] += 1
            return original(*args, **named)

        monkeypatch.setattr(owner, name, counting)

    count(heads, "_read_heads_at")
    count(AttentionReader, "_read_operand")
    read = []
    for layers in (2, 6):
        counted.clear()
        told = converted("qwen3-8b", layers)
        assert Counter(site["op"] for site in told["sites"])["QkvRmsNormRopeCache"] == layers
        read.append(dict(counted))
    assert read[0] == read[1] and read[0]["_read_operand"] == 2
