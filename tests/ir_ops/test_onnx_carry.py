"""Models that carry function bodies: sharing, overloads with their guards, and back to standard operators."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import onnx
import onnx.inliner
import onnx_ir as ir
import pytest
from onnx import helper

import custom_ort
from ir_ops.declaration import TensorSpec
from ir_ops.dtypes import Array, by_numpy
from ir_ops.onnx_carry import Call, carry_functions, functions_for, inline, inline_functions
from ir_ops.ops import DOMAIN, DOMAIN_VERSION, OPS
from tests.custom_ort import one_node
from tests.ir_ops import standard

OP = OPS["KvRmsNormRopeCache"]


def call(mode: str, quantised: str = "", *, kind: str = "float32", batch: int = 2, **attrs: Any) -> Any:
    """A V1 call of 3 tokens a batch: k rows of 32, v rows of 64; ckv_cache int8 where ``quantised`` names how."""
    rng = np.random.default_rng(len(mode) + batch)
    rows = (4, 16, 1) if mode != "Norm" else (batch, 1, 8)
    index = np.arange(batch * 3) if mode != "Norm" else np.tile(np.arange(3), (batch, 1))
    draw = lambda *shape: rng.standard_normal(shape).astype(kind)  # noqa: E731
    inputs = {
        "kv": draw(batch, 1, 3, 96), "gamma": draw(64), "cos": draw(batch, 1, 3, 32), "sin": draw(batch, 1, 3, 32),
        "index": index, "k_cache": draw(*rows, 32), "ckv_cache": draw(*rows, 64),
    }  # fmt: skip
    if quantised:
        inputs |= {"ckv_cache": np.zeros((*rows, 64), np.int8), "c_kv_scale": np.full(64, 20, np.float32)}
    if quantised == "asymmetric":
        inputs["c_kv_offset"] = np.full(64, 3, np.float32)
    return inputs, {"cache_mode": mode, "is_output_kv": True, **attrs}


def model_of(calls: Sequence[Any], opset: int = 18) -> onnx.ModelProto:
    """One node a call; node k's tensors end in ``_k``."""
    nodes, inputs, outputs = [], [], []
    for k, (given, attrs) in enumerate(calls):
        names = [f"{entry.name}_{k}" if entry.name in given else "" for entry in OP.inputs]
        while not names[-1]:
            names.pop()
        plain = {name: int(value) if isinstance(value, bool) else value for name, value in attrs.items()}
        results = [f"{entry.onnx_name}_{k}" for entry in OP.outputs]
        nodes.append(helper.make_node(OP.name, names, results, name=f"node_{k}", domain=DOMAIN, **plain))
        inputs += [info(f"{name}_{k}", array) for name, array in given.items()]
        expected = OP.reference(given, attrs)
        outputs += [info(f"{entry.onnx_name}_{k}", expected[entry.name]) for entry in OP.outputs]
    imports = [helper.make_opsetid("", opset), helper.make_opsetid(DOMAIN, DOMAIN_VERSION)]
    return helper.make_model(helper.make_graph(nodes, "g", inputs, outputs), opset_imports=imports, ir_version=8)


def info(name: str, array: Array) -> onnx.ValueInfoProto:
    return helper.make_tensor_value_info(name, by_numpy(array.dtype).onnx, array.shape)


def carried(calls: Sequence[Any], opset: int = 18) -> tuple[onnx.ModelProto, dict[str, str]]:
    model = ir.serde.deserialize_model(model_of(calls, opset))
    reasons = carry_functions(model)
    return ir.serde.serialize_model(model), reasons


def assert_results(session: Any, calls: Sequence[Any]) -> None:
    feeds = {f"{name}_{k}": array for k, (given, _) in enumerate(calls) for name, array in given.items()}
    found = custom_ort.run(session, feeds)
    for k, (given, attrs) in enumerate(calls):
        results = {entry.name: found[f"{entry.onnx_name}_{k}"] for entry in OP.outputs}
        standard.assert_equal(results, OP.reference(given, attrs), f"node {k}")


ALIKE = [call("PA"), call("PA", batch=1, epsilon=1e-3), call("PA", kind="float16")]
SEVERAL = [call("Norm"), call("PA_NZ", "symmetric"), call("PA_NZ"), call("Norm", batch=1), call("PA_NZ", "asymmetric"),
           call("Norm", is_output_kv=False)]  # fmt: skip


def test_nodes_that_differ_in_sizes_types_and_epsilon_share_a_function() -> None:
    model, reasons = carried(ALIKE)
    assert reasons == {}
    assert [(function.name, function.overload) for function in model.functions] == [(OP.name, "")]
    assert [node.overload for node in model.graph.node] == ["", "", ""]
    onnx.checker.check_model(model, full_check=True)
    assert_results(standard.session(model), ALIKE)


def test_several_configurations_are_overloads() -> None:
    """Each with its own body; onnx accepts the model and the runtime picks the right one for each node."""
    model, reasons = carried(SEVERAL)
    assert reasons == {}
    assert [function.overload for function in model.functions] == ["", "2", "3", "4", "5"]
    assert [node.overload for node in model.graph.node] == ["", "2", "3", "", "4", "5"]
    assert model.ir_version == 10
    onnx.checker.check_model(model, full_check=True)
    assert_results(standard.session(model), SEVERAL)


def test_kernels_win_over_functions() -> None:
    """With the library registered a function of any overload is not used: here the functions would fail."""
    model, _ = carried(SEVERAL)
    for function in model.functions:
        del function.node[:]
        function.node.extend(helper.make_node("Identity", ["index"], [name]) for name in function.output)
    with pytest.raises(Exception, match=r"Type Error|tensor\(int64\)"):
        standard.session(model)
    assert_results(one_node.session(model), SEVERAL)


@pytest.mark.parametrize(("own", "other"), [(0, 2), (2, 0), (4, 1), (1, 4), (2, 1), (0, 5)])
def test_guard_refuses_a_foreign_node(own: int, other: int) -> None:
    """Runtimes that ignore overload names apply one function to all nodes: that must fail, not compute something."""
    model, _ = carried(SEVERAL)
    places = [node.overload for node in model.graph.node]
    function = next(item for item in model.functions if item.overload == places[own])
    alone = model_of([SEVERAL[other]])
    alone.ir_version = 10
    alone.functions.append(function)
    alone.functions[0].overload = ""
    for attr in OP.attrs:
        if attr.name not in {item.name for item in alone.graph.node[0].attribute}:
            alone.graph.node[0].attribute.append(helper.make_attribute(attr.name, attr.default))
    with pytest.raises(Exception, match="ONNXRuntimeError|out of data bounds"):
        custom_ort.run(standard.session(alone), {f"{name}_0": array for name, array in SEVERAL[other][0].items()})


def test_guards_are_only_where_they_are_needed() -> None:
    alone, _ = carried(ALIKE)
    several, _ = carried(SEVERAL)
    assert "Unique" not in {node.op_type for node in alone.functions[0].node}
    assert all("Unique" in {node.op_type for node in function.node} for function in several.functions)


def test_configurations_that_only_differ_in_element_types() -> None:
    """NZ blocks of float32 and float16 have other sizes, and below opset 15 every body names its types."""
    for mode, opset in (("PA_NZ", 18), ("PA", 14)):
        calls = [call(mode), call(mode, kind="float16"), call(mode, batch=1)]
        model, reasons = carried(calls, opset)
        assert reasons == {}
        assert [node.overload for node in model.graph.node] == ["", "2", ""]
        assert_results(standard.session(model), calls)
        foreign = model_of(calls[1:2], opset)
        foreign.functions.append(model.functions[0])
        foreign.graph.node[0].attribute.append(helper.make_attribute("float8_cast", "saturate"))
        with pytest.raises(Exception, match="Concat.* has inconsistent type"):
            standard.session(foreign)


def test_several_configurations_before_opset_12() -> None:
    """Opset 11 cannot read attributes in a body, so there is no guard and no function."""
    model, reasons = carried([call("PA"), call("Norm")], opset=11)
    assert len(model.functions) == 0
    assert reasons == dict.fromkeys(["node_0", "node_1"], "several configurations of the operator need opset 12")
    assert carried([call("PA"), call("PA", batch=1)], opset=11)[1] == {}
    assert {node.domain for node in inline(model_of([call("PA"), call("Norm")], opset=11)).graph.node} == {""}


def test_node_without_a_body_keeps_its_reason() -> None:
    """The others of the model still have theirs."""
    calls = [call("PA"), call("PA", "symmetric")]
    model = ir.serde.deserialize_model(model_of(calls))
    node = model.graph.node("node_1")
    cache = node.inputs[6]
    assert cache is not None
    cache.dtype = ir.DataType.FLOAT8E4M3FN
    reasons = carry_functions(model)
    assert reasons == {"node_1": "ONNX has no arithmetic on ckv_cache float8_e4m3fn"}
    assert len(model.functions) == 1


def test_functions_of_another_time_are_replaced_and_foreign_ones_stay() -> None:
    model = ir.serde.deserialize_model(model_of(ALIKE))
    carry_functions(model)
    foreign = helper.make_function(
        "other", "F", ["x"], ["y"], [helper.make_node("Neg", ["x"], ["y"])], [helper.make_opsetid("", 18)]
    )
    model.functions[("other", "F", "")] = ir.serde.deserialize_function(foreign)
    carry_functions(model)
    assert sorted(model.functions) == [(DOMAIN, OP.name, ""), ("other", "F", "")]
    assert inline_functions(model) == {}
    assert list(model.functions) == [("other", "F", "")]


def test_element_types_are_shared_by_type_variable() -> None:
    """sin of an unknown type has that of kv; where no input tells, there is no body."""
    model = ir.serde.deserialize_model(model_of([call("PA")]))
    node = next(iter(model.graph))
    for place in (1, 2, 3):
        value = node.inputs[place]
        assert value is not None
        value.type = None
    assert carry_functions(model) == {}
    first = node.inputs[0]
    assert first is not None
    first.type = None
    assert carry_functions(model) == {"node_0": "the element type of kv is not known"}


@pytest.mark.parametrize("calls", [ALIKE, SEVERAL], ids=["alike", "several"])
def test_inlined_model_is_standard_onnx(calls: Sequence[Any]) -> None:
    model = inline(model_of(calls))
    assert {node.domain for node in model.graph.node} == {""}
    assert [item.domain for item in model.opset_import] == [""]
    assert len(model.functions) == 0
    assert not {"Unique", "Pad"} & {node.op_type for node in model.graph.node}
    onnx.checker.check_model(model, full_check=True)
    assert_results(standard.session(model), calls)


def test_onnx_inliner_takes_the_carried_model() -> None:
    model, _ = carried(SEVERAL)
    plain = onnx.inliner.inline_local_functions(model)
    assert {node.domain for node in plain.graph.node} == {""}
    assert_results(standard.session(plain), SEVERAL)


def test_nodes_in_subgraphs_have_functions_too() -> None:
    """A node in a branch of If reads its tensors from the outer graph."""
    calls = [call("PA")]
    model = model_of(calls)
    branches = []
    for name in ("then", "else"):
        node = onnx.NodeProto()
        node.CopyFrom(model.graph.node[0])
        node.name = f"{name}_node"
        node.output[:] = [f"{name}_{k}" for k in range(4)]
        outputs = [helper.make_tensor_value_info(f"{name}_{k}", 1, None) for k in range(4)]
        branches.append(helper.make_graph([node], name, [], outputs))
    chosen = helper.make_node(
        "If", ["flag"], list(model.graph.node[0].output), then_branch=branches[0], else_branch=branches[1]
    )
    del model.graph.node[:]
    model.graph.node.append(chosen)
    model.graph.input.append(helper.make_tensor_value_info("flag", onnx.TensorProto.BOOL, []))
    made = ir.serde.deserialize_model(model)
    assert carry_functions(made) == {}
    assert len(made.functions) == 1
    session = standard.session(ir.serde.serialize_model(made))
    given, attrs = calls[0]
    found = custom_ort.run(session, {f"{name}_0": array for name, array in given.items()} | {"flag": np.array(True)})
    results = {entry.name: found[f"{entry.onnx_name}_0"] for entry in OP.outputs}
    standard.assert_equal(results, OP.reference(given, attrs), "branch")


def test_functions_for_plain_records() -> None:
    """The form for callers without a model: a call is an operator, specs and attributes."""
    inputs, attrs = call("Norm")
    specs = standard.specs_of(inputs)
    broken = specs | {"kv": TensorSpec("float32", (2, 1, 3, 95))}
    found = functions_for([Call(OP, specs, attrs), Call(OP, broken, attrs)], 18)
    assert (len(found.functions), found.overloads) == (1, ["", ""])
    assert found.reasons[0] == ""
    assert found.reasons[1].startswith("KV-07: ")
    assert functions_for([], 18).functions == []
