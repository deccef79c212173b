"""Running a piece of a graph from feeds: in float64 or in its own types, structure frozen as the probe has it."""

from __future__ import annotations

import numpy as np
import pytest

from fusion.evaluate import Evaluation, typed
from fusion.facts.semantics import Unsupported
from fusion.facts.trial.probe import Numbers
from fusion.facts.trial.settle import settle, start_sizes
from tests.fusion.facts.build import value, view_of

THIRD = np.array([13653], np.uint16).view(np.float16)[0]
"""0.3333; the text form of ONNX gives float16 by bits."""
GRAPH = """g (float16[B, 4] x, float16[B, 4] far) => (float16[B, 4] y, float16[B, 2, 2] z)
<float16[1] third = {13653}, int64[1] two = {2}, int64[1] zero = {0}> {
    y = Mul (x, third)
    dims = Shape (far)
    batch = Gather <axis = 0> (dims, zero)
    target = Concat <axis = 0> (batch, two, two)
    z = Reshape (y, target)
    w = custom.Unknown (x)
}"""


def evaluation(wide: bool) -> tuple[Evaluation, np.ndarray]:  # type: ignore[type-arg]
    view = view_of(GRAPH)
    probe = settle(view, 0, Numbers(8), list(view.graph.outputs), start_sizes(view, 0))
    shape = probe.shape(value(view, "x"))
    assert shape is not None
    x = np.random.default_rng(0).standard_normal(shape)
    feeds = {id(value(view, "x")): typed(x, value(view, "x"), wide)}
    return Evaluation(view, probe, feeds, wide), x


def test_wide_leaves_rounding_out() -> None:
    run, x = evaluation(wide=True)
    y = run.value(value(run.view, "y"))
    assert y.dtype == np.float64
    np.testing.assert_array_equal(y, x * np.float64(THIRD))


def test_own_types_round_as_the_graph_does() -> None:
    run, x = evaluation(wide=False)
    y = run.value(value(run.view, "y"))
    assert y.dtype == np.float16
    np.testing.assert_array_equal(y, x.astype(np.float16) * THIRD)


def test_shapes_need_no_feed() -> None:
    """``far`` has none: only its shape is asked."""
    run, x = evaluation(wide=True)
    assert run.value(value(run.view, "z")).shape == (len(x), 2, 2)


def test_what_cannot_be_run_says_so() -> None:
    run, _ = evaluation(wide=True)
    with pytest.raises(Unsupported, match="Unknown is not understood"):
        run.value(value(run.view, "w"))
    with pytest.raises(Unsupported, match="no feed for far"):
        run.value(value(run.view, "far"))
