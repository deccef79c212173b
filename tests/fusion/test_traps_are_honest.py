"""The traps themselves: valid graphs that run, and that differ from the preamble they nearly are (unless said)."""

from __future__ import annotations

import numpy as np
import onnx
import pytest

from tests.fusion.traps import TRAPS, Trap
from tests.fusion.zoo.graph import Array
from tests.fusion.zoo.run import run, worst
from tests.fusion.zoo.spec import expected, feeds


def trap_feeds(model: onnx.ModelProto, trap: Trap, batch: int, length: int, seed: int = 3) -> dict[str, Array]:
    """The spec's feeds, with random values for inputs of the trap's own and in the types and sizes it declares."""
    rng = np.random.default_rng(seed)
    given = feeds(trap.spec, batch, length, seed)
    sizes = {"B": batch, "S": length, "T": batch * length}
    for entry in model.graph.input:
        kind = entry.type.tensor_type
        wanted = onnx.helper.tensor_dtype_to_np_dtype(kind.elem_type)
        shape = [sizes[dim.dim_param] if dim.dim_param else dim.dim_value for dim in kind.shape.dim]
        if entry.name.startswith("slots") and entry.name != "slots":
            given[entry.name] = rng.permutation(20)[: batch * length].astype(np.int64)
        elif entry.name not in given or list(given[entry.name].shape) != shape:
            given[entry.name] = rng.uniform(0.1, 1.0, shape).astype(wanted)
        given[entry.name] = given[entry.name].astype(wanted)
    return given


def test_there_are_enough_traps() -> None:
    assert len(TRAPS) >= 30
    assert sum(trap.sites == (0,) for trap in TRAPS.values()) >= 30


@pytest.mark.parametrize("trap", TRAPS.values(), ids=lambda trap: trap.name)
def test_trap_is_a_valid_graph_that_computes_something_else(trap: Trap) -> None:
    model = trap.preamble(trap.spec).model()
    onnx.checker.check_model(model, full_check=True)
    given = trap_feeds(model, trap, 2, 3)
    got = run(model, given, trap.spec.dtype)
    shapes = {entry.name for entry in model.graph.output}
    wanted = {}
    for name, value in expected(trap.spec, given).items():
        if name in shapes:
            wanted[name] = value.astype(got[name].dtype)
    difference = worst(got, wanted, "float16" if trap.same else "float32", steps=0)
    assert (difference == "") == trap.same, difference
