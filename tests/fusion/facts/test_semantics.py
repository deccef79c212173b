"""The operator table against onnx's reference evaluator, entry by entry, in old and new forms."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import ml_dtypes
import numpy as np
import onnx_ir as ir
import pytest
from onnx import TensorProto, helper
from onnx.reference import ReferenceEvaluator

from fusion.facts.graph import GraphView
from fusion.facts.semantics import Conflict, OutOfRange, Unsupported, lookup
from fusion.facts.semantics.table import _TABLE
from ir_ops.ops import DOMAIN, OPS
from tests.custom_ort.block_calls import CALLS, MOVES

Array = np.ndarray[Any, Any]
RNG = np.random.default_rng(0)


@dataclass
class Case:
    """One node: operands as arrays (None for absent ones), attributes, opset, number of outputs."""

    op: str
    operands: list[Array | None]
    attrs: dict[str, Any] = field(default_factory=dict)
    opset: int = 18
    outputs: int = 1

    def __str__(self) -> str:
        shapes = "x".join("-" if item is None else str(list(item.shape)).replace(" ", "") for item in self.operands)
        return f"{self.op}{self.opset}-{shapes}-{self.attrs}"


def real(*shape: int) -> Array:
    return RNG.standard_normal(shape).astype(np.float32)


def positive(*shape: int) -> Array:
    return np.abs(real(*shape)) + np.float32(0.1)


def whole(low: int, high: int, *shape: int) -> Array:
    return RNG.integers(low, high, shape)


def small(*shape: int) -> Array:
    return whole(-100, 100, *shape).astype(np.int8)


def ints(*numbers: int) -> Array:
    return np.array(numbers, np.int64)


def scalar(number: float) -> Array:
    return np.array(number, np.float32)


def truth(*shape: int) -> Array:
    return RNG.integers(0, 2, shape).astype(np.bool_)


UNARY = "Neg Abs Sqrt Exp Log Cos Sin Tanh Floor Ceil Round Sign Reciprocal Sigmoid Relu Erf Softplus IsNaN IsInf"
FLOAT_BINARY = "Add Sub Mul Div Equal Less LessOrEqual Greater GreaterOrEqual Pow"
CASES = [
    *(Case(name, [positive(3, 4)]) for name in UNARY.split()),
    *(Case(name, [positive(2, 1, 4), positive(3, 1)]) for name in FLOAT_BINARY.split()),
    *(Case(name, [whole(-9, 9, 4), whole(1, 5, 3, 4)]) for name in ("Add", "Sub", "Mul", "Div", "Mod", "Less")),
    *(Case(name, [truth(3, 4), truth(4)]) for name in ("And", "Or", "Xor")),
    *(Case(name, [whole(0, 15, 5), whole(0, 15, 5)]) for name in ("BitwiseAnd", "BitwiseOr", "BitwiseXor")),
    Case("Not", [truth(5)]),
    Case("Round", [np.array([0.5, 1.5, 2.5, -0.5, -1.5], np.float32)]),
    Case("Pow", [whole(-3, 4, 5), ints(2)]),
    Case("Mod", [real(6), positive(6)], {"fmod": 1}),
    *(Case(name, [real(2, 3), real(3), real(2, 1)]) for name in ("Min", "Max", "Sum")),
    Case("Clip", [real(5), scalar(-0.5), scalar(0.5)]),
    Case("Clip", [real(5), None, scalar(0.2)]),
    Case("Clip", [real(5)], {"min": -0.2, "max": 0.4}, 6),
    Case("MatMul", [real(2, 3, 4), real(4, 5)]),
    Case("MatMul", [real(4), real(2, 4, 3)]),
    Case("Gemm", [real(4, 3), real(5, 4), real(5)], {"transA": 1, "transB": 1, "alpha": 0.5, "beta": 2.0}),
    Case("Einsum", [real(2, 3, 4), real(3, 4, 5)], {"equation": "bnd,ndr->bnr"}),
    Case("Conv", [real(2, 6, 9), real(6, 1, 4), real(6)], {"group": 6, "pads": [3, 3]}),
    Case("Conv", [real(2, 4, 7, 8), real(6, 2, 3, 2)], {"group": 2, "strides": [2, 3], "dilations": [1, 2],
                                                        "pads": [1, 0, 0, 2]}),
    Case("Conv", [real(1, 3, 5), real(4, 3, 2)]),
    Case("Softmax", [real(2, 5)], {"axis": -1}),
    Case("QuantizeLinear", [real(3, 4), positive(4), whole(-5, 5, 4).astype(np.int8)], {"axis": 1}),
    Case("QuantizeLinear", [real(6) * 90, scalar(0.5), np.array(7, np.uint8)]),
    Case("QuantizeLinear", [real(6) * 90, scalar(0.5)], {"output_dtype": TensorProto.INT8}, 21),
    Case("DequantizeLinear", [whole(-9999, 9999, 3, 4).astype(np.int32), positive(4)], {"axis": 1}, 21),
    Case("MatMulInteger", [small(2, 3, 4), small(4, 5)]),
    Case("MatMulInteger", [whole(0, 255, 3, 4).astype(np.uint8), small(4, 5), np.array(7, np.uint8), small(5)]),
    Case("QLinearMatMul", [small(3, 4), scalar(0.5), np.array(3, np.int8), small(4, 5), scalar(0.25),
                           np.array(-1, np.int8), scalar(9.7), np.array(5, np.int8)]),
    Case("DynamicQuantizeLinear", [real(3, 4)], outputs=3),
    Case("DynamicQuantizeLinear", [positive(3, 4)], outputs=3),
    Case("DequantizeLinear", [whole(-9, 9, 3, 4).astype(np.int8), positive(3), whole(-5, 5, 3).astype(np.int8)],
         {"axis": 0}, 21),
    Case("Identity", [real(2)]),
    Case("Reshape", [real(2, 3, 4), ints(0, -1)]),
    Case("Reshape", [real(2, 6), ints(3, 4)]),
    Case("Flatten", [real(2, 3, 4)], {"axis": 2}),
    Case("Flatten", [real(2, 3, 4)], {"axis": -1}),
    Case("Transpose", [real(2, 3, 4)], {"perm": [2, 0, 1]}),
    Case("Transpose", [real(2, 3, 4)]),
    Case("Squeeze", [real(2, 1, 3, 1), ints(1, -1)]),
    Case("Squeeze", [real(2, 1, 3)], {"axes": [1]}, 11),
    Case("Squeeze", [real(1, 3, 1)]),
    Case("Unsqueeze", [real(2, 3), ints(0, -1)]),
    Case("Unsqueeze", [real(2, 3)], {"axes": [1, 3]}, 11),
    Case("Expand", [real(3, 1), ints(2, 1, 4)]),
    Case("Tile", [real(2, 3), ints(2, 2)]),
    Case("Concat", [real(2, 3), real(2, 1)], {"axis": -1}),
    Case("Concat", [real(2, 3)], {"axis": 0}),
    Case("Slice", [real(5, 6), ints(1, -1), ints(2**62, -7), ints(0, 1), ints(2, -2)]),
    Case("Slice", [real(5, 6), ints(-3), ints(5)]),
    Case("Slice", [real(5, 6), ints(9), ints(12), ints(1)]),
    Case("Split", [real(2, 7), ints(3, 4)], {"axis": 1}, outputs=2),
    Case("Split", [real(2, 7)], {"axis": 1, "num_outputs": 3}, outputs=3),
    Case("Split", [real(2, 6)], {"axis": -1, "split": [2, 4]}, 11, outputs=2),
    Case("Split", [real(6, 2)], {"axis": 0}, 13, outputs=2),
    Case("Trilu", [real(4, 4), np.array(1)], {"upper": 1}),
    Case("Trilu", [real(3, 4)], {"upper": 0}),
    Case("Pad", [real(2, 3), ints(0, 1, 1, 0), scalar(4.0)]),
    Case("Pad", [real(2, 3), ints(1, 2), None, ints(-1)]),
    Case("Cast", [real(4) * 9], {"to": TensorProto.INT32}),
    Case("Cast", [whole(-3, 3, 4)], {"to": TensorProto.FLOAT}),
    Case("CastLike", [real(2, 3) * 9, ints(1)]),
    Case("CastLike", [whole(-3, 3, 4), real(2, 2)]),
    Case("Shape", [real(2, 3, 4)]),
    Case("Shape", [real(2, 3, 4)], {"start": 1, "end": -1}),
    Case("Size", [real(2, 3)]),
    Case("ConstantOfShape", [ints(2, 3)]),
    Case("ConstantOfShape", [ints(2)], {"value": helper.make_tensor("v", TensorProto.INT64, [1], [7])}),
    Case("Range", [np.array(2), np.array(9), np.array(3)]),
    Case("Gather", [real(4, 5), whole(-4, 4, 2, 3)], {"axis": 0}),
    Case("Gather", [real(4, 5), np.array(-1)], {"axis": 1}),
    Case("GatherElements", [real(3, 4), whole(-3, 3, 2, 4)], {"axis": 0}),
    Case("GatherND", [real(3, 4, 2), whole(0, 3, 5, 2)]),
    Case("GatherND", [real(2, 4, 3), whole(0, 3, 2, 1)], {"batch_dims": 1}),
    Case("ScatterND", [real(5, 2), ints(3, 0).reshape(2, 1), real(2, 2)]),
    Case("ScatterElements", [real(3, 4), whole(0, 1, 1, 4), real(1, 4)], {"axis": 0}),
    Case("Where", [truth(3, 1), real(3, 4), real(4)]),
    Case("NonZero", [truth(3, 4)]),
    Case("CumSum", [real(5), np.array(0)]),
    Case("CumSum", [real(2, 5), np.array(1)], {"exclusive": 1, "reverse": 1}),
    Case("OneHot", [ints(0, 2, -1), np.array(4), np.array([0.0, 1.0], np.float32)]),
    *(Case(f"Reduce{name}", [positive(2, 3, 4), ints(-1)]) for name in
      ["Sum", "Mean", "Max", "Min", "Prod", "SumSquare", "L1", "L2"]),
    Case("ReduceSum", [real(2, 3)]),
    Case("ReduceSum", [real(2, 3), ints()], {"noop_with_empty_axes": 1}),
    Case("ReduceMean", [real(2, 3, 4)], {"axes": [0, 2], "keepdims": 0}, 13),
    Case("ArgMax", [real(3, 4)], {"axis": 1, "keepdims": 0}),
    Case("TopK", [real(3, 7, 2), np.array([4])], {"axis": 1}, outputs=2),
    Case("TopK", [real(3, 5), np.array([2])], {"axis": -1, "largest": 0}, outputs=2),
    Case("TopK", [np.array([[2, 1, 2, 1, 2]]), np.array([5])], {"axis": -1}, outputs=2),
    Case("LayerNormalization", [real(2, 3, 4), real(4), real(4)], {"axis": -1}),
    Case("RMSNormalization", [real(2, 4), real(4)], {"axis": -1, "epsilon": 1e-3}, 23),
    Case("Attention", [real(2, 4, 3, 8), real(2, 4, 5, 8), real(2, 4, 5, 6)], {"scale": 0.3}, 23),
    Case("Attention", [real(2, 4, 3, 8), real(2, 2, 5, 8), real(2, 2, 5, 8), whole(0, 2, 2, 1, 3, 5) > 0], {}, 23),
    Case("Attention", [real(2, 2, 3, 8), real(2, 2, 3, 8), real(2, 2, 3, 6), real(3, 3)], {"is_causal": 1}, 23),
    Case("RotaryEmbedding", [real(2, 3, 4, 8), real(2, 4, 4), real(2, 4, 4)], {}, 23),
    Case("RotaryEmbedding", [real(2, 3, 4, 8), real(9, 4), real(9, 4), whole(0, 9, 2, 4)], {"interleaved": 1}, 23),
    Case("RotaryEmbedding", [real(2, 4, 24), real(2, 4, 2), real(2, 4, 2)],
         {"num_heads": 3, "rotary_embedding_dim": 4}, 23),
    Case("Swish", [real(4)], {"alpha": 0.5}, 24),
    Case("Gelu", [real(3, 4)], {}, 20),
    Case("Gelu", [real(3, 4)], {"approximate": "tanh"}, 20),
    Case("TensorScatter", [real(2, 3, 6, 4), real(2, 3, 2, 4), ints(1, 3)], {"axis": -2}, 24),
    Case("TensorScatter", [real(2, 5, 4), real(2, 2, 4), ints(4, 1)], {"mode": "circular"}, 24),
]  # fmt: skip


def one_node(case: Case) -> Any:
    names = ["" if item is None else f"x{place}" for place, item in enumerate(case.operands)]
    outputs = [f"y{place}" for place in range(case.outputs)]
    infos = [
        helper.make_tensor_value_info(name, helper.np_dtype_to_tensor_dtype(item.dtype), item.shape)
        for name, item in zip(names, case.operands, strict=True)
        if item is not None
    ]
    results = [helper.make_tensor_value_info(name, TensorProto.UNDEFINED, None) for name in outputs]
    node = helper.make_node(case.op, names, outputs, **case.attrs)
    graph = helper.make_graph([node], "one", infos, results)
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", case.opset)])


def by_reference(case: Case) -> list[Array]:
    feeds = {f"x{place}": item for place, item in enumerate(case.operands) if item is not None}
    return [np.asarray(item) for item in ReferenceEvaluator(one_node(case)).run(None, feeds)]


def by_table(case: Case) -> list[Array]:
    graph = ir.from_proto(one_node(case)).graph
    definition = lookup("", case.op)
    assert definition is not None
    return list(map(np.asarray, definition.run(GraphView(graph, case.opset).attrs(graph[0]), case.operands)))


@pytest.mark.parametrize("case", CASES, ids=str)
def test_entry_equals_reference(case: Case) -> None:
    wanted, got = by_reference(case), by_table(case)
    assert len(got) == case.outputs
    for mine, its in zip(got, wanted, strict=True):
        assert mine.shape == its.shape
        assert mine.dtype == its.dtype
        np.testing.assert_allclose(mine.astype(np.float64), its.astype(np.float64), rtol=2e-5, atol=2e-6)


@pytest.mark.parametrize("case", [case for case in CASES if case.op not in ("NonZero", "OneHot")], ids=str)
def test_shape_rule_equals_what_is_computed(case: Case) -> None:
    """Where an operator computes, its shape is told from operands without content where they are not structure."""
    definition = lookup("", case.op)
    assert definition is not None
    if definition.shapes is None:
        return
    dummies = [
        item if item is None or item.dtype == np.int64 else np.broadcast_to(np.int8(0), item.shape)
        for item in case.operands
    ]
    graph = ir.from_proto(one_node(case)).graph
    shapes = definition.shapes(GraphView(graph, case.opset).attrs(graph[0]), dummies)
    assert shapes == [item.shape for item in by_table(case)]


def test_every_entry_is_tested() -> None:
    elsewhere = {"Dropout", "Scatter", "SimplifiedLayerNormalization"}
    covered = {case.op for case in CASES} | elsewhere
    assert {name for domain, name in _TABLE if domain == ""} <= covered


def test_movement_moves_any_content() -> None:
    """Tags of 64 bits pass through movement entries as floats do."""
    for case in CASES:
        definition = lookup("", case.op)
        assert definition is not None
        if definition.moves is None or case.op in ("Trilu", "Pad"):
            continue
        places = range(len(case.operands)) if definition.moves == (-1,) else definition.moves
        tagged = list(case.operands)
        first, content = 1 << 40, [np.zeros(0)]
        for place in places:
            item = case.operands[place]
            assert item is not None
            tagged[place] = first + np.arange(item.size).reshape(item.shape)
            content.append(item.reshape(-1))
            first += item.size
        moved = by_table(Case(case.op, tagged, case.attrs, case.opset, case.outputs))
        values = np.concatenate(content)
        for mine, its in zip(moved, by_reference(case), strict=True):
            np.testing.assert_array_equal(values[mine - (1 << 40)], its)


@pytest.mark.parametrize("name", MOVES)
def test_our_movements_equal_their_references(name: str) -> None:
    rng = np.random.default_rng(5)
    definition = lookup(DOMAIN, name)
    assert definition is not None and definition.moves is not None
    for _ in range(20):
        call = CALLS[name](rng)
        operands = [call.inputs.get(entry.name) for entry in OPS[name].inputs]
        expected = OPS[name].reference(call.inputs, call.attrs)
        for entry, mine in zip(OPS[name].outputs, definition.run(call.attrs, operands), strict=True):
            np.testing.assert_array_equal(mine, expected[entry.name])


@pytest.mark.parametrize(("name", "index"), [("ScatterUpdate", ints(-1)), ("ScatterNdUpdate", ints(-1).reshape(1, 1))])
def test_our_scatters_know_no_negative_index(name: str, index: Array) -> None:
    definition = lookup(DOMAIN, name)
    assert definition is not None
    with pytest.raises(OutOfRange):
        definition.run({}, [real(3, 2), index, real(1, 2)])


@pytest.mark.parametrize(
    ("run", "error"),
    [
        (lambda: by_table(Case("Add", [real(2), real(3)])), Conflict),
        (lambda: by_table(Case("MatMul", [real(2, 3), real(4, 5)])), Conflict),
        (lambda: by_table(Case("Reshape", [real(6), ints(4, 2)])), Conflict),
        (lambda: by_table(Case("Reshape", [real(6), ints(-1, 4)])), Conflict),
        (lambda: by_table(Case("Concat", [real(2, 3), real(3, 3)], {"axis": 1})), Conflict),
        (lambda: by_table(Case("Squeeze", [real(2, 3), ints(1)])), Conflict),
        (lambda: by_table(Case("Gather", [real(3), ints(3)])), OutOfRange),
        (lambda: by_table(Case("ScatterND", [real(3), ints(-4).reshape(1, 1), real(1)])), OutOfRange),
        (lambda: by_table(Case("ScatterND", [real(3), ints(0).reshape(1, 1), real(1)], {"reduction": "add"})),
         Unsupported),
        (lambda: by_table(Case("Cast", [real(3)], {"to": -2})), Unsupported),
        (lambda: by_table(Case("Cast", [real(3)])), Unsupported),
        (lambda: by_table(Case("Div", [ints(3), ints(0)])), Unsupported),
        (lambda: by_table(Case("Mod", [ints(3), ints(0)])), Unsupported),
        (lambda: by_table(Case("MatMulInteger", [small(2, 3), small(4, 5)])), Conflict),
        (lambda: by_table(Case("QuantizeLinear", [real(4), positive(2)], {"block_size": 2}, 21)), Unsupported),
        (lambda: by_table(Case("DequantizeLinear", [small(4), positive(2)], {"block_size": 2}, 21)), Unsupported),
        (lambda: by_table(Case("Slice", [real(3), ints(0), ints(2), ints(0), ints(0)])), Unsupported),
        (lambda: by_table(Case("Pad", [real(3), ints(1, 1)], {"mode": "reflect"})), Unsupported),
        (lambda: by_table(Case("Conv", [real(1, 3, 5), real(4, 2, 2)])), Unsupported),
        (lambda: by_table(Case("Conv", [real(1, 3, 5), real(4, 3, 2)], {"auto_pad": "SAME_UPPER"})), Unsupported),
    ],
)  # fmt: skip
def test_operands_that_do_not_fit_say_how(run: Callable[[], Any], error: type[Exception]) -> None:
    with pytest.raises(error):
        run()


def test_a_conflict_names_both_sizes() -> None:
    with pytest.raises(Conflict) as caught:
        by_table(Case("Reshape", [real(15), ints(4, -1)]))
    assert (caught.value.left, caught.value.right, caught.value.divides) == (15, 4, True)


def test_float8_casts_saturate_unless_told_otherwise() -> None:
    definition = lookup("", "Cast")
    assert definition is not None
    big = np.array([1e6, -1e6, 1.0], np.float32)
    attrs = {"to": TensorProto.FLOAT8E4M3FN}
    saturated = definition.run(attrs, [big])[0]
    assert saturated.dtype == ml_dtypes.float8_e4m3fn
    assert saturated.astype(np.float32).tolist() == [448.0, -448.0, 1.0]
    assert np.isnan(definition.run({**attrs, "saturate": 0}, [big])[0].astype(np.float32)[:2]).all()


def test_wide_evaluation_keeps_float64() -> None:
    definition = lookup("", "Cast")
    assert definition is not None
    value = np.array([1.0 + 2.0**-40])
    assert definition.run({"to": TensorProto.FLOAT16, "@wide": True}, [value])[0][0] == value[0]


def test_a_range_of_more_numbers_than_memory_has_is_unsupported() -> None:
    definition = lookup("", "Range")
    assert definition is not None
    first, end, step = (np.array(number, np.int64) for number in (0, 2**40, 1))
    with pytest.raises(Unsupported):
        definition.run({}, [first, end, step])
