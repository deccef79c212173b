"""New nodes: unique names, types, forms that are valid from opset 11 on, nothing where nothing is needed."""

from __future__ import annotations

import numpy as np
import onnx_ir as ir

from fusion.emit import Emitter


def an_input(dtype: ir.DataType = ir.DataType.FLOAT) -> ir.Value:
    return ir.Value(name="x", type=ir.TensorType(dtype), shape=ir.Shape([2, 8]))


def test_names_are_new_and_carry_the_prefix() -> None:
    taken = {"site/kv"}
    emit = Emitter("site", taken)
    assert [emit.name("kv"), emit.name("kv"), emit.name("v")] == ["site/kv_2", "site/kv_3", "site/v"]
    assert "site/kv_3" in taken


def test_a_result_has_the_type_of_the_first_operand_unless_told() -> None:
    emit, x = Emitter("s", set()), an_input(ir.DataType.FLOAT16)
    assert emit.node("Neg", [x], "n").dtype == ir.DataType.FLOAT16
    assert emit.dim(x, 0, "d").dtype == ir.DataType.INT64
    assert emit.cast(x, "float32", "c").dtype == ir.DataType.FLOAT


def test_nothing_is_built_where_nothing_changes() -> None:
    emit, x = Emitter("s", set()), an_input()
    assert emit.cast(x, "float32", "c") is x
    assert emit.pick_columns(x, np.arange(8), 8, "p") is x
    assert emit.concat([x], "j") is x
    assert emit.nodes == [] and emit.constants == []


def test_other_columns_are_gathered() -> None:
    emit, x = Emitter("s", set()), an_input()
    picked = emit.pick_columns(x, np.array([1, 0]), 8, "p")
    node = picked.producer()
    assert node is not None and (node.op_type, node.attributes["axis"].as_int()) == ("Gather", -1)
    assert emit.constants[0].const_value is not None
    assert emit.constants[0].const_value.numpy().tolist() == [1, 0]


def test_a_shape_of_numbers_is_one_constant_and_a_mixed_one_joins_runs() -> None:
    emit, x = Emitter("s", set()), an_input()
    assert emit.shape_vector([2, -1], "a").const_value is not None
    mixed = emit.shape_vector([emit.dim(x, 0, "b"), 1, -1, 4], "m").producer()
    assert mixed is not None and mixed.op_type == "Concat"
    assert [item.name for item in mixed.inputs if item is not None] == ["s/b", "s/m_fixed"]


def test_shapes_and_axes_are_operands() -> None:
    """Attributes for them end at opset 12."""
    emit, x = Emitter("s", set()), an_input()
    emit.reshape(x, [4, 4], "r")
    emit.dim(x, 1, "d")
    assert {node.op_type for node in emit.nodes} == {"Reshape", "Shape", "Gather"}
    assert all(set(node.attributes) <= {"axis"} for node in emit.nodes)
