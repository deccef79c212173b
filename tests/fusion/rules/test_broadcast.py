"""Sizes that only broadcasting makes equal: where the names of dims do not tie them, one may be 1 at run time."""

from __future__ import annotations

import numpy as np
import onnx
import pytest

import fusion
from tests.fusion.qkv import spec as qkv_spec
from tests.fusion.qkv.spellings import Preamble as QkvPreamble
from tests.fusion.rules.block_models import close, counts, model_of, random
from tests.fusion.rules.test_rms_norm import GAMMA
from tests.fusion.rules.test_rotary import WIDTH, Build, layer_feeds, layers, one, tables
from tests.fusion.zoo import packed
from tests.fusion.zoo import spec as kv_spec
from tests.fusion.zoo.graph import Array, Graph
from tests.fusion.zoo.norms import NORMS
from tests.fusion.zoo.ropes import ROPES
from tests.fusion.zoo.run import run
from tests.fusion.zoo.spellings import Preamble as KvPreamble

ROPE: dict[str, Build] = {
    rope: one(ROPES[rope].build) for rope in ("deint_view", "half_slices", "half_chunk", "deint_unbind")
}


def follows(model: onnx.ModelProto, feeds: dict[str, Array]) -> dict[str, int]:
    """The fused model computes the same; operator -> sites."""
    result = fusion.fuse(model)
    original, fused = run(model, feeds), run(result.model, feeds)
    for name, value in original.items():
        close(fused[name], value)
    return counts(result)


@pytest.mark.parametrize(("rows", "table"), [((3, 5), (3, 5)), ((3, 5), (1, 5)), ((1, 5), (3, 5)), ((3, 1), (3, 5))])
@pytest.mark.parametrize("names", [("X", "S", "C", "T"), (None,) * 4], ids=["own names", "no names"])
@pytest.mark.parametrize("rope", ROPE)
def test_rows_or_tables_of_one(
    rope: str, names: tuple[str | None, ...], rows: tuple[int, int], table: tuple[int, int]
) -> None:
    width = WIDTH // 2 if ROPES[rope].width == "half" else WIDTH
    form = [names[2], 1, names[3], width]
    model = model_of(ROPE[rope], {"x": [names[0], 2, names[1], WIDTH], "cos": form, "sin": form})
    feeds = {"x": random((rows[0], 2, rows[1], WIDTH)), **tables(*table, width)}
    assert sum(follows(model, feeds).values()) == 1


def test_named_dims_cost_nothing() -> None:
    form = ["B", 1, "S", WIDTH]
    model = model_of(ROPE["deint_view"], {"x": ["B", 2, "S", WIDTH], "cos": form, "sin": form})
    assert not fusion.fuse(model).ops_after["Expand"]


def test_query_and_key_with_a_table_of_one() -> None:
    model = layers(1)
    for item in model.graph.input:
        if item.name in ("cos", "sin"):
            item.type.tensor_type.shape.dim[0].dim_param = "other"
    feeds = layer_feeds()
    assert follows(model, {**feeds, **tables(1, 5)}) == {"RotaryPositionEmbedding": 2}


def _named(model: onnx.ModelProto, inputs: tuple[str, ...]) -> onnx.ModelProto:
    """These inputs' dims get names of their own."""
    for item in model.graph.input:
        if item.name in inputs:
            for axis, dim in enumerate(item.type.tensor_type.shape.dim):
                if dim.dim_param:
                    dim.dim_param = f"{item.name}_{axis}"
    return model


@pytest.mark.parametrize("cos", ["input", "freq", "table"])
def test_kv_rms_norm_rope_cache_with_tables_of_one(cos: str) -> None:
    spec = kv_spec.Spec(cos=cos)
    feeds = kv_spec.feeds(spec, 2, 3, seed=1)
    inputs = ("cos", "sin") if cos == "input" else ("positions",)
    short = {name: value[:1] if name in inputs else value for name, value in feeds.items()}
    assert follows(_named(KvPreamble(spec).model(), inputs), short) == {"KvRmsNormRopeCache": 1}


def test_qkv_rms_norm_rope_cache_with_positions_of_one() -> None:
    spec = qkv_spec.Spec(cos="freq", raw=True)
    feeds = qkv_spec.feeds(spec, 2, 3, seed=1)
    short = {name: value[:1] if name == "positions" else value for name, value in feeds.items()}
    assert follows(_named(QkvPreamble(spec).model(), ("positions",)), short) == {"QkvRmsNormRopeCache": 1}


def test_dequant_rope_quant_kvcache_with_tables_of_one() -> None:
    spec = packed.Packed()
    feeds = packed.feeds(spec, 2, 3)
    short = {name: value[:1] if name in ("cos", "sin") else value for name, value in feeds.items()}
    assert follows(_named(packed.PackedPreamble(spec).model(), ("cos", "sin")), short) == {"DequantRopeQuantKvcache": 1}


def test_a_sum_that_may_broadcast_is_no_residual() -> None:
    def build(g: Graph) -> dict[str, str]:
        return {"y": NORMS["hf_reciprocal"](g, g.op("Add", "x", "h"), GAMMA, 1e-5, 3)}

    model = model_of(build, {"x": ["B", "S", WIDTH], "h": ["C", "S", WIDTH]})
    assert follows(model, {"x": random((3, 2, WIDTH)), "h": random((1, 2, WIDTH))}) == {"RmsNorm": 1}


def test_a_gate_that_may_broadcast_is_not_joined_with_up() -> None:
    def build(g: Graph) -> dict[str, str]:
        return {"y": g.op("Mul", g.op("Mul", "x", g.op("Sigmoid", "x")), "u")}

    model = model_of(build, {"x": ["B", "S", WIDTH], "u": ["C", "S", WIDTH]})
    assert follows(model, {"x": random((1, 2, WIDTH)), "u": random((3, 2, WIDTH))}) == {}
    assert np.unique([refusal.code for refusal in fusion.fuse(model).refusals]).tolist() == ["swiglu-shape"]
