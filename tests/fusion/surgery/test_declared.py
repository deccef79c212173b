"""Caches of a converted decoder are declared so that the operator's own output is the model's."""

from __future__ import annotations

import dataclasses
from collections import Counter
from functools import cache

import numpy as np
import onnx
import pytest

import fusion
from custom_ort import DecodeSession
from ir_ops.decode_plan import DecodePlan, read_plan
from ir_ops.ops import DOMAIN
from models.architecture import PRESETS, tiny
from models.decoder import Options, build
from models.weights import RandomWeights
from tests.fusion.surgery.decoding import Original

LAYERS = 3
"""The third is the first that is read like another one."""


@cache
def export(preset: str) -> onnx.ModelProto:
    model = dataclasses.replace(tiny(PRESETS[preset]), layers=LAYERS, experts=None)
    return build(model, Options(cache="growth"), RandomWeights(0))


@cache
def converted(preset: str, form: str) -> fusion.FusionResult:
    return fusion.fuse(export(preset), cache=form, capacity=64 if form == "contiguous" else 0)  # type: ignore[arg-type]


def plan_of(model: onnx.ModelProto) -> DecodePlan:
    return read_plan({item.key: item.value for item in model.metadata_props}, "model")


CASES = [("deepseek-v3", "auto"), ("deepseek-v3", "contiguous"), ("qwen3-0.6b", "auto"), ("qwen3-0.6b", "contiguous")]


@pytest.mark.parametrize(("preset", "form"), CASES)
def test_every_cache_output_is_its_operators_own(preset: str, form: str) -> None:
    """A Reshape between them would copy the cache in every step; and every layer is fused, not only the first ones."""
    model = converted(preset, form).model
    producers = {name: node for node in model.graph.node for name in node.output}
    plan = plan_of(model)
    writers = Counter(producers[port.output].op_type for port in plan.caches)
    assert len(writers) == 1 and writers.total() == 2 * LAYERS
    assert {producers[port.output].domain for port in plan.caches} == {DOMAIN}
    declared = {value.name: value for value in (*model.graph.input, *model.graph.output)}
    for port in plan.caches:
        assert port.input in producers[port.output].input
        for name in (port.input, port.output):
            dims = declared[name].type.tensor_type.shape.dim
            assert tuple(dim.dim_value or -1 for dim in dims) == port.shape


def test_sites_name_values_of_the_model() -> None:
    result = converted("deepseek-v3", "auto")
    known = {name for node in result.model.graph.node for name in (*node.input, *node.output)}
    sites = [site for site in result.sites if site.op == "MlaPrologV3"]
    assert len(sites) == LAYERS
    assert not {name for site in sites for name in (*site.inputs, *site.outputs)} - known - {""}
    assert not [note for site in sites for note in site.notes if "reshaped" in note and "cache" in note]


@pytest.mark.parametrize(("preset", "form"), CASES)
def test_redeclared_decoders_compute_what_the_export_does(preset: str, form: str) -> None:
    alone = Original(export(preset))
    prompts = [[3, 1, 4, 1, 5], [9]]
    states = [alone.new() for _ in prompts]
    session = DecodeSession(converted(preset, form).model, capacity=64, max_sequences=2)
    sequences, logits = session.prefill(prompts)
    wanted = [alone.run(state, prompt) for state, prompt in zip(states, prompts, strict=True)]
    np.testing.assert_allclose(logits, wanted, atol=1e-4)
    for ids in ([2, 6], [5, 3]):
        logits = session.step(np.array(ids), sequences)
        wanted = [alone.run(state, [number]) for state, number in zip(states, ids, strict=True)]
        np.testing.assert_allclose(logits, wanted, atol=1e-4)


def test_exported_rows_survive_the_other_dims() -> None:
    session = DecodeSession(converted("deepseek-v3", "auto").model, capacity=64)
    (first,), _ = session.prefill([[3, 1, 4]])
    second = session.load(session.export(first))
    token = np.array([7])
    np.testing.assert_array_equal(session.step(token, [first]), session.step(token, [second]))
