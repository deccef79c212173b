"""A failing graph made small: outputs go, values become inputs that carry what was computed for them."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, replace

import numpy as np
import onnx
from onnx import helper

from tests.fusion.metamorphic.bases import Feeds
from tests.fusion.metamorphic.breaking import feed_of_others
from tests.fusion.metamorphic.draft import kinds_of
from tests.fusion.zoo.run import run


@dataclass(frozen=True)
class Failing:
    """``model`` fails on ``feeds``. ``before``: the unedited graph, where a site was lost that is found there."""

    model: onnx.ModelProto
    feeds: Feeds
    before: onnx.ModelProto | None = None


def shrink(failing: Failing, fails: Callable[[Failing], bool], seconds: float = 60) -> Failing:
    """Smaller and smaller, while ``fails`` holds; stops after ``seconds``."""
    end = time.monotonic() + seconds
    failing = replace(failing, feeds=feed_of_others(failing.feeds, failing.model))
    progress = True
    while progress and time.monotonic() < end:
        progress = False
        for change in _changes(failing):
            if time.monotonic() > end:
                break
            smaller = change(failing)
            if smaller is not None and _size(smaller) < _size(failing) and fails(smaller):
                failing, progress = smaller, True
    return failing


def _size(failing: Failing) -> tuple[int, int]:
    return len(failing.model.graph.node), len(failing.model.graph.output)


def _changes(failing: Failing) -> list[Callable[[Failing], Failing | None]]:
    outputs = [item.name for item in failing.model.graph.output]
    values = [name for node in failing.model.graph.node for name in node.output if name]
    found: list[Callable[[Failing], Failing | None]] = []
    found += [lambda now, name=name: _without_output(now, name) for name in outputs]  # type: ignore[misc]
    found += [lambda now, name=name: _asked(now, name) for name in values]  # type: ignore[misc]
    found += [lambda now, name=name: _given(now, name) for name in reversed(values)]  # type: ignore[misc]
    return found


def _both(failing: Failing, change: Callable[[onnx.ModelProto], bool], feeds: Feeds) -> Failing | None:
    models = []
    for model in (failing.model, failing.before):
        copy = None
        if model is not None:
            copy = onnx.ModelProto()
            copy.CopyFrom(model)
            if not change(copy):
                return None
            _needed(copy)
        models.append(copy)
    assert models[0] is not None
    return Failing(models[0], feeds, models[1])


def _without_output(failing: Failing, name: str) -> Failing | None:
    def change(model: onnx.ModelProto) -> bool:
        kept = [item for item in model.graph.output if item.name != name]
        if not kept or len(kept) == len(model.graph.output):
            return False
        del model.graph.output[:]
        model.graph.output.extend(kept)
        return True

    return _both(failing, change, failing.feeds)


def _asked(failing: Failing, name: str) -> Failing | None:
    """The value as the only output of the graph."""

    def change(model: onnx.ModelProto) -> bool:
        if not any(name in node.output for node in model.graph.node):
            return False
        entry = helper.make_tensor_value_info(name, value.type, [None] * value.rank) if value else None
        del model.graph.output[:]
        if entry is not None:
            model.graph.output.append(entry)
        return entry is not None

    value = kinds_of(failing.model).get(name)
    return _both(failing, change, failing.feeds)


def _given(failing: Failing, name: str) -> Failing | None:
    """The value as an input of the graph."""
    value = _computed(failing, name)
    if value is None:
        return None

    def change(model: onnx.ModelProto) -> bool:
        makers = [node for node in model.graph.node if name in node.output]
        if not makers or any(item.name == name for item in model.graph.output):
            return False
        for node in makers:
            node.output[list(node.output).index(name)] = f"{name}_unused"
        kind = helper.np_dtype_to_tensor_dtype(value.dtype)
        model.graph.input.append(helper.make_tensor_value_info(name, kind, value.shape))
        return True

    return _both(failing, change, {**failing.feeds, name: value})


def _computed(failing: Failing, name: str) -> np.ndarray | None:  # type: ignore[type-arg]
    model = onnx.ModelProto()
    model.CopyFrom(failing.model)
    del model.graph.output[:]
    model.graph.output.append(onnx.ValueInfoProto(name=name))
    _needed(model)
    try:
        return run(model, failing.feeds)[name]
    except Exception:  # some values cannot be asked for
        return None


def _needed(model: onnx.ModelProto) -> None:
    """Only nodes, constants and inputs that an output needs."""
    wanted = {item.name for item in model.graph.output}
    nodes = []
    for node in reversed(model.graph.node):
        if wanted & set(node.output):
            wanted |= set(node.input)
            nodes.append(node)
    del model.graph.node[:]
    model.graph.node.extend(reversed(nodes))
    for part in (model.graph.initializer, model.graph.input):
        kept = [item for item in part if item.name in wanted]
        del part[:]
        part.extend(kept)
    del model.graph.value_info[:]
