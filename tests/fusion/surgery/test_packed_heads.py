"""Heads of one token that stand where tokens would: how a step alone is exported where heads share those of keys."""

from __future__ import annotations

import numpy as np
import onnx
import pytest

import fusion
from custom_ort import DecodeSession
from tests.fusion.surgery.decoding import Original
from tests.fusion.surgery.edits import Edit
from tests.fusion.surgery.test_fixed_sizes import fixed_at

HEADS, KEY_HEADS, COLUMNS = 4, 2, 128
ATTENDED = "scaled_dot_product_attention"


def packed(*, in_order: bool = True, operator: bool = False) -> onnx.ModelProto:
    """Queries ``[B, 4, 1, D]`` seen as ``[B, 2, 2, D]``, keys and values as they are cached."""
    e = Edit()
    queries = "add_284" if in_order else e.op("Gather", "add_284", e.const([0, 2, 1, 3]), axis=1)
    queries = e.op("Reshape", queries, e.const([-1, KEY_HEADS, HEADS // KEY_HEADS, COLUMNS]))
    if operator:
        mask = e.maker(ATTENDED).input[3]
        e.maker(ATTENDED).input[:] = [queries, "present.0.key", "present.0.value", e.op("Concat", mask, mask, axis=2)]
    else:
        scaled, _, _ = e.spelled()
        keys = e.op("Transpose", "present.0.key", perm=[0, 1, 3, 2])
        e.maker(e.maker(scaled).input[0]).input[:] = [queries, keys]
        e.maker(ATTENDED).input[1] = "present.0.value"
    e.after(ATTENDED, "Reshape", e.const([-1, HEADS, 1, COLUMNS]))
    return fixed_at(e.done(), (None, 1))


def decodes_alike(model: onnx.ModelProto, converted: onnx.ModelProto) -> None:
    alone, session = Original(model), DecodeSession(converted, capacity=64)
    prompts = [[5, 9, 3, 17], [8]]
    states = [alone.new() for _ in prompts]
    wanted = [[alone.run(state, [number]) for number in row][-1] for state, row in zip(states, prompts, strict=True)]
    sequences, logits = session.prefill(prompts)
    np.testing.assert_allclose(logits, wanted, atol=2e-5)
    logits = session.step([1, 2], sequences)
    np.testing.assert_allclose(
        logits, [alone.run(state, [k]) for k, state in zip([1, 2], states, strict=True)], atol=2e-5
    )


@pytest.mark.parametrize("operator", [False, True])
def test_a_step_of_packed_heads_is_attention_over_the_heads_of_the_keys(operator: bool) -> None:
    model = packed(operator=operator)
    result = fusion.fuse(model, cache="auto", block_size=16)
    (site,) = [site for site in result.sites if site.op == "FusedInferAttentionScore"]
    assert (site.attrs["num_heads"], site.attrs["num_key_value_heads"]) == (HEADS, KEY_HEADS)
    decodes_alike(model, result.model)


def test_heads_in_another_order_are_still_those_of_the_graph() -> None:
    model = packed(in_order=False)
    decodes_alike(model, fusion.fuse(model, cache="auto", block_size=16).model)
