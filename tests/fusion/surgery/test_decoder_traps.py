"""Decoders that only look like attention over growing caches are refused; the others decode like the original."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

import fusion
from custom_ort import DecodeSession
from ir_ops.errors import BadModel
from tests.fusion.surgery.decoding import Original
from tests.fusion.surgery.edits import LATENT, TWO, Edit, typed_ids

Builder = Callable[[Edit], None]
ROWS, COLUMNS, SEEN = "unsqueeze_8", "unsqueeze_11", "le_2"
"""Of the one-layer model: number of each new token [1, 1, S, 1], of each token [1, 1, 1, T], and who sees whom."""


def window(size: int) -> Builder:
    def edit(e: Edit) -> None:
        near = e.op("Greater", COLUMNS, e.op("Sub", ROWS, e.const(size, np.int64)))
        e.after(SEEN, "And", near)

    return edit


def sinks_and_window(e: Edit) -> None:
    near = e.op("Greater", COLUMNS, e.op("Sub", ROWS, e.const(1000, np.int64)))
    e.after(SEEN, "And", e.op("Or", near, e.op("Less", COLUMNS, e.const(4, np.int64))))


def strictly_before(e: Edit) -> None:
    e.maker(SEEN).op_type = "Less"


def bias_by_distance(e: Edit) -> None:
    scores, _, _ = e.spelled()
    distance = e.op("Cast", e.op("Sub", COLUMNS, ROWS), to=TensorProto.FLOAT)
    slopes = e.const(np.array([0.5, 0.25, 0.125, 0.0625], np.float32).reshape(1, 4, 1, 1))
    e.after(scores, "Add", e.op("Mul", distance, slopes))


def mask_multiplied(e: Edit) -> None:
    scores, masked, _ = e.spelled()
    seen = e.op("Cast", "expand", to=TensorProto.FLOAT)
    e.swap(masked, e.op("Mul", scores, seen))


def softcap(e: Edit) -> None:
    scores, _, _ = e.spelled()
    cap = e.const(np.float32(50))
    e.swap(scores, e.op("Mul", e.op("Tanh", inner := e.op("Div", scores, cap)), cap), (inner,))


def clipped(e: Edit) -> None:
    scores, _, _ = e.spelled()
    e.after(scores, "Min", e.const(np.float32(30)))


def softcap_inside(e: Edit) -> None:
    for attr in e.maker("scaled_dot_product_attention").attribute:
        if attr.name == "softcap":
            attr.f = 20.0


def other_axis(e: Edit) -> None:
    _, _, weights = e.spelled()
    e.maker(weights).attribute[0].i = -2


def scale_by_head(e: Edit) -> None:
    scores, _, _ = e.spelled()
    e.after(scores, "Mul", e.const(np.array([1, 2, 3, 4], np.float32).reshape(1, 4, 1, 1)))


def query_scale_by_head(e: Edit) -> None:
    e.after("add_284", "Mul", e.const(np.array([1, 2, 3, 4], np.float32).reshape(1, 4, 1, 1)))


def scale_by_length(e: Edit) -> None:
    scores, _, _ = e.spelled()
    e.after(scores, "Mul", e.op("Log", e.op("Cast", "add_519", to=TensorProto.FLOAT)))


def scale_by_great_length(e: Edit) -> None:
    scores, _, _ = e.spelled()
    far = e.op("Greater", "add_519", e.const(4096, np.int64))
    e.after(scores, "Mul", e.op("Where", far, e.const(np.float32(1.2)), e.const(np.float32(1.0))))


def other_embedding_when_long(e: Edit) -> None:
    far = e.op("Greater", "add_519", e.const(4096, np.int64))
    e.after("embedding", "Mul", e.op("Where", far, e.const(np.float32(1.2)), e.const(np.float32(1.0))))


def weights_dropped_far_away(e: Edit) -> None:
    _, _, weights = e.spelled()
    near = e.op("Greater", COLUMNS, e.op("Sub", ROWS, e.const(1000, np.int64)))
    e.swap(weights, e.op("Where", near, weights, e.const(np.float32(0))))


def attention_sink(e: Edit) -> None:
    _, masked, weights = e.spelled()
    column = e.op("Slice", masked, e.const([0]), e.const([1]), e.const([3]))
    wider = e.op("Concat", masked, e.op("Mul", column, e.const(np.float32(0))), axis=-1)
    e.feed(weights, 0, wider)
    e.after(weights, "Slice", e.const([0]), e.const([-1]), e.const([3]))


def value_heads_permuted(e: Edit) -> None:
    e.swap("present.0.value", e.op("Gather", "present.0.value", e.const([1, 0]), axis=1))


def value_heads_permuted_before_the_cache(e: Edit) -> None:
    e.after("transpose_2", "Gather", e.const([1, 0]), axis=1)


def tiled_heads(e: Edit) -> None:
    e.swap("_unsafe_view", e.op("Tile", "present.0.key", e.const([1, 2, 1, 1])))


def heads_repeated_inside(e: Edit) -> None:
    e.swap("_unsafe_view", "present.0.key")
    e.swap("_unsafe_view_1", "present.0.value")


def attention_of_a_runtime(e: Edit) -> None:
    node = e.maker("scaled_dot_product_attention")
    node.op_type, node.domain = "MultiHeadAttention", "com.microsoft"
    del node.attribute[:]
    e.model.opset_import.append(helper.make_opsetid("com.microsoft", 1))


def causal_inside(e: Edit) -> None:
    node = e.maker("scaled_dot_product_attention")
    node.input.pop()
    kept = [attr for attr in node.attribute if attr.name != "is_causal"]
    del node.attribute[:]
    node.attribute.extend([*kept, helper.make_attribute("is_causal", 1)])


def three_axes(e: Edit) -> None:
    node = e.maker("scaled_dot_product_attention")
    for place, heads in ((0, 4), (1, 4), (2, 4)):
        turned = e.op("Transpose", node.input[place], perm=[0, 2, 1, 3])
        node.input[place] = e.op("Reshape", turned, e.const([0, 0, heads * 128]))
    node.attribute.extend([helper.make_attribute("q_num_heads", 4), helper.make_attribute("kv_num_heads", 4)])
    e.maker("transpose_3").op_type = "Identity"
    del e.maker("transpose_3").attribute[:]


def past_read_elsewhere(e: Edit) -> None:
    e.on_logits("Add", e.op("ReduceMean", "past_key_values.0.value", keepdims=0))


def present_read_elsewhere(e: Edit) -> None:
    e.on_logits("Add", e.op("ReduceMax", "present.0.key", keepdims=0))


def second_output(e: Edit) -> None:
    e.graph.output.append(helper.make_tensor_value_info("add_477", TensorProto.FLOAT, None))


def last_logits_only(e: Edit) -> None:
    e.on_logits("Slice", e.const([-1]), e.const([2**31]), e.const([1]))


def mean_over_tokens(e: Edit) -> None:
    mean = e.op("ReduceMean", "add_477", e.const([1]))
    e.swap("add_477", e.op("Add", "add_477", mean), (mean,))


def sum_of_the_tokens_so_far(e: Edit) -> None:
    e.swap("add_477", e.op("CumSum", "add_477", e.const(1, np.int64)))


def mean_over_sequences(e: Edit) -> None:
    mean = e.op("ReduceMean", "add_477", e.const([0]))
    e.swap("add_477", e.op("Add", "add_477", mean), (mean,))


def norm_over_tokens(e: Edit) -> None:
    turned = e.op("Transpose", "add_477", perm=[0, 2, 1])
    normed = e.op("LayerNormalization", turned, e.const(np.ones(1, np.float32)))
    e.swap("add_477", e.op("Transpose", normed, perm=[0, 2, 1]), (turned,))


def tokens_multiplied(e: Edit) -> None:
    turned = e.op("Transpose", "add_477", perm=[0, 2, 1])
    mixed = e.op("MatMul", square := e.op("MatMul", "add_477", turned), "add_477")
    e.swap("add_477", mixed, (turned, square, mixed))


def tokens_contracted(e: Edit) -> None:
    square = e.op("Einsum", "add_477", "add_477", equation="bsh,bth->bst")
    mixed = e.op("Einsum", square, "add_477", equation="bst,bth->bsh")
    e.swap("add_477", mixed, (square, mixed))


def next_token(e: Edit) -> None:
    backwards = e.op("Slice", "add_477", e.const([-1]), e.const([-(2**62)]), e.const([1]), e.const([-1]))
    e.swap("add_477", e.op("Add", "add_477", backwards), (backwards,))


def last_token(e: Edit) -> None:
    last = e.op("Gather", "add_477", e.const([-1]), axis=1)
    e.swap("add_477", e.op("Add", "add_477", last), (last,))


def neighbours(e: Edit) -> None:
    turned = e.op("Transpose", "add_477", perm=[0, 2, 1])
    pooled = e.op("MaxPool", turned, kernel_shape=[3], pads=[1, 1])
    e.swap("add_477", e.op("Transpose", pooled, perm=[0, 2, 1]), (turned,))


def scaled_by_the_tokens_of_a_call(e: Edit) -> None:
    count = e.op("Cast", shape := e.op("Shape", "add_477", start=1, end=2), to=TensorProto.FLOAT)
    e.swap("add_477", e.op("Mul", "add_477", count), (shape,))


def behind(*parts: str) -> Builder:
    def edit(e: Edit) -> None:
        for part in parts:
            node = e.maker(f"present.0.{part}")
            node.input[:] = list(node.input)[::-1]

    return edit


def joined_twice(e: Edit) -> None:
    e.swap("present.0.key", e.op("Concat", "present.0.key", "add_320", axis=-2))
    e.swap("present.0.value", e.op("Concat", "present.0.value", "transpose_2", axis=-2))


def rotated_behind_the_cache(e: Edit) -> None:
    e.feed("present.0.key", 1, "transpose_1")
    places = e.op("Unsqueeze", e.op("Cast", "arange_3", to=TensorProto.FLOAT), e.const([0, 2]))
    angles = e.op("Mul", places, "m.model.rotary_emb.inv_freq")
    batch = e.op("Concat", "val_3", e.const([1, 1]), axis=0)
    angles = e.op("Expand", angles, batch)
    turned = e.op("RotaryEmbedding", "present.0.key", e.op("Cos", angles), e.op("Sin", angles))
    e.swap("present.0.key", turned)


def counted_positions(*, spread: bool) -> Builder:
    def edit(e: Edit) -> None:
        places = e.op("Unsqueeze", "add_23", e.const([0]))
        if spread:
            places = e.op("Expand", places, e.op("Shape", "input_ids"))
        e.feed("val_3", 0, "input_ids")
        e.swap("position_ids", places)
        if not spread:  # RotaryEmbedding wants angles of every sequence
            e.after("mul_62", "Expand", e.op("Concat", "val_3", e.const([1, 1]), axis=0))
        e.drop_input("position_ids")

    return edit


def counted_positions_turned(e: Edit) -> None:
    """[1, S] is squeezed again: nothing of it can be told for each sequence."""
    places = e.op("Squeeze", e.op("Unsqueeze", "add_23", e.const([0])), e.const([0]))
    counted_places = e.op("Unsqueeze", places, e.const([0]))
    e.feed("val_3", 0, "input_ids")
    e.swap("position_ids", counted_places)
    e.after("mul_62", "Expand", e.op("Concat", "val_3", e.const([1, 1]), axis=0))
    e.drop_input("position_ids")


def counted_positions_by_token(e: Edit) -> None:
    """[1, S] -> [S, 1] -> angles [S, D] -> [1, S, D]."""
    turned = e.op("Transpose", e.op("Unsqueeze", "add_23", e.const([0])), perm=[1, 0])
    frequencies = e.op("Reshape", "m.model.rotary_emb.inv_freq", e.const([1, -1]))
    angles = e.op("Mul", e.op("Cast", turned, to=TensorProto.FLOAT), frequencies)
    e.feed("val_3", 0, "input_ids")
    e.swap("mul_62", e.op("Expand", e.op("Unsqueeze", angles, e.const([0])),
                          e.op("Concat", "val_3", e.const([1, 1]), axis=0)))  # fmt: skip
    e.drop_input("position_ids")


def positions_of_the_mask(number: int) -> Builder:
    """How many tokens no padding is up to each new one, less ``number``; padding has some number of its own."""

    def edit(e: Edit) -> None:
        counted = e.op("Sub", e.op("CumSum", "attention_mask", e.const(1, np.int64)), e.const(number, np.int64))
        places = e.op("Where", e.op("Cast", "attention_mask", to=TensorProto.BOOL), counted, e.const(1, np.int64))
        new = e.op("Slice", places, e.op("Neg", "val_1"), e.const([2**31]), e.const([1]))
        e.feed("val_3", 0, "input_ids")
        e.swap("position_ids", new)
        e.drop_input("position_ids")

    return edit


def mask_of_positions(e: Edit) -> None:
    e.feed(SEEN, 1, e.op("Unsqueeze", "position_ids", e.const([1, 3])))


def padding_ignored(e: Edit) -> None:
    e.feed("expand", 0, "bitwise_and")


def no_padding(e: Edit) -> None:
    padding_ignored(e)
    e.drop_input("attention_mask")


def padding_read_elsewhere(e: Edit) -> None:
    e.after(
        "embedding",
        "Mul",
        e.op(
            "Unsqueeze",
            e.op(
                "Cast",
                e.op("Slice", "attention_mask", e.op("Neg", "val_1"), e.const([2**31]), e.const([1])),
                to=TensorProto.FLOAT,
            ),
            e.const([2]),
        ),
    )


def embeddings_given(e: Edit) -> None:
    e.graph.input.append(helper.make_tensor_value_info("inputs_embeds", TensorProto.FLOAT, ["s44", "s70", 256]))
    e.swap("embedding", "inputs_embeds")


def learned_positions(e: Edit) -> None:
    table = e.const(np.linspace(-1, 1, 64 * 128, dtype=np.float32).reshape(64, 128))
    rows = e.op("Gather", table, "position_ids")
    e.swap("embedding", total := e.op("Add", "embedding", rows), (total,))


def half_scores(e: Edit) -> None:
    scores, _, _ = e.spelled()
    inner = e.op("Cast", scores, to=TensorProto.FLOAT16)
    e.swap(scores, e.op("Cast", inner, to=TensorProto.FLOAT), (inner,))


def keys_of_another_layer(e: Edit) -> None:
    e.swap("present.1.key", "present.0.key")


def shared_projections(e: Edit) -> None:
    for first, second in (("linear", "linear_7"), ("linear_1", "linear_8"), ("linear_2", "linear_9")):
        e.feed(second, 1, e.maker(first).input[1])


def biased_latents(e: Edit) -> None:
    columns = numpy_helper.to_array(next(i for i in e.graph.initializer if i.name == "val_180")).shape[1]
    e.after("linear_3", "Add", e.const(np.linspace(-1, 1, columns, dtype=np.float32)))


def computed_projection(e: Edit) -> None:
    factor = e.op("Cast", "sym_size_int_23", to=TensorProto.FLOAT)
    e.feed("linear_3", 1, e.op("Mul", "val_180", factor))


def rotated_columns_permuted(e: Edit) -> None:
    e.swap("present.0.value", e.op("Gather", "present.0.value", e.const(np.arange(64)[::-1].copy()), axis=-1))


def key_columns_swapped_between_heads(e: Edit) -> None:
    """Half of each head's unrotated columns comes from the next head."""
    own, other = (e.op("Slice", "split_with_sizes_2_split_0", e.const([at]), e.const([to]), e.const([3]))
                  for at, to in ((0, 64), (64, 128)))  # fmt: skip
    heads = 2
    turned = e.op("Gather", other, e.const((np.arange(heads) + 1) % heads), axis=1)
    joined = e.op("Concat", own, turned, axis=3)
    e.swap("split_with_sizes_2_split_0", joined, (own, other))


REFUSED: dict[str, tuple[Builder, str]] = {
    "a window": (window(3), "new token .* hidden|attention-mask|sees all"),
    "a window beyond all trials": (window(4096), "sees all"),
    "a window that keeps the first tokens": (sinks_and_window, "sees all"),
    "a token that does not see itself": (strictly_before, "sees all"),
    "a bias": (bias_by_distance, "sees all"),
    "a mask that is multiplied": (mask_multiplied, "sees all"),
    "a softcap": (softcap, "."),
    "a softcap in the operator": (softcap_inside, "softcap"),
    "scores that are clipped": (clipped, "scaled and masked"),
    "another axis": (other_axis, "another axis"),
    "a scale by head": (scale_by_head, "scaled and masked"),
    "a scale by length": (scale_by_length, "scale|mask"),
    "a scale that changes far away": (scale_by_great_length, "."),
    "an embedding that changes far away": (other_embedding_when_long, "growing caches"),
    "weights that are dropped far away": (weights_dropped_far_away, "."),
    "a sink": (attention_sink, "."),
    "value heads in another order": (value_heads_permuted, "rows of growing caches"),
    "heads repeated as a whole": (tiled_heads, "rows of growing caches"),
    "a runtime's attention": (attention_of_a_runtime, "found com.microsoft.MultiHeadAttention, wanted softmax"),
    "a causal operator": (causal_inside, "sees all"),
    "operands of three axes": (three_axes, "another form"),
    "past read elsewhere": (past_read_elsewhere, "ReduceMean"),
    "present read elsewhere": (present_read_elsewhere, "ReduceMax"),
    "a second output": (second_output, "one output"),
    "logits of the last token only": (last_logits_only, "logits of every token"),
    "a mean over tokens": (mean_over_tokens, "meet in attention only"),
    "a running sum": (sum_of_the_tokens_so_far, "meet in attention only"),
    "a mean over sequences": (mean_over_sequences, "meet in attention only"),
    "a norm over tokens": (norm_over_tokens, "meet in attention only"),
    "products of tokens": (tokens_multiplied, "meet in attention only"),
    "products of tokens in an Einsum": (tokens_contracted, "meet in attention only"),
    "a look ahead": (next_token, "meet in attention only"),
    "the last token": (last_token, "meet in attention only"),
    "a factor for how many tokens a call has": (scaled_by_the_tokens_of_a_call, "meet in attention only"),
    "a window over tokens": (neighbours, "."),
    "new rows in front": (behind("key", "value"), "caches that grow"),
    "new keys in front": (behind("key"), "."),
    "rows joined twice": (joined_twice, "."),
    "keys rotated behind the cache": (rotated_behind_the_cache, "."),
    "a mask of positions": (mask_of_positions, "sees all"),
    "padding read elsewhere": (padding_read_elsewhere, "growing caches"),
    "positions of the mask, one too large": (positions_of_the_mask(0), "growing caches"),
    "positions counted by token": (counted_positions_by_token, "growing caches"),
    "learned positions": (learned_positions, "one input for ids; found input_ids and position_ids"),
    "embeddings as input": (embeddings_given, "new rows|token ids"),
}
OTHERS: dict[str, tuple[str, Builder, str]] = {
    "keys of another layer": (TWO, keys_of_another_layer, "read twice"),
    "latents with a bias": (LATENT, biased_latents, "rows of growing caches"),
    "a projection that is computed": (LATENT, computed_projection, "constant weight"),
    "rotated columns in another order": (LATENT, rotated_columns_permuted, "all in order"),
}
CONVERTED: dict[str, tuple[str, Builder, float]] = {
    "queries scaled by head": ("", query_scale_by_head, 2e-5),
    "value heads in another order before the cache": ("", value_heads_permuted_before_the_cache, 2e-5),
    "heads repeated in the operator": ("", heads_repeated_inside, 2e-5),
    "positions counted for each sequence": ("", counted_positions(spread=True), 2e-5),
    "positions counted once": ("", counted_positions(spread=False), 2e-5),
    "positions counted and squeezed": ("", counted_positions_turned, 2e-5),
    "positions of the mask": ("", positions_of_the_mask(1), 2e-5),
    "padding without effect": ("", padding_ignored, 2e-5),
    "no padding": ("", no_padding, 2e-5),
    "ids of int32": ("", typed_ids, 2e-5),
    "scores in float16": ("", half_scores, 5e-3),
    "projections shared by layers": (TWO, shared_projections, 2e-5),
    "key columns of another head": (LATENT, key_columns_swapped_between_heads, 2e-5),
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
