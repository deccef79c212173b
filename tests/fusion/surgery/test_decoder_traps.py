"""Decoders that only look like attention over growing caches are refused; the others decode like the original."""

from __future__ import annotations

import numpy as np
import onnx
import pytest

import fusion
from custom_ort import DecodeSession
from ir_ops.errors import BadModel
from tests.fusion.surgery import attention_edits as attention
from tests.fusion.surgery import token_edits as tokens
from tests.fusion.surgery.decoding import Original
from tests.fusion.surgery.edits import LATENT, TWO, Builder, Edit, typed_ids

REFUSED: dict[str, tuple[Builder, str]] = {
    "a window": (attention.window(3), "new token .* hidden|attention-mask|sees all"),
    "a window beyond all trials": (attention.window(4096), "sees all"),
    "a window that keeps the first tokens": (attention.sinks_and_window, "sees all"),
    "a token that does not see itself": (attention.strictly_before, "sees all"),
    "a bias": (attention.bias_by_distance, "sees all"),
    "a mask that is multiplied": (attention.mask_multiplied, "sees all"),
    "a softcap": (attention.softcap, "."),
    "a softcap in the operator": (attention.softcap_inside, "softcap"),
    "scores that are clipped": (attention.clipped, "scaled and masked"),
    "another axis": (attention.other_axis, "another axis"),
    "a scale by head": (attention.scale_by_head, "scaled and masked"),
    "a scale by length": (attention.scale_by_length, "scale|mask"),
    "a scale that changes far away": (attention.scale_by_great_length, "."),
    "an embedding that changes far away": (attention.other_embedding_when_long, "growing caches"),
    "weights that are dropped far away": (attention.weights_dropped_far_away, "."),
    "a sink": (attention.attention_sink, "."),
    "value heads in another order": (attention.value_heads_permuted, "rows of growing caches"),
    "heads repeated as a whole": (attention.tiled_heads, "rows of growing caches"),
    "a runtime's attention": (
        attention.attention_of_a_runtime,
        "found com.microsoft.MultiHeadAttention, wanted softmax",
    ),
    "a causal operator": (attention.causal_inside, "sees all"),
    "operands of three axes": (attention.three_axes, "another form"),
    "past read elsewhere": (tokens.past_read_elsewhere, "ReduceMean"),
    "present read elsewhere": (tokens.present_read_elsewhere, "ReduceMax"),
    "a second output": (tokens.second_output, "one output"),
    "logits of the last token only": (tokens.last_logits_only, "logits of every token"),
    "a mean over tokens": (tokens.mean_over_tokens, "meet in attention only"),
    "a running sum": (tokens.sum_of_the_tokens_so_far, "meet in attention only"),
    "a mean over sequences": (tokens.mean_over_sequences, "meet in attention only"),
    "a norm over tokens": (tokens.norm_over_tokens, "meet in attention only"),
    "products of tokens": (tokens.tokens_multiplied, "meet in attention only"),
    "products of tokens in an Einsum": (tokens.tokens_contracted, "meet in attention only"),
    "a look ahead": (tokens.next_token, "meet in attention only"),
    "the last token": (tokens.last_token, "meet in attention only"),
    "a factor for how many tokens a call has": (tokens.scaled_by_the_tokens_of_a_call, "meet in attention only"),
    "a window over tokens": (tokens.neighbours, "."),
    "new rows in front": (tokens.behind("key", "value"), "caches that grow"),
    "new keys in front": (tokens.behind("key"), "."),
    "rows joined twice": (tokens.joined_twice, "."),
    "keys rotated behind the cache": (tokens.rotated_behind_the_cache, "."),
    "a mask of positions": (tokens.mask_of_positions, "sees all"),
    "padding read elsewhere": (tokens.padding_read_elsewhere, "growing caches"),
    "positions of the mask, one too large": (tokens.positions_of_the_mask(0), "growing caches"),
    "positions counted by token": (tokens.counted_positions_by_token, "growing caches"),
    "learned positions": (tokens.learned_positions, "one input for ids; found input_ids and position_ids"),
    "embeddings as input": (tokens.embeddings_given, "new rows|token ids"),
}
OTHERS: dict[str, tuple[str, Builder, str]] = {
    "keys of another layer": (TWO, tokens.keys_of_another_layer, "read twice"),
    "latents with a bias": (LATENT, tokens.biased_latents, "rows of growing caches"),
    "a projection that is computed": (LATENT, tokens.computed_projection, "constant weight"),
    "rotated columns in another order": (LATENT, tokens.rotated_columns_permuted, "all in order"),
}
CONVERTED: dict[str, tuple[str, Builder, float]] = {
    "queries scaled by head": ("", attention.query_scale_by_head, 2e-5),
    "value heads in another order before the cache": ("", attention.value_heads_permuted_before_the_cache, 2e-5),
    "heads repeated in the operator": ("", attention.heads_repeated_inside, 2e-5),
    "positions counted for each sequence": ("", tokens.counted_positions(spread=True), 2e-5),
    "positions counted once": ("", tokens.counted_positions(spread=False), 2e-5),
    "positions counted and squeezed": ("", tokens.counted_positions_turned, 2e-5),
    "positions of the mask": ("", tokens.positions_of_the_mask(1), 2e-5),
    "padding without effect": ("", tokens.padding_ignored, 2e-5),
    "no padding": ("", tokens.no_padding, 2e-5),
    "ids of int32": ("", typed_ids, 2e-5),
    "scores in float16": ("", attention.half_scores, 5e-3),
    "projections shared by layers": (TWO, tokens.shared_projections, 2e-5),
    "key columns of another head": (LATENT, tokens.key_columns_swapped_between_heads, 2e-5),
}


def built(name: str, builder: Builder) -> onnx.ModelProto:
    edit = Edit(*([name] if name else []))
    builder(edit)
    return edit.done()


def decodes_alike(model: onnx.ModelProto, converted: onnx.ModelProto, bound: float) -> None:
    """Prompts of different lengths in chunks, then steps."""
    rng = np.random.default_rng(5)
    prompts = [rng.integers(0, 64, length).tolist() for length in (6, 1, 11)]
    alone, session = Original(model), DecodeSession(converted, capacity=64, max_sequences=4)
    states = [alone.new() for _ in prompts]
    sequences, logits = session.prefill(prompts, chunk=4)
    wanted = [alone.run(state, prompt) for state, prompt in zip(states, prompts, strict=True)]
    assert np.abs(logits - wanted).max() <= bound
    for _ in range(2):
        ids = rng.integers(0, 64, len(prompts))
        logits = session.step(ids, sequences)
        wanted = [alone.run(state, [int(number)]) for state, number in zip(states, ids, strict=True)]
        assert np.abs(logits - wanted).max() <= bound


def refused(model: onnx.ModelProto) -> str:
    """The refusal; the model is as it was."""
    before = model.SerializeToString(deterministic=True)
    with pytest.raises(BadModel) as caught:
        fusion.fuse(model, cache="auto", block_size=16)
    assert model.SerializeToString(deterministic=True) == before
    return str(caught.value)


@pytest.mark.parametrize("name", [*REFUSED, *OTHERS])
def test_what_is_no_plain_attention_is_refused_in_one_line(name: str) -> None:
    base, builder, text = OTHERS[name] if name in OTHERS else ("", *REFUSED[name])
    message = refused(built(base, builder))
    assert "\n" not in message
    with pytest.raises(AssertionError, match=text):
        raise AssertionError(message)


@pytest.mark.parametrize("name", CONVERTED)
def test_what_is_attention_decodes_like_the_original(name: str) -> None:
    base, builder, bound = CONVERTED[name]
    model = built(base, builder)
    decodes_alike(model, fusion.fuse(model, cache="auto", block_size=16).model, bound)
