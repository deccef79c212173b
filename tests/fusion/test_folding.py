"""Experts read once: the explanation is that of the whole model, whatever the experts look like."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import onnx
import pytest

import fusion
from fusion import model_io
from fusion.folding import FEWEST, Folded, fold
from models.architecture import PRESETS, tiny
from models.decoder import Options, build
from models.weights import RandomWeights
from tests.fusion.rules.block_models import model_of, random
from tests.fusion.zoo.graph import Graph

WIDTH = 16
COUNT = 12
X: dict[str, Sequence[int | str | None]] = {"x": ["B", "S", WIDTH]}


def folded(model: onnx.ModelProto) -> Folded | None:
    return fold(model, [([*node.input], [*node.output]) for node in model.graph.node])


def explained(model: onnx.ModelProto) -> dict[str, Any]:
    told = fusion.explain(model).to_json()
    del told["timings"]
    return told


def explained_whole(model: onnx.ModelProto, monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    with monkeypatch.context() as patch:
        patch.setattr(model_io, "fold", lambda *unused: None)
        return explained(model)


# --- whole decoders --------------------------------------------------------------------------------------------------


def decoder(name: str, cache: str = "static", count: int = COUNT) -> onnx.ModelProto:
    model = tiny(PRESETS[name])
    assert model.experts is not None
    model = replace(model, layers=3, experts=replace(model.experts, count=count))
    return build(model, Options("float16", cache), RandomWeights(0))


@pytest.mark.parametrize("cache", ["static", "paged", "growth"])
@pytest.mark.parametrize("name", ["deepseek-v3", "deepseek-v2", "qwen3-30b-a3b"])
def test_a_decoder_is_explained_as_if_it_were_read_whole(
    name: str, cache: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = decoder(name, cache)
    small = folded(model)
    assert small is not None and len(small.model.graph.node) <= len(model.graph.node) - 2 * 7 * (COUNT - 1)
    assert explained(model) == explained_whole(model, monkeypatch)


def test_nodes_and_weights_of_one_expert_are_kept() -> None:
    few, many = folded(decoder("deepseek-v3", count=16)), folded(decoder("deepseek-v3", count=64))
    assert few is not None and many is not None
    assert len(many.model.graph.node) == len(few.model.graph.node)
    assert len(many.model.graph.initializer) == len(few.model.graph.initializer)
    assert [set(item.stands_for.values()) for item in (few, many)] == [{16}, {64}]
    assert many.left_out["Sigmoid"] == 2 * 63
    onnx.checker.check_model(many.model, full_check=True)


def test_the_model_given_is_not_changed(tmp_path: Path) -> None:
    model = decoder("deepseek-v3")
    before = model.SerializeToString(deterministic=True)
    onnx.save(model, tmp_path / "m.onnx")
    assert fusion.explain(model).model is model
    assert fusion.explain(tmp_path / "m.onnx").model.SerializeToString(deterministic=True) == before
    assert model.SerializeToString(deterministic=True) == before


def test_weights_of_experts_behind_a_link_are_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The notes are about all weight files, also about those that only experts left out are in."""
    model = decoder("deepseek-v3")
    onnx.save(model, tmp_path / "in.onnx", save_as_external_data=True, all_tensors_to_one_file=False, size_threshold=0)
    model = onnx.load(tmp_path / "in.onnx", load_external_data=False)
    small = folded(model)
    assert small is not None
    left_out = {item.name for item in model.graph.initializer} - {item.name for item in small.model.graph.initializer}
    tensor = next(item for item in model.graph.initializer if item.name in left_out)
    file = tmp_path / next(entry.value for entry in tensor.external_data if entry.key == "location")
    file.rename(tmp_path / "elsewhere")
    file.symlink_to(tmp_path / "elsewhere")
    notes = fusion.explain(tmp_path / "in.onnx").notes
    assert any(file.name in note for note in notes)
    monkeypatch.setattr(model_io, "fold", lambda *unused: None)
    assert fusion.explain(tmp_path / "in.onnx").notes == notes


# --- small graphs ----------------------------------------------------------------------------------------------------


def projected(g: Graph, x: str, number: int) -> str:
    return g.op("MatMul", x, g.const(random((WIDTH, WIDTH), seed=number)))


def expert(g: Graph, x: str, number: int) -> str:
    gate = projected(g, x, number)
    return projected(g, g.op("Mul", g.op("Mul", gate, g.op("Sigmoid", gate)), projected(g, x, number + 50)), number)


def summed(g: Graph, parts: list[str]) -> str:
    total = parts[0]
    for part in parts[1:]:
        total = g.op("Add", total, part)
    return total


def norm(g: Graph, x: str) -> str:
    mean = g.op("ReduceMean", g.op("Mul", x, x), g.ints(-1), keepdims=1)
    root = g.op("Reciprocal", g.op("Sqrt", g.op("Add", mean, g.scalar(1e-6))))
    return g.op("Mul", g.op("Mul", x, root), g.const(random((WIDTH,), seed=3)))


Build = Callable[[Graph], dict[str, str]]


def joined(g: Graph) -> dict[str, str]:
    return {"y": g.op("Concat", *[expert(g, "x", number) for number in range(COUNT)], axis=1)}


def no_gates(g: Graph) -> dict[str, str]:
    """Products of three that are no SwiGlu: each is told by itself."""
    parts = []
    for number in range(COUNT):
        gate, up, more = (projected(g, "x", number + at) for at in (0, 50, 100))
        parts.append(g.op("Mul", g.op("Mul", g.op("Sigmoid", gate), up), more))
    return {"y": summed(g, parts)}


def one_in_a_residual(g: Graph) -> dict[str, str]:
    """The last expert, which is like the first, is what an AddRmsNorm adds."""
    parts = [expert(g, "x", number) for number in range(COUNT)]
    return {"y": norm(g, g.op("Add", "x", parts[-1])), "z": summed(g, parts[:-1])}


def norms_behind(g: Graph) -> dict[str, str]:
    """Each expert ends in a norm; these are told one by one."""
    return {"y": summed(g, [norm(g, part) for part in [expert(g, "x", number) for number in range(COUNT)]])}


FOLDED: dict[str, Build] = {
    "side by side": joined,
    "added": lambda g: {"y": summed(g, [expert(g, "x", number) for number in range(COUNT)])},
    "no gates of themselves": no_gates,
    "a residual": one_in_a_residual,
    "norms behind": norms_behind,
}


@pytest.mark.parametrize("form", FOLDED)
def test_a_folded_graph_is_explained_as_the_whole(form: str, monkeypatch: pytest.MonkeyPatch) -> None:
    model = model_of(FOLDED[form], X)
    assert folded(model) is not None
    assert explained(model) == explained_whole(model, monkeypatch)


def test_what_touches_an_expert_is_told_of_the_expert_it_touches() -> None:
    sites = fusion.explain(model_of(one_in_a_residual, X)).sites
    model = model_of(one_in_a_residual, X)
    last = [node for node in model.graph.node if node.op_type == "MatMul"][-1].output[0]
    assert [site.inputs[1] for site in sites if site.op == "AddRmsNorm"] == [last]


def different_inputs(g: Graph) -> dict[str, str]:
    values = [g.op("Mul", "x", g.scalar(float(number))) for number in range(COUNT)]
    return {"y": summed(g, [expert(g, value, number) for number, value in enumerate(values)])}


def two_inputs(g: Graph) -> dict[str, str]:
    """Half of the experts read x, half read another projection that is like the first."""
    one, other = projected(g, "x", 500), projected(g, "x", 501)
    return {"y": summed(g, [expert(g, (one, other)[number % 2], number) for number in range(2 * COUNT)])}


def heads(g: Graph) -> dict[str, str]:
    """Projections of heads, each by itself and no gate near: a rule may want them apart."""
    return {"y": g.op("Concat", *[projected(g, "x", number) for number in range(COUNT)], axis=-1)}


def results(g: Graph) -> dict[str, str]:
    return {f"y{number}": expert(g, "x", number) for number in range(COUNT)}


def quantised(g: Graph) -> dict[str, str]:
    """Rows quantised in front of a gated part belong to a rule."""
    parts = []
    for number in range(COUNT):
        scale, zero = g.scalar(0.1), g.scalar(0, "int8")
        again = g.op("DequantizeLinear", g.op("QuantizeLinear", projected(g, "x", number), scale, zero), scale, zero)
        parts.append(g.op("Mul", g.op("Mul", again, g.op("Sigmoid", again)), projected(g, "x", number + 50)))
    return {"y": summed(g, parts)}


WHOLE: dict[str, Build] = {
    "different inputs": different_inputs,
    "one of two inputs": two_inputs,
    "heads": heads,
    "quantised": quantised,
    "few": lambda g: {"y": summed(g, [expert(g, "x", number) for number in range(FEWEST - 1)])},
}


@pytest.mark.parametrize("form", WHOLE)
def test_what_is_not_alike_or_no_expert_stays(form: str) -> None:
    assert folded(model_of(WHOLE[form], X)) is None


def test_results_of_the_graph_stay() -> None:
    """An expert whose value somebody asks for is not left out, nor are those like it."""
    model = model_of(results, X)
    for node, output in zip([node for node in model.graph.node if node.op_type == "Identity"], model.graph.output,
                            strict=True):  # fmt: skip
        output.name = node.input[0]
    assert folded(model) is None
    assert len(fusion.explain(model).refusals) == 1


def test_models_with_subgraphs_stay() -> None:
    model = model_of(joined, X)
    then = onnx.helper.make_graph(
        [onnx.helper.make_node("Identity", ["matmul_10"], ["inner"])], "then", [],
        [onnx.helper.make_tensor_value_info("inner", onnx.TensorProto.FLOAT, None)],
    )  # fmt: skip
    condition = onnx.helper.make_tensor_value_info("condition", onnx.TensorProto.BOOL, [])
    model.graph.input.append(condition)
    model.graph.node.append(onnx.helper.make_node("If", ["condition"], ["chosen"], then_branch=then, else_branch=then))
    assert folded(model) is None


def test_constants_that_differ_tell_experts_apart() -> None:
    def scaled(g: Graph, numbers: tuple[float, float]) -> dict[str, str]:
        return {"y": summed(g, [g.op("Mul", expert(g, "x", at), g.scalar(numbers[at % 2])) for at in range(COUNT)])}

    assert folded(model_of(lambda g: scaled(g, (1.5, 1.5)), X)) is not None
    assert folded(model_of(lambda g: scaled(g, (1.5, 2.5)), X)) is None


def test_parts_in_turns_stay() -> None:
    """First all gates, then all the rest: no part stands by itself."""

    def build_in_turns(g: Graph) -> dict[str, str]:
        gates = [projected(g, "x", number) for number in range(COUNT)]
        return {"y": summed(g, [g.op("Mul", gate, g.op("Sigmoid", gate)) for gate in gates])}

    assert folded(model_of(build_in_turns, X)) is None
