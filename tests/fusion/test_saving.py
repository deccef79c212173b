"""Writing models: references to weights stay valid, nothing is copied unasked, nothing of the user's is harmed."""

from __future__ import annotations

import os
from pathlib import Path

import numpy as np
import onnx
import onnx_ir as ir
import onnxruntime
import pytest
from onnx import TensorProto, helper

from fusion import model_io
from ir_ops.errors import BadModel, BadUsage, KvfuseError

WEIGHTS = {"w": np.arange(2048, dtype=np.float32), "v": np.linspace(0, 1, 2048, dtype=np.float32)}


def write_model(path: Path, location: str, offsets: tuple[int, int] = (0, 8192)) -> Path:
    """y = (x + w) * v with w and v at ``location``."""
    tensors = []
    for name, offset in zip(WEIGHTS, offsets, strict=True):
        tensor = TensorProto(name=name, data_type=TensorProto.FLOAT, dims=[2048], data_location=TensorProto.EXTERNAL)
        for key, value in (("location", location), ("offset", str(offset)), ("length", "8192")):
            entry = tensor.external_data.add()
            entry.key, entry.value = key, value
        tensors.append(tensor)
    value = helper.make_tensor_value_info
    nodes = [helper.make_node("Add", ["x", "w"], ["s"]), helper.make_node("Mul", ["s", "v"], ["y"])]
    graph = helper.make_graph(nodes, "g", [value("x", 1, [2048])], [value("y", 1, [2048])], tensors)
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=10)
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(model.SerializeToString())
    return path


def write_weights(path: Path) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(b"".join(array.tobytes() for array in WEIGHTS.values()))
    path.chmod(0o444)
    return path


def values(path: Path) -> dict[str, np.ndarray]:
    """All weights of the model at ``path``, through its references."""
    initializers = model_io.load(path).model.graph.initializers
    return {name: value.const_value.numpy().copy() for name, value in initializers.items()}  # type: ignore[union-attr]


def locations(path: Path) -> list[str]:
    model = onnx.load_model(path, load_external_data=False)
    return [
        entry.value for tensor in model.graph.initializer for entry in tensor.external_data if entry.key == "location"
    ]


def runs(path: Path) -> bool:
    session = onnxruntime.InferenceSession(path, providers=["CPUExecutionProvider"])
    (y,) = session.run(None, {"x": np.ones(2048, np.float32)})
    return bool(np.array_equal(y, (1 + WEIGHTS["w"]) * WEIGHTS["v"]))


def snapshot(folder: Path) -> dict[str, tuple[bytes, int, int]]:
    """Content, inode and time of change of every file below ``folder``."""
    found = {}
    for file in sorted(folder.rglob("*")):
        if file.is_file():
            stat = file.stat()
            found[str(file.relative_to(folder))] = (file.read_bytes(), stat.st_ino, stat.st_mtime_ns)
    return found


LAYOUTS = [
    # model, its weights, location as written, output
    ("m/in.onnx", "m/w.bin", "w.bin", "m/out.onnx"),
    ("m/in.onnx", "m/weights/w.bin", "weights/w.bin", "m/out.onnx"),
    ("m/in.onnx", "m/weights/w.bin", "./weights/../weights/w.bin", "m/out.onnx"),
    ("m/sub/in.onnx", "m/sub/w.bin", "w.bin", "m/out.onnx"),
    ("m/in.onnx", "m/weights/w.bin", "weights/w.bin", "m/weights/out.onnx"),
]


@pytest.mark.parametrize(("model", "weights", "location", "out"), LAYOUTS)
def test_shared_weights_are_referred_to_from_wherever_that_can_be_said(
    tmp_path: Path, model: str, weights: str, location: str, out: str
) -> None:
    write_weights(tmp_path / weights)
    source = write_model(tmp_path / model, location)
    before = snapshot(tmp_path)
    saved = model_io.save(model_io.load(source).model, tmp_path / out)
    assert saved.data is None
    assert runs(tmp_path / out)
    after = snapshot(tmp_path)
    assert set(after) - set(before) == {out}
    assert {name: after[name] for name in before} == before


def test_weights_that_no_runtime_would_open_from_there_are_not_shared(tmp_path: Path) -> None:
    write_weights(tmp_path / "m/w.bin")
    source = write_model(tmp_path / "m/in.onnx", "w.bin")
    (tmp_path / "elsewhere").mkdir()
    with pytest.raises(
        BadUsage, match=r"weights cannot be shared from there; found weights in .*m/w.bin.*--weights copy"
    ):
        model_io.save(model_io.load(source).model, tmp_path / "elsewhere/out.onnx")
    assert not list((tmp_path / "elsewhere").iterdir())


@pytest.mark.parametrize("out", ["m/out.onnx", "elsewhere/out.onnx", "out.onnx"])
def test_copied_weights_make_the_output_independent(tmp_path: Path, out: str) -> None:
    weights = write_weights(tmp_path / "m/w.bin")
    source = write_model(tmp_path / "m/in.onnx", "w.bin")
    (tmp_path / "elsewhere").mkdir()
    before = snapshot(tmp_path)
    saved = model_io.save(model_io.load(source).model, tmp_path / out, weights="copy")
    assert saved.data == tmp_path / (out + ".data")
    after = snapshot(tmp_path)
    assert {name: after[name] for name in before} == before
    weights.unlink()
    source.unlink()
    assert runs(tmp_path / out)


@pytest.mark.parametrize("weights", ["share", "copy"])
def test_over_the_input(tmp_path: Path, weights: model_io.Weights) -> None:
    file = write_weights(tmp_path / "w.bin")
    source = write_model(tmp_path / "in.onnx", "w.bin")
    content = file.read_bytes()
    model_io.save(model_io.load(source).model, source, weights=weights)
    assert runs(source)
    assert file.read_bytes() == content
    assert locations(source) == (["w.bin"] * 2 if weights == "share" else ["in.onnx.data"] * 2)


def test_copying_over_the_input_never_writes_into_the_files_it_reads(tmp_path: Path) -> None:
    file = write_weights(tmp_path / "in.onnx.data")
    source = write_model(tmp_path / "in.onnx", "in.onnx.data")
    content = file.read_bytes()
    saved = model_io.save(model_io.load(source).model, source, weights="copy")
    assert saved.data == tmp_path / "in.onnx.1.data"
    assert file.read_bytes() == content
    assert runs(source)


def test_the_output_may_not_be_a_weight_file(tmp_path: Path) -> None:
    file = write_weights(tmp_path / "w.bin")
    source = write_model(tmp_path / "in.onnx", "w.bin")
    content = file.read_bytes()
    for weights in ("share", "copy"):
        with pytest.raises(BadUsage, match="the output would overwrite the model's weights"):
            model_io.save(model_io.load(source).model, file, weights=weights)  # type: ignore[arg-type]
    assert file.read_bytes() == content


@pytest.mark.parametrize("out", ["out.onnx", "elsewhere/out.onnx"])
def test_absolute_locations_stay_as_they_are_or_become_relative_where_they_can(tmp_path: Path, out: str) -> None:
    file = write_weights(tmp_path / "w.bin")
    source = write_model(tmp_path / "in.onnx", str(file))
    (tmp_path / "elsewhere").mkdir()
    loaded = model_io.load(source)
    saved = model_io.save(loaded.model, tmp_path / out)
    inside = out == "out.onnx"
    assert locations(tmp_path / out) == (["w.bin"] * 2 if inside else [str(file)] * 2)
    assert bool(saved.notes) is not inside
    np.testing.assert_array_equal(values(tmp_path / out)["w"], WEIGHTS["w"])


def link_out_of_the_folder(tmp_path: Path) -> Path:
    (tmp_path / "m").mkdir()
    (tmp_path / "m/w.bin").symlink_to(write_weights(tmp_path / "cache/blob"))
    return write_model(tmp_path / "m/in.onnx", "w.bin")


def parent_folder(tmp_path: Path) -> Path:
    write_weights(tmp_path / "cache/blob")
    return write_model(tmp_path / "m/in.onnx", "../cache/blob")


def hard_link(tmp_path: Path) -> Path:
    blob = write_weights(tmp_path / "cache/blob")
    (tmp_path / "m").mkdir()
    os.link(blob, tmp_path / "m/w.bin")
    return write_model(tmp_path / "m/in.onnx", "w.bin")


@pytest.mark.parametrize("layout", [link_out_of_the_folder, parent_folder, hard_link])
def test_weights_behind_links_are_read_said_and_kept(tmp_path: Path, layout) -> None:  # type: ignore[no-untyped-def]
    source = layout(tmp_path)
    spelled = locations(source)
    loaded = model_io.load(source)
    assert "ONNX Runtime may refuse them" in loaded.notes[0]
    np.testing.assert_array_equal(values(source)["v"], WEIGHTS["v"])
    model_io.save(loaded.model, tmp_path / "m/out.onnx")
    assert locations(tmp_path / "m/out.onnx") == spelled
    copied = model_io.save(loaded.model, tmp_path / "m/own.onnx", weights="copy")
    assert runs(copied.path)
    proto = loaded.as_given()
    assert isinstance(proto, onnx.ModelProto)
    assert [entry.value for tensor in proto.graph.initializer for entry in tensor.external_data][::3] == spelled


def test_a_weight_used_twice_is_copied_once(tmp_path: Path) -> None:
    write_weights(tmp_path / "w.bin")
    source = write_model(tmp_path / "in.onnx", "w.bin", offsets=(0, 0))
    saved = model_io.save(model_io.load(source).model, tmp_path / "out.onnx", weights="copy")
    assert saved.data is not None
    assert saved.data.stat().st_size == 8192
    np.testing.assert_array_equal(values(saved.path)["v"], WEIGHTS["w"])


def test_new_tensors_stay_inside_until_they_are_too_large(tmp_path: Path) -> None:
    write_weights(tmp_path / "w.bin")
    source = write_model(tmp_path / "in.onnx", "w.bin")
    model = model_io.load(source).model
    packed = np.concatenate(list(WEIGHTS.values()))
    calls = []

    def make() -> ir.Tensor:
        calls.append(1)
        return ir.tensor(packed, name="w")

    lazy = ir.LazyTensor(make, dtype=ir.DataType.FLOAT, shape=ir.Shape([4096]), name="w")
    model.graph.initializers["w"].const_value = lazy
    inside = model_io.save(model, tmp_path / "inside.onnx")
    assert inside.data is None
    assert inside.proto.graph.initializer[0].raw_data == packed.tobytes()
    outside = model_io.save(model, tmp_path / "outside.onnx", inline_limit=1000)
    assert locations(outside.path) == ["outside.onnx.data", "w.bin"]
    np.testing.assert_array_equal(values(outside.path)["w"], packed)
    assert model.graph.initializers["w"].const_value is lazy
    assert len(calls) == 2


def test_small_tensors_stay_inside_even_then(tmp_path: Path) -> None:
    value = helper.make_tensor_value_info
    tensors = [onnx.numpy_helper.from_array(np.ones(size, np.float32), f"t{size}") for size in (4, 4096)]
    nodes = [helper.make_node("Add", ["x", "t4"], ["a"]), helper.make_node("Tile", ["a", "n"], ["b"]),
             helper.make_node("Add", ["b", "t4096"], ["y"])]  # fmt: skip
    tensors.append(onnx.numpy_helper.from_array(np.asarray([1024]), "n"))
    graph = helper.make_graph(nodes, "g", [value("x", 1, [4])], [value("y", 1, [4096])], tensors)
    saved = model_io.save(helper.make_model(graph), tmp_path / "out.onnx", inline_limit=0)
    assert locations(saved.path) == ["out.onnx.data"]
    assert [t.name for t in saved.proto.graph.initializer if t.data_location == TensorProto.EXTERNAL] == ["t4096"]


def test_a_failed_save_leaves_the_old_output_and_no_rubbish(tmp_path: Path) -> None:
    file = write_weights(tmp_path / "w.bin")
    source = write_model(tmp_path / "in.onnx", "w.bin")
    loaded = model_io.load(source)
    out = tmp_path / "out.onnx"
    out.write_bytes(b"the old output")
    (tmp_path / "out.onnx.data").write_bytes(b"and its weights")
    file.chmod(0o644)
    file.write_bytes(b"cut")
    with pytest.raises(BadModel, match="a weight file is too short; found .* bytes missing for 'w'"):
        model_io.save(loaded.model, out, weights="copy")
    assert out.read_bytes() == b"the old output"
    assert (tmp_path / "out.onnx.data").read_bytes() == b"and its weights"
    assert sorted(path.name for path in tmp_path.iterdir()) == ["in.onnx", "out.onnx", "out.onnx.data", "w.bin"]


def test_no_folder_to_write_to(tmp_path: Path) -> None:
    source = write_model(tmp_path / "in.onnx", str(write_weights(tmp_path / "w.bin")))
    with pytest.raises(KvfuseError, match="no such folder to write to"):
        model_io.save(model_io.load(source).model, tmp_path / "absent/out.onnx", weights="copy")


def test_an_unknown_way_to_treat_weights(tmp_path: Path) -> None:
    write_weights(tmp_path / "w.bin")
    source = write_model(tmp_path / "in.onnx", "w.bin")
    with pytest.raises(BadUsage, match="found 'move', wanted 'share' or 'copy'"):
        model_io.save(model_io.load(source).model, tmp_path / "o.onnx", weights="move")  # type: ignore[arg-type]


def test_a_proto_from_memory_names_no_folder(tmp_path: Path) -> None:
    """Its references are kept as they are; with the folder given they are followed."""
    write_weights(tmp_path / "m/w.bin")
    proto = onnx.load_model(write_model(tmp_path / "m/in.onnx", "w.bin"), load_external_data=False)
    model_io.save(model_io.load(proto).model, tmp_path / "out.onnx")
    assert locations(tmp_path / "out.onnx") == ["w.bin", "w.bin"]
    model_io.save(proto, tmp_path / "out.onnx", folder=tmp_path / "m")
    assert locations(tmp_path / "out.onnx") == ["m/w.bin", "m/w.bin"]
    assert runs(tmp_path / "out.onnx")


def test_everything_else_of_a_model_is_kept(tmp_path: Path) -> None:
    value = helper.make_tensor_value_info
    body = [helper.make_node("Neg", ["a"], ["b"], name="inner", doc_string="negates")]
    function = helper.make_function("my", "Minus", ["a"], ["b"], body, [helper.make_opsetid("", 18)])
    node = helper.make_node("Minus", ["x"], ["y"], name="call", domain="my", doc_string="calls")
    entry = node.metadata_props.add()
    entry.key, entry.value = "pkg.torch.onnx.name_scopes", "['', 'layers.3']"
    last = helper.make_node("Abs", ["y"], ["z"])
    graph = helper.make_graph([node, last], "g", [value("x", 1, ["N", 2])], [value("z", 1, ["N", 2])], [], "a graph")
    graph.value_info.append(value("y", 1, ["N", 2]))
    graph.quantization_annotation.append(onnx.TensorAnnotation(tensor_name="y"))
    imports = [helper.make_opsetid("", 18), helper.make_opsetid("my", 7)]
    model = helper.make_model(graph, functions=[function], opset_imports=imports, ir_version=9, doc_string="a model")
    model.producer_name, model.producer_version, model.model_version = "maker", "1.2", 3
    model.metadata_props.add(key="origin", value="here")
    (tmp_path / "in.onnx").write_bytes(model.SerializeToString())
    model_io.save(model_io.load(tmp_path / "in.onnx").model, tmp_path / "out.onnx")
    again = onnx.load_model(tmp_path / "out.onnx")
    for name in ("ir_version", "producer_name", "producer_version", "model_version", "doc_string", "metadata_props"):
        assert getattr(again, name) == getattr(model, name), name
    assert {(item.domain, item.version) for item in again.opset_import} == {("", 18), ("my", 7)}
    assert again.functions[0].node == model.functions[0].node
    assert again.graph.node == model.graph.node
    assert again.graph.value_info == model.graph.value_info
    assert (again.graph.input, again.graph.output) == (model.graph.input, model.graph.output)
    assert again.graph.doc_string == "a graph"
