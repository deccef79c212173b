"""Shape arithmetic at export: what is known folds, what is partly known still tells shapes."""

from __future__ import annotations

import numpy as np
import onnx
from onnx import TensorProto, helper

from ir_ops.ge import ExportResult, export, run
from ir_ops.ge.convert.fold import fold, nonneg_outputs
from ir_ops.ge.convert.operand import Operand
from ir_ops.ge.infer.call import Known
from ir_ops.ge.model import TensorType
from tests.ir_ops.ge.onnx_models import make_model

INT64, FLOAT = np.dtype(np.int64), np.dtype(np.float32)


def operand(values: object, nonneg: bool = False) -> Operand:
    from ir_ops.dtypes import by_numpy

    array = np.asarray(values)
    kind = by_numpy(INT64 if array.dtype == object else array.dtype)
    return Operand("v", TensorType(kind, array.shape), content=array, nonneg=nonneg)


def partly(*values: int | None) -> Operand:
    return operand(np.array(values, dtype=object))


def known(op: str, *inputs: Operand, **attrs: object) -> list[object] | None:
    (result,) = fold(op, inputs, attrs, 18, 1)
    return None if result is None else list(np.asarray(result, dtype=object).reshape(-1))


def test_shape_of_unknown_dims() -> None:
    x = Operand("x", TensorType(operand([1.0]).dtype, (2, -1, 4)))
    assert known("Shape", x) == [2, None, 4]
    assert known("Shape", x, start=-1) == [4]
    assert known("Size", x) is None


def test_movement_keeps_unknown_elements_in_place() -> None:
    dims = partly(2, None, 4)
    assert known("Gather", dims, operand([2, 1])) == [4, None]
    assert known("Gather", dims, operand(0)) == [2]
    assert known("Concat", dims, operand([7]), axis=0) == [2, None, 4, 7]
    assert known("Slice", dims, operand([1]), operand([3]), operand([0])) == [None, 4]
    assert known("Unsqueeze", operand(3), operand([0])) == [3]
    assert known("Squeeze", operand([3])) == [3]
    assert known("Cast", dims, to=TensorProto.INT32) == [2, None, 4]
    assert known("Cast", dims, to=TensorProto.FLOAT) is None


def test_arithmetic_with_unknown_elements() -> None:
    assert known("Mul", partly(2, None), operand([3, 3])) == [6, None]
    assert known("Div", operand([7, -7]), operand([2, 2])) == [3, -3]
    assert known("Where", operand([True, False]), partly(1, 2), partly(None, 5)) == [1, 5]
    assert known("Range", operand(1), operand(7), operand(2)) == [1, 3, 5]
    assert known("ScatterElements", partly(2, None, 4), operand([1]), operand([9])) == [2, 9, 4]


def test_a_dim_is_never_minus_one() -> None:
    dims = Operand("dims", TensorType(operand([1]).dtype, (2,)), nonneg=True)
    assert known("Equal", dims, operand(np.int64(-1))) == [False, False]
    assert known("Equal", dims, operand([4, 4])) is None


def test_contents_that_do_not_fit_are_left_to_the_conversion() -> None:
    assert known("Reshape", operand([1, 2, 3]), operand([2, 2])) is None
    assert known("Div", operand([1]), operand([0])) is None


def test_which_values_cannot_be_negative() -> None:
    index = Operand("i", TensorType(operand([1]).dtype, (3,)))
    assert nonneg_outputs("Shape", [index], {}, 1) == [True]
    assert nonneg_outputs("TopK", [index, index], {}, 2) == [False, True]
    assert nonneg_outputs("Add", [index, operand([1])], {}, 1) == [False]
    assert nonneg_outputs("Range", [operand(0), index, operand(1)], {}, 1) == [True]
    assert nonneg_outputs("Range", [operand(0), index, operand(-1)], {}, 1) == [False]
    assert nonneg_outputs("Sub", [operand([1]), operand([1])], {}, 1) == [False]


def reshaped(dims: list[int | str]) -> ExportResult:
    """Reshape(x, Concat(Shape(x)[0:1], Shape(x)[1:2], [-1, 2]))."""
    nodes = [
        helper.make_node("Shape", ["x"], ["s0"], start=0, end=1),
        helper.make_node("Shape", ["x"], ["s1"], start=1, end=2),
        helper.make_node("Concat", ["s0", "s1", "tail"], ["target"], axis=0),
        helper.make_node("Reshape", ["x", "target"], ["y"]),
    ]
    tail = onnx.numpy_helper.from_array(np.array([-1, 2], np.int64), "tail")
    info = helper.make_tensor_value_info("x", 1, dims)
    graph = helper.make_graph(nodes, "g", [info], [helper.make_empty_tensor_value_info("y")], [tail])
    return export(make_model(graph))


def test_static_dims_leave_one_reshape_with_a_constant() -> None:
    result = reshaped([3, 5, 8])
    assert dict(result.ops_after) == {"Data": 1, "Const": 1, "Reshape": 1, "NetOutput": 1}
    (node,) = result.model.root.of_type("Reshape")
    assert str(node.outputs[0].type) == "float32[3,5,4,2]"


def test_dynamic_dims_keep_the_arithmetic_and_the_rank() -> None:
    result = reshaped(["n", "m", 8])
    assert result.ops_after["Shape"] == 2
    (node,) = result.model.root.of_type("Reshape")
    assert str(node.outputs[0].type) == "float32[?,?,?,2]"
    x = np.arange(48, dtype=np.float32).reshape(2, 3, 8)
    np.testing.assert_array_equal(run(result.model, {"x": x})["y"], x.reshape(2, 3, 4, 2))


def test_known_values_reach_the_result_type() -> None:
    values: Known = np.array([1, 2], dtype=object)
    assert fold("Identity", [operand(values)], {}, 18, 1)[0] is not None
