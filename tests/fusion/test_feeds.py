"""Made-up inputs: each exported graph runs on them, sizes vary, values mean something."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import onnx_ir as ir
import pytest
from onnx import TensorProto, helper

import models
from fusion import feeds, model_io
from fusion.feeds import Feeds, generate
from fusion.runtime import open_model
from ir_ops.dtypes import Array
from ir_ops.errors import BadInput

GRAPHS = sorted((Path(__file__).parents[1] / "data/graphs").glob("hand_kvrrc_*.onnx"))


def made_up(path: Path, **options: int) -> list[tuple[feeds.Feed, dict[str, Array]]]:
    runner = open_model(path, kernels=False)
    return list(generate(model_io.load(path).model, runner.run, **options))


@pytest.mark.parametrize("path", [*GRAPHS, models.demo_graph()], ids=lambda path: path.stem)
def test_every_exported_graph_runs_on_three_different_feeds(path: Path) -> None:
    made = made_up(path)
    assert len(made) == 3
    shapes = {tuple(array.shape for array in feed.inputs.values()) for feed, _ in made}
    assert len(shapes) >= 2
    for _, outputs in made:
        assert all(np.isfinite(array.astype(np.float64)).all() for array in outputs.values())


@pytest.mark.parametrize("path", GRAPHS, ids=lambda path: path.stem)
def test_slots_are_different_and_inside_the_cache(path: Path) -> None:
    for feed, _ in made_up(path, cases=4):
        slots = feed.inputs["slot_mapping" if "slot_mapping" in feed.inputs else "index"]
        cache = feed.inputs["k_cache"]
        norm = slots.ndim == 2
        capacity = cache.shape[2] if norm else cache.shape[0] * cache.shape[1]
        assert slots.min() >= 0
        assert slots.max() < capacity
        for row in slots if norm else [slots]:
            assert len(set(row.tolist())) == len(row)


def test_positions_count_up_and_tokens_stay_in_the_vocabulary() -> None:
    for feed, _ in made_up(models.demo_graph(), cases=4):
        positions, tokens = feed.inputs["cache_position"], feed.inputs["input_ids"]
        assert (np.diff(positions) == 1).all()
        assert positions.max() < 16
        assert 0 <= tokens.min() <= tokens.max() < 64


def test_the_same_seed_makes_the_same_feeds_and_another_seed_others() -> None:
    first, again, other = (made_up(models.demo_graph(), seed=seed)[0][0].inputs for seed in (3, 3, 4))
    assert all(np.array_equal(first[name], again[name]) for name in first)
    assert not np.array_equal(first["key_cache.0"], other["key_cache.0"])


def model(inputs: list[onnx.ValueInfoProto], nodes: list[onnx.NodeProto]) -> ir.Model:
    out = helper.make_tensor_value_info("y", TensorProto.FLOAT, None)
    graph = helper.make_graph(nodes, "g", inputs, [out])
    return ir.serde.deserialize_model(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)]))


def value(name: str, dtype: int, *dims: object) -> onnx.ValueInfoProto:
    return helper.make_tensor_value_info(name, dtype, list(dims))


def accept(values: Feeds) -> Feeds:
    return values


def test_sizes_of_one_name_agree_and_numbers_written_as_symbols_count() -> None:
    inputs = [
        value("a", 1, "batch", "seq", "512"),
        value("b", 1, "batch", "seq", 3),
        value("c", 1, "past_seq + seq", 2),
    ]
    ((feed, _),) = generate(model(inputs, [helper.make_node("Neg", ["a"], ["y"])]), accept, cases=1)
    shapes = {name: array.shape for name, array in feed.inputs.items()}
    assert shapes == {"a": (2, 3, 512), "b": (2, 3, 3), "c": (7, 2)}


def test_sizes_are_searched_until_the_model_runs() -> None:
    """s1 and s2 are one size that the exporter named twice, and s0 is their product with the batch."""
    inputs = [value("a", 1, "s0", 4), value("b", 1, "s1", "s2", 4)]
    tries = []

    def run(values: Feeds) -> None:
        tries.append(1)
        b, s, _ = values["b"].shape
        if values["a"].shape[0] != b * s or b != s:
            raise ValueError

    made = list(generate(model(inputs, [helper.make_node("Neg", ["a"], ["y"])]), run, cases=2))
    assert len(made) == 2
    assert all(feed.inputs["b"].shape[0] == feed.inputs["b"].shape[1] for feed, _ in made)
    assert len(tries) < 60


def test_masks_scales_and_booleans() -> None:
    inputs = [value("attention_mask", 7, "batch", "total"), value("k_scale", 1, 8), value("float_mask", 1, 2, 1, 3, 3),
              value("causal", 9, 2, 3)]  # fmt: skip
    ((feed, _),) = generate(model(inputs, [helper.make_node("Neg", ["k_scale"], ["y"])]), accept, cases=1)
    assert feed.inputs["attention_mask"].tolist() == [[0, 1, 1, 1, 1, 1, 1], [1] * 7]
    assert feed.inputs["k_scale"].min() >= 0.5
    assert set(np.unique(feed.inputs["float_mask"]).tolist()) == {-1e4, 0.0}
    assert feed.inputs["causal"].dtype == np.bool_


def test_a_slot_of_minus_one_is_tried_when_asked_for() -> None:
    path = next(path for path in GRAPHS if "pa_ts17" in path.name)
    names = [feed.name for feed, _ in made_up(path, skip_slots=True)]
    assert names[1] == "generated with a slot of -1"
    assert len(names) == 4
    feed = made_up(path, skip_slots=True)[1][0]
    assert feed.inputs["slot_mapping"][-1] == -1
    assert (feed.inputs["slot_mapping"][:-1] >= 0).all()


def test_nothing_fits() -> None:
    def refuse(values: Feeds) -> None:
        raise ValueError("not with these\nsizes")

    with pytest.raises(BadInput, match="no generated inputs fit the model; found not with these .*--inputs"):
        list(generate(model([value("a", 1, "n")], [helper.make_node("Neg", ["a"], ["y"])]), refuse))


def test_inputs_nobody_can_make_up() -> None:
    text = model([value("a", TensorProto.STRING, 2)], [helper.make_node("Identity", ["a"], ["y"])])
    with pytest.raises(BadInput, match="a: cannot make up values of this type; found STRING"):
        list(generate(text, accept))
    unknown = model([helper.make_tensor_value_info("a", 1, None)], [helper.make_node("Neg", ["a"], ["y"])])
    with pytest.raises(BadInput, match="a: cannot make up values; found no element type or rank"):
        list(generate(unknown, accept))


def test_columns_that_have_but_a_name_are_those_of_the_operator_that_keeps_the_cache() -> None:
    path = Path(__file__).parents[1] / "data/decoders/qwen3_genai.onnx"
    declared = onnx.load(path, load_external_data=False).graph.input[2].type.tensor_type.shape.dim[3]
    assert declared.dim_param
    made = made_up(path)
    assert len(made) == 3
    assert {feed.inputs["past_key_values.0.key"].shape[3] for feed, _ in made} == {16}
