"""What stands once fusions are accepted: nodes go when nobody reads them, others stay for their readers."""

from __future__ import annotations

import onnx_ir as ir
import pytest

from fusion.emit import Emitter
from fusion.facts.standing import Standing


def graph(text: str) -> dict[str, ir.Value]:
    model = ir.from_onnx_text(f'<ir_version: 9, opset_import: ["": 18]> g {text}')
    found = {value.name or "": value for value in model.graph.inputs}
    for node in model.graph:
        found |= {value.name or "": value for value in node.outputs}
    found["@model"] = model  # type: ignore[assignment]  # keeps the graph alive
    return found


def fuse(standing: Standing, old: ir.Value, *inputs: ir.Value, stand_ins: object = ()) -> None:
    emit = Emitter("f", set())
    new = emit.node("Fused", list(inputs), "node")
    standing.accept([(old, new)], emit.nodes, stand_ins)  # type: ignore[arg-type]


def test_what_only_led_to_the_old_value_is_gone() -> None:
    v = graph("(float[4] x) => (float[4] y) { a = Neg(x) b = Abs(a) c = Exp(b) y = Neg(c) }")
    standing = Standing()
    fuse(standing, v["c"], v["x"])
    assert [standing.stands(v[name]) for name in "xabcy"] == [True, False, False, False, True]
    assert standing.is_replaced(v["c"]) and not standing.is_replaced(v["b"])


def test_a_value_in_the_middle_stays_for_its_reader() -> None:
    v = graph("(float[4] x) => (float[4] y, float[4] b) { a = Neg(x) b = Abs(a) c = Exp(b) y = Neg(c) }")
    standing = Standing()
    fuse(standing, v["c"], v["x"])
    assert standing.stands(v["a"]) and standing.stands(v["b"])
    assert standing.readers(v["b"]) == []


def test_a_second_fusion_takes_what_the_first_left() -> None:
    v = graph("(float[4] x) => (float[4] y, float[4] z) { a = Neg(x) b = Abs(a) y = Exp(b) z = Neg(b) }")
    standing = Standing()
    fuse(standing, v["y"], v["x"])
    assert standing.stands(v["b"])
    fuse(standing, v["z"], v["a"])
    assert not standing.stands(v["b"])
    assert standing.stands(v["a"]), "the new node reads it"


@pytest.mark.parametrize("asked", [False, True])
def test_a_shape_asked_elsewhere_keeps_nothing(asked: bool) -> None:
    v = graph("(float[4] x) => (float[4] y, int64[1] s) { a = Neg(x) b = Abs(a) y = Exp(b) s = Shape(b) }")
    standing = Standing()
    fuse(standing, v["y"], v["x"], stand_ins=[(v["b"], v["x"])] if asked else ())
    assert standing.stands(v["b"]) is not asked


def test_nodes_that_were_given_up_are_no_readers() -> None:
    v = graph("(float[4] x) => (float[4] y) { a = Neg(x) y = Exp(a) }")
    emit = Emitter("f", set())
    emit.node("Fused", [v["a"]], "node")
    assert len(list(v["a"].uses())) == 2
    emit.discard()
    assert len(list(v["a"].uses())) == 1
