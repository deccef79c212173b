"""Running bfloat16 models: what the runtime cannot compute is computed in float32 and rounded, node by node."""

from __future__ import annotations

from pathlib import Path

import ml_dtypes
import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

import custom_ort
from custom_ort.bfloat16 import with_rounding
from ir_ops.dtypes import Array
from ir_ops.errors import BadModel
from tests.custom_ort import one_node
from tests.custom_ort.calls import NAME
from tests.custom_ort.test_sessions import decode

HALF = TensorProto.BFLOAT16


def rounded(array: Array) -> Array:
    return array.astype(ml_dtypes.bfloat16).astype(np.float32)


def info(name: str, shape: list[int | str] | None = None, kind: int = HALF) -> onnx.ValueInfoProto:
    return helper.make_tensor_value_info(name, kind, shape)


def model(nodes: list[onnx.NodeProto], inputs: list[onnx.ValueInfoProto], outputs: list[onnx.ValueInfoProto],
          weights: tuple[onnx.TensorProto, ...] = (), **parts: object) -> onnx.ModelProto:  # fmt: skip
    graph = helper.make_graph(nodes, "g", inputs, outputs, weights)
    opsets = [helper.make_opsetid("", 18), helper.make_opsetid("com.microsoft", 1), helper.make_opsetid("local", 1)]
    return helper.make_model(graph, opset_imports=opsets, ir_version=10, **parts)


def chain() -> onnx.ModelProto:
    """y = softmax((x * w + x) @ w'), every step bfloat16."""
    weight = numpy_helper.from_array(np.linspace(-3, 3, 64).astype(ml_dtypes.bfloat16), "w")
    matrix = numpy_helper.from_array(np.linspace(-1, 1, 64 * 8).reshape(64, 8).astype(ml_dtypes.bfloat16), "m")
    nodes = [
        helper.make_node("Mul", ["x", "w"], ["a"]),
        helper.make_node("Add", ["a", "x"], ["b"]),
        helper.make_node("Reshape", ["b", "dims"], ["c"]),
        helper.make_node("MatMul", ["c", "m"], ["d"]),
        helper.make_node("Softmax", ["d"], ["y"]),
    ]
    dims = numpy_helper.from_array(np.array([-1, 64], np.int64), "dims")
    return model(nodes, [info("x", ["N", 1, 64])], [info("y", ["N", 8])], (weight, matrix, dims))


def expected(x: Array) -> Array:
    w, m = rounded(np.linspace(-3, 3, 64)), rounded(np.linspace(-1, 1, 64 * 8)).reshape(64, 8)
    c = rounded(rounded(x.astype(np.float32) * w) + x.astype(np.float32)).reshape(-1, 64)
    d = rounded(c @ m)
    e = np.exp(d - d.max(-1, keepdims=True))
    return rounded(e / e.sum(-1, keepdims=True))


@pytest.fixture
def x() -> Array:
    return np.random.default_rng(5).standard_normal((3, 1, 64)).astype(ml_dtypes.bfloat16)


@pytest.mark.parametrize("mode", ["auto", "round"])
def test_every_nodes_output_is_rounded(mode: str, x: Array) -> None:
    y = custom_ort.run(custom_ort.session(chain(), bf16=mode), {"x": x})["y"]  # type: ignore[arg-type]
    assert y.dtype == ml_dtypes.bfloat16
    # The sum of a product has no fixed order: one unit in the last place of d at most.
    assert np.abs(y.astype(np.float32) - expected(x)).max() <= 2**-7 * expected(x).max()


def test_elementwise_results_are_exact(x: Array) -> None:
    nodes = [
        helper.make_node("Mul", ["x", "x"], ["a"]),
        helper.make_node("Sub", ["a", "x"], ["b"]),
        helper.make_node("Sqrt", ["a"], ["r"]),
        helper.make_node("Div", ["b", "r"], ["y"]),
    ]
    proto = model(nodes, [info("x", [3, 1, 64])], [info("y", [3, 1, 64])])
    wide = x.astype(np.float32)
    a = rounded(wide * wide)
    want = rounded(rounded(a - wide) / rounded(np.sqrt(a)))
    y = custom_ort.run(custom_ort.session(proto), {"x": x})["y"]
    assert np.array_equal(y.astype(np.float32), want)


def test_what_the_runtime_has_is_left_alone() -> None:
    treated, count = with_rounding(chain())
    assert count == 4
    kinds = [node.op_type for node in treated.graph.node if node.op_type != "Cast"]
    assert kinds == ["Mul", "Add", "Reshape", "MatMul", "Softmax"]
    reshape = next(node for node in treated.graph.node if node.op_type == "Reshape")
    assert list(reshape.input) == ["b", "dims"]
    onnx.checker.check_model(treated, full_check=True)
    assert [item.data_type for item in treated.graph.initializer] == [HALF, HALF, TensorProto.INT64]


def test_native_is_refused_with_the_way_out() -> None:
    with pytest.raises(BadModel) as caught:
        custom_ort.session(chain(), bf16="native")
    assert "bf16='round'" in str(caught.value)


def test_other_refusals_stay_as_they_are() -> None:
    proto = model([helper.make_node("NoSuchOperator", ["x"], ["y"], domain="com.microsoft")],
                  [info("x", [2])], [info("y", [2])])  # fmt: skip
    with pytest.raises(BadModel, match="NoSuchOperator"):
        custom_ort.session(proto)


def test_subgraphs_and_local_functions(x: Array) -> None:
    function = helper.make_function(
        "local", "Twice", ["p"], ["q"], [helper.make_node("Add", ["p", "p"], ["q"])], [helper.make_opsetid("", 18)]
    )
    branches = [
        helper.make_graph([helper.make_node(op, ["t", "x"], [name])], name, [], [info(name)])
        for op, name in (("Mul", "then"), ("Sub", "else"))
    ]
    nodes = [
        helper.make_node("Twice", ["x"], ["t"], domain="local"),
        helper.make_node("If", ["c"], ["y"], then_branch=branches[0], else_branch=branches[1]),
    ]
    flag = info("c", [], TensorProto.BOOL)
    session = custom_ort.session(model(nodes, [info("x", [3, 1, 64]), flag], [info("y")], functions=[function]))
    wide = x.astype(np.float32)
    for choice, want in ((True, rounded(rounded(2 * wide) * wide)), (False, rounded(rounded(2 * wide) - wide))):
        y = custom_ort.run(session, {"x": x, "c": np.array(choice)})["y"]
        assert np.array_equal(y.astype(np.float32), want)


def test_contrib_operators(x: Array) -> None:
    """QuickGelu has a float32 kernel only, and no shape inference of onnx's."""
    nodes = [
        helper.make_node("QuickGelu", ["x"], ["a"], domain="com.microsoft", alpha=1.0),
        helper.make_node("Mul", ["a", "x"], ["y"]),
    ]
    y = custom_ort.run(custom_ort.session(model(nodes, [info("x", [3, 1, 64])], [info("y", [3, 1, 64])])), {"x": x})
    wide = x.astype(np.float32)
    want = rounded(rounded(wide / (1 + np.exp(-wide))) * wide)
    assert np.abs(y["y"].astype(np.float32) - want).max() <= 2**-7 * np.abs(want).max()


def test_our_kernels_compute_in_bfloat16_themselves() -> None:
    call = decode()
    proto = one_node.model(NAME, one_node.types_of(call.inputs), call.attrs)
    treated, count = with_rounding(proto)
    assert count == 0
    assert [node.op_type for node in treated.graph.node] == [NAME]


def test_external_weights_are_found_beside_the_file(tmp_path: Path, x: Array) -> None:
    path = tmp_path / "m.onnx"
    onnx.save_model(chain(), path, save_as_external_data=True, location="w.bin", size_threshold=64)
    inside = custom_ort.run(custom_ort.session(chain()), {"x": x})["y"]
    outside = custom_ort.run(custom_ort.session(path), {"x": x})["y"]
    assert np.array_equal(inside.view(np.uint16), outside.view(np.uint16))


def test_new_names_do_not_collide() -> None:
    nodes = [helper.make_node("Mul", ["x", "x"], ["x/float32"]), helper.make_node("Neg", ["x/float32"], ["y"])]
    proto = model(nodes, [info("x", [3])], [info("y", [3])])
    treated, _ = with_rounding(proto)
    onnx.checker.check_model(treated, full_check=True)
    data = np.array([1, 2, -3]).astype(ml_dtypes.bfloat16)
    assert custom_ort.run(custom_ort.session(proto), {"x": data})["y"].astype(np.float32).tolist() == [-1, -4, -9]
