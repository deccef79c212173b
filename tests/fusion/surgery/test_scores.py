"""What scores are made of: numbers that follow from shapes scale keys, and nothing but positions and padding masks."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from onnx import TensorProto

import fusion
from tests.fusion.surgery.edits import Builder, Edit
from tests.fusion.surgery.test_decoder_traps import built, decodes_alike, refused

QUERIES = "add_284"
END = 2**31 - 1


def keys_scaled(number: Callable[[Edit, str], str], kind: str = "Mul") -> Builder:
    def edit(e: Edit) -> None:
        scaled, _, _ = e.spelled()
        product = e.maker(e.maker(scaled).input[0])
        product.input[1] = e.op(kind, product.input[1], number(e, product.input[1]))

    return edit


def root_of_the_width(e: Edit, keys: str) -> str:
    """As ``torch.jit`` writes a scale that the model leaves to attention: half of it for queries, half for keys."""
    width = e.op("Slice", e.op("Shape", QUERIES), e.const([-1]), e.const([END]))
    return e.op("Sqrt", e.op("Sqrt", e.op("Cast", width, to=TensorProto.FLOAT)))


def number_of_tokens(e: Edit, keys: str) -> str:
    return e.op("Cast", e.op("Gather", e.op("Shape", keys), e.const([3])), to=TensorProto.FLOAT)


def bias_from_values(e: Edit) -> None:
    """As Doge masks: what is cached as values says how much a token counts."""
    scaled, _, _ = e.spelled()
    value = e.op("Slice", "present.0.value", e.const([0]), e.const([1]), e.const([1]))
    mean = e.op("ReduceMean", value, e.const([3]), keepdims=1)
    e.after(scaled, "Add", e.op("Transpose", mean, perm=[0, 1, 3, 2]))


@pytest.mark.parametrize("kind", ["Mul", "Div"])
def test_keys_may_be_scaled_by_what_their_width_says(kind: str) -> None:
    model = built("", keys_scaled(root_of_the_width, kind))
    result = fusion.fuse(model, cache="auto", block_size=16)
    assert result.count("FusedInferAttentionScore") == 1
    decodes_alike(model, result.model, 2e-5)


def test_keys_are_not_scaled_by_how_many_there_are() -> None:
    assert "softmax(scale * q k^T) v" in refused(built("", keys_scaled(number_of_tokens)))


def test_a_mask_that_comes_from_values_is_named() -> None:
    message = refused(built("", bias_from_values))
    assert "computed from past_key_values.0.value too" in message
    assert "masks and biases that come from other values are not converted" in message


def test_the_operator_has_both_factors_for_its_scale() -> None:
    result = fusion.fuse(built("", keys_scaled(root_of_the_width)), cache="auto", block_size=16)
    (site,) = [site for site in result.sites if site.op == "FusedInferAttentionScore"]
    assert site.attrs["scale"] == pytest.approx(128**-0.5 * 128**0.25, rel=1e-6)
