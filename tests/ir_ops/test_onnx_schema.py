"""onnx.checker and strict shape inference know the operators."""

from __future__ import annotations

import subprocess
import sys
from typing import Any

import numpy as np
import onnx
import onnx.shape_inference
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from onnx import helper
from onnx.shape_inference import InferenceError

import ir_ops
from ir_ops.declaration import Operator
from ir_ops.dtypes import by_name
from ir_ops.onnx_schema import onnx_type_text, schema
from ir_ops.ops import DOMAIN, DOMAIN_VERSION, OPS
from tests.custom_ort import one_node
from tests.custom_ort.calls import random_call
from tests.ir_ops import standard

OP = OPS["KvRmsNormRopeCache"]
OPTION = onnx.defs.OpSchema.FormalParameterOption

every_operator = pytest.mark.parametrize("op", OPS.values(), ids=lambda op: op.name)


@pytest.fixture(autouse=True, scope="module")
def registered() -> None:
    ir_ops.register_onnx_schemas()
    ir_ops.register_onnx_schemas()


def kv_model(types: dict[str, str] | None = None, **shapes: Any) -> onnx.ModelProto:
    """A paged V1 node with symbolic dims, int8 k_cache; shapes and types can be replaced, None is an unknown rank."""
    dims: dict[str, Any] = {
        "kv": ["batch", 1, "seq", 96], "gamma": [64], "cos": ["batch", 1, "seq", 32], "sin": ["batch", 1, "seq", 32],
        "index": ["tokens"], "k_cache": ["blocks", "block", 1, 32], "ckv_cache": ["blocks", "block", 1, 64],
        "k_rope_scale": [32],
    }  # fmt: skip
    kinds = dict.fromkeys(dims, "float16") | {"index": "int64", "k_cache": "int8", "k_rope_scale": "float32"}
    kinds |= types or {}
    dims |= {name: shape for name, shape in shapes.items() if name in dims}
    attrs = {name: value for name, value in shapes.items() if name not in dims}
    results = [entry.onnx_name for entry in OP.outputs]
    node = helper.make_node(
        OP.name, list(dims), results, name="site", domain=DOMAIN, **{"cache_mode": "PA_NZ", **attrs}
    )
    graph = helper.make_graph(
        [node],
        "g",
        [helper.make_tensor_value_info(name, by_name(kinds[name]).onnx, shape) for name, shape in dims.items()],
        [helper.make_empty_tensor_value_info(name) for name in results],
    )
    imports = [helper.make_opsetid("", 18), helper.make_opsetid(DOMAIN, DOMAIN_VERSION)]
    return helper.make_model(graph, opset_imports=imports, ir_version=9)


def inferred(model: onnx.ModelProto) -> dict[str, tuple[int, list[str | int] | None]]:
    """Output -> element type and dims (a name, a size, or "" for unknown; None for an unknown rank)."""
    result = onnx.shape_inference.infer_shapes(model, check_type=True, strict_mode=True, data_prop=True)
    found: dict[str, tuple[int, list[str | int] | None]] = {}
    for output in result.graph.output:
        tensor = output.type.tensor_type
        # onnx names what nobody named unk__0, unk__1, ...
        names = ["" if dim.dim_param.startswith("unk__") else dim.dim_param for dim in tensor.shape.dim]
        pairs = zip(tensor.shape.dim, names, strict=True)
        dims = [dim.dim_value if dim.HasField("dim_value") else name for dim, name in pairs]
        found[output.name] = (tensor.elem_type, dims if tensor.HasField("shape") else None)
    return found


def test_symbolic_dims_survive() -> None:
    assert inferred(kv_model()) == {
        "k_cache_out": (3, ["blocks", "block", 1, 32]),
        "ckv_cache_out": (10, ["blocks", "block", 1, 64]),
        "k_rope": (10, ["batch", 1, "seq", 32]),
        "c_kv": (10, ["batch", 1, "seq", 64]),
    }


def test_sizes_unknown_without_a_name_stay_unknown() -> None:
    found = inferred(kv_model(kv=[None, 1, "seq", None], k_cache=[None, None, 1, 32]))
    assert found["k_cache_out"] == (3, ["", "", 1, 32])
    assert found["k_rope"] == (10, ["", 1, "seq", 32])


def test_unknown_ranks() -> None:
    """The types follow, and of the shapes what other inputs tell."""
    found = inferred(kv_model(kv=None, k_cache=None, cos=None))
    assert found["k_cache_out"] == (3, None)
    assert found["k_rope"] == (10, ["", "", "", ""])
    assert found["c_kv"] == (10, ["", "", "", 64])


@settings(max_examples=60)
@given(st.integers(0, 2**32 - 1))
def test_inferred_shapes_are_those_of_the_results(seed: int) -> None:
    """Random calls of all types and modes, optional inputs absent in the middle of the call; the full check passes."""
    call = random_call(np.random.default_rng(seed))
    shapes = {name: array.shape for name, array in call.inputs.items()}
    model = one_node.model(OP.name, one_node.types_of(call.inputs), call.attrs, shapes=shapes)
    expected = standard.inferred(OP.name, call.inputs, call.attrs)
    for name, (number, dims) in inferred(model).items():
        spec = expected[name.removesuffix("_out")]
        assert (number, dims) == (by_name(spec.dtype).onnx, list(spec.shape or ()))
    model = one_node.model(OP.name, one_node.types_of(call.inputs), call.attrs)
    standard.declare_shapes(model, OP.name, call.inputs, call.attrs)
    onnx.checker.check_model(model, full_check=True)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"kv": ["batch", 1, "seq", 95]}, "KV-07: the last dim of kv must be .*; found D = 95, wanted .* = 64 \\+ 32"),
        ({"kv": ["batch", 2, "seq", 96]}, "KV-06: a joined kv"),
        ({"cache_mode": "PA_XY"}, "KV-12: unknown cache_mode; found cache_mode 'PA_XY'"),
        ({"k_cache": ["blocks", "block", 1, 64]}, "KV-13: a cache has another shape"),
        ({"epsilon": float("nan")}, "KV-29: epsilon must be finite"),
        ({"types": {"k_cache": "float16"}}, "KV-21: a scale goes with an 8-bit cache"),
        ({"types": {"ckv_cache": "int8"}}, "KV-21: a scale goes with an 8-bit cache"),
        ({"types": {"gamma": "float32"}}, "KV-03: gamma, cos, sin and v must have the element type of kv"),
        ({"float8_cast": "truncate"}, "AT-04: an attribute has an unknown value"),
    ],
)
def test_breaches_are_inference_errors(change: dict[str, Any], message: str) -> None:
    """The violation's text, with the node's place; also by the checker and without strict mode."""
    for check in (
        inferred,
        onnx.shape_inference.infer_shapes,
        lambda model: onnx.checker.check_model(declared(model), full_check=True),
    ):
        with pytest.raises(InferenceError, match=f"KvRmsNormRopeCache.*: {message}") as caught:
            check(kv_model(**change))
        assert "\n" not in str(caught.value)


def declared(model: onnx.ModelProto) -> onnx.ModelProto:
    for output in model.graph.output:
        output.type.tensor_type.elem_type = 10
        output.type.tensor_type.shape.SetInParent()
    return model


def test_types_outside_the_constraints_are_refused() -> None:
    with pytest.raises(InferenceError, match="k_cache uint8|k_cache.*uint8"):
        inferred(kv_model({"k_cache": "uint8"}))
    model = kv_model()
    model.graph.input[0].type.tensor_type.elem_type = onnx.TensorProto.STRING
    with pytest.raises(InferenceError, match="the element type of kv is none the operator takes"):
        inferred(model)


def test_warnings_are_no_errors() -> None:
    assert inferred(kv_model(epsilon=0.0))["k_rope"] == (10, ["batch", 1, "seq", 32])


@every_operator
def test_schema_says_what_the_declaration_says(op: Operator) -> None:
    made = onnx.defs.get_schema(op.name, domain=DOMAIN)
    assert (made.domain, made.since_version, made.doc) == (DOMAIN, 1, op.doc)
    assert made.has_type_and_shape_inference_function
    for formal, entry in zip(made.inputs, op.inputs, strict=True):
        assert (formal.name, formal.type_str) == (entry.name, entry.type)
        assert formal.option == (OPTION.Optional if entry.optional else OPTION.Single)
        assert entry.shape in formal.description
    for formal, output in zip(made.outputs, op.outputs, strict=True):
        assert (formal.name, formal.type_str) == (output.onnx_name, output.type)
    allowed = {item.type_param_str: set(item.allowed_type_strs) for item in made.type_constraints}
    assert allowed == {name: {onnx_type_text(kind) for kind in op.onnx_types(name)} for name in op.types}
    assert set(made.attributes) == {attr.name for attr in op.attrs}
    for attr in op.attrs:
        assert made.attributes[attr.name].required == (attr.default is None)
        assert attr.doc in made.attributes[attr.name].description
        if attr.default is not None:
            value = helper.get_attribute_value(made.attributes[attr.name].default_value)
            value = value.decode() if isinstance(value, bytes) else value
            assert value == (np.float32(attr.default) if attr.type == "Float" else attr.default)


@pytest.mark.parametrize(
    ("name", "text"),
    [("float32", "tensor(float)"), ("float16", "tensor(float16)"), ("float8_e4m3fn", "tensor(float8e4m3fn)"),
     ("float8_e5m2", "tensor(float8e5m2)"), ("int8", "tensor(int8)"), ("float64", "tensor(double)")],
)  # fmt: skip
def test_onnx_type_texts(name: str, text: str) -> None:
    assert onnx_type_text(name) == text


def test_types_that_onnx_lacks_have_no_text() -> None:
    with pytest.raises(ValueError, match="ONNX has no element type hifloat8"):
        onnx_type_text("hifloat8")
    assert "tensor(hifloat8)" not in {text for item in schema(OP).type_constraints for text in item.allowed_type_strs}


def test_interpreter_ends_well_after_registering() -> None:
    """onnx frees its schemas after Python has gone; the inference functions must be out by then."""
    code = "import ir_ops; ir_ops.register_onnx_schemas(); print('done')"
    ran = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=False)
    assert (ran.returncode, ran.stdout) == (0, "done\n")
