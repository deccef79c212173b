"""Every converted standard operator, by result: the exported graph against ONNX's reference, known and unknown dims."""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np
import pytest

from ir_ops.ge.convert import load_families
from ir_ops.ge.convert.registry import all_converters
from tests.ir_ops.ge.onnx_models import Case, Fixed, assert_same, converted, expected

rng = np.random.default_rng(5)


def f32(*shape: int) -> Any:
    return rng.standard_normal(shape).astype(np.float32)


def f16(*shape: int) -> Any:
    return rng.standard_normal(shape).astype(np.float16)


def i64(*values: int) -> Any:
    return np.array(values, np.int64)


def flags(*shape: int) -> Any:
    return rng.random(shape) > 0.5


A, B, ROW = f32(2, 3, 4), f32(2, 3, 4), f32(4)
INTS = rng.integers(-20, 20, (2, 6))
HALF = 2.0**-9

ELEMENTWISE = [
    *(Case(op, [A, ROW]) for op in ("Add", "Sub", "Mul", "Div")),
    *(
        Case(op, [A])
        for op in ("Neg", "Abs", "Exp", "Tanh", "Sigmoid", "Erf", "Cos", "Sin", "Relu", "Floor", "Ceil", "Sign")
    ),
    *(Case(op, [np.abs(A) + 0.5]) for op in ("Sqrt", "Reciprocal", "Log", "Softplus")),
    Case("Add", [f16(2, 3), f16(3)], rtol=HALF),
    Case("Div", [INTS, np.full((1,), 7)]),
    Case("Div", [INTS, np.full((1,), -7)]),
    Case("Pow", [A, Fixed(np.float32(2.0).reshape(()))]),
    Case("Pow", [np.abs(A), Fixed(np.float32(-0.5).reshape(()))]),
    Case("Pow", [np.abs(A), Fixed(np.array([3], np.int64))]),
    Case("Pow", [np.abs(A), ROW]),
    Case("Pow", [np.abs(ROW), Fixed(np.full((1, 1), 2.0, np.float32))]),
    Case("Round", [np.array([0.5, 1.5, 2.5, -0.5, -1.2], np.float32)]),
    Case("Gelu", [A], opset=20),
    Case("Gelu", [A], {"approximate": "tanh"}, opset=20, rtol=1e-4),
    Case("Swish", [A], {"alpha": 0.7}, opset=24),
    Case("Clip", [A, Fixed(np.float32(-0.5).reshape(())), Fixed(np.float32(0.5).reshape(()))]),
    Case("Clip", [A, None, Fixed(np.float32(0.5).reshape(()))]),
    Case("Clip", [A, Fixed(np.float32(0.1).reshape(()))]),
    Case("Clip", [A]),
    Case("Min", [A, B, ROW]),
    Case("Max", [A]),
    Case("Max", [A, B, ROW]),
    Case("Mod", [INTS, np.array([7])]),
    Case("Mod", [INTS, np.array([-7])]),
    Case("Mod", [A, ROW], {"fmod": 1}),
    Case("Where", [flags(3, 1), A, ROW]),
    Case("Where", [Fixed(np.array(True)), Fixed(i64(3)), Fixed(i64(1, 2, 3))]),
    Case("Where", [Fixed(np.array(False)), Fixed(i64(1, 2, 3)), Fixed(i64(3))]),
    Case("Add", [Fixed(np.array([200, 1], np.uint8)), Fixed(np.array([100], np.uint8))]),
    *(Case(op, [A, B]) for op in ("Less", "LessOrEqual", "Greater", "GreaterOrEqual")),
    Case("Equal", [INTS, INTS[:1]]),
    Case("And", [flags(2, 3), flags(3)]),
    Case("Or", [flags(2, 3), flags(3)]),
    Case("Xor", [flags(2, 3), flags(3)]),
    Case("Not", [flags(4)]),
    Case("IsNaN", [np.array([1, np.nan, np.inf], np.float32)], opset=20),
    Case("IsInf", [np.array([1, np.nan, -np.inf, np.inf], np.float32)], opset=20),
    Case("Identity", [A]),
    Case("CastLike", [A, i64(1)]),
]
CASTS = [
    Case("Cast", [np.array(values, source)], {"to": to})
    for values, source, to in (
        ([1.9, -1.9, 0.0], np.float32, 7), ([1.9, -1.9, 0.0], np.float32, 6), ([0.5, 0.0, -3.0], np.float32, 9),
        ([True, False], np.bool_, 1), ([1, 70000], np.int64, 6), ([1.0, 3.14159], np.float32, 10),
        ([1.0, 3.14159], np.float32, 16), ([1, 2], np.int64, 11), ([100.0, -100.0], np.float32, 3),
        ([0.3, 500.0, -1000.0], np.float32, 17), ([1.0], np.float32, 1),
    )
]  # fmt: skip
REDUCTIONS = [
    *(Case(op, [A, Fixed(i64(-1))]) for op in ("ReduceMean", "ReduceSum", "ReduceMax", "ReduceMin", "ReduceProd")),
    Case("ReduceMean", [A], {"axes": [1, 2], "keepdims": 0}, opset=13),
    Case("ReduceSum", [A], {"keepdims": 0}),
    Case("ReduceSum", [A, Fixed(i64())], {"noop_with_empty_axes": 1}),
    Case("ReduceMax", [f16(3, 5), Fixed(i64(0))]),
    Case("ReduceProd", [Fixed(i64(2, 3)), Fixed(i64())], {"noop_with_empty_axes": 1}),
    Case("Softmax", [A]),
    Case("Softmax", [A], {"axis": 1}),
    Case("LogSoftmax", [A], {"axis": 0}, rtol=1e-4),
    Case("CumSum", [np.array([1, np.inf, 2], np.float32), Fixed(np.array(0))], {"exclusive": 1}),
    Case("CumSum", [A, Fixed(np.array(1))]),
    Case("CumSum", [A, Fixed(np.array(2))], {"exclusive": 1, "reverse": 1}, rtol=1e-4),
    Case("ArgMax", [A], {"axis": -1, "keepdims": 0}),
    Case("ArgMax", [A], {"axis": 1}),
    Case("TopK", [A, Fixed(i64(2))], {"axis": -1}, outputs=2),
    Case("TopK", [A, i64(2)], {"axis": 1, "largest": 0}, outputs=2),
]
SHAPES = [
    Case("Shape", [A]),
    Case("Shape", [A], {"start": 1, "end": -1}),
    Case("Size", [A]),
    Case("Reshape", [A, Fixed(i64(6, -1))]),
    Case("Reshape", [A, Fixed(i64(0, -1))]),
    Case("Reshape", [A, Fixed(i64(0, 0, 2, 2))]),
    Case("Reshape", [A, i64(4, 6)]),
    Case("Flatten", [A], {"axis": 2}),
    Case("Flatten", [A], {"axis": -1}),
    Case("Transpose", [A]),
    Case("Transpose", [f32()]),
    Case("Transpose", [A], {"perm": [1, 0, 2]}),
    Case("Unsqueeze", [A, Fixed(i64(0, -1))]),
    Case("Unsqueeze", [A], {"axes": [1]}, opset=11),
    Case("Squeeze", [f32(1, 3, 1), Fixed(i64(0, -1))]),
    Case("Squeeze", [f32(1, 3, 1)], static=True),
    Case("Concat", [A, B], {"axis": -1}),
    Case("Concat", [flags(2, 3), flags(1, 3)], {"axis": 0}),
    Case("Concat", [A], {"axis": 0}),
    Case("Split", [A, Fixed(i64(1, 3))], {"axis": 2}, outputs=2),
    Case("Split", [A], {"axis": 2, "num_outputs": 2}, outputs=2),
    Case("Split", [f32(2, 7)], {"axis": 1, "num_outputs": 3}, outputs=3),
    Case("Split", [f32(2, 7)], {"axis": -1, "num_outputs": 1}),
    Case("Split", [A], {"axis": 0}, outputs=2, opset=13),
    Case("Slice", [A, Fixed(i64(1)), Fixed(i64(2**63 - 1)), Fixed(i64(2))]),
    Case("Slice", [A, Fixed(i64(0, -2)), Fixed(i64(1, -1)), Fixed(i64(0, 2))]),
    Case("Slice", [A, Fixed(i64(0)), Fixed(i64(2**63 - 1)), Fixed(i64(2)), Fixed(i64(2))]),
    Case("Slice", [A, Fixed(i64(-1)), Fixed(i64(-(2**63))), Fixed(i64(1)), Fixed(i64(-1))]),
    Case("Slice", [A, i64(1), i64(3), Fixed(i64(2))]),
    Case("Expand", [f32(3, 1), Fixed(i64(2, 3, 4))]),
    Case("Expand", [f32(3, 4), Fixed(i64(2, 1, 1))]),
    Case("Expand", [f32(3, 1), i64(3, 4)]),
    Case("Expand", [f32(3, 4), Fixed(i64(3, 4))]),
    Case("Tile", [f32(2, 3), Fixed(i64(2, 1))]),
    Case("ConstantOfShape", [i64(2, 3)]),
    Case("Range", [np.array(2), np.array(9), np.array(3)]),
    Case("Range", [*(np.array(value, np.float32) for value in (0, 1, 0.3))]),
]
INDEXING = [
    Case("Gather", [A, i64(0, -1)], {"axis": 1}),
    Case("Gather", [A, Fixed(i64(0, -1))], {"axis": 2}),
    Case("Gather", [A, Fixed(np.int64(1).reshape(()))], {"axis": 1}),
    Case("GatherElements", [A, rng.integers(-3, 3, (2, 2, 4))], {"axis": 1}),
    Case("GatherND", [A, np.array([[0, 1], [-1, -2]])]),
    Case("GatherND", [flags(2, 3), np.array([[0, 1], [-1, -2]])]),
    Case("Gather", [flags(2, 3), i64(0, -1)], {"axis": 1}),
    Case("ScatterND", [A, np.array([[0, 1], [-1, -3]]), f32(2, 4)], static=True),
    Case("ScatterND", [f32(6), np.array([[1], [2]]), f32(2)], {"reduction": "add"}, static=True),
    Case("ScatterND", [f32(6, 2), Fixed(np.array([[1], [-2]])), f32(2, 2)]),
    Case("ScatterElements", [A, rng.integers(-3, 3, (2, 1, 4)), f32(2, 1, 4)], {"axis": 1}),
    Case("ScatterElements", [f32(5), i64(1, 1, 3), f32(3)], {"reduction": "add"}),
    Case("ScatterElements", [f32(5), i64(1, -1), f32(2)], {"reduction": "mul"}),
    Case("NonZero", [np.array([[1, 0], [1, 1]], np.int64)]),
    Case("OneHot", [i64(0, 2, -1), Fixed(np.array(3)), Fixed(np.array([0.5, 2.0], np.float32))]),
    Case("OneHot", [i64(0, 2, 1), Fixed(np.array(3)), Fixed(i64(0, 1))], {"axis": 0}),
    Case("TensorScatter", [f32(2, 3, 6, 4), f32(2, 3, 2, 4), i64(1, 4)], opset=24, static=True),
    Case("TensorScatter", [f32(2, 6, 4), f32(2, 2, 4)], {"axis": 1}, opset=24, static=True),
    Case("Pad", [f32(2, 3), Fixed(i64(0, 1, 2, 0)), Fixed(np.float32(4.0).reshape(()))]),
    Case("Pad", [f32(2, 3), i64(0, 1, 2, 0)]),
    Case("Pad", [INTS, Fixed(i64(1, 2)), None, Fixed(i64(-1))]),
    Case("Conv", [f32(2, 6, 9), Fixed(f32(6, 1, 4))], {"group": 6, "pads": [3, 3]}),
    Case("Conv", [f32(2, 6, 9), Fixed(f32(6, 1, 3)), Fixed(f32(6))], {"group": 6, "dilations": [2]}),
    Case("Trilu", [f32(3, 4)]),
    Case("Trilu", [f32(3, 4), Fixed(np.int64(-1).reshape(()))], {"upper": 0}),
]
PRODUCTS = [
    Case("MatMul", [f32(3, 4), f32(4, 5)]),
    Case("MatMul", [A, f32(4, 5)]),
    Case("MatMul", [f32(2, 1, 3, 4), f32(5, 4, 2)]),
    Case("MatMul", [ROW, f32(4, 5)]),
    Case("MatMul", [A, ROW]),
    Case("MatMul", [ROW, ROW]),
    Case("Gemm", [f32(3, 4), Fixed(f32(5, 4)), Fixed(f32(5))], {"transB": 1}),
    Case("Gemm", [f32(4, 3), f32(4, 5), f32(3, 1)], {"transA": 1, "alpha": 0.5, "beta": 2.0}),
    Case("Gemm", [f32(3, 4), f32(4, 5)]),
    Case("Einsum", [f32(5, 3, 4), f32(3, 4, 6)], {"equation": "tnd,ndl->tnl"}),
    Case("Einsum", [f32(5, 3, 4), f32(3, 4, 6)], {"equation": "tnl,nld->tnd"}),
    Case("Einsum", [f32(3, 4), f32(4, 5), f32(5, 2)], {"equation": "ij,jk,kl->il"}, rtol=1e-4),
    Case("Einsum", [f32(3, 4)], {"equation": "ij->ji"}),
    Case("MatMulInteger", [rng.integers(0, 255, (3, 4), np.uint8), rng.integers(-128, 127, (4, 5), np.int8)]),
    Case("MatMulInteger", [
        rng.integers(0, 255, (2, 3, 4), np.uint8), Fixed(rng.integers(0, 255, (4, 5), np.uint8)),
        np.array(130, np.uint8), Fixed(np.array([1, 0, 255, 3, 128], np.uint8)),
    ], static=True),
    Case("MatMulInteger", [
        rng.integers(-99, 99, (3, 4), np.int8), rng.integers(-99, 99, (4, 5), np.int8), Fixed(np.array(3, np.int8)),
    ]),
]  # fmt: skip
NORMS = [
    Case("RMSNormalization", [A, Fixed(f32(4))], {"epsilon": 1e-3}, opset=23),
    Case("RMSNormalization", [A, Fixed(f32(3, 4))], {"axis": 1}, opset=23),
    Case("LayerNormalization", [A, Fixed(f32(4)), Fixed(f32(4))], rtol=1e-4),
    Case("LayerNormalization", [A, Fixed(f32(3, 4))], {"axis": 1}, rtol=1e-4),
    Case("LayerNormalization", [A, f32(4)], rtol=1e-4),
]
ROTARY = [
    Case("RotaryEmbedding", [f32(2, 3, 5, 8), f32(2, 5, 4), f32(2, 5, 4)], opset=23, static=True),
    Case("RotaryEmbedding", [f32(2, 3, 5, 8), f32(2, 5, 4), f32(2, 5, 4)], {"interleaved": 1}, opset=23, static=True),
    Case("RotaryEmbedding", [f32(2, 3, 5, 8), f32(9, 4), f32(9, 4), rng.integers(0, 9, (2, 5))], opset=23, static=True),
    Case(
        "RotaryEmbedding",
        [f32(2, 3, 5, 8), f32(2, 5, 2), f32(2, 5, 2)],
        {"rotary_embedding_dim": 4},
        opset=23,
        static=True,
    ),
    Case("RotaryEmbedding", [f32(2, 5, 24), f32(2, 5, 4), f32(2, 5, 4)], {"num_heads": 3}, opset=23, static=True),
]
ATTENTION = [
    Case("Attention", [f32(2, 4, 3, 8), f32(2, 4, 5, 8), f32(2, 4, 5, 6)], opset=23, rtol=1e-4, static=True),
    Case("Attention", [f32(2, 4, 3, 8), f32(2, 2, 5, 8), f32(2, 2, 5, 6), f32(3, 5)], {"scale": 0.3},
         opset=23, rtol=1e-4, static=True),
    Case("Attention", [f32(1, 2, 3, 8), f32(1, 2, 5, 8), f32(1, 2, 5, 8), np.tril(np.ones((3, 5), np.bool_))],
         opset=23, rtol=1e-4, static=True),
    Case("Attention", [f32(1, 2, 3, 8), f32(1, 2, 3, 8), f32(1, 2, 3, 8)], {"is_causal": 1},
         opset=23, rtol=1e-4, static=True),
]  # fmt: skip
QUANT = [
    Case(
        "DequantizeLinear",
        [rng.integers(-99, 99, (3, 4), np.int8), Fixed(f32(4)), Fixed(np.full(4, 3, np.int8))],
        opset=21,
    ),
    Case(
        "DequantizeLinear",
        [rng.integers(0, 99, (3, 4), np.uint8), Fixed(f32(3)), Fixed(np.full(3, 3, np.uint8))],
        {"axis": 0},
        opset=21,
    ),
    Case("DequantizeLinear", [rng.integers(-99, 99, (3, 4), np.int32), Fixed(np.float32(0.25).reshape(()))], opset=21),
    Case(
        "QuantizeLinear", [f32(3, 4) * 100, Fixed(np.float32(0.5).reshape(())), Fixed(np.array(4, np.int8))], opset=21
    ),
    Case(
        "QuantizeLinear",
        [f32(3, 4) * 99, Fixed(np.abs(f32(4)) + 0.5), Fixed(np.array([0, 2, -4, 6], np.int8))],
        opset=21,
    ),
    Case("QuantizeLinear", [f32(3, 4) * 9, np.abs(f32(4)) + 0.5, Fixed(np.array([0, 2, -4, 6], np.int8))], opset=21),
    Case("QuantizeLinear", [f32(3, 4) * 9, Fixed(np.float32(0.5).reshape(()))], {"output_dtype": 3}, opset=21),
    Case(
        "QuantizeLinear", [f32(3, 4) * 99, Fixed(np.float32(0.5).reshape(())), Fixed(np.array(3, np.uint8))], opset=21
    ),
    Case("QuantizeLinear", [f32(3, 4) * 9, Fixed(np.array([0.3], np.float32))], opset=13),
    Case("QuantizeLinear", [f32(2, 3, 4) * 99, np.abs(f32(3)) + 0.5, Fixed(np.array([1, 0, 250], np.uint8))], opset=21),
    Case(
        "QuantizeLinear", [f32(2, 3) * 9, Fixed(np.abs(f32(2)) + 0.5), Fixed(np.array([1, -7], np.int8))], {"axis": 0}
    ),
    Case("DynamicQuantizeLinear", [f32(3, 4)], outputs=3),
]
CASES = ELEMENTWISE + CASTS + REDUCTIONS + SHAPES + INDEXING + PRODUCTS + NORMS + ROTARY + ATTENTION + QUANT


def label(case: Case) -> str:
    return "-".join(
        [
            case.op,
            *(f"{name}={value}" for name, value in case.attrs.items()),
            str(next(i for i, entry in enumerate(CASES) if entry is case)),
        ]
    )


@pytest.mark.parametrize("case", CASES, ids=label)
def test_static_dims(case: Case) -> None:
    model = case.model()
    got, result = converted(model, case.feeds())
    assert_same(got, expected(model, case.feeds()), case.rtol)
    assert {f.severity for f in result.findings if f.rule not in (22, 26)} <= {"note"}


@pytest.mark.parametrize("case", [case for case in CASES if not case.static], ids=label)
def test_unknown_dims(case: Case) -> None:
    model = case.model(dynamic=True)
    got, result = converted(model, case.feeds())
    assert_same(got, expected(model, case.feeds()), case.rtol)
    assert [f for f in result.findings if f.severity == "error"] == []


def test_every_converted_standard_operator_has_a_case() -> None:
    load_families()
    converted_types = {entry.op_type for entry in all_converters() if entry.domain == ""}
    elsewhere = {"Constant", "SimplifiedLayerNormalization"}
    assert converted_types - elsewhere == {case.op for case in CASES}


def test_norms_of_onnx_runtime() -> None:
    x, skip, bias, gamma = f32(2, 3, 8), f32(2, 3, 8), f32(8), f32(8)
    case = Case(
        "SkipSimplifiedLayerNormalization", [x, skip, Fixed(gamma), Fixed(bias)], {"epsilon": 1e-5},
        outputs=4, domain="com.microsoft",
    )  # fmt: skip
    model = case.model()
    del model.graph.output[1:3]
    model.graph.node[0].output[1:3] = ["", ""]
    got, _ = converted(model, case.feeds())
    total = x + skip + bias
    wanted = total / np.sqrt(np.mean(total**2, -1, keepdims=True) + 1e-5) * gamma
    assert_same(got, {"out0": wanted, "out3": total}, 1e-5)


def test_simplified_layer_normalization_is_an_rms_norm() -> None:
    x, gamma = f32(3, 8), f32(8)
    case = Case("SimplifiedLayerNormalization", [x, Fixed(gamma)], {"epsilon": 1e-6, "axis": -1})
    got, result = converted(case.model(), case.feeds())
    assert_same(got, {"out0": x / np.sqrt(np.mean(x**2, -1, keepdims=True) + 1e-6) * gamma}, 1e-5)
    assert result.ops_after["RmsNorm"] == 1


def test_rotary_embedding_of_onnx_runtime() -> None:
    x, cos, sin, positions = f32(1, 5, 16), f32(9, 4), f32(9, 4), rng.integers(0, 9, (1, 5))
    case = Case("RotaryEmbedding", [x, positions, Fixed(cos), Fixed(sin)], domain="com.microsoft")
    got, _ = converted(case.model(), case.feeds())
    c, s = cos[positions][:, :, None, :], sin[positions][:, :, None, :]
    heads = x.reshape(1, 5, 2, 8)
    first, second = heads[..., :4], heads[..., 4:]
    wanted = np.concatenate([first * c - second * s, second * c + first * s], -1).reshape(x.shape)
    assert_same(got, {"out0": wanted}, 1e-5)


def test_bfloat16_passes_through_float32_where_ge_needs_it() -> None:
    x = f32(2, 3).astype(ml_dtypes.bfloat16)
    for op, opset in (("Round", 22), ("IsNaN", 20)):
        case = Case(op, [x], opset=opset)
        got, result = converted(case.model(), case.feeds())
        plain = np.rint(x.astype(np.float32)).astype(x.dtype) if op == "Round" else np.zeros((2, 3), np.bool_)
        assert_same(got, {"out0": plain}, 0)
        assert result.ops_after["Cast"] >= 1
        assert [f for f in result.findings if f.rule == 21] == []


def test_a_constant_scale_of_quantize_linear_is_recorded_for_the_validator() -> None:
    case = Case("QuantizeLinear", [f32(3, 4), Fixed(np.array(0.5, np.float32)), Fixed(np.array(0, np.int8))], opset=21)
    _, result = converted(case.model(), case.feeds())
    (node,) = result.model.root.of_type("AscendQuantV2")
    assert node.value("_onnx_scale") == (0.5,)
    assert [f for f in result.findings if f.rule == 36] == []


def test_an_index_may_be_smaller_than_what_is_gathered() -> None:
    index = np.array([[[1, -1], [0, 2]]])
    case = Case("GatherElements", [A, index], {"axis": -1})
    got, _ = converted(case.model(dynamic=True), case.feeds())
    assert_same(got, {"out0": np.take_along_axis(A[:1, :2], index, -1)}, 0)


def test_the_logarithm_of_a_weight_that_is_0() -> None:
    case = Case("LogSoftmax", [np.array([[0, 300]], np.float32)])
    got, _ = converted(case.model(), case.feeds())
    assert_same(got, {"out0": np.array([[-300, 0]], np.float32)}, 0)


@pytest.mark.parametrize("dynamic", [False, True])
@pytest.mark.parametrize("later", [False, True])
def test_a_slice_backwards_from_in_front_of_the_first(dynamic: bool, later: bool) -> None:
    """The standard clamps the start to the first element; numpy, and the reference with it, takes nothing."""
    start = i64(-9)
    case = Case("Slice", [A, start if later else Fixed(start), *(Fixed(i64(k)) for k in (-(2**63), 1, -1))])
    got, _ = converted(case.model(dynamic), case.feeds())
    assert_same(got, {"out0": A[:, :1]}, 0)
    whole = Case("Slice", [Fixed(i64(5, 6, 7)), Fixed(start), *(Fixed(i64(k)) for k in (-(2**63), 0, -1))])
    assert_same(converted(whole.model(), {})[0], {"out0": i64(5)}, 0)


def test_caches_of_any_batch_begin_at_their_first_row() -> None:
    case = Case("TensorScatter", [f32(3, 6, 4), f32(3, 2, 4)], {"axis": 1}, opset=24)
    got, _ = converted(case.model(dynamic=True), case.feeds())
    assert_same(got, expected(case.model(), case.feeds()), 0)


def test_nothing_but_zeros_is_quantised_by_one() -> None:
    """The standard divides 0 by 0; ONNX Runtime takes 1 for the scale."""
    case = Case("DynamicQuantizeLinear", [np.zeros((2, 3), np.float32)], outputs=3)
    got, _ = converted(case.model(), case.feeds())
    assert_same(got, {"out0": np.zeros((2, 3), np.uint8), "out1": np.float32(1), "out2": np.uint8(0)}, 0)  # type: ignore[dict-item]


def test_an_input_that_can_only_be_empty_may_be_given() -> None:
    case = Case("Concat", [f32(0, 4), f32(2, 4)], {"axis": 0})
    got, result = converted(case.model(), case.feeds())
    assert [node.name for node in result.model.root.of_type("Data")] == ["in1"]
    assert_same(got, expected(case.model(), case.feeds()), 0)


def test_negative_steps_are_said_to_be_slow() -> None:
    case = Case("Slice", [A, Fixed(i64(-1)), Fixed(i64(-(2**63))), Fixed(i64(1)), Fixed(i64(-1))])
    _, result = converted(case.model(), case.feeds())
    assert result.notes == ["the/Slice: a negative step runs on the aicpu path of StridedSliceV2 only"]
