"""Packing: one product by all weights gives what the single products give, to the operator and to everybody else."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnx_ir as ir
import onnxruntime as ort
import pytest
from onnx import TensorProto, helper, numpy_helper
from onnx_ir.passes.common import RemoveUnusedNodesPass

from fusion import model_io
from fusion.emit import Emitter
from fusion.facts.graph import GraphView
from fusion.facts.trial.probe import Numbers
from fusion.facts.trial.settle import settle, start_sizes
from fusion.facts.types import fill_types
from fusion.packed import PackedTensor, Piece
from fusion.surgery import packing

HIDDEN, WIDTHS = 8, (6, 4, 4)
RNG = np.random.default_rng(3)
WEIGHTS = [RNG.standard_normal((HIDDEN, width)).astype(np.float32) for width in WIDTHS]
BIASES = [RNG.standard_normal(width).astype(np.float32) for width in WIDTHS]


class Spelling:
    """x ``[B, S, H]`` projected three times, ``q k v``; each may be spelled in its own way."""

    def __init__(self, *ways: str) -> None:
        self.nodes: list[onnx.NodeProto] = []
        self.constants: list[onnx.TensorProto] = []
        for number, way in enumerate(ways):
            self.project(way, "qkv"[number], WEIGHTS[number], BIASES[number])

    def op(self, kind: str, inputs: list[str], name: str, **attrs: Any) -> str:
        self.nodes.append(helper.make_node(kind, inputs, [name], **attrs))
        return name

    def const(self, array: np.ndarray, name: str) -> str:
        self.constants.append(numpy_helper.from_array(array, name))
        return name

    def project(self, way: str, name: str, weight: np.ndarray, bias: np.ndarray) -> None:
        x = "x"
        for letter in way.split("-")[1:]:
            if letter == "identity":
                x = self.op("Identity", [x], f"{name}_x")
            if letter in ("flat", "gemm"):
                x = self.op("Reshape", [x, self.const(np.array([-1, HIDDEN]), f"{name}_shape")], f"{name}_flat")
        kind = way.split("-")[0]
        b = self.const(bias, f"{name}_b")
        if kind == "gemm":
            self.op("Gemm", [x, self.const(weight.T.copy(), f"{name}_w"), b], name, transB=1)
        elif kind == "gemmplain":
            self.op("Gemm", [x, self.const(weight, f"{name}_w")], name)
        elif kind == "turned":
            w = self.op("Transpose", [self.const(weight.T.copy(), f"{name}_w")], f"{name}_t", perm=[1, 0])
            self.op("MatMul", [x, w], name)
        elif kind == "wide":
            w = self.op("Cast", [self.const(weight.astype(np.float64), f"{name}_w")], f"{name}_c", to=1)
            self.op("MatMul", [x, w], name)
        elif kind == "bias":
            product = self.op("MatMul", [x, self.const(weight, f"{name}_w")], f"{name}_p")
            self.op("Add", [b, product], name)
        else:
            self.op("MatMul", [x, self.const(weight, f"{name}_w")], name)

    def model(self, outputs: list[str]) -> onnx.ModelProto:
        graph = helper.make_graph(
            self.nodes, "g", [helper.make_tensor_value_info("x", 1, ["B", "S", HIDDEN])],
            [helper.make_tensor_value_info(name, 1, None) for name in outputs], self.constants,
        )  # fmt: skip
        return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=10)


def wanted(ways: tuple[str, ...], x: np.ndarray) -> list[np.ndarray]:
    """q, k and v by definition, ``[rows, columns]``."""
    rows = x.reshape(-1, HIDDEN)
    biased = [way.split("-")[0] in ("gemm", "bias") for way in ways]
    return [rows @ w + b * has for w, b, has in zip(WEIGHTS, BIASES, biased, strict=True)]


def joined(proto: onnx.ModelProto, how: packing.Pack = "auto", kept: str = "") -> tuple[ir.Model, list[str], bool]:
    """The model with ``qkv`` as its output (and ``kept``, a projection or a reader of one), packed or not."""
    model = ir.from_proto(proto)
    fill_types(model.graph)
    view = GraphView(model.graph, 18)
    sizes = [start_sizes(view, seed) for seed in (0, 1)]
    probes = [settle(view, seed, Numbers(64), model.graph.outputs, sizes[seed]) for seed in (0, 1)]
    values = {item.name: item for node in model.graph for item in node.outputs}
    emit = Emitter("new", {name for name in values if name})
    rows, join = packing.side_by_side(emit, view, [values[name] for name in "qkv"], probes, "qkv")
    rows = emit.node("Identity", [rows], "operator")
    model.graph.extend(emit.nodes)
    for constant in emit.constants:
        model.graph.register_initializer(constant)
    kept_values = [values[name] for name in kept.split(",") if kept]
    model.graph.outputs.clear()
    model.graph.outputs.extend([rows, *kept_values])
    rows.name = "qkv"
    RemoveUnusedNodesPass()(model)
    notes = packing.pack(model.graph, [join] if join is not None else [], how)
    RemoveUnusedNodesPass()(model)
    model.graph.sort()
    return model, notes, join is not None


def results(model: ir.Model, x: np.ndarray) -> dict[str, np.ndarray]:
    proto = ir.to_proto(model)
    session = ort.InferenceSession(proto.SerializeToString(), providers=["CPUExecutionProvider"])
    names = [item.name for item in session.get_outputs()]
    return dict(zip(names, session.run(names, {"x": x}), strict=True))


X = np.random.default_rng(4).standard_normal((2, 3, HIDDEN)).astype(np.float32)
PACKED = [
    ("plain", "plain", "plain"),
    ("bias", "bias", "bias"),
    ("bias", "plain", "bias"),
    ("turned", "plain", "turned"),
    ("wide", "wide", "wide"),
    ("plain-identity", "plain", "plain-identity"),
    ("plain-flat", "plain-flat", "plain-flat"),
    ("gemm-flat", "gemm-flat", "gemm-flat"),
    ("gemmplain-flat", "gemm-flat", "gemmplain-flat"),
    ("plain", "gemm-flat", "bias-flat"),
]


@pytest.mark.parametrize("ways", PACKED, ids="_".join)
def test_one_product_stands_for_three(ways: tuple[str, str, str]) -> None:
    model, (note,), _ = joined(Spelling(*ways).model(list("qkv")))
    kinds = [node.op_type for node in model.graph]
    assert sum(kind in ("MatMul", "Gemm") for kind in kinds) == 1 and "Concat" not in kinds
    assert "packed into one" in note and "q_w, k_w, v_w" in note
    np.testing.assert_allclose(results(model, X)["qkv"], np.concatenate(wanted(ways, X), 1), atol=1e-5)


@pytest.mark.parametrize("ways", PACKED, ids="_".join)
def test_without_packing_a_concat_gives_the_same(ways: tuple[str, str, str]) -> None:
    model, (note,), _ = joined(Spelling(*ways).model(list("qkv")), "never")
    assert "Concat" in [node.op_type for node in model.graph] and "switched off" in note
    np.testing.assert_allclose(results(model, X)["qkv"], np.concatenate(wanted(ways, X), 1), atol=1e-5)


def test_other_readers_get_their_columns_and_outputs_keep_their_names() -> None:
    spelling = Spelling("plain", "bias", "plain")
    spelling.op("Relu", ["v"], "r")
    model, _, _ = joined(spelling.model([*"qkv", "r"]), kept="k,r")
    assert [node.op_type for node in model.graph].count("MatMul") == 1
    got, (_, k, v) = results(model, X), wanted(("plain", "bias", "plain"), X)
    np.testing.assert_allclose(got["k"].reshape(k.shape), k, atol=1e-5)
    np.testing.assert_allclose(got["r"].reshape(v.shape), np.maximum(v, 0), atol=1e-5)
    assert got["k"].shape == (2, 3, 4)


def test_a_reshaped_projection_with_other_readers_is_not_packed() -> None:
    spelling = Spelling("plain", "gemm-flat", "plain")
    model, (note,), _ = joined(spelling.model(list("qkv")), kept="k")
    assert "another rank" in note and results(model, X)["k"].shape == (6, 4)
    model, (note,), _ = joined(spelling.model(list("qkv")), kept="q")
    assert "packed" in note and results(model, X)["q"].shape == (2, 3, 6)


@pytest.mark.parametrize("change", ["another input", "computed weight", "weight as input", "alpha", "row bias"])
def test_what_is_no_sibling_is_joined_only(change: str) -> None:
    spelling = Spelling("plain", "gemm-flat" if change == "alpha" else "bias", "plain")
    product = next(node for node in spelling.nodes if node.op_type == "Gemm" or "k_w" in node.input)
    if change == "another input":
        spelling.nodes.insert(0, helper.make_node("Relu", ["x"], ["x2"]))
        product.input[0] = "x2"
    elif change == "computed weight":
        spelling.nodes.insert(0, helper.make_node("Relu", ["k_w"], ["k_w2"]))
        product.input[1] = "k_w2"
    elif change == "alpha":
        product.attribute.append(helper.make_attribute("alpha", 2.0))
    elif change == "row bias":
        bias = next(item for item in spelling.constants if item.name == "k_b")
        bias.CopyFrom(numpy_helper.from_array(np.ones((3, 4), np.float32), "k_b"))
    proto = spelling.model(list("qkv"))
    if change == "weight as input":
        proto.graph.input.append(helper.make_tensor_value_info("k_w", 1, [HIDDEN, 4]))
    session = ort.InferenceSession(proto.SerializeToString(), providers=["CPUExecutionProvider"])
    separate = [part.reshape(6, -1) for part in session.run(list("qkv"), {"x": X})]
    model, notes, is_join = joined(proto)
    assert not is_join and not notes
    np.testing.assert_allclose(results(model, X)["qkv"], np.concatenate(separate, 1), atol=1e-5)


def test_integer_products_are_packed_with_their_zero_points() -> None:
    rng = np.random.default_rng(5)
    spelling = Spelling()
    x = rng.integers(0, 256, (2, 3, HIDDEN)).astype(np.uint8)
    stored = [rng.integers(-128, 128, (HIDDEN, width)).astype(np.int8) for width in WIDTHS]
    zeros = [np.array(3, np.int8), rng.integers(-5, 5, WIDTHS[1]).astype(np.int8), None]
    for name, weight, zero in zip("qkv", stored, zeros, strict=True):
        operands = ["x", spelling.const(weight, f"{name}_w"), spelling.const(np.array(7, np.uint8), f"{name}_xz")]
        spelling.op("MatMulInteger", operands + ([] if zero is None else [spelling.const(zero, f"{name}_z")]), name)
    proto = spelling.model(list("qkv"))
    del proto.graph.input[:], proto.graph.output[:]
    proto.graph.input.append(helper.make_tensor_value_info("x", TensorProto.UINT8, [2, 3, HIDDEN]))
    for name, width in zip("qkv", WIDTHS, strict=True):
        proto.graph.output.append(helper.make_tensor_value_info(name, TensorProto.INT32, [2, 3, width]))
    session = ort.InferenceSession(proto.SerializeToString(), providers=["CPUExecutionProvider"])
    separate = [part.reshape(6, -1) for part in session.run(list("qkv"), {"x": x})]
    model, (note,), _ = joined(proto)
    assert [node.op_type for node in model.graph].count("MatMulInteger") == 1 and "one MatMulInteger" in note
    assert np.array_equal(results(model, x)["qkv"], np.concatenate(separate, 1))


def outside(folder: Path, ways: tuple[str, ...]) -> Path:
    path = folder / "m.onnx"
    onnx.save_model(
        Spelling(*ways).model(list("qkv")), path, save_as_external_data=True, location="m.onnx.data", size_threshold=0
    )
    return path


def test_large_external_weights_are_left_alone_by_auto(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    loaded = model_io.load(outside(tmp_path, ("plain",) * 3))
    proto = ir.to_proto(loaded.model)
    monkeypatch.setattr(packing, "LIMIT", 64)
    _, (note,), _ = joined(proto)
    assert "--pack always" in note and "of external weights" in note
    assert "packed into one" in joined(proto, "always")[1][0]


def test_packed_external_weights_go_to_a_file_of_their_own(tmp_path: Path) -> None:
    path = outside(tmp_path, ("turned", "bias", "plain"))
    before = {item.name: item.read_bytes() for item in tmp_path.iterdir()}
    loaded = model_io.load(path)
    fill_types(loaded.model.graph)
    packed = _packed(loaded.model)
    assert np.array_equal(packed.numpy(), np.concatenate(WEIGHTS, axis=1))
    assert b"".join(block.tobytes() for block in packed.blocks()) == packed.tobytes()
    assert {item.name: item.read_bytes() for item in tmp_path.iterdir()} == before


def _packed(model: ir.Model) -> PackedTensor:
    weights = model.graph.initializers
    tensors = [tensor for name in ("q_w", "k_w", "v_w") if (tensor := weights[name].const_value) is not None]
    turned = [tuple(t.shape) != weight.shape for t, weight in zip(tensors, WEIGHTS, strict=True)]
    return PackedTensor([Piece(t, turn) for t, turn in zip(tensors, turned, strict=True)], 1, "packed")


SCRIPT = """
import resource, sys
from pathlib import Path
import numpy as np, onnx_ir as ir
from fusion.external import write_weights
from fusion.packed import PackedTensor, Piece
folder = Path(sys.argv[1])
def stored(name, dims):
    return ir.ExternalTensor(f"{name}.data", 0, dims[0] * dims[1] * 2, ir.DataType.FLOAT16, shape=ir.Shape(dims),
                             name=name, base_dir=str(folder))
packed = PackedTensor([Piece(stored("a", (8192, 6144))), Piece(stored("b", (2048, 8192)), True)], 1, "packed")
before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
write_weights([packed], folder / "out", "out")
print((resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) // 1024)
"""


def test_packing_streams(tmp_path: Path) -> None:
    """134 MB of weights are written with a few blocks in memory."""
    for name, size in (("a", 8192 * 6144 * 2), ("b", 2048 * 8192 * 2)):
        with (tmp_path / f"{name}.data").open("wb") as file:
            file.truncate(size)
    out = subprocess.run([sys.executable, "-c", SCRIPT, str(tmp_path)], capture_output=True, text=True, check=True)
    assert int(out.stdout) < 64
    assert (tmp_path / "out").stat().st_size == 8192 * 8192 * 2
