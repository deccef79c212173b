"""No near miss is fused wrongly, and the refusal says where and why."""

from __future__ import annotations

from functools import cache

import numpy as np
import onnx
import pytest

import fusion
from fusion import FusionResult
from tests.fusion.test_traps_are_honest import trap_feeds
from tests.fusion.traps import TRAPS, Trap
from tests.fusion.zoo.run import run, worst

OP = "KvRmsNormRopeCache"


@cache
def fused(trap: Trap) -> tuple[onnx.ModelProto, FusionResult]:
    model = trap.preamble(trap.spec).model()
    return model, fusion.fuse(model)


@pytest.mark.parametrize("trap", TRAPS.values(), ids=lambda trap: trap.name)
def test_near_miss_is_not_fused_wrongly(trap: Trap) -> None:
    model, result = fused(trap)
    assert result.count(OP) in trap.sites, trap.text
    for batch, length in ((2, 3), (1, 4)):
        given = trap_feeds(model, trap, batch, length)
        original = run(model, given, trap.spec.dtype)
        assert worst(run(result.model, given, trap.spec.dtype), original, trap.spec.dtype) == "", trap.text


@pytest.mark.parametrize(
    "trap", [trap for trap in TRAPS.values() if trap.keywords and trap.sites != (1,)], ids=lambda trap: trap.name
)
def test_refusal_names_place_and_reason(trap: Trap) -> None:
    _, result = fused(trap)
    if result.count(OP) > 0:
        assert trap.sites != (0,), trap.text
        return
    assert result.refusals, trap.text
    assert all(refusal.place and refusal.code and refusal.fact for refusal in result.refusals)
    texts = [f"{r.code} {r.fact} {r.found} {r.wanted}".lower() for r in result.refusals]
    assert any(word in text for word in trap.keywords for text in texts), (trap.text, texts)


@pytest.mark.parametrize("trap", [trap for trap in TRAPS.values() if trap.assumes], ids=lambda trap: trap.name)
def test_fused_near_miss_states_what_it_assumes(trap: Trap) -> None:
    _, result = fused(trap)
    for site in result.sites:
        assert site.op != OP or any(trap.assumes in text for text in site.assumptions), site.assumptions


def test_a_broken_layer_does_not_stop_the_others_and_is_named() -> None:
    trap = TRAPS["OneLayerBroken"]
    _, result = fused(trap)
    assert result.count(OP) == 1
    texts = [f"{r.code} {r.fact} {r.found} {r.wanted}".lower() for r in result.refusals]
    assert any(word in text for word in trap.keywords for text in texts), texts


def test_fusing_leaves_the_given_model_alone() -> None:
    trap = TRAPS["DeliveredOutputs"]
    model = trap.preamble(trap.spec).model()
    before = model.SerializeToString(deterministic=True)
    fusion.fuse(model)
    assert model.SerializeToString(deterministic=True) == before


def test_refusing_gives_back_an_equal_graph() -> None:
    trap = TRAPS["TwoSlotInputs"]
    model, _ = fused(trap)
    result = fusion.fuse(model, only=[OP])
    given = trap_feeds(model, trap, 2, 3)
    first, second = run(model, given), run(result.model, given)
    assert all(np.array_equal(first[name], second[name]) for name in first)
    assert [node.op_type for node in result.model.graph.node] == [node.op_type for node in model.graph.node]
