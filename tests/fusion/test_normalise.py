"""Sequences that are only taken apart again become Split, casts to the type of another value become Cast."""

from __future__ import annotations

import numpy as np
import onnx
import onnx_ir as ir
import pytest
from onnx import parser
from onnx.reference import ReferenceEvaluator

from fusion.normalise import tell_casts, unroll_sequences

GRAPH = """<ir_version: 10, opset_import: ["" : 17]> g (float[6, 3] x) => (float[N, 3] a, float[M, 3] b)
<int64[2] sizes = {2, 4}, int64 zero = {0}, int64 minus = {-1}> {
    seq = SplitToSequence <axis = 0> (x, sizes)
    a = SequenceAt (seq, zero)
    p = SequenceAt (seq, minus)
    b = Neg (p)
}"""


def turned(text: str) -> tuple[int, onnx.ModelProto, onnx.ModelProto]:
    before = parser.parse_model(text)
    model = ir.from_proto(before)
    return unroll_sequences(model), before, ir.to_proto(model)


def test_a_sequence_taken_apart_becomes_split_with_the_same_results() -> None:
    count, before, after = turned(GRAPH)
    assert count == 1
    assert sorted(node.op_type for node in after.graph.node) == ["Identity", "Neg", "Split"]
    assert [item.name for item in after.graph.output] == ["a", "b"]
    x = np.arange(18, dtype=np.float32).reshape(6, 3)
    for mine, its in zip(
        ReferenceEvaluator(after).run(None, {"x": x}), ReferenceEvaluator(before).run(None, {"x": x}), strict=True
    ):
        np.testing.assert_array_equal(mine, its)


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("p = SequenceAt (seq, minus)", "p = ConcatFromSequence <axis = 0> (seq)"),
        ("float[6, 3] x)", "float[6, 3] x, int64 k)"),
        ("int64[2] sizes = {2, 4}", "int64 sizes = {3}"),
    ],
    ids=["another-reader", "a-computed-place", "one-size"],
)
def test_sequences_used_otherwise_stay(old: str, new: str) -> None:
    text = GRAPH.replace(old, new)
    if "int64 k" in new:
        text = text.replace("(seq, minus)", "(seq, k)")
    count, before, after = turned(text)
    assert count == 0
    assert [node.op_type for node in after.graph.node] == [node.op_type for node in before.graph.node]


@pytest.mark.parametrize("told", [True, False])
def test_a_cast_to_the_type_of_another_value_is_a_cast_where_the_type_is_told(told: bool) -> None:
    proto = onnx.parser.parse_model("""<ir_version: 10, opset_import: ["" : 18]>
        g (int64[2] x, float[3] like) => (float[2] y) { far = Neg (like)  y = CastLike (x, far) }""")
    if told:
        proto.graph.value_info.append(onnx.helper.make_tensor_value_info("far", onnx.TensorProto.FLOAT, [3]))
    model = ir.from_proto(proto)
    assert tell_casts(model) == told
    after = ir.to_proto(model)
    onnx.checker.check_model(after)
    assert [node.op_type for node in after.graph.node] == ["Neg", "Cast" if told else "CastLike"]
    assert after.graph.output[0].name == "y"
