"""Edits of what a decoder does with tokens: where they meet, how they are counted, what is cached."""

from __future__ import annotations

import numpy as np
from onnx import TensorProto, helper, numpy_helper

from tests.fusion.surgery.edits import SEEN, Builder, Edit


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
