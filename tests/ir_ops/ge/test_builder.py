"""Building graphs by hand: what is checked, what is filled in, what comes out."""

from __future__ import annotations

import inspect
import re
from typing import Any

import ml_dtypes
import numpy as np
import pytest

from ir_ops.errors import BadInput, BadUsage
from ir_ops.ge import GraphBuilder, Model
from ir_ops.ge.model import OUTPUT_NAME_ATTR, PLACEHOLDER, Node, TensorType, inputs_of, outputs_of


def build(b: GraphBuilder, *tensors: Any) -> Model:
    for i, tensor in enumerate(tensors):
        b.output(tensor, f"y{i}")
    return b.build()


def only(model: Model, op_type: str) -> Node:
    (node,) = model.root.of_type(op_type)
    return node


class TestOperatorMethods:
    def test_every_public_operator_is_a_method(self) -> None:
        assert {"KvRmsNormRopeCache", "MlaPrologV3", "SelectV2", "ReduceMean"} <= set(dir(GraphBuilder()))

    def test_signature_and_help_come_from_the_prototype(self) -> None:
        method = GraphBuilder().RmsNorm
        assert list(inspect.signature(method).parameters) == ["x", "gamma", "epsilon", "name", "types"]
        assert method.__doc__ == "RmsNorm(x, gamma) -> y, rstd {epsilon: Float = 1e-06}"

    def test_one_output_is_a_tensor(self) -> None:
        b = GraphBuilder()
        y = b.Sqrt(b.data("x", "float32", (2, -1)))
        assert str(y.type) == "float32[2,?]"

    def test_several_outputs_go_by_name_position_and_order(self) -> None:
        b = GraphBuilder()
        out = b.RmsNorm(b.data("x", "bfloat16", (2, 8)), np.ones(8, ml_dtypes.bfloat16))
        y, rstd = out
        assert out.names() == ("y", "rstd")
        assert out.y is y
        assert out["rstd"] is rstd
        assert (y.dtype.name, rstd.dtype.name, rstd.shape) == ("bfloat16", "float32", (2, 1))
        with pytest.raises(AttributeError, match="no output 'z'; there are y, rstd"):
            _ = out.z

    def test_dynamic_inputs_and_outputs_are_lists(self) -> None:
        b = GraphBuilder()
        x = b.data("x", "float32", (2, 6))
        parts = b.SplitV(x, np.array([2, 4]), np.int32(1), num_split=2)
        joined = b.ConcatD([parts[1], parts[0]], concat_dim=1)
        node = only(build(b, joined), "ConcatD")
        assert [slot.name for slot in node.inputs] == ["x0", "x1"]
        assert node.value("N") == 2
        assert [part.shape for part in parts] == [(2, 2), (2, 4)]

    def test_inputs_named_like_python_keywords(self) -> None:
        b = GraphBuilder()
        x = b.data("x", "float32", (2,))
        y = b.SelectV2(condition=np.array([True, False]), then=x, **{"else": np.zeros(2, np.float32)})
        assert [slot.name for slot in only(build(b, y), "SelectV2").inputs] == ["condition", "then", "else"]

    def test_operators_without_an_inference_rule_take_types(self) -> None:
        b = GraphBuilder()
        x = b.data("x", "float16", (2, 8))
        with pytest.raises(BadUsage, match="no rule infers"):
            b.RmsNormQuant(x, x, x, x, x, epsilon=1e-6)
        y = b.RmsNormQuant(x, x, x, x, x, epsilon=1e-6, types={"y": TensorType(x.dtype, (2, 8))})
        assert str(y.type) == "float16[2,8]"


class TestOptionalInputs:
    def test_placeholders_up_to_the_last_present_one_the_rest_cut(self) -> None:
        b = GraphBuilder()
        x = b.data("x", "int8", (4, 8))
        scale, bias = b.data("s", "float32", (8,)), b.data("bias", "float32", (8,))
        y = b.QuantBatchMatmulV3(x, x, scale, bias=bias, dtype=27, types={"y": TensorType(scale.dtype, (4, 8))})
        slots = only(build(b, y), "QuantBatchMatmulV3").inputs
        assert [slot.name for slot in slots] == ["x1", "x2", "scale", "offset", "bias"]
        assert slots[3].type == PLACEHOLDER
        assert slots[3].source is None


class TestAttributes:
    def test_defaults_are_left_out_and_others_written(self) -> None:
        b = GraphBuilder()
        x = b.data("x", "float32", (2, 3, 4))
        node = only(build(b, b.BatchMatMulV2(x, x, adj_x1=False, adj_x2=True)), "BatchMatMulV2")
        assert set(node.attrs) == {"adj_x2"}
        assert node.value("adj_x1") is False

    def test_treacherous_defaults_are_written(self) -> None:
        b = GraphBuilder()
        node = only(build(b, b.ReduceMean(b.data("x", "float32", (2, 3)), np.array([1]))), "ReduceMean")
        assert node.attrs["keep_dims"].value is False

    def test_floats_are_the_32_bit_values_of_the_file(self) -> None:
        b = GraphBuilder()
        y = b.RmsNorm(b.data("x", "float32", (2, 8)), np.ones(8, np.float32), epsilon=1e-5).y
        assert only(build(b, y), "RmsNorm").value("epsilon") == float(np.float32(1e-5))

    @pytest.mark.parametrize(
        ("call", "message"),
        [
            (lambda b, x: b.Cast(x), "Cast: a required attribute is missing; found no dst_type, wanted Int"),
            (lambda b, x: b.Cast(x, dst_type="int8"), "Cast attribute dst_type: an attribute has another type"),
            (lambda b, x: b.Cast(x, dst_type=True), "found True, wanted Int"),
            (lambda b, x: b.Cast(x, dst=3), "Cast: the operator has no such input; found dst"),
            (lambda b, x: b.add("Cast", {"x": x}, {"dst": 3}), "the operator has no such attribute; found dst"),
            (lambda b, x: b.Cast(x, dst_type=5), "attribute dst_type is no element type; found 5"),
        ],
    )
    def test_wrong_attributes(self, call: Any, message: str) -> None:
        b = GraphBuilder()
        with pytest.raises((BadInput, BadUsage), match=message):
            call(b, b.data("x", "float32", (2,)))


class TestInputChecks:
    def test_missing_unknown_doubled(self) -> None:
        b = GraphBuilder()
        x = b.data("x", "float32", (2,))
        with pytest.raises(BadUsage, match="Add: a required input is missing; found no x2, wanted x1, x2"):
            b.Add(x)
        with pytest.raises(BadUsage, match="no such input; found x3"):
            b.Add(x, x, x3=x)
        with pytest.raises(BadUsage, match="given twice; found x1"):
            b.Add(x, x1=x)
        with pytest.raises(BadUsage, match="too many inputs; found 3"):
            b.Add(x, x, x)

    def test_a_single_tensor_where_a_list_belongs(self) -> None:
        b = GraphBuilder()
        with pytest.raises(BadUsage, match="a dynamic input takes a list"):
            b.ConcatD(b.data("x", "float32", (2,)), concat_dim=0)

    def test_things_that_are_no_tensors(self) -> None:
        b = GraphBuilder()
        with pytest.raises(BadUsage, match="neither a tensor nor a numpy array; found float"):
            b.Add(b.data("x", "float32", (2,)), 1.0)

    def test_tensors_of_another_graph(self) -> None:
        other = GraphBuilder().data("elsewhere", "float32", (2,))
        with pytest.raises(BadUsage, match="a tensor of another graph; found elsewhere:0"):
            GraphBuilder().Sqrt(other)

    def test_types_and_shapes_are_checked_by_inference(self) -> None:
        b = GraphBuilder()
        x = b.data("x", "float32", (2, 3))
        with pytest.raises(BadInput, match="operands of different element types; found float32 and float16"):
            b.Add(x, np.zeros(3, np.float16))
        with pytest.raises(BadInput, match="shapes do not broadcast; found 3 against 4"):
            b.Add(x, np.zeros(4, np.float32))

    def test_declared_operators_are_checked_against_their_contract(self) -> None:
        b = GraphBuilder()
        cache = b.ref_data("c", "float16", (4, 16, 1, 64))
        kv = b.data("kv", "float16", (2, 1, 1, 100))
        with pytest.raises(BadInput, match=r"KV-\d\d: "):
            b.KvRmsNormRopeCache(kv, kv, kv, kv, np.zeros(2, np.int64), cache, cache)

    def test_a_constant_is_never_updated_in_place(self) -> None:
        b = GraphBuilder()
        with pytest.raises(BadUsage, match="a constant cannot be updated in place"):
            b.ScatterNdUpdate(np.zeros((4, 2), np.float32), np.zeros((1, 1), np.int64), np.ones((1, 2), np.float32))

    def test_unknown_operators(self) -> None:
        with pytest.raises(BadUsage, match="unknown GE operator; found Nonsense"):
            GraphBuilder().add("Nonsense", {})
        with pytest.raises(AttributeError, match="GE no operator 'Nonsense'"):
            GraphBuilder().Nonsense()

    @pytest.mark.parametrize("shape", [(0, 2), (-3,)])
    def test_dims_ge_does_not_take(self, shape: tuple[int, ...]) -> None:
        with pytest.raises(BadUsage, match="a dim GE does not take"):
            GraphBuilder().data("x", "float32", shape)

    def test_unknown_element_types(self) -> None:
        with pytest.raises(BadUsage, match="unknown element type; found float7"):
            GraphBuilder().data("x", "float7", (2,))


class TestGraph:
    def test_data_first_then_refdata_whatever_the_order_of_calls(self) -> None:
        b = GraphBuilder()
        cache = b.ref_data("cache", "float32", (4, 2))
        x, at = b.data("x", "float32", (1, 2)), b.data("at", "int64", (1, 1))
        model = build(b, b.ScatterNdUpdate(cache, at, x))
        assert [(entry.name, entry.index, entry.is_ref) for entry in inputs_of(model)] == [
            ("x", 0, False),
            ("at", 1, False),
            ("cache", 2, True),
        ]

    def test_names_are_sanitised_and_unique(self) -> None:
        b = GraphBuilder()
        x = b.data("in put:0", "float32", (2,))
        y = b.Sqrt(b.Sqrt(x, name="/layer/sqrt"), name="/layer/sqrt")
        names = [node.name for node in build(b, y).root.nodes]
        assert names == ["in_put_0", "/layer/sqrt", "/layer/sqrt_1", "NetOutput"]

    def test_the_name_of_netoutput_is_kept_free(self) -> None:
        b = GraphBuilder()
        model = build(b, b.Sqrt(b.data("x", "float32", (2,)), name="NetOutput"))
        assert [node.name for node in model.root.nodes] == ["x", "NetOutput_1", "NetOutput"]

    @pytest.mark.parametrize("name", ["x", "x?", "NetOutput", "node"])
    def test_an_inputs_name_is_never_changed_silently(self, name: str) -> None:
        b = GraphBuilder()
        b.Sqrt(b.data("x", "float32", (2,)), name="node")
        b.data("x_", "float32", (2,))
        for add in (b.data, b.ref_data):
            with pytest.raises(BadUsage, match=re.escape(f"a graph input's name is taken; found {name}")):
                add(name, "float32", (2,))
        assert b.free_name(name) not in ("x", "x_", "NetOutput", "node")

    @pytest.mark.parametrize("shape", [("2",), 5, (1.5,), "ab"])
    def test_a_shape_is_a_list_of_whole_numbers(self, shape: Any) -> None:
        with pytest.raises(BadUsage, match="a shape is not a list of dims"):
            GraphBuilder().data("x", "float32", shape)

    def test_outputs_carry_their_names(self) -> None:
        b = GraphBuilder()
        b.output(b.Sqrt(b.data("x", "float32", (2,))), "logits")
        b.output(b.Neg(b.data("z", "float32", (2,))))
        model = b.build()
        assert [entry.name for entry in outputs_of(model)] == ["logits", "output1"]
        assert only(model, "NetOutput").attrs[OUTPUT_NAME_ATTR].value == ("logits", "output1")

    def test_identity_between_an_input_or_constant_and_the_output(self) -> None:
        b = GraphBuilder()
        model = build(b, b.data("x", "float32", (2,)), b.const(np.ones(2, np.float32)))
        assert [node.type for node in model.root.nodes] == ["Data", "Const", "Identity", "Identity", "NetOutput"]

    def test_no_output_is_no_graph(self) -> None:
        with pytest.raises(BadUsage, match="the graph has no output"):
            GraphBuilder("g").build()

    def test_control_edges_order_readers_before_a_writer(self) -> None:
        b = GraphBuilder()
        cache, x = b.ref_data("cache", "float32", (4, 2)), b.data("x", "float32", (1, 2))
        old = b.Sqrt(cache, name="old")
        new = b.ScatterNdUpdate(cache, np.zeros((1, 1), np.int64), x, name="new")
        b.after(new, old)
        assert only(build(b, old, new), "ScatterNdUpdate").controls == ["old"]
        with pytest.raises(BadUsage, match="against the order of the calls"):
            b.after(old, new)


class TestConstants:
    @pytest.mark.parametrize(
        "array",
        [
            np.arange(6, dtype=np.float32).reshape(2, 3),
            np.array(True),
            np.array([1.5, -2.0], ml_dtypes.bfloat16),
            np.array([1.0, 448.0], ml_dtypes.float8_e4m3fn),
            np.array([0.5, -57344.0], ml_dtypes.float8_e5m2),
            np.array([[-8, 7, 1], [0, -1, 3]], ml_dtypes.int4),
            np.zeros((0, 3), np.int64),
        ],
        ids=lambda array: str(array.dtype),
    )
    def test_values_survive(self, array: Any) -> None:
        b = GraphBuilder()
        node = only(build(b, b.const(array)), "Const")
        back = node.value("value").array()
        assert back.dtype == array.dtype
        assert back.shape == array.shape
        assert back.tobytes() == array.tobytes()

    def test_int4_is_packed_two_a_byte_low_half_first(self) -> None:
        b = GraphBuilder()
        node = only(build(b, b.const(np.array([1, -1, 3], ml_dtypes.int4))), "Const")
        assert node.value("value").data == bytes([0xF1, 0x03])

    def test_small_equal_constants_are_stored_once(self) -> None:
        b = GraphBuilder()
        assert b.const(np.array([1, 2])) is b.const(np.array([1, 2]))
        assert b.const(np.array([1, 2])) is not b.const(np.array([1, 2], np.int32))

    def test_what_one_of_equal_constants_is_known_to_hold_the_other_holds_too(self) -> None:
        """A weight comes as bytes; axes of the same bytes still tell a reduction's rank."""
        b = GraphBuilder()
        axes = np.array([-1])
        weight = b.const_bytes(axes.tobytes(), "int64", (1,), name="weight")
        assert b.const(axes).edge == weight.edge
        summed = b.ReduceSum(b.data("x", "float32", (-1, 1, 2)), axes, keep_dims=False)
        assert str(summed.type) == "float32[?,1]"

    def test_hifloat8_is_declared_and_stored_as_bytes(self) -> None:
        b = GraphBuilder()
        cache = b.ref_data("cache", "hifloat8", (4, 16, 1, 64))
        const = b.const_bytes(b"\x01\x02", "hifloat8", (2,))
        assert str(cache.type) == "hifloat8[4,16,1,64]"
        assert str(const.type) == "hifloat8[2]"
        with pytest.raises(BadInput, match="numpy has no such element type; found hifloat8"):
            only(build(b, const), "Const").value("value").array()

    def test_bytes_that_do_not_fit(self) -> None:
        with pytest.raises(BadInput, match="do not fit its shape; found 3 bytes, wanted 4"):
            GraphBuilder().const_bytes(b"abc", "float32", ())

    def test_file_constant_points_into_a_file(self) -> None:
        b = GraphBuilder()
        weight = b.file_constant("/weights.bin", 4096, 32, "bfloat16", (4, 4), name="w")
        node = only(build(b, b.Sqrt(weight)), "FileConstant")
        values = {name: attr.value for name, attr in node.attrs.items()}
        assert values == {
            "shape": (4, 4), "dtype": weight.dtype, "location": "/weights.bin", "offset": 4096, "length": 32,
        }  # fmt: skip
        with pytest.raises(BadInput, match="length does not fit its shape; found 8, wanted 32 bytes"):
            b.file_constant("/weights.bin", 0, 8, "bfloat16", (4, 4))

    def test_objects_are_no_constants(self) -> None:
        with pytest.raises(BadInput, match="no GE element type"):
            GraphBuilder().const(np.array(["a"]))
