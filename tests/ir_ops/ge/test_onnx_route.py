"""The ONNX route: the model in opset 18, and the parser plugins run against stand-ins of the toolkit's interfaces."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
import types
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnx_ir as ir
import onnxruntime as ort
import pytest
from onnx import helper

import custom_ort
import fusion
from ir_ops.declaration import Operator
from ir_ops.errors import ExportError
from ir_ops.ge.onnx_route import plugin_files, plugin_operators
from ir_ops.ge.onnx_route.model import Lowered, lower
from ir_ops.ge.prototypes import find
from ir_ops.ops import OPS
from tests.ir_ops.ge.onnx_models import make_model
from tests.ir_ops.ge.recorded import assert_recorded, recorded
from tests.machine import skip_where_products_saturate

GRAPHS = {
    "hand_kvrrc_pa_ts17_fp32": 17,
    "hand_kvrrc_pa_quant_dynamo20_fp16": 18,
    "qwen3_dynamo23_fp32_dyncache": 18,  # RMSNormalization, RotaryEmbedding, Attention
    "qwen2_ts17_ortdynint8_dyncache": 17,
}


def ort_results(lowered: Lowered, inputs: dict[str, Any]) -> dict[str, Any]:
    proto = ir.to_proto(lowered.model)
    onnx.checker.check_model(proto)
    assert {entry.version for entry in proto.opset_import if not entry.domain} == {lowered.opset}
    options = ort.SessionOptions()
    custom_ort.register(options)
    session = ort.InferenceSession(proto.SerializeToString(), options)
    names = [value.name for value in session.get_outputs()]
    return dict(zip(names, session.run(None, inputs), strict=True))


class TestModel:
    @pytest.mark.parametrize("name", GRAPHS)
    def test_recorded_results_in_an_opset_the_parser_knows(self, name: str, graphs: Path) -> None:
        skip_where_products_saturate(name)
        lowered = lower(graphs / f"{name}.onnx")
        assert lowered.opset == GRAPHS[name]
        for inputs, outputs in recorded(graphs / f"{name}.onnx"):
            assert_recorded(ort_results(lowered, inputs), outputs)

    def test_a_fused_model_keeps_its_operator_and_loses_the_body(self, graphs: Path, tmp_path: Path) -> None:
        path = graphs / "hand_kvrrc_pa_quant_dynamo20_fp16.onnx"
        fusion.fuse(path, tmp_path / "fused.onnx")
        lowered = lower(tmp_path / "fused.onnx")
        assert not lowered.model.functions
        assert [node.op_type for node in lowered.model.graph if node.domain == "ai.ascend"] == ["KvRmsNormRopeCache"]
        for inputs, outputs in recorded(path):
            assert_recorded(ort_results(lowered, inputs), outputs)

    def test_what_the_toolkit_has_no_plugin_for_is_said(self, graphs: Path) -> None:
        notes = lower(graphs / "qwen2_ts17_ortdynint8_dyncache.onnx").notes
        assert "8 x MatMulInteger: the toolkit has no built-in parser plugin for it" in notes

    @staticmethod
    def qkv_model(batch: int, tokens: int | str, page: int = 32) -> onnx.ModelProto:
        """A QkvRmsNormRopeCache with the outputs and the buffer that may be left out left out."""
        half, whole = 10, 7
        shapes: dict[str, tuple[int, list[int | str]]] = {
            "qkv": (half, [tokens, 64]), "q_gamma": (half, [16]), "k_gamma": (half, [16]), "cos": (half, [tokens, 16]),
            "sin": (half, [tokens, 16]), "index": (whole, [tokens]), "k_cache": (half, [4, 1, page, 16]),
            "v_cache": (half, [4, 1, 32, 16]),
        }  # fmt: skip
        names = ["qkv", "q_gamma", "k_gamma", "cos", "sin", "index", "", "k_cache", "v_cache"]
        node = helper.make_node("QkvRmsNormRopeCache", names, ["q", "", "v"], domain="ai.ascend",
                                qkv_size=[batch, -1, 4, 16], head_nums=[2, 1, 1], cache_mode="PA_NZ")  # fmt: skip
        infos = [helper.make_tensor_value_info(name, *spec) for name, spec in shapes.items()]
        results = [helper.make_empty_tensor_value_info(name) for name in ("q", "v")]
        return make_model(helper.make_graph([node], "g", infos, results))

    def test_a_missing_buffer_and_open_sizes_are_said(self) -> None:
        buffer, sizes = lower(self.qkv_model(2, "n")).notes
        assert buffer.startswith("1 x QkvRmsNormRopeCache: GE requires a buffer that the node leaves out")
        assert sizes.startswith("1 x QkvRmsNormRopeCache: qkv_size depends on sizes that vary")

    def test_sizes_that_the_inputs_tell_are_written(self) -> None:
        (node,) = lower(self.qkv_model(2, 6)).model.graph
        assert node.attributes["qkv_size"].as_ints() == (2, 3, 4, 16)

    def test_no_output_has_an_empty_name(self) -> None:
        """The parser would connect it to every input that is left out."""
        (node,) = lower(self.qkv_model(1, 6)).model.graph
        assert [value.name for value in node.outputs] == ["q", "unused_0", "v"]

    def test_a_broken_contract_is_refused(self) -> None:
        with pytest.raises(ExportError, match="QkvRmsNormRopeCache : a node breaks its operator's contract"):
            lower(self.qkv_model(1, 6, page=16))

    def test_the_triangle_that_names_a_pattern_is_supplied_once(self) -> None:
        infos = [helper.make_tensor_value_info(name, 10, [1, 2, 5, 16]) for name in ("q", "k", "v")]
        nodes = [
            helper.make_node("FusedInferAttentionScore", ["q", "k", "v"], [name], domain="ai.ascend", num_heads=2,
                             input_layout="BNSD", sparse_mode=3) for name in ("x", "y")
        ]  # fmt: skip
        results = [helper.make_empty_tensor_value_info(name) for name in ("x", "y")]
        lowered = lower(make_model(helper.make_graph(nodes, "g", infos, results)))
        assert [note for note in lowered.notes if "C++" in note] == [
            "2 x FusedInferAttentionScore: key and value are lists in GE; the C++ plugin maps it, the Python one not"
        ]
        graph = lowered.model.graph
        ((name, value),) = graph.initializers.items()
        assert [node.inputs[4].name for node in graph] == [name, name]
        assert value.const_value is not None
        assert np.array_equal(value.const_value.numpy(), np.triu(np.ones((2048, 2048), np.bool_), 1))

    def test_defaults_that_came_later_are_dropped_and_other_values_refused(self) -> None:
        def model(**attrs: int) -> onnx.ModelProto:
            node = helper.make_node("Cast", ["x"], ["y"], to=1, **attrs)
            info = helper.make_tensor_value_info("x", 10, [2])
            return make_model(helper.make_graph([node], "g", [info], [helper.make_empty_tensor_value_info("y")]), 21)

        (node,) = lower(model(saturate=1)).model.graph
        assert set(node.attributes) == {"to"}
        with pytest.raises(ExportError, match="brought to opset 18; found 1 x Cast: attribute saturate"):
            lower(model(saturate=0))

    def test_an_operator_without_a_body_is_refused(self) -> None:
        node = helper.make_node("TensorScatter", ["cache", "update"], ["y"], axis=1)
        infos = [helper.make_tensor_value_info(name, 1, [1, size]) for name, size in (("cache", 4), ("update", 2))]
        model = make_model(helper.make_graph([node], "g", infos, [helper.make_empty_tensor_value_info("y")]), 24)
        with pytest.raises(
            ExportError, match=r"found 1 x TensorScatter: came after opset 18 \(the .air route takes it\)"
        ):
            lower(model)


# ------------------------------------------------------------------------------------------------------ plugins


def example(operator: Operator) -> dict[str, Any]:
    """A value for each attribute that is not its default, in ONNX's types (Bool as an int)."""
    made: dict[str, Any] = {}
    for attr in operator.attrs:
        if attr.onnx_only:
            made[attr.name] = attr.default
        else:
            made[attr.name] = {"Int": 7, "Bool": 1, "Float": 0.25, "String": "some_mode", "ListInt": [3, -1]}[attr.type]
    return made


def wanted(operator: Operator) -> dict[str, Any]:
    """What GE is to get, in the types of its prototype."""
    prototype, values = find(operator.name), example(operator)
    assert prototype is not None
    kinds = {attr.name: attr.type for attr in prototype.attrs}
    given = {attr.name: values[attr.name] for attr in operator.attrs if not attr.onnx_only}
    return {name: bool(value) if kinds[name] == "Bool" else value for name, value in given.items()}


LISTS = {"FusedInferAttentionScore": {"key": 1, "value": 2}}
"""Operators with inputs that are lists in GE, and where these stand."""


def test_every_declared_operator_is_mapped() -> None:
    assert set(plugin_operators()) == set(OPS)
    lists = {name: found.dynamic_inputs for name in OPS if (found := find(name)) is not None and found.dynamic_inputs}
    assert {name: tuple(slots) for name, slots in LISTS.items()} == lists


class _Target:
    def __init__(self) -> None:
        self.attrs: dict[str, Any] = {}

    def set_attr(self, name: str, value: Any) -> None:
        self.attrs[name] = value


class TestPython:
    @pytest.fixture
    def plugins(self, monkeypatch: pytest.MonkeyPatch) -> dict[str, Callable[..., None]]:
        """Callback by ``domain::opset::type``, as the toolkit's loader collects them."""
        found: dict[str, Callable[..., None]] = {}

        class Descriptor:
            def __init__(self, *, source: str, domain: str, opsets: tuple[int, ...], target: str) -> None:
                assert source == target
                self.keys = [f"{domain}::{opset}::{source}" for opset in opsets]

            def parse_node(self, function: Callable[..., None]) -> Callable[..., None]:
                found.update(dict.fromkeys(self.keys, function))
                return function

        package, graph, plugin = (types.ModuleType(name) for name in ("ge", "ge.graph", "ge.onnx_plugin"))
        vars(graph)["Operator"], vars(plugin)["OnnxNode"], vars(plugin)["onnx_plugin"] = object, object, Descriptor
        for module in (package, graph, plugin):
            monkeypatch.setitem(sys.modules, module.__name__, module)
        exec(compile(plugin_files()["python/kvfuse_onnx_plugin.py"], "plugin", "exec"), {})
        return found

    @pytest.mark.parametrize("name", [name for name in plugin_operators() if name not in LISTS])
    def test_attributes_arrive_in_ges_types(self, name: str, plugins: dict[str, Callable[..., None]]) -> None:
        target, operator = _Target(), OPS[name]
        plugins[f"ai.ascend::1::{name}"](types.SimpleNamespace(attrs=example(operator)), target)
        assert target.attrs == wanted(operator)
        assert {key: type(value) for key, value in target.attrs.items()} == {
            key: type(value) for key, value in wanted(operator).items()
        }

    @pytest.mark.parametrize("name", LISTS)
    def test_lists_cannot_be_placed(self, name: str, plugins: dict[str, Callable[..., None]]) -> None:
        target = _Target()
        with pytest.raises(ValueError, match="key and value are lists in GE.*use the C\\+\\+ plugin"):
            plugins[f"ai.ascend::1::{name}"](types.SimpleNamespace(attrs=example(OPS[name])), target)
        assert not target.attrs

    @pytest.mark.parametrize(
        ("attrs", "text"),
        [({"speed": 1}, "unknown attribute speed"), ({"float8_cast": "wrap"}, "GE knows saturate only")],
    )
    def test_what_ge_does_not_have_fails(
        self, attrs: dict[str, Any], text: str, plugins: dict[str, Callable[..., None]]
    ) -> None:
        with pytest.raises(ValueError, match=text):
            plugins["ai.ascend::1::KvRmsNormRopeCache"](types.SimpleNamespace(attrs=attrs), _Target())


# The few declarations of the toolkit's headers that the plugin uses; they print what they get. The function that places
# lists is protected, as in older toolkits, and has an overload, as in all.
STAND_IN = r"""
#pragma once
#include <cstdint>
#include <cstdio>
#include <functional>
#include <initializer_list>
#include <map>
#include <string>
#include <vector>
namespace ge {
using graphStatus = uint32_t;
const graphStatus GRAPH_SUCCESS = 0;
class AscendString {
 public:
  AscendString() = default;
  AscendString(const char* text) : text_(text) {}
  const char* GetString() const { return text_.c_str(); }
 private:
  std::string text_;
};
class Operator {
 public:
  std::string json;
  graphStatus GetAttr(const char*, AscendString& out) const {
    if (json.empty()) return 1;
    out = AscendString(json.c_str());
    return GRAPH_SUCCESS;
  }
  Operator& SetAttr(const char* name, int64_t value) {
    std::printf("%s Int %lld\n", name, (long long)value);
    return *this;
  }
  Operator& SetAttr(const char* name, bool value) { std::printf("%s Bool %d\n", name, value ? 1 : 0); return *this; }
  Operator& SetAttr(const char* name, float value) { std::printf("%s Float %.9g\n", name, value); return *this; }
  Operator& SetAttr(const char* name, const AscendString& value) {
    std::printf("%s String %s\n", name, value.GetString());
    return *this;
  }
  Operator& SetAttr(const char* name, const std::vector<int64_t>& values) {
    std::printf("%s ListInt", name);
    for (auto value : values) std::printf(" %lld", (long long)value);
    std::printf("\n");
    return *this;
  }
 protected:
  void DynamicInputRegisterByIndex(const std::string&, const unsigned, size_t) {}
  void DynamicInputRegisterByIndex(const char* name, const uint32_t count, size_t index) {
    std::printf("%s list %u %zu\n", name, count, index);
  }
};
}  // namespace ge
namespace domi {
using Status = uint32_t;
const Status SUCCESS = 0;
const Status FAILED = 1;
enum FrameworkKind { ONNX };
enum class ImplyType { TVM };
using Parse = std::function<Status(const ge::Operator&, ge::Operator&)>;
std::map<std::string, Parse>& Registry();
struct Registration {
  Registration(const char* type) : type_(type) {}
  Registration& FrameworkType(FrameworkKind) { return *this; }
  Registration& OriginOpType(const std::vector<ge::AscendString>& names) { names_ = names; return *this; }
  Registration& ParseParamsByOperatorFn(Parse parse) { parse_ = parse; return *this; }
  Registration& ImplyType(enum ImplyType) {
    for (auto& name : names_) Registry()[std::string(name.GetString()) + ">" + type_] = parse_;
    return *this;
  }
  std::string type_;
  std::vector<ge::AscendString> names_;
  Parse parse_;
};
}  // namespace domi
#define JOINED_(a, b) a##b
#define JOINED(a, b) JOINED_(a, b)
#define REGISTER_CUSTOM_OP(name) static domi::Registration JOINED(registration_, __LINE__) = domi::Registration(name)
"""

MAIN = r"""
#include "graph/operator.h"
#include <iostream>
std::map<std::string, domi::Parse>& domi::Registry() {
  static std::map<std::string, domi::Parse> registry;
  return registry;
}
int main() {
  ge::Operator source, target;
  std::string name;
  std::getline(std::cin, name);
  std::getline(std::cin, source.json);
  return static_cast<int>(domi::Registry().at(name)(source, target));
}
"""


def parser_json(attrs: dict[str, Any]) -> str:
    """A node's attributes as the parser writes them: floats as text, zeros and empty texts left out."""
    rows: list[dict[str, Any]] = []
    for name, value in attrs.items():
        row: dict[str, Any] = {"name": name}
        if isinstance(value, str):
            row |= {"type": 3} | ({"s": value} if value else {})
        elif isinstance(value, list):
            row |= {"type": 7, "ints": value}
        elif isinstance(value, float):
            row |= {"type": 1} | ({"f": f"{value:.9g}"} if value else {})
        else:
            row |= {"type": 2} | ({"i": value} if value else {})
        rows.append(row)
    return json.dumps({"attribute": rows, "name": "node"})


@pytest.mark.skipif(shutil.which("c++") is None, reason="needs a C++ compiler")
class TestCpp:
    @pytest.fixture(scope="class")
    @staticmethod
    def parse(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str, str], tuple[int, dict[str, str]]]:
        """(operator, JSON) -> (status, attribute -> "kind value") of the compiled plugin."""
        folder = tmp_path_factory.mktemp("plugin")
        for header in ("graph/operator.h", "register/register.h"):
            (folder / header).parent.mkdir()
            (folder / header).write_text(STAND_IN if header.startswith("graph") else '#include "graph/operator.h"\n')
        (folder / "plugin.cc").write_text(plugin_files()["cpp/kvfuse_onnx_plugin.cc"])
        (folder / "main.cc").write_text(MAIN)
        call = ["c++", "-std=c++14", "-Wall", "-Wextra", "-Werror", "-I.", "main.cc", "plugin.cc", "-o", "parse"]
        subprocess.run(call, cwd=folder, check=True, timeout=120)

        def run(name: str, text: str) -> tuple[int, dict[str, str]]:
            key = f"ai.ascend::1::{name}>{name}\n"
            done = subprocess.run([folder / "parse"], input=key + text, capture_output=True, text=True, timeout=20)
            return done.returncode, dict(line.split(" ", 1) for line in done.stdout.splitlines())

        return run

    @pytest.mark.parametrize("name", plugin_operators())
    def test_attributes_arrive_in_ges_types(self, name: str, parse: Any) -> None:
        operator = OPS[name]
        status, found = parse(name, parser_json(example(operator)))
        kinds = {attr.name: attr.type for attr in operator.attrs}
        texts = {key: " ".join(map(str, value)) if isinstance(value, list) else str(int(value)) if kinds[key] == "Bool"
                 else str(value) for key, value in wanted(operator).items()}  # fmt: skip
        slots = {key: f"list 1 {position}" for key, position in LISTS.get(name, {}).items()}
        assert (status, found) == (0, slots | {key: f"{kinds[key]} {text}" for key, text in texts.items()})

    def test_left_out_zeros_and_long_numbers(self, parse: Any) -> None:
        attrs = {"epsilon": float(np.float32(1e-5)), "is_output_kv": 0, "cache_mode": ""}
        status, found = parse("KvRmsNormRopeCache", parser_json(attrs))
        assert (status, found["is_output_kv"], found["cache_mode"]) == (0, "Bool 0", "String ")
        assert np.float32(found["epsilon"].removeprefix("Float ")) == np.float32(1e-5)

    def test_a_node_without_attributes(self, parse: Any) -> None:
        assert parse("InterleaveRope", "") == (0, {})
        assert parse("InterleaveRope", "{}") == (0, {})

    @pytest.mark.parametrize(
        "text",
        [
            parser_json({"speed": 1}),
            parser_json({"float8_cast": "wrap"}),
            '{"attribute": [{"name": "epsilon", "f": "small"}]}',
            '{"attribute": [',
            "[" * 40,
        ],
    )
    def test_what_cannot_be_taken_fails(self, text: str, parse: Any) -> None:
        assert parse("KvRmsNormRopeCache", text)[0] == 1
