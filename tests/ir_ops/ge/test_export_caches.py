"""Fused operators and their caches: RefData where the graph allows it, a copy where the old content is needed."""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import helper

from ir_ops.dtypes import Array, by_numpy
from ir_ops.ge import GraphBuilder, execute, export, read, run, validate, write
from ir_ops.ge.model import inputs_of
from ir_ops.ge.validator import errors
from ir_ops.ops import OPS
from tests.golden import GoldenCase, cases
from tests.ir_ops.ge.onnx_models import make_model, tensor

KV = cases("KvRmsNormRopeCache")
OPERATOR = OPS["KvRmsNormRopeCache"]
CACHES = ("k_cache", "ckv_cache")


def fused_model(
    case: GoldenCase, constants: Sequence[str] = (), extra: Sequence[onnx.NodeProto] = ()
) -> onnx.ModelProto:
    """One fused node whose caches are graph inputs and outputs; ``extra`` nodes have an output of their name."""
    inputs = case.inputs
    names = [entry.name if entry.name in inputs else "" for entry in OPERATOR.inputs]
    while not names[-1]:
        names.pop()
    outs = [port.onnx_name for port in OPERATOR.outputs]
    node = helper.make_node(OPERATOR.name, names, outs, domain="ai.ascend", name="fused", **case.attrs)
    infos = [
        helper.make_tensor_value_info(name, by_numpy(array.dtype).onnx or 0, array.shape)
        for name, array in inputs.items() if name not in constants
    ]  # fmt: skip
    results = [helper.make_empty_tensor_value_info(name) for name in [*outs, *(entry.output[0] for entry in extra)]]
    initializers = [tensor(name, inputs[name]) for name in constants]
    return make_model(helper.make_graph([node, *extra], "fused", infos, results, initializers))


def built(case: GoldenCase) -> GraphBuilder:
    """The same by hand."""
    b = GraphBuilder("by_hand")
    handles: dict[str, Any] = {}
    for entry in OPERATOR.inputs:
        array = case.inputs.get(entry.name)
        if array is not None:
            add = b.ref_data if entry.ref else b.data
            handles[entry.name] = add(entry.name, array.dtype, array.shape)
    out = b.KvRmsNormRopeCache(**handles, **case.attrs, name="preamble")
    for name in out.names():
        b.output(out[name], name)
    return b


@pytest.mark.parametrize("case", KV, ids=str)
def test_golden_cases_by_hand(case: GoldenCase, tmp_path: Path) -> None:
    path = write(built(case).build(), tmp_path / "m.air")
    assert errors(validate(path)) == []
    execution = execute(read(path), case.inputs)
    case.check(execution.outputs)
    for name in CACHES:
        np.testing.assert_array_equal(execution.caches[name], execution.outputs[name])


@pytest.mark.parametrize("cache", ["ref", "copy"])
@pytest.mark.parametrize("case", KV, ids=str)
def test_golden_cases_exported(case: GoldenCase, cache: str) -> None:
    before = {name: array.copy() for name, array in case.inputs.items()}
    result = export(fused_model(case), cache=cache)
    assert result.ops_after["TensorMove"] == (0 if cache == "ref" else 2)
    got = run(result.model, case.inputs)
    case.check({name.removesuffix("_out"): array for name, array in got.items()})
    for name, array in case.inputs.items():
        np.testing.assert_array_equal(array, before[name])


def first_with(**attrs: Any) -> GoldenCase:
    return next(case for case in KV if attrs.items() <= case.attrs.items())


class TestFormOfTheCache:
    case = KV[0]

    def refs(self, model: onnx.ModelProto, **options: Any) -> tuple[list[str], int]:
        result = export(model, **options)
        return [entry.name for entry in inputs_of(result.model) if entry.is_ref], result.ops_after["TensorMove"]

    def test_in_place(self) -> None:
        assert self.refs(fused_model(self.case)) == (["k_cache", "ckv_cache"], 0)

    def test_a_second_reader_of_the_old_content_forces_a_copy(self) -> None:
        extra = [helper.make_node("Identity", ["k_cache"], ["old"]), helper.make_node("Neg", ["old"], ["negated"])]
        extra[0].output[0] = "kept"
        extra[1].input[0] = "kept"
        model = fused_model(self.case, extra=extra[1:])
        model.graph.node.insert(0, extra[0])
        assert self.refs(model) == (["ckv_cache"], 1)

    def test_a_cache_that_is_not_returned_is_copied(self) -> None:
        model = fused_model(self.case)
        del model.graph.output[0]
        assert self.refs(model) == (["ckv_cache"], 1)

    def test_a_cache_that_is_also_an_output_as_it_came_in_is_copied(self) -> None:
        model = fused_model(self.case)
        model.graph.output.append(next(info for info in model.graph.input if info.name == "k_cache"))
        assert self.refs(model) == (["ckv_cache"], 1)

    def test_a_constant_cache_is_copied(self) -> None:
        assert self.refs(fused_model(self.case, constants=("k_cache",))) == (["ckv_cache"], 1)

    @pytest.mark.parametrize("moved", [False, True], ids=["same first dim", "other first dim"])
    def test_a_cache_in_another_shape_of_the_same_memory(self, moved: bool) -> None:
        model, shape = fused_model(self.case), self.case.inputs["k_cache"].shape
        seen = (math.prod(shape[:-1]), shape[-1]) if moved else (shape[0], math.prod(shape[1:]))
        info = next(entry for entry in model.graph.input if entry.name == "k_cache")
        info.CopyFrom(helper.make_tensor_value_info("k_cache", info.type.tensor_type.elem_type, seen))
        back = helper.make_tensor_value_info("k_cache_out", info.type.tensor_type.elem_type, seen)
        next(entry for entry in model.graph.output if entry.name == "k_cache_out").CopyFrom(back)
        (node,) = model.graph.node
        node.input[5], node.output[0] = "k_seen", "k_made"
        model.graph.initializer.extend([tensor("there", np.array(shape)), tensor("back", np.array(seen))])
        model.graph.node.insert(0, helper.make_node("Reshape", ["k_cache", "there"], ["k_seen"]))
        model.graph.node.append(helper.make_node("Reshape", ["k_made", "back"], ["k_cache_out"]))
        model.graph.node.append(helper.make_node("Neg", ["k_cache_out"], ["read"]))
        model.graph.output.append(helper.make_empty_tensor_value_info("read"))
        assert self.refs(model) == ((["ckv_cache"], 1) if moved else (["k_cache", "ckv_cache"], 0))
        result = export(model)
        assert errors(result.findings) == []
        assert any("caches are declared" in note for note in result.notes) == (not moved)
        declared = seen if moved else shape
        got = run(result.model, {**self.case.inputs, "k_cache": self.case.inputs["k_cache"].reshape(declared)})
        once = run(export(fused_model(self.case)).model, self.case.inputs)["k_cache_out"]
        np.testing.assert_array_equal(got["k_cache_out"], once.reshape(declared))
        np.testing.assert_array_equal(got["read"], -once.reshape(seen))

    def test_two_updates_of_one_cache_are_one_buffer(self) -> None:
        model = fused_model(self.case)
        again = onnx.NodeProto()
        again.CopyFrom(model.graph.node[0])
        again.name = "again"
        for i, name in ((5, "k_cache_out"), (6, "ckv_cache_out")):
            again.input[i] = name
        again.output[:] = ["k2", "c2", "r2", "v2"]
        model.graph.node.append(again)
        model.graph.output[0].name, model.graph.output[1].name = "k2", "c2"
        assert self.refs(model) == (["k_cache", "ckv_cache"], 0)
        result = export(model)
        assert errors(result.findings) == []
        got = run(result.model, self.case.inputs)
        once = run(export(fused_model(self.case)).model, self.case.inputs)
        np.testing.assert_array_equal(got["k2"], once["k_cache_out"])

    def test_the_sidecar_pairs_caches_with_outputs(self, tmp_path: Path) -> None:
        export(fused_model(self.case), tmp_path / "m.air")
        record = json.loads((tmp_path / "m.io.json").read_text())
        paired = {row["name"]: row["output"] for row in record["inputs"] if row.get("in_place")}
        assert paired == {"k_cache": "k_cache_out", "ckv_cache": "ckv_cache_out"}


def test_absent_inputs_in_the_middle_keep_their_places() -> None:
    # V2: v is the last input, the four scales and offsets in front of it are absent
    case = next(entry for entry in KV if "v" in entry.inputs and "k_rope_scale" not in entry.inputs)
    (node,) = export(fused_model(case)).model.root.of_type("KvRmsNormRopeCache")
    assert [slot.name for slot in node.inputs if slot.source is None] == [
        "k_rope_scale", "c_kv_scale", "k_rope_offset", "c_kv_offset",
    ]  # fmt: skip
    assert node.inputs[-1].name == "v"


def test_local_functions_of_declared_operators_are_dropped_and_others_inlined() -> None:
    model = fused_model(KV[0])
    opsets = [helper.make_opsetid("", 18)]
    names, outs = [entry.name for entry in OPERATOR.inputs], [port.onnx_name for port in OPERATOR.outputs]
    body = [helper.make_node("Identity", ["kv"], [name]) for name in outs]
    ours = helper.make_function("ai.ascend", OPERATOR.name, names, outs, body, opsets)
    twice = helper.make_function("mine", "Twice", ["x"], ["y"], [helper.make_node("Add", ["x", "x"], ["y"])], opsets)
    model.functions.extend([ours, twice])
    model.opset_import.append(helper.make_opsetid("mine", 1))
    model.graph.node.append(helper.make_node("Twice", ["c_kv"], ["doubled"], domain="mine"))
    model.graph.output.append(helper.make_empty_tensor_value_info("doubled"))
    result = export(model)
    assert (result.ops_after["KvRmsNormRopeCache"], result.ops_after["Add"]) == (1, 1)
    got: dict[str, Array] = run(result.model, KV[0].inputs)
    np.testing.assert_array_equal(got["doubled"], got["c_kv"] + got["c_kv"])


def test_hifloat8_caches_can_be_declared_by_hand() -> None:
    b = GraphBuilder()
    kv, index = b.data("kv", "float16", (2, 1, 1, 576)), b.data("index", "int64", (2, 1))
    table = b.data("table", "float16", (2, 1, 1, 64))
    k_cache, ckv_cache = (b.ref_data(name, "hifloat8", (2, 1, 16, size)) for name, size in (("k", 64), ("c", 512)))
    scales = {"k_rope_scale": np.ones(64, np.float32), "c_kv_scale": np.ones(512, np.float32)}
    out = b.KvRmsNormRopeCache(kv, np.ones(512, np.float16), table, table, index, k_cache, ckv_cache, **scales)
    b.output(out.k_cache, "k_out")
    assert str(out.k_cache.type) == "hifloat8[2,1,16,64]"
    assert errors(validate(b.build())) == []
