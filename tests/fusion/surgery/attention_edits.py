"""Edits of a decoder's attention: masks, scores, scales, heads."""

from __future__ import annotations

import numpy as np
from onnx import TensorProto, helper

from tests.fusion.surgery.edits import COLUMNS, ROWS, SEEN, Builder, Edit


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


def half_scores(e: Edit) -> None:
    scores, _, _ = e.spelled()
    inner = e.op("Cast", scores, to=TensorProto.FLOAT16)
    e.swap(scores, e.op("Cast", inner, to=TensorProto.FLOAT), (inner,))
