"""Converted decoders as `.air` files: caches are RefData, and prefill and steps give what ONNX Runtime gives.

Both sides get the same inputs; each has caches of its own, which it carries from call to call.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from functools import cache
from pathlib import Path

import numpy as np
import onnx
import pytest

import custom_ort
import fusion
from custom_ort.decode.calls import Batch, Call, batch_of
from custom_ort.decode.memory import CacheMemory
from custom_ort.decode.pages import PagePool
from ir_ops.decode_plan import DecodePlan, read_plan
from ir_ops.dtypes import Array, by_onnx
from ir_ops.ge import execute, export, read, validate
from ir_ops.ge.model import inputs_of
from ir_ops.ge.naming import sanitise
from ir_ops.ge.validator import errors
from tests.conftest import DATA

CAPACITY = 48
PROMPTS = ((5, 3, 7, 1, 2), (9, 4))
STEPS = ((6, 8), (1, 1), (2, 5))
TOLERANCES = {"float32": 2e-5, "float16": 1e-2, "bfloat16": 5e-2}

FREE = ("decoders/deepseek-v3_dynamo", "decoders/qwen2_torchscript", "decoders/deepseek-v2-lite_torchscript",
        "graphs/dsv2_hfexporter18_fp32_latentcache", "decoders/qwen2_genai")  # fmt: skip
"""Dims stay free: one file serves prefill and steps."""
FIXED = ("decoders/qwen3-moe_dynamo", "graphs/qwen3_dynamo23_bf16_dyncache", "decoders/qwen3_genai",
         "graphs/qwen3_genai_int4")  # fmt: skip
"""QkvRmsNormRopeCache has batch and tokens as attributes: a file for each shape."""


EXPANDED = (FREE[0], FREE[2])
"""First prompts may take another way there; a device takes one for all calls."""


@cache
def converted(name: str, least: int = 0) -> onnx.ModelProto:
    model = fusion.fuse(DATA / f"{name}.onnx", cache="auto", block_size=16, expand_prompts=least).model
    assert isinstance(model, onnx.ModelProto)
    for attribute in (item for node in model.graph.node for item in node.attribute if item.name == "accuracy_level"):
        attribute.i = 1  # GE rounds no activations to 8 bits, whatever the file says
    return model


def plan_of(model: onnx.ModelProto) -> DecodePlan:
    return read_plan({entry.key: entry.value for entry in model.metadata_props}, "model")


class Script:
    """Prefill of two prompts and three steps: what the inputs hold each time."""

    def __init__(self, model: onnx.ModelProto) -> None:
        self.plan = plan_of(model)
        infos = {info.name: info.type.tensor_type.elem_type for info in model.graph.input}
        self.types = {name: by_onnx(number) for name, number in infos.items()}
        page = self.plan.block_size or CAPACITY
        pool = PagePool(8, page, CAPACITY)
        numbers = [pool.new() for _ in PROMPTS]
        self.batches: list[Batch] = []
        for tokens in (PROMPTS, *(tuple((token,) for token in step) for step in STEPS)):
            ids = [np.array(row) for row in tokens]
            grown = pool.grow([(number, len(row)) for number, row in zip(numbers, ids, strict=True)])
            positions = [np.arange(item.length - len(row), item.length) for item, row in zip(grown, ids, strict=True)]
            self.batches.append(batch_of(self.plan, ids, positions, grown, page, CAPACITY))
            pool.commit(grown)
        self._rows = page

    def caches(self) -> dict[str, Array]:
        ports = self.plan.caches
        pages = 8 if self.plan.paged else len(PROMPTS)
        return {port.input: CacheMemory(port, self.types[port.input], pages, self._rows).array for port in ports}

    def feeds(self, batch: Batch) -> dict[str, Array]:
        return {name: batch.inputs[role].astype(self.types[name].np) for role, name in self.plan.inputs.items()}


def run_ge(path: Path, script: Script, batch: Batch, caches: Mapping[str, Array]) -> tuple[Array, dict[str, Array]]:
    """Logits, and the caches as RefData holds them after the run."""
    model = read(path)
    declared = {entry.name: entry.type.shape for entry in inputs_of(model)}
    # a cache may be declared in its operator's shape: the same memory
    given = {name: array.reshape(declared[sanitise(name)]) for name, array in caches.items()}
    done = execute(model, {**script.feeds(batch), **given})
    names = {sanitise(port.input): port.input for port in script.plan.caches}
    assert set(done.caches) == set(names)
    return done.outputs[sanitise(script.plan.logits)], {
        names[name]: array.reshape(caches[names[name]].shape) for name, array in done.caches.items()
    }


CASES = [*((name, 0) for name in (*FREE, *FIXED)), *((name, 2) for name in EXPANDED)]


@pytest.mark.parametrize(("name", "least"), CASES)
def test_prefill_and_steps_are_those_of_onnxruntime(name: str, least: int, tmp_path: Path) -> None:
    model = converted(name, least)
    script = Script(model)
    call = Call(custom_ort.session(model), script.plan, name)
    wanted, got = script.caches(), script.caches()
    made: dict[str, Path] = {}
    for batch in script.batches:
        feeds = script.feeds(batch)
        dims = {key: array.shape for key, array in {**feeds, **got}.items()} if name in FIXED else None
        key = str(feeds[script.plan.inputs["ids"]].shape) if dims else "free"
        if key not in made:
            made[key] = tmp_path / f"m{len(made)}.air"
            export(model, made[key], input_shapes=dims)
            assert errors(validate(made[key])) == []
        expected = call.run(batch, wanted)
        logits, got = run_ge(made[key], script, batch, got)
        limit = TOLERANCES[expected.dtype.name]
        last = logits[batch.rows, batch.last].astype(np.float32)
        np.testing.assert_allclose(last, expected.astype(np.float32), atol=limit, rtol=limit)
        for port, array in wanted.items():
            a, b = got[port].astype(np.float32), array.astype(np.float32)
            np.testing.assert_allclose(a, b, atol=limit, rtol=limit, err_msg=port)
    assert len(made) == (2 if name in FIXED else 1)


@pytest.mark.parametrize("name", EXPANDED)
def test_a_second_way_for_first_prompts_changes_nothing_and_is_told(name: str) -> None:
    """The graph is that of steps; MlaPrologV3 goes on delivering what the other way would have read."""
    one, two = export(converted(name)), export(converted(name, 2))
    assert one.ops_after == two.ops_after
    assert set(two.notes) - set(one.notes) == {
        "both branches mean the same, the else_branch is exported: first prompts of 2 tokens or more are expanded"
    }


@pytest.mark.parametrize("name", [FREE[0], FREE[1]])
def test_every_cache_is_ref_data_and_paired_in_the_sidecar(name: str, tmp_path: Path) -> None:
    model = converted(name)
    plan = plan_of(model)
    result = export(model, tmp_path / "m.air")
    assert {entry.name for entry in inputs_of(result.model) if entry.is_ref} == {
        sanitise(port.input) for port in plan.caches
    }
    record = json.loads((tmp_path / "m.io.json").read_text())
    paired = {row["name"]: row["output"] for row in record["inputs"] if row.get("in_place")}
    assert paired == {sanitise(port.input): sanitise(port.output) for port in plan.caches}
