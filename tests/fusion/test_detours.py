"""Recognition looks past nodes that change nothing, and the graph is as it was afterwards."""

from __future__ import annotations

import numpy as np
import onnx
import onnx_ir as ir
import pytest

import fusion
from fusion.detours import Detours
from tests.fusion.facts.build import value, view_of
from tests.fusion.rules.block_models import check, model_of, random
from tests.fusion.rules.test_rotary import WIDTH, feeds, one, rotary_model
from tests.fusion.zoo.graph import Graph
from tests.fusion.zoo.ropes import products, rotate_half

CHAIN = """g (float[S, 4] x) => (float[S, 4] y, float[S, 4] z) <float one = {1}> {
    a = Neg (x)
    b = Neg (a)
    c = Mul (b, one)
    d = Abs (c)
    y = Identity (d)
    z = Identity (c)
}"""


def written(graph: ir.Graph) -> list[tuple[str, list[str | None], list[str | None]]]:
    return [
        (node.op_type, [item and item.name for item in node.inputs], [item.name for item in node.outputs])
        for node in graph
    ]


def test_readers_are_led_past_idle_nodes_and_back() -> None:
    view = view_of(CHAIN)
    before = written(view.graph)
    detours = Detours(view)
    assert [kind for kind, _, _ in written(view.graph)] == ["Abs", "Identity", "Identity"]
    assert all(item.inputs[0] is value(view, "x") for item in view.graph if item.outputs[0].name in ("d", "z"))
    taken = detours.end()
    assert written(view.graph) == before
    assert ("d", 0, "x") in {(node.outputs[0].name, place, source.name) for node, place, source in taken}


def test_an_operand_that_a_node_gives_is_no_way_to_the_source() -> None:
    view = view_of("g (float[S] x) => (float[S] y) { c = Constant <value_float = 1.0> () a = Mul (c, x) y = Abs (a) }")
    detours = Detours(view)
    assert [kind for kind, _, _ in written(view.graph)] == ["Abs"]
    detours.end()
    assert [kind for kind, _, _ in written(view.graph)] == ["Constant", "Mul", "Abs"]


def test_a_shape_is_asked_of_the_copy_whose_content_is_read() -> None:
    view = view_of("""g (float[S, 4] x, float[S, 4] w) => (float[S, 4] y) {
        first = Add (x, w)
        again = Add (w, x)
        s = Shape (first)
        n = Abs (again)
        y = Expand (n, s)
    }""")
    before = written(view.graph)
    detours = Detours(view)
    assert [kind for kind, _, _ in written(view.graph)] == ["Add", "Shape", "Abs", "Expand"]
    assert view.graph[1].inputs[0] is value(view, "again")
    detours.end()
    assert written(view.graph) == before


def test_readers_of_a_copy_read_the_result_of_the_graph() -> None:
    view = view_of("""g (float[S, 4] x, float[S, 4] w) => (float[S, 4] y, float[S, 4] z) {
        again = Add (x, w)
        y = Add (w, x)
        z = Abs (again)
    }""")
    before = written(view.graph)
    detours = Detours(view)
    assert [kind for kind, _, _ in written(view.graph)] == ["Add", "Abs"]
    assert view.graph[1].inputs[0] is value(view, "y")
    detours.end()
    assert written(view.graph) == before


def test_a_copy_of_an_undone_move_is_no_reader() -> None:
    view = view_of("""g (float[S, 4] x) => (float[S, 4] y, int64[2] s) {
        again = Transpose <perm = [1, 0]> (x)
        turned = Transpose <perm = [1, 0]> (x)
        s = Shape (turned)
        back = Transpose <perm = [1, 0]> (again)
        y = Abs (back)
    }""")
    Detours(view)
    assert [kind for kind, _, _ in written(view.graph)] == ["Transpose", "Shape", "Transpose", "Abs"]


def test_who_computes_for_nobody_is_no_reader() -> None:
    view = view_of("""g (float[S, 4] x) => (float[S, 4] y) {
        a = Abs (x)
        b = Exp (a)
        c = Neg (b)
        y = Sqrt (a)
    }""")
    before = written(view.graph)
    detours = Detours(view)
    assert [kind for kind, _, _ in written(view.graph)] == ["Abs", "Sqrt"]
    detours.end()
    assert written(view.graph) == before


def test_refusing_leaves_idle_nodes_alone() -> None:
    model = onnx.parser.parse_model('<ir_version: 10, opset_import: ["" : 18]>' + CHAIN)
    after = fusion.fuse(model).model.graph.node
    assert [(node.op_type, node.input, node.output) for node in after] == [
        (node.op_type, node.input, node.output) for node in model.graph.node
    ]


def test_readers_of_a_fused_value_do_not_keep_the_old_one() -> None:
    """The result goes through idle nodes, is read in front of them, and its shape is asked behind them."""

    def build(g: Graph) -> dict[str, str]:
        x = g.op("Neg", g.op("Neg", "x"))
        y = products(g, x, rotate_half(g, g.op("Mul", x, g.scalar(1.0)), WIDTH), "cos", "sin")
        behind = g.op("Concat", g.op("Mul", y, g.scalar(1.0)), axis=2)
        rows = g.op("Shape", behind)
        return {"y": y, "flat": g.op("Reshape", g.op("Abs", behind), rows)}

    result = check(rotary_model(build), feeds(), {"RotaryPositionEmbedding": 1})
    assert result.ops_after["Mul"] == 0 and result.ops_after["Concat"] == 0
    assert result.ops_after["Neg"] == 0


@pytest.mark.parametrize("between", [0, 2])
@pytest.mark.parametrize(("operator", "domain"), [("RandomNormalLike", ""), ("Sample", "foo")])
def test_a_value_that_may_be_random_is_no_copy_of_another(operator: str, domain: str, between: int) -> None:
    """Nor behind a sign that is changed twice, which makes the operands one."""

    def build(g: Graph) -> dict[str, str]:
        x = "x"
        for _ in range(between):
            x = g.op("Neg", x)
        noise, other = g.op(operator, x, domain=domain), g.op(operator, "x", domain=domain)
        mean = g.reduce("ReduceMean", g.op("Mul", noise, other))
        inverse = g.op("Reciprocal", g.op("Sqrt", g.op("Add", mean, g.scalar(1e-5))))
        return {"y": g.op("Mul", g.op("Mul", noise, inverse), g.const(random((WIDTH,))))}

    assert not fusion.fuse(model_of(build, {"x": ["B", "S", WIDTH]})).sites


def test_the_shape_of_a_norm_of_more_axes_is_not_asked_of_another() -> None:
    """One square is a product, the other a power whose exponent adds an axis, and with it the norm has one more."""

    def build(g: Graph) -> dict[str, str]:
        def norm(square: str) -> str:
            mean = g.reduce("ReduceMean", square)
            inverse = g.op("Reciprocal", g.op("Sqrt", g.op("Add", mean, g.scalar(1e-5))))
            return g.op("Mul", g.op("Mul", "x", inverse), g.const(np.ones(WIDTH, np.float32)))

        deep = norm(g.op("Pow", "x", g.const(np.full((1, 1, 1, 1), 2, np.float32))))
        return {"y": norm(g.op("Mul", "x", "x")), "sizes": g.op("Shape", deep)}

    check(
        model_of(build, {"x": ["B", "S", WIDTH]}, kinds={"sizes": "int64"}),
        {"x": random((2, 3, WIDTH))},
        {"RmsNorm": 1},
    )


@pytest.mark.parametrize("pairs", [False, True])
def test_a_transpose_whose_shape_is_asked_stays_in_the_match(pairs: bool) -> None:
    def build(g: Graph) -> dict[str, str]:
        x = one(lambda g, x, cos, sin, width: products(g, x, rotate_half(g, x, width), cos, sin))(g)["y"]
        turned = g.transpose(x, 0, 2, 1, 3)
        back = g.transpose(turned, 0, 2, 1, 3)
        return {"y": g.reshape(back, (turned, 0), -1) if pairs else back}

    result = check(rotary_model(build), feeds(), {"RotaryPositionEmbedding": 1})
    assert result.ops_after["Transpose"] == (2 if pairs else 0)


@pytest.mark.parametrize("late", [False, True])
@pytest.mark.parametrize(
    ("between", "content"),
    [
        ("u = Identity (t)", False),
        ("u = Reshape (t, same)", False),
        ("p = Transpose <perm = [2, 1, 0]> (t) u = Transpose <perm = [2, 1, 0]> (p)", False),
        ("v = Reshape (t, same) u = Abs (v)", True),
        ("u = Transpose <perm = [2, 1, 0]> (t)", True),
    ],
)
def test_a_shape_is_asked_behind_idle_nodes_in_any_order(between: str, content: bool, late: bool) -> None:
    """Where only a shape is asked between two transposes, a match may have both; else the second is looked past."""
    asked, back = f"{between} s = Shape (u)", "b = Transpose <perm = [1, 0, 2]> (t)"
    view = view_of(f"""g (float[S, T, 4] x) => (float[S, T, 4] y) <int64[3] same = {{0, 0, 0}}> {{
        t = Transpose <perm = [1, 0, 2]> (x)
        {asked if late else back}
        {back if late else asked}
        n = Abs (b)
        y = Expand (n, s)
    }}""")
    before = written(view.graph)
    detours = Detours(view)
    assert value(view, "n").producer().inputs[0] is value(view, "x" if content else "b")  # type: ignore[union-attr]
    detours.end()
    assert written(view.graph) == before
