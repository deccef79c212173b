"""``expand_prompts``: what it changes in a converted decoder, what it refuses, and that wrong branches are seen."""

from __future__ import annotations

from collections import Counter
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnx_ir as ir
import pytest

import fusion
from fusion import FusionResult
from fusion.candidate import Refused
from fusion.emit import Emitter
from fusion.engine import count_ops
from fusion.surgery.prompts.branches import expanded, is_first_prompt
from fusion.surgery.prompts.proof import Prover
from fusion.surgery.prompts.sites import LatentAttention, find_attentions
from ir_ops.alternatives import alternatives
from ir_ops.decode_plan import DecodePlan, read_plan
from ir_ops.errors import BadModel, BadUsage
from tests.conftest import DATA
from tests.fusion.surgery.test_fixed_sizes import FIXED, fixed_at

LEAST = 3
QUERIES = {"deepseek-v3_dynamo": "MlaPrologV3", "deepseek-v2-lite_dynamo": "KvRmsNormRopeCache"}
"""What is in front of attention: the query is inside the operator, or beside it."""


@cache
def converted(name: str, least: int = LEAST) -> FusionResult:
    return fusion.fuse(DATA / "decoders" / f"{name}.onnx", cache="auto", block_size=16, expand_prompts=least)


def model_of(result: FusionResult) -> ir.Model:
    return ir.from_proto(result.model)


def branch(node: ir.Node, name: str) -> ir.Graph:
    return node.attributes[name].as_graph()


@pytest.mark.parametrize("name", QUERIES)
def test_each_layer_has_two_ways_and_the_write_is_in_front_of_them(name: str) -> None:
    model = model_of(converted(name))
    chosen = alternatives(model.graph)
    assert len(chosen) == 2
    assert len({id(node.inputs[0]) for node in chosen}) == 1, "the condition is computed once"
    operators = Counter(node.op_type for node in model.graph)
    assert operators[QUERIES[name]] == 2
    assert operators["FusedInferAttentionScore"] == 0
    for node in chosen:
        for way, kv_heads in (("then_branch", 2), ("else_branch", 1)):
            inner = [item for item in branch(node, way) if item.op_type == "FusedInferAttentionScore"]
            assert [item.attributes["num_key_value_heads"].as_int() for item in inner] == [kv_heads]


@pytest.mark.parametrize("name", QUERIES)
def test_the_absorbed_query_is_not_turned_or_made_for_nobody(name: str) -> None:
    """What only attention on latents needs is in its branch: a step does as much as without the option."""
    with_it, without = model_of(converted(name)), model_of(converted(name, 0))
    for node in alternatives(with_it.graph):
        kinds = [item.op_type for item in branch(node, "else_branch")]
        first = "Transpose" if QUERIES[name] == "MlaPrologV3" else "MatMul"
        assert Counter(kinds) == Counter({"Reshape": 2, first: 1, "FusedInferAttentionScore": 1, "MatMul": 1}) or (
            Counter(kinds) == Counter({"Reshape": 2, "FusedInferAttentionScore": 1, "MatMul": 2})
        )
    step = Counter(node.op_type for node in with_it.graph)
    for node in alternatives(with_it.graph):
        step.update(item.op_type for item in branch(node, "else_branch"))
    extra = step - Counter(node.op_type for node in without.graph)
    assert extra == Counter({"If": 2, "Shape": 1, "Gather": 1, "Reshape": 1, "Greater": 1, "Sub": 1, "ReduceMax": 1,
                             "Less": 1, "And": 1})  # fmt: skip


@pytest.mark.parametrize("name", QUERIES)
def test_no_weight_is_stored_twice(name: str) -> None:
    def weights(result: FusionResult) -> int:
        return sum(len(item.raw_data) for item in result.model.graph.initializer if len(item.raw_data) > 512)

    assert weights(converted(name)) == weights(converted(name, 0))


@pytest.mark.parametrize("name", QUERIES)
def test_the_report_has_the_proof_of_each_layer(name: str) -> None:
    result = converted(name)
    notes = [site.notes for site in result.sites if site.op == "FusedInferAttentionScore"]
    assert len(notes) == 2
    assert all("first prompts of 3 tokens or more" in note and "4 cases in float64" in note for (note,) in notes)
    prologs = [site for site in result.sites if site.op == "MlaPrologV3"]
    assert all(site.attrs["query_norm_flag"] == 1 for site in prologs)
    assert result.count("FusedInferAttentionScore") == 2
    assert "expand" in result.timings


@pytest.mark.parametrize("name", QUERIES)
def test_plan_and_ports_are_those_of_a_decoder_without_it(name: str) -> None:
    pairs = [converted(name).model, converted(name, 0).model]
    plans = [read_plan({item.key: item.value for item in model.metadata_props}, "") for model in pairs]
    assert plans[0] == plans[1]
    for ports in ("input", "output"):
        assert list(getattr(pairs[0].graph, ports)) == list(getattr(pairs[1].graph, ports))


@pytest.mark.parametrize("name", QUERIES)
def test_fusing_again_changes_nothing(name: str) -> None:
    model = converted(name).model
    again = fusion.fuse(model)
    assert again.sites == []
    assert again.model == model
    assert fusion.explain(model).sites == []
    assert [refusal.code for refusal in again.refusals] == []


@pytest.mark.parametrize("name", QUERIES)
def test_defusing_reaches_into_the_branches(name: str) -> None:
    result = fusion.defuse(converted(name).model)
    assert not any(kind.startswith("ai.ascend") for kind in result.ops_after)
    assert not result.model.functions
    assert result.ops_after["If"] == 2
    onnx.checker.check_model(result.model)


def test_a_model_from_memory_stays_as_it_was_and_gives_one_of_its_kind() -> None:
    given = ir.load(DATA / "decoders" / "deepseek-v3_dynamo.onnx")
    before = count_ops(given)
    made = fusion.fuse(given, cache="auto", block_size=16, expand_prompts=LEAST).model
    assert isinstance(made, ir.Model)
    assert count_ops(given) == before
    assert fusion.fuse(made).sites == []


@pytest.mark.parametrize("name", QUERIES)
def test_verify_tries_prompts_that_are_expanded(name: str) -> None:
    export, long = DATA / "decoders" / f"{name}.onnx", converted(name, 12).model
    result = fusion.verify(export, long, cases=1)
    assert result.ok
    wanted = ["long prompts", *(f"long step{step}" for step in range(3))]
    assert [item.case for item in result.differences][-4:] == wanted
    broken = onnx.ModelProto()
    broken.CopyFrom(long)
    then = next(item.g for node in broken.graph.node if node.op_type == "If" for item in node.attribute
                if item.name == "then_branch")  # fmt: skip
    attention = next(node for node in then.node if node.op_type == "FusedInferAttentionScore")
    next(item for item in attention.attribute if item.name == "scale").f *= 3
    failed = {item.case for item in fusion.verify(export, broken, cases=1).differences if not item.ok}
    assert "long prompts" in failed <= set(wanted)


BAD: dict[str, tuple[dict[str, Any], type[Exception], str]] = {
    "no conversion": ({"cache": "keep"}, BadUsage, "caches that are kept"),
    "below one": ({"expand_prompts": -1}, BadUsage, "found -1, wanted 1 or more"),
    "no number": ({"expand_prompts": "many"}, BadUsage, "found 'many', wanted 1 or more"),
    "a switch": ({"expand_prompts": True}, BadUsage, "found True"),
}


@pytest.mark.parametrize("case", BAD)
def test_bad_values_are_one_clear_line(case: str, tmp_path: Path) -> None:
    options, error, text = BAD[case]
    given = {"cache": "auto", "expand_prompts": LEAST, **options}
    with pytest.raises(error, match=text) as caught:
        fusion.fuse(DATA / "decoders" / "deepseek-v3_dynamo.onnx", tmp_path / "out.onnx", **given)
    assert "\n" not in str(caught.value)
    assert not list(tmp_path.iterdir())


def test_a_decoder_without_latents_is_refused(tmp_path: Path) -> None:
    with pytest.raises(BadUsage, match="found caches of keys and values, wanted a decoder with multi-head latent"):
        fusion.fuse(DATA / "decoders" / "qwen3_dynamo.onnx", tmp_path / "out.onnx", cache="auto", expand_prompts=LEAST)
    assert not list(tmp_path.iterdir())


def test_a_decoder_of_single_tokens_is_refused() -> None:
    model = fixed_at(onnx.load_model(DATA / "decoders" / "deepseek-v3_dynamo.onnx"), FIXED["one token"])
    with pytest.raises(BadModel, match="prompts cannot be expanded: .* found one token of each sequence"):
        fusion.fuse(model, cache="auto", block_size=16, expand_prompts=LEAST)


class Layer:
    """The first layer of a decoder with its second way, in front of the proof."""

    def __init__(self, name: str) -> None:
        self.model = model_of(converted(name, 0))
        graph = self.model.graph
        self.plan: DecodePlan = read_plan(self.model.metadata_props, "")
        self.inputs = {role: next(value for value in graph.inputs if value.name == item)
                       for role, item in self.plan.inputs.items()}  # fmt: skip
        self.site: LatentAttention = find_attentions(graph, self.plan)[0]
        if self.site.query.prolog is not None:
            self.site.query.prolog.attributes["query_norm_flag"] = ir.AttrInt64("query_norm_flag", 1)
        self.emit = Emitter("second", set())
        self.way = expanded(self.emit, self.site, self.plan, self.inputs)
        self.prover = Prover(graph, 18, self.inputs)

    def prove(self) -> float:
        return self.prover.prove(self.site, self.way, [self.site.node, self.site.result]).max_error

    def node(self, op_type: str) -> ir.Node:
        return next(node for node in self.way.emit.nodes if node.op_type == op_type)


def scaled(layer: Layer) -> None:
    layer.node("FusedInferAttentionScore").attributes["scale"] = ir.AttrFloat32("scale", 0.5)


def not_causal(layer: Layer) -> None:
    layer.node("FusedInferAttentionScore").attributes["sparse_mode"] = ir.AttrInt64("sparse_mode", 0)


def latents_for_values(layer: Layer) -> None:
    node = layer.node("FusedInferAttentionScore")
    node.replace_input_with(2, node.inputs[1])


def all_tokens_of_padding(layer: Layer) -> None:
    node = layer.node("FusedInferAttentionScore")
    node.replace_input_with(5, None)


def rows_of_the_padding(layer: Layer) -> None:
    """Slots as they are: -1 is the last row of all."""
    where = layer.node("Where")
    for use in tuple(where.outputs[0].uses()):
        use.node.replace_input_with(use.idx, layer.emit.ints(range(64), "in_order"))


def other_page(layer: Layer) -> None:
    layer.node("Mod").replace_input_with(1, layer.emit.constant(np.array(16), "other"))


def other_columns(layer: Layer) -> None:
    """The rotated columns of W_uq, or keys of the value's columns."""
    if layer.site.query.prolog is not None:
        layer.node("Slice").replace_input_with(1, layer.emit.ints([32], "start"))
        layer.node("Slice").replace_input_with(2, layer.emit.ints([64], "stop"))
    else:
        layer.node("Transpose").replace_input_with(0, layer.site.w_uv)
        layer.node("Transpose").attributes["perm"] = ir.AttrInt64s("perm", [0, 1, 2])


WRONG = (scaled, not_causal, latents_for_values, all_tokens_of_padding, rows_of_the_padding, other_page, other_columns)


@pytest.mark.parametrize("name", QUERIES)
def test_the_branches_are_equal(name: str) -> None:
    assert Layer(name).prove() < 1e-14


@pytest.mark.parametrize("wrong", WRONG)
@pytest.mark.parametrize("name", QUERIES)
def test_a_wrong_branch_is_refused(name: str, wrong: Any) -> None:
    layer = Layer(name)
    wrong(layer)
    with pytest.raises(Refused) as caught:
        layer.prove()
    assert caught.value.code == "expand-proof"


def test_layers_of_one_form_share_the_proof_and_another_form_has_its_own() -> None:
    layer = Layer("deepseek-v3_dynamo")
    first = layer.prover.prove(layer.site, layer.way, [layer.site.node])
    assert layer.prover.prove(layer.site, layer.way, [layer.site.node]) is first
    latents_for_values(layer)
    with pytest.raises(Refused):
        layer.prover.prove(layer.site, layer.way, [layer.site.node])


@pytest.mark.parametrize(("op_type", "place"), [("Greater", 0), ("ReduceMax", 0), ("And", 1), ("Less", 0)])
def test_a_wrong_condition_is_refused(op_type: str, place: int) -> None:
    layer = Layer("deepseek-v3_dynamo")
    emit = Emitter("when", set())
    condition = is_first_prompt(emit, layer.inputs, LEAST)
    layer.prover.prove_condition(condition)
    node = next(node for node in emit.nodes if node.op_type == op_type)
    other = {"Greater": emit.constant(np.array(9), "many"), "ReduceMax": layer.inputs["query_lengths"],
             "And": node.inputs[0], "Less": emit.constant(np.array(0), "nothing")}[op_type]  # fmt: skip
    node.replace_input_with(place, other)
    with pytest.raises(Refused, match="first prompts"):
        layer.prover.prove_condition(condition)


def test_what_is_not_understood_is_refused_with_its_node() -> None:
    model = model_of(converted("deepseek-v3_dynamo", 0))
    plan = read_plan(model.metadata_props, "")
    attention = next(node for node in model.graph if node.op_type == "FusedInferAttentionScore")
    result = next(use.node for use in attention.outputs[0].uses())
    identity = ir.node("Identity", [attention.outputs[0]])
    model.graph.insert_after(attention, identity)
    result.replace_input_with(0, identity.outputs[0])
    with pytest.raises(Refused, match="W_uv") as caught:
        find_attentions(model.graph, plan)
    assert caught.value.value is attention.outputs[0]


def test_quantised_weights_of_the_query_are_refused() -> None:
    model = model_of(converted("deepseek-v3_dynamo", 0))
    prolog = next(node for node in model.graph if node.op_type == "MlaPrologV3")
    prolog.attributes["weight_quant_mode"] = ir.AttrInt64("weight_quant_mode", 1)
    with pytest.raises(Refused, match="queries in front of their absorption"):
        find_attentions(model.graph, read_plan(model.metadata_props, ""))
