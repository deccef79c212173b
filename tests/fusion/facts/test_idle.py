"""Which nodes change nothing, and near misses that do."""

from __future__ import annotations

import numpy as np
import pytest
from onnx import parser
from onnx.reference import ReferenceEvaluator

from fusion.facts.graph import dims_of
from fusion.facts.idle import idle_source
from tests.fusion.facts.build import value, view_of

IDLE = {
    "Identity": "y = Identity (x)",
    "Cast to the own type": "y = Cast <to = 1> (x)",
    "CastLike": "y = CastLike (x, w)",
    "Concat of one": "y = Concat <axis = 1> (x)",
    "Max of one": "y = Max (x)",
    "times 1": "y = Mul (x, one)",
    "1 times": "y = Mul (one, x)",
    "times [1]": "y = Mul (x, ones)",
    "over 1": "y = Div (x, one)",
    "minus 0": "y = Sub (x, zero)",
    "Neg twice": "a = Neg (x) y = Neg (a)",
    "Neg of -1 times": "a = Mul (less, x) y = Neg (a)",
    "-1 times Neg": "a = Neg (x) y = Mul (a, less)",
    "1 from a node": "c = Constant <value_float = 1.0> () y = Mul (c, x)",
    "Transpose in order": "y = Transpose <perm = [0, 1, 2]> (x)",
    "Transpose and back": "a = Transpose <perm = [2, 0, 1]> (x) y = Transpose <perm = [1, 2, 0]> (a)",
    "turned around twice": "a = Transpose (x) y = Transpose (a)",
    "Unsqueeze and Squeeze": "a = Unsqueeze (x, axis) y = Squeeze (a, axis)",
    "Squeeze and Unsqueeze": "a = Squeeze (x, first) y = Unsqueeze (a, first)",
    "Reshape to copied sizes": "y = Reshape (x, copied)",
    "Reshape with one size left": "y = Reshape (x, left)",
    "Reshape to the own shape": "s = Shape (x) y = Reshape (x, s)",
    "flat and back": "s = Shape (x) a = Reshape (x, flat) y = Reshape (a, s)",
    "Expand to one": "y = Expand (x, axis)",
    "Expand to the own shape": "s = Shape (x) y = Expand (x, s)",
}
CHANGES = {
    "Cast": "y = Cast <to = 11> (x)",
    "Concat of two": "y = Concat <axis = 1> (x, x)",
    "Sum of one, which may start at 0": "y = Sum (x)",
    "times another number": "y = Mul (x, two)",
    "times 1 of more axes": "y = Mul (x, deep)",
    "1 over": "y = Div (one, x)",
    "0 minus": "y = Sub (zero, x)",
    "plus 0, which turns -0 into 0": "y = Add (x, zero)",
    "minus -0, which does so too": "y = Sub (x, minus)",
    "Neg once": "y = Neg (x)",
    "-1 times once": "y = Mul (x, less)",
    "Neg of [-1] times, which may add an axis": "a = Mul (x, lessen) y = Neg (a)",
    "Reciprocal twice": "a = Reciprocal (x) y = Reciprocal (a)",
    "Transpose": "y = Transpose <perm = [1, 0, 2]> (x)",
    "Transpose the same way twice": "a = Transpose <perm = [2, 0, 1]> (x) y = Transpose <perm = [2, 0, 1]> (a)",
    "Squeeze of another axis": "a = Unsqueeze (x, axis) y = Squeeze (a, first)",
    "Squeeze of all ones": "a = Unsqueeze (x, axis) y = Squeeze (a)",
    "the shape of another value": "c = Exp (x) d = Neg (x) s = Shape (c) a = Reshape (d, flat) y = Reshape (a, s)",
    "the shape of what nobody knows": "c = custom.F (x) d = custom.F (x) s = Shape (c) y = Expand (d, s)",
    "the shape of what is random": "c = RandomNormalLike (x) d = RandomNormalLike (x) s = Shape (c) y = Expand (d, s)",
    "the shape of another branch": """c = If (yes) <then_branch = g () => (float[2, 3, 4] p) {p = Neg (x)},
        else_branch = g () => (float[2, 3, 4] p) {p = Neg (x)}>
        d = If (yes) <then_branch = g () => (float[2, 3, 4] p) {p = Neg (x)},
        else_branch = g () => (float[2, 12, 1] p) {p = Reshape (x, longer)}>
        s = Shape (c) a = Reshape (d, flat) y = Reshape (a, s)""",
    "Reshape to more axes": "y = Reshape (x, longer)",
    "Reshape to known sizes": "y = Reshape (x, sizes)",
    "flat and to another's shape": "s = Shape (w) a = Reshape (x, flat) y = Reshape (a, s)",
    "the first sizes alone": "s = Shape <end = 1> (x) y = Expand (x, s)",
    "Expand to more axes": "y = Expand (x, four)",
}
CONSTANTS = """<float one = {1}, float[1] ones = {1}, float two = {2}, float zero = {0}, float[1,1,1,1] deep = {1},
    float minus = {-0.0}, bool yes = {1}, float less = {-1}, float[1] lessen = {-1},
    int64[1] axis = {1}, int64[1] first = {0}, int64[3] copied = {0, 0, 0}, int64[3] left = {0, -1, 0},
    int64[1] flat = {-1}, int64[4] longer = {0, 0, 0, 1}, int64[3] sizes = {1, 3, 4}, int64[4] four = {1, 1, 1, 1}>"""


def text(nodes: str) -> str:
    return f"g (float[B, S, N] x, float[B, S, N] w) => (float[] y) {CONSTANTS} {{{nodes}}}"


@pytest.mark.parametrize("name", IDLE)
def test_a_node_that_changes_nothing_gives_its_source_back(name: str) -> None:
    view = view_of(text(IDLE[name]))
    node = value(view, "y").producer()
    assert node is not None
    assert idle_source(view, node, dims_of) is value(view, "x")
    x = np.array([[[1.5, -0.0, 0.0, np.inf], [-2, 3, np.nan, 1e-40], [5, 6, 7, 3e38]]], np.float32)
    model = parser.parse_model('<ir_version: 10, opset_import: ["" : 18]>' + text(IDLE[name]))
    result = ReferenceEvaluator(model).run(None, {"x": x, "w": x})[0]
    assert result.dtype == x.dtype and result.shape == x.shape
    numbers = ~np.isnan(x)
    assert (np.isnan(result) == ~numbers).all() and result[numbers].tobytes() == x[numbers].tobytes()


@pytest.mark.parametrize("name", CHANGES)
def test_a_near_miss_is_a_value_of_its_own(name: str) -> None:
    view = view_of(text(CHANGES[name]))
    node = value(view, "y").producer()
    assert node is not None
    assert idle_source(view, node, dims_of) is None


@pytest.mark.parametrize("nodes", ["a = Reshape (d, flat) y = Reshape (a, s)", "y = Expand (d, s)"])
def test_the_shape_of_a_value_that_is_computed_twice_is_asked_of_either(nodes: str) -> None:
    view = view_of(text(f"c = Clip (x, zero, one) d = Clip (x, zero, one) s = Shape (c) {nodes}"))
    node = value(view, "y").producer()
    assert node is not None
    assert idle_source(view, node, dims_of) is value(view, "d")


def test_without_a_rank_only_what_needs_none_is_idle() -> None:
    view = view_of(text("a = Mul (x, one) b = Mul (x, ones) y = Reshape (x, copied)"))
    found = [idle_source(view, node, lambda item: None) for node in view.graph]
    assert found == [value(view, "x"), None, None]


def test_a_default_that_the_caller_may_replace_is_no_number() -> None:
    view = view_of("g (float[S] x, float one) => (float[] y) <float one = {1}> {y = Mul (x, one)}")
    node = value(view, "y").producer()
    assert node is not None
    assert idle_source(view, node, dims_of) is None
