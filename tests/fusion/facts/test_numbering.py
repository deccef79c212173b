"""Numbers of values: equal exactly where it is certain that the values are."""

from __future__ import annotations

import numpy as np
import onnx
import onnx_ir as ir
import pytest

from fusion.facts.graph import GraphView
from fusion.facts.numbering import LARGE
from tests.fusion.facts.build import value, view_of

CONSTANTS = """<float two = {2}, float minus = {-1}, float[3] c = {1.5, -3, 7}, float[3] c2 = {0.75, -1.5, 3.5},
                float[1, 1] matrix = {2}>"""


def alike(view: GraphView, *names: str) -> bool:
    return len({view.number(value(view, name)) for name in names}) == 1


def test_the_order_of_operands_counts_only_where_it_matters() -> None:
    view = view_of("""g (float[S] x, float[S] w) => (float[S] y) {
        a = Add (x, w)
        b = Add (w, x)
        c = Sub (x, w)
        d = Sub (w, x)
        y = Sum (a, b, c, d)
    }""")
    assert alike(view, "a", "b") and not alike(view, "c", "d")


def test_a_square_is_one_however_it_is_spelled() -> None:
    view = view_of("""g (float[S] x) => (float[S] y) {
        two = Constant <value_float = 2.0> ()
        a = Pow (x, two)
        b = Mul (x, x)
        y = Add (a, b)
    }""")
    assert alike(view, "a", "b")


@pytest.mark.parametrize(("x", "two"), [("float[S]", "float two = {2}"), ("float[S]", "float[1] two = {2}"),
                                        ("float[N, S]", "float[1, 1] two = {2}")])  # fmt: skip
def test_a_square_of_the_own_axes_is_a_product(x: str, two: str) -> None:
    view = view_of(f"g ({x} x) => (float y) <{two}> {{ a = Pow (x, two) b = Mul (x, x) y = Add (a, b) }}")
    assert alike(view, "a", "b")


@pytest.mark.parametrize(("x", "two"), [("float[S]", "float[1, 1] two = {2}"), ("float", "float[1] two = {2}")])
def test_a_power_that_adds_axes_is_no_product(x: str, two: str) -> None:
    view = view_of(f"g ({x} x) => (float y) <{two}> {{ a = Pow (x, two) b = Mul (x, x) y = Add (a, b) }}")
    assert not alike(view, "a", "b")


@pytest.mark.parametrize("operator", ["RandomNormalLike", "Dropout", "foo.Sample"])
def test_what_may_differ_each_time_is_never_alike(operator: str) -> None:
    view = view_of(f"g (float[S] x) => (float[S] y) {{ a = {operator} (x) b = {operator} (x) y = Add (a, b) }}")
    assert not alike(view, "a", "b")


@pytest.mark.parametrize("count", [8, 1 << 12, LARGE // 4 + 1])
def test_tables_count_by_their_content_weights_by_themselves(count: int) -> None:
    view = view_of("g (float[S] x) => (float[S] y) { y = Identity (x) }")
    first, same = (ir.Value(name=name, const_value=ir.tensor(np.ones(count, np.float32))) for name in "ab")
    other = ir.Value(name="c", const_value=ir.tensor(np.full(count, 1.5, np.float32)))
    assert (view.number(first) == view.number(same)) == (4 * count <= LARGE)
    assert view.number(first) != view.number(other)


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ("a = Mul (x, c)", "t = Mul (x, two) b = Mul (t, c2)"),
        ("a = Mul (x, c)", "t = Mul (x, minus) u = Neg (c) b = Mul (u, t)"),
        ("a = Div (x, w)", "t = Reciprocal (w) b = Mul (t, x)"),
        ("a = Mul (x, w)", "t = Reciprocal (w) b = Div (x, t)"),
        ("a = Sub (x, w)", "t = Neg (w) b = Add (t, x)"),
        ("a = Pow (x, two)", "t = Neg (x) b = Mul (t, t)"),
        ("a = Neg (x)", "b = Mul (minus, x)"),
        ("a = Identity (x)", "t = Neg (x) u = Mul (t, two) v = Div (u, two) b = Neg (v)"),
    ],
)
def test_products_are_one_however_they_are_spelled(one: str, other: str) -> None:
    view = view_of(f"g (float[3] x, float[3] w) => (float[3] y) {CONSTANTS} {{ {one} {other} y = Add (a, b) }}")
    assert alike(view, "a", "b")


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ("a = Mul (x, c)", "b = Mul (x, c2)"),
        ("a = Mul (x, c)", "t = Neg (c) b = Mul (x, t)"),
        ("a = Div (x, w)", "b = Div (w, x)"),
        ("a = Sub (x, w)", "b = Sub (w, x)"),
        ("a = Mul (x, w)", "b = Mul (x, x)"),
        ("a = Mul (x, two)", "b = Mul (x, matrix)"),
        ("a = Reciprocal (x)", "b = Identity (x)"),
    ],
)
def test_other_products_are_not(one: str, other: str) -> None:
    view = view_of(f"g (float[3] x, float[3] w) => (float[3] y) {CONSTANTS} {{ {one} {other} y = Add (a, b) }}")
    assert not alike(view, "a", "b")


def test_integers_are_divided_with_a_remainder() -> None:
    view = view_of("""g (int64[S] x) => (int64[S] y) <int64 two = {2}> {
        a = Mul (x, two)
        b = Div (a, two)
        c = Div (x, two)
        d = Mul (c, two)
        y = Add (b, d)
    }""")
    assert not alike(view, "b", "d") and not alike(view, "d", "x")


@pytest.mark.parametrize("count", [2, 100])
def test_texts_count_by_themselves(count: int) -> None:
    """What pads a text in an array is a character of it too."""
    view = view_of("g (float[S] x) => (float[S] y) { y = Identity (x) }")
    texts = [ir.StringTensor([text] * count, shape=ir.Shape([count])) for text in (b"a", b"a\0", b"ab")]
    values = [ir.Value(name=str(at), const_value=text) for at, text in enumerate(texts)]
    assert len({view.number(item) for item in values}) == len(texts)


def test_an_attribute_that_is_a_type_is_not_compared() -> None:
    kinds = [onnx.helper.make_tensor_type_proto(kind, None) for kind in (1, 1, 7)]
    nodes = [onnx.helper.make_node("Optional", [], [name], type=kind) for name, kind in zip("abc", kinds, strict=True)]
    graph = ir.from_proto(onnx.helper.make_graph(nodes, "g", [], []))
    view = GraphView(graph, 18)
    assert not alike(view, "a", "b") and not alike(view, "a", "c")
