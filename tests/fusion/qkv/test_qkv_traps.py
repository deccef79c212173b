"""No near miss is fused wrongly: what is fused computes what the graph computed, and what is not says why."""

from __future__ import annotations

import numpy as np
import onnx
import pytest

import fusion
from tests.fusion.qkv.spec import feeds
from tests.fusion.qkv.traps import TRAPS, Trap
from tests.fusion.zoo.graph import Array
from tests.fusion.zoo.run import run, worst

OP = "QkvRmsNormRopeCache"


def trap_feeds(model: onnx.ModelProto, trap: Trap, batch: int, length: int) -> dict[str, Array]:
    """The spec's feeds, with random values for inputs that the trap has in another form."""
    rng = np.random.default_rng(3)
    given = feeds(trap.spec, batch, length, 3)
    sizes = {"B": batch, "S": length, "T": batch * length}
    for entry in model.graph.input:
        kind = entry.type.tensor_type
        wanted = onnx.helper.tensor_dtype_to_np_dtype(kind.elem_type)
        shape = [sizes[dim.dim_param] if dim.dim_param else dim.dim_value for dim in kind.shape.dim]
        if entry.name.startswith("slots") and (entry.name != "slots" or len(shape) == 2):
            given[entry.name] = rng.permutation(12)[: batch * length].astype(np.int64).reshape(shape)
        elif entry.name not in given or list(given[entry.name].shape) != shape:
            given[entry.name] = rng.uniform(0.1, 1.0, shape).astype(wanted)
    return given


def test_there_are_enough_traps() -> None:
    assert len(TRAPS) >= 45
    assert sum(trap.sites == (0,) for trap in TRAPS.values()) >= 30


@pytest.mark.parametrize("name", TRAPS)
def test_near_miss_is_not_fused_wrongly(name: str) -> None:
    trap = TRAPS[name]
    model = trap.preamble(trap.spec).model()
    onnx.checker.check_model(model)
    result = fusion.fuse(model)
    assert result.count(OP) in trap.sites, trap.text
    for batch, length in ((2, 3), (1, 4)):
        given = trap_feeds(model, trap, batch, length)
        original = run(model, given, trap.spec.dtype)
        assert worst(run(result.model, given, trap.spec.dtype), original, trap.spec.dtype) == "", trap.text
    if trap.words and result.count(OP) < trap.spec.layers:
        texts = [f"{r.code} {r.fact} {r.found} {r.wanted}".lower() for r in result.refusals if r.rule == OP]
        assert any(word in text for word in trap.words for text in texts), (trap.text, texts)
