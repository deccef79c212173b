"""The search: largest operators first, each candidate proven; data that is computed twice is one at second sight."""

from __future__ import annotations

import onnx
import onnx_ir as ir
import pytest
from onnx import helper

import fusion
from fusion.search import Options, find
from tests.fusion.zoo.run import run, worst
from tests.fusion.zoo.spec import Spec, feeds
from tests.fusion.zoo.spellings import Preamble

OP = "KvRmsNormRopeCache"


def model_of(**choices: object) -> ir.Model:
    return ir.from_proto(Preamble(Spec(**choices)).model())  # type: ignore[arg-type]


def test_finding_changes_nothing_but_types() -> None:
    model = model_of()
    nodes = [(node.op_type, [item.name for item in node.inputs if item]) for node in model.graph]
    found = find(model, Options())
    assert [(node.op_type, [item.name for item in node.inputs if item]) for node in model.graph] == nodes
    assert len(found.proven) == 1 and not found.refusals
    assert set(found.timings) == {"facts", "match", "prove"}


def test_strict_slots_refuses_before_proving() -> None:
    found = find(model_of(), Options(strict_slots=True, only=(OP,)))
    assert not found.proven
    assert [refusal.code for refusal in found.refusals] == ["slots-negative"]


def test_operators_left_out_are_not_looked_for() -> None:
    found = find(model_of(), Options(only=("QkvRmsNormRopeCache",)))
    assert not [candidate for candidate, _ in found.proven if candidate.op == OP]


@pytest.mark.parametrize("product", ["950", "A3"])
def test_a_product_adds_limits(product: str) -> None:
    """Columns 32 and 64 are none of the widths those products have."""
    found = find(model_of(), Options(product=product, only=(OP,)))
    assert not found.proven
    assert found.refusals[0].code.startswith("KV-") and product in found.refusals[0].suggestion


def copied(model: onnx.ModelProto) -> list[onnx.ModelProto]:
    """For every reader of a float that several nodes read: the model in which it reads a copy made for it alone."""
    readers: dict[str, list[tuple[int, int]]] = {}
    for at, node in enumerate(model.graph.node):
        for place, name in enumerate(node.input):
            readers.setdefault(name, []).append((at, place))
    found = []
    for at, node in enumerate(model.graph.node):
        behind = readers.get(node.output[0], []) if len(node.output) == 1 else []
        for reader, place in behind if len(behind) > 1 else []:
            other = onnx.ModelProto()
            other.CopyFrom(model)
            copy = helper.make_node("Identity", [], ["again"])
            copy.CopyFrom(node)
            copy.output[0] = copy.name = "again"
            other.graph.node[reader].input[place] = "again"
            other.graph.node.insert(at + 1, copy)
            found.append(other)
    return found


@pytest.mark.parametrize("choices", [{}, {"norm": "in_double", "kv": "gemm"}, {"quantised": "v", "form": "v2"}])
def test_each_reader_of_a_value_may_have_a_copy_of_it(choices: dict[str, str]) -> None:
    spec = Spec(**choices)  # type: ignore[arg-type]
    model, given = Preamble(spec).model(), feeds(spec, 2, 3, 0)
    edited = copied(model)
    assert len(edited) >= 2
    for other in edited:
        result = fusion.fuse(other)
        assert [site.op for site in result.sites] == [OP]
        assert "again" not in {name for node in result.model.graph.node for name in node.output}
        assert worst(run(result.model, given), run(model, given), spec.dtype) == ""


def test_copies_that_belong_to_two_places_stay_apart() -> None:
    """Both layers normalise one input: read as one, the norm would be no part of either operator."""
    model = Preamble(Spec(layers=2, outs=True)).model()
    result = fusion.fuse(model)
    assert [site.op for site in result.sites] == [OP, OP]


def doubled(model: onnx.ModelProto) -> onnx.ModelProto:
    """All that is computed is computed again, for results of its own."""
    other = onnx.ModelProto()
    other.CopyFrom(model)
    made = {name for node in model.graph.node for name in node.output}
    again = onnx.compose.add_prefix_graph(model.graph, "again_")
    for node in again.node:
        plain = [name.removeprefix("again_") for name in node.input]
        node.input[:] = [f"again_{name}" if name in made else name for name in plain]
    other.graph.node.extend(again.node)
    other.graph.output.extend(again.output)
    return other


def test_many_small_fusions_count_more_than_one_that_is_larger() -> None:
    """Read as one, the rotations are one larger operator, but the norms, both results, are in each other's way."""
    spec = Spec(rope="half_slices", cos="freq", outs=True)
    model = doubled(Preamble(spec).model())
    result = fusion.fuse(model)
    assert sorted(site.op for site in result.sites) == ["RmsNorm"] * 2 + ["RotaryPositionEmbedding"] * 2
    assert worst(run(result.model, feeds(spec, 2, 3, 0)), run(model, feeds(spec, 2, 3, 0)), spec.dtype) == ""
    assert not fusion.fuse(result.model).sites


def test_a_second_look_that_is_no_better_leaves_nothing_behind() -> None:
    model = model_of(layers=2, outs=True)
    found = find(model, Options(product="950"))
    assert found.has_copies and {refusal.code for refusal in found.refusals if refusal.rule == OP}
    known = {id(node) for node in model.graph}
    for candidate, _ in found.proven:
        known |= {id(node) for node in candidate.emitter.nodes}
        assert all(node.inputs[0] is not None for node in candidate.emitter.nodes)
    for item in (*model.graph.inputs, *(out for node in model.graph for out in node.outputs)):
        assert all(id(use.node) in known for use in item.uses()), item.name
