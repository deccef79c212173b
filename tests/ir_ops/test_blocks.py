"""The declarations of the building blocks: reference and function body against published vectors and each other."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import onnx
import pytest
from onnx.reference import ReferenceEvaluator

from ir_ops.declaration import PRODUCTS, TensorSpec
from ir_ops.dtypes import Array, by_name, by_numpy
from ir_ops.onnx_function import OPSETS, no_body_reason
from ir_ops.onnx_reference import reference_ops
from ir_ops.onnx_schema import register_onnx_schemas
from ir_ops.ops import OPS
from tests.custom_ort import one_node
from tests.custom_ort.block_breaches import legal
from tests.custom_ort.block_calls import CALLS
from tests.custom_ort.calls import Call
from tests.golden import BLOCKS, GoldenCase, cases
from tests.ir_ops import standard

GOLDEN = [case for name in CALLS for case in cases(name, base=BLOCKS)]
BODIES = 60
"""Random calls of an operator whose function body is run."""
golden = pytest.mark.parametrize("case", GOLDEN, ids=lambda case: f"{case.operator}-{case}")
every_block = pytest.mark.parametrize("name", CALLS)


def no_body(name: str, inputs: Mapping[str, Array], attrs: Mapping[str, Any], opset: int = 18) -> str:
    return no_body_reason(OPS[name], standard.specs_of(inputs), attrs, opset)


@golden
def test_reference_within_tolerance(case: GoldenCase) -> None:
    case.check(OPS[case.operator].reference(case.inputs, case.attrs))


@golden
def test_function_body_within_tolerance(case: GoldenCase) -> None:
    reason = no_body(case.operator, case.inputs, case.attrs)
    if reason:
        assert case.attrs["dst_type"] == 29, reason
        assert reason == "ONNX has no arithmetic on y int4"
    else:
        case.check(standard.Sessions().run(case.operator, case.inputs, case.attrs))


@every_block
def test_function_bodies_of_random_calls(name: str) -> None:
    """What ONNX Runtime computes without our library is what the reference says."""
    rng = np.random.default_rng(61)
    sessions = standard.Sessions()
    different, elements, run = 0, 0, 0
    while run < BODIES:
        call = CALLS[name](rng)
        reason = no_body(name, call.inputs, call.attrs)
        if reason:
            assert reason.startswith("ONNX has no arithmetic on")
            continue
        expected = {key: array for key, array in OPS[name].reference(call.inputs, call.attrs).items() if array.size}
        found = sessions.run(name, call.inputs, call.attrs)
        different += standard.assert_equal(found, expected, f"call {run} {call.attrs}")
        elements += sum(array.size for array in expected.values())
        run += 1
    assert different <= 1e-3 * elements


@pytest.mark.parametrize("opset", OPSETS)
@every_block
def test_every_opset(name: str, opset: int) -> None:
    """The body passes the full check in every opset and computes the same."""
    register_onnx_schemas()
    rng = np.random.default_rng(67)
    sessions = standard.Sessions()
    run = 0
    while run < 2:
        call = CALLS[name](rng)
        if no_body(name, call.inputs, call.attrs, opset) or any(array.size == 0 for array in call.inputs.values()):
            continue
        model = standard.carrying(name, call.inputs, call.attrs, opset)
        standard.declare_shapes(model, name, call.inputs, call.attrs)
        onnx.checker.check_model(model, full_check=True)
        found = sessions.run(name, call.inputs, call.attrs, opset)
        standard.assert_equal(found, OPS[name].reference(call.inputs, call.attrs), f"opset {opset} {call.attrs}")
        run += 1


@every_block
def test_shapes_are_those_of_the_results(name: str) -> None:
    """The shape rule, onnx's shape inference through the schema, and the reference agree; inputs are never written."""
    register_onnx_schemas()
    rng = np.random.default_rng(71)
    for _ in range(40):
        call = CALLS[name](rng)
        before = {key: array.copy() for key, array in call.inputs.items()}
        specs = OPS[name].infer(standard.specs_of(call.inputs), call.attrs)
        results = OPS[name].reference(call.inputs, call.attrs)
        for key, array in before.items():
            assert np.array_equal(one_node.bits(array), one_node.bits(call.inputs[key]))
        assert {key: TensorSpec(by_numpy(array.dtype).name, array.shape) for key, array in results.items()} == specs
        assert inferred(name, call) == {
            OPS[name].outputs[place].onnx_name: (by_name(specs[entry.name].dtype).onnx, specs[entry.name].shape)
            for place, entry in enumerate(OPS[name].outputs)
        }


def inferred(name: str, call: Call) -> dict[str, tuple[int, tuple[int, ...]]]:
    """Element type and dims of each output of a one-node model, from onnx's shape inference."""
    operator = OPS[name]
    given = [entry.name if entry.name in call.inputs else "" for entry in operator.inputs]
    outputs = [entry.onnx_name for entry in operator.outputs]
    attrs = {key: int(value) if isinstance(value, bool) else value for key, value in call.attrs.items()}
    node = onnx.helper.make_node(name, given, outputs, domain="ai.ascend", **attrs)
    inputs = [
        onnx.helper.make_tensor_value_info(key, by_numpy(array.dtype).onnx, array.shape)
        for key, array in call.inputs.items()
    ]
    empty = [onnx.helper.make_empty_tensor_value_info(output) for output in outputs]
    imports = [onnx.helper.make_opsetid("", 20), onnx.helper.make_opsetid("ai.ascend", 1)]
    model = onnx.helper.make_model(onnx.helper.make_graph([node], "g", inputs, empty), opset_imports=imports)
    result = onnx.shape_inference.infer_shapes(model, check_type=True, strict_mode=True)
    tensors = {output.name: output.type.tensor_type for output in result.graph.output}
    return {
        key: (tensor.elem_type, tuple(dim.dim_value for dim in tensor.shape.dim)) for key, tensor in tensors.items()
    }


@every_block
def test_what_is_not_known_stays_unknown(name: str) -> None:
    """Unknown ranks and dims break no rule and give no shape."""
    call = legal(name)
    assert not OPS[name].check(call.inputs, call.attrs)
    kinds = one_node.types_of(call.inputs)
    for rank in (True, False):
        specs = {
            key: TensorSpec(kinds[key], (None,) * array.ndim if rank else None) for key, array in call.inputs.items()
        }
        for product in PRODUCTS:
            known = {found.id for found in OPS[name].check(call.inputs, call.attrs, product)}
            assert {found.id for found in OPS[name].check(specs, call.attrs, product)} <= known
        for key, spec in OPS[name].infer(specs, call.attrs).items():
            if any(entry.ref for entry in OPS[name].outputs if entry.name == key):
                continue
            assert spec.dtype == by_numpy(OPS[name].reference(call.inputs, call.attrs)[key].dtype).name
            assert spec.shape is None or set(spec.shape) <= {None, 1}


@every_block
def test_operators_of_onnx_reference(name: str) -> None:
    rng = np.random.default_rng(73)
    for _ in range(10):
        call = CALLS[name](rng)
        if call.attrs.get("dst_type", 2) == 29:
            continue
        attrs = {
            key: float(np.float32(value)) if isinstance(value, float) else value for key, value in call.attrs.items()
        }
        model = one_node.model(name, one_node.types_of(call.inputs), attrs)
        results = ReferenceEvaluator(model, new_ops=reference_ops()).run(None, call.inputs)
        expected = OPS[name].reference(call.inputs, attrs)
        for entry, array in zip(OPS[name].outputs, results, strict=True):
            assert np.array_equal(one_node.bits(array), one_node.bits(expected[entry.name]))


def product_rules(operator: str, product: str, inputs: Mapping[str, TensorSpec], **attrs: Any) -> set[str]:
    """Ids of the rules that a product adds to ``generic``."""
    general = [found for found in OPS[operator].check(inputs, attrs) if found.severity == "error"]
    assert not general, general[0]
    return {found.id for found in OPS[operator].check(inputs, attrs, product) if found.severity == "error"}


H = "float16"


def rope(x: tuple[int, ...], cos: tuple[int, ...], dtype: str = "float16") -> dict[str, TensorSpec]:
    return {"x": TensorSpec(dtype, x), "cos": TensorSpec(dtype, cos), "sin": TensorSpec(dtype, cos)}


def apply(x: tuple[int, ...], cos: tuple[int, ...]) -> dict[str, TensorSpec]:
    return {name: TensorSpec(H, x if name in ("query", "key") else cos) for name in ("query", "key", "cos", "sin")}


def scatter(dtype: str = "float16", tokens: int = 2, order: tuple[int, ...] = (2, 4, 1)) -> dict[str, TensorSpec]:
    rows, cache = TensorSpec(dtype, (tokens, 1, 32)), TensorSpec(dtype, (*order, 32))
    given = {"key": rows, "key_cache": cache, "value": rows, "value_cache": cache}
    return given | {"slot_mapping": TensorSpec("int64", (tokens,))}


def looked_up(dtype: str, size: int, width: int, *, rows: tuple[int, ...] = ()) -> dict[str, TensorSpec]:
    made = {"queryIn": (4, 2 * size), "keyIn": (4, size), "cosSinCache": (40, width)}
    specs = {name: TensorSpec(dtype, shape) for name, shape in made.items()}
    return specs | {"positions": TensorSpec("int64", (*rows, 4))}


def lookup(size: int, **attrs: Any) -> dict[str, Any]:
    return {"numQHeads": 2, "numKHeads": 1, "headSize": size, **attrs}


def gated(dtype: str, shape: tuple[int, ...]) -> dict[str, TensorSpec]:
    return {"x": TensorSpec(dtype, shape)}


def everywhere(*rules: str, **more: str) -> dict[str, set[str]]:
    """The rules of all products, and one more of some."""
    return {product: {*rules, *more.get(f"p{product}", "").split()} for product in PRODUCTS[1:]}


LIMITS: list[tuple[str, dict[str, TensorSpec], dict[str, Any], dict[str, set[str]]]] = [
    ("RmsNorm", {"x": TensorSpec(H, (4, 8)), "gamma": TensorSpec("float32", (8,))}, {}, {"kirin": {"RN-2"}}),
    ("RotaryPositionEmbedding", rope((2, 4, 3, 128), (2, 1, 3, 128)), {}, {}),
    ("RotaryPositionEmbedding", rope((2, 3, 4, 128), (1, 3, 1, 128)), {"mode": 1}, {}),
    ("RotaryPositionEmbedding", rope((2, 4, 3, 896), (2, 1, 3, 896)), {}, {"A2": {"RP-3"}, "A3": {"RP-3"}}),
    ("RotaryPositionEmbedding", rope((2, 4, 3, 1026), (2, 1, 3, 1026)), {},
     {"950": {"RP-3"}, "A2": {"RP-3"}, "A3": {"RP-3"}}),
    ("RotaryPositionEmbedding", rope((2, 4, 3, 64), (2, 1, 3, 64)), {"mode": 2},
     {"A2": {"RP-4", "RP-5"}, "A3": {"RP-4", "RP-5"}}),
    ("RotaryPositionEmbedding", rope((2, 4, 3, 64), (1, 1, 3, 64)), {"mode": 3}, {"A2": {"RP-4"}, "A3": {"RP-4"}}),
    ("RotaryPositionEmbedding", rope((2, 4, 3, 64), (1, 1, 1, 64)), {}, {"A2": {"RP-5"}, "A3": {"RP-5"}}),
    ("RotaryPositionEmbedding", rope((2, 4, 3, 64), (1, 4, 3, 64)), {}, {"A2": {"RP-5"}, "A3": {"RP-5"}}),
    ("RotaryPositionEmbedding", rope((1000, 1000, 3, 64), (1, 1, 3, 64)), {}, {"A2": {"RP-5"}, "A3": {"RP-5"}}),
    ("RotaryPositionEmbedding", rope((40, 40, 40, 64), (1, 1, 40, 64)), {"mode": 1},
     {"A2": {"RP-5"}, "A3": {"RP-5"}}),
    ("RotaryPositionEmbedding", {**rope((2, 4, 3, 64), (2, 1, 3, 64)), "rotate": TensorSpec(H, (64, 64))}, {},
     {"950": {"RP-6"}, "kirin": {"RP-6"}}),
    ("InterleaveRope", rope((2, 4, 3, 64), (2, 1, 3, 64)), {}, {}),
    ("InterleaveRope", rope((2, 4, 3, 32), (2, 1, 3, 32)), {},
     {product: {"IR-1"} for product in ("950", "A3", "A2", "kirin")}),
    ("InterleaveRope", rope((2, 4, 3, 64), (2, 1, 3, 64), "float32"), {},
     {product: {"IR-3"} for product in ("950", "A3", "A2", "kirin")}),
    ("AscendQuantV2", {"x": TensorSpec(H, (4, 2, 8)), "scale": TensorSpec(H, (4,))}, {"axis": 0},
     {product: {"AQ-3"} for product in ("950", "A3", "A2", "kirin")}),
    ("AscendQuantV2", {"x": TensorSpec(H, (4, 8)), "scale": TensorSpec(H, (1,))}, {"dst_type": 36},
     {product: {"AQ-4"} for product in ("A3", "A2", "kirin")}),
    ("AscendQuantV2", {"x": TensorSpec(H, (4, 8)), "scale": TensorSpec(H, (1,))},
     {"dst_type": 34, "round_mode": "hybrid"}, {product: {"AQ-4"} for product in ("A3", "A2", "kirin")}),
    ("DynamicQuant", {"x": TensorSpec("float32", (4, 8))}, {},
     {product: {"DQ-1"} for product in ("950", "A3", "A2", "kirin")}),
    ("ApplyRotaryPosEmb", apply((2, 3, 4, 64), (2, 3, 1, 64)), {}, {}),
    ("ApplyRotaryPosEmb", apply((5, 4, 64), (5, 1, 64)), {"layout": 4}, {"kirin": {"AR-5"}}),
    ("ApplyRotaryPosEmb", apply((2, 4, 3, 64), (2, 1, 3, 64)), {"layout": 3},
     {"A2": {"AR-5"}, "A3": {"AR-5"}, "kirin": {"AR-5"}}),
    ("ApplyRotaryPosEmb", apply((2, 3, 4, 64), (2, 3, 1, 64)), {"rotary_mode": "quarter"},
     {"A2": {"AR-6"}, "A3": {"AR-6"}}),
    ("ApplyRotaryPosEmb", apply((2, 3, 4, 64), (1, 3, 1, 64)), {}, {"A2": {"AR-3"}, "A3": {"AR-3"}}),
    ("ApplyRotaryPosEmb", apply((2, 3, 4, 1026), (2, 3, 1, 64)), {},
     {product: {"AR-2"} for product in ("950", "A3", "A2", "kirin")}),
    ("ScatterPaKvCache", scatter(), {}, {}),
    ("ScatterPaKvCache", scatter("float32"), {}, {"A2": {"SP-2"}, "A3": {"SP-2"}}),
    ("ScatterPaKvCache", scatter(tokens=9), {}, {product: {"SP-5"} for product in ("950", "A3", "A2", "kirin")}),
    ("ScatterPaKvCache", scatter(order=(2, 1, 4)), {"scatter_mode": "NHSD"}, {"950": {"SP-6"}, "kirin": {"SP-6"}}),
    ("ScatterPaKvCache", scatter() | {name: TensorSpec(H, (0,)) for name in ("value", "value_cache")}, {},
     {"950": {"SP-7"}, "kirin": {"SP-7"}}),
    ("ScatterPaKvCache", scatter() | {"slot_mapping": np.array([0, -1])}, {},  # type: ignore[dict-item]
     {product: {"SP-3"} for product in ("950", "A3", "A2", "kirin")}),
    ("DequantSwigluQuant", gated("bfloat16", (4, 8)), {"quant_mode": "dynamic"}, {}),
    ("DequantSwigluQuant", gated(H, (4, 8)), {"quant_mode": "dynamic"}, {"A2": {"DS-3"}, "A3": {"DS-3"}}),
    ("DequantSwigluQuant", gated("float32", (4, 8)), {"quant_mode": "dynamic"}, everywhere("DS-3")),
    ("DequantSwigluQuant", gated("bfloat16", (4, 2, 8)), {"quant_mode": "dynamic"},
     {"A2": {"DS-3"}, "A3": {"DS-3"}}),
    ("AscendDequant", {"x": TensorSpec("int32", (4, 8)), "deq_scale": TensorSpec("uint64", (1,))}, {"dtype": 1},
     {product: {"AD-3"} for product in ("A3", "A2", "kirin")}),
    ("RopeWithSinCosCache", looked_up(H, 64, 32), lookup(64), {"950": {"RC-6"}}),
    ("RopeWithSinCosCache", looked_up("float32", 48, 16), lookup(48), {"950": {"RC-6"}}),
    ("RopeWithSinCosCache", looked_up(H, 64, 48), lookup(64), everywhere("RC-2", p950="RC-6")),
    ("RopeWithSinCosCache", looked_up(H, 64, 64, rows=(3,)), lookup(64, mropeSection=[16, 8, 8]),
     everywhere("RC-4", p950="RC-6")),
    ("RopeWithSinCosCache", looked_up(H, 64, 64, rows=(3,)), lookup(64, mropeSection=[11, 11, 10]),
     {"950": {"RC-6"}}),
    ("DynamicQuant", {"x": TensorSpec(H, (4, 8))}, {"dst_type": 35},
     {product: {"DQ-4"} for product in ("A3", "A2", "kirin")}),
]  # fmt: skip


@pytest.mark.parametrize("number", range(len(LIMITS)), ids=lambda number: f"{LIMITS[number][0]}-{number}")
def test_limits_of_products(number: int) -> None:
    operator, inputs, attrs, expected = LIMITS[number]
    for product in ("950", "A3", "A2", "kirin"):
        assert product_rules(operator, product, inputs, **attrs) == expected.get(product, set()), product


@every_block
def test_every_limit_of_a_product_is_broken_once(name: str) -> None:
    rules = {
        (rule.id, product)
        for rule in OPS[name].constraints
        for product in rule.products
        if rule.severity == "error" and "generic" not in rule.products
    }
    broken = {
        (rule, product) for op, _, _, found in LIMITS if op == name for product in found for rule in found[product]
    }
    assert broken == rules


def test_zero_epsilon_warns() -> None:
    inputs = {"x": TensorSpec(H, (4, 8)), "gamma": TensorSpec(H, (8,))}
    assert [(found.id, found.severity) for found in OPS["RmsNorm"].check(inputs, {"epsilon": 0.0})] == [
        ("RN-5", "warning")
    ]


def test_a_row_of_zeros_has_scale_zero() -> None:
    found = OPS["DynamicQuant"].reference({"x": np.array([[0, 0], [1, -3]], np.float16)}, {})
    assert found["scale"].tolist() == [0.0, np.float32(3) / np.float32(127)]
    assert found["y"].tolist() == [[0, 0], [42, -127]]


def test_rotations_of_one_row() -> None:
    """What each mode does to the columns 1..8, with cos 0 and sin 1."""
    x = np.arange(1, 9, dtype=np.float32).reshape(1, 1, 8)
    inputs = {"x": x, "cos": np.zeros_like(x), "sin": np.ones_like(x)}
    turned = [
        OPS["RotaryPositionEmbedding"].reference(inputs, {"mode": mode})["y"].ravel().tolist() for mode in range(4)
    ]
    assert turned == [
        [-5, -6, -7, -8, 1, 2, 3, 4],
        [-2, 1, -4, 3, -6, 5, -8, 7],
        [-3, -4, 1, 2, -7, -8, 5, 6],
        [-2, -4, -6, -8, 1, 3, 5, 7],
    ]
