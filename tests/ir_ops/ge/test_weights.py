"""Where weights go: into the file, into the model's external data by reference, or into a file of their own."""

from __future__ import annotations

import shutil
from pathlib import Path

import numpy as np
import onnx
import onnx_ir as ir
import pytest
from onnx import helper

from ir_ops.errors import BadUsage, KvfuseError
from ir_ops.ge import ExportResult, export, read, run, validate
from ir_ops.ge.convert import weights
from ir_ops.ge.validator import errors
from tests.ir_ops.ge.onnx_models import make_model, tensor

rng = np.random.default_rng(3)
W1, W2 = (rng.standard_normal((16, 32)).astype(np.float32) for _ in range(2))
SMALL = rng.standard_normal(32).astype(np.float32)
X = rng.standard_normal((4, 16)).astype(np.float32)
WANTED = (X @ W1 + SMALL) * (X @ W2)


def small_model() -> onnx.ModelProto:
    nodes = [
        helper.make_node("MatMul", ["x", "w1"], ["a"]), helper.make_node("Add", ["a", "small"], ["b"]),
        helper.make_node("MatMul", ["x", "w2"], ["c"]), helper.make_node("Mul", ["b", "c"], ["y"]),
    ]  # fmt: skip
    inits = [tensor(name, array) for name, array in (("w1", W1), ("w2", W2), ("small", SMALL))]
    info = helper.make_tensor_value_info("x", 1, ["n", 16])
    return make_model(helper.make_graph(nodes, "g", [info], [helper.make_empty_tensor_value_info("y")], inits))


@pytest.fixture
def external(tmp_path: Path) -> Path:
    path = tmp_path / "model" / "m.onnx"
    path.parent.mkdir()
    onnx.save(small_model(), path, save_as_external_data=True, location="m.data", size_threshold=0)
    return path


def assert_right(result: ExportResult) -> None:
    assert result.path is not None
    assert errors(validate(result.path)) == []
    np.testing.assert_allclose(run(result.path, {"x": X})["y"], WANTED, rtol=1e-5)


def test_inline_where_everything_fits(external: Path, tmp_path: Path) -> None:
    result = export(external, tmp_path / "m.air")
    assert (result.inline_bytes, result.external_bytes) == (2 * 2048 + 128, 0)
    (external.parent / "m.data").unlink()
    assert_right(result)


def test_references_into_the_external_data_above_the_limit(external: Path, tmp_path: Path) -> None:
    result = export(external, tmp_path / "m.air", inline_limit=4000)
    assert (result.inline_bytes, result.external_bytes) == (0, 4096 + 128)
    nodes = list(read(tmp_path / "m.air").root.of_type("FileConstant"))
    assert [node.name for node in nodes] == ["w1", "small", "w2"]
    assert {node.value("location") for node in nodes} == {str(external.parent / "m.data")}
    assert len({node.value("offset") for node in nodes}) == 3
    assert result.weight_files == []
    assert_right(result)


def test_external_data_is_not_read(external: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    read_names: list[str | None] = []
    plain = weights._read
    monkeypatch.setattr(weights, "_read", lambda tensor, name="": read_names.append(tensor.name) or plain(tensor, name))
    for name in ("tobytes", "numpy"):  # which map the whole file
        monkeypatch.setattr(ir.ExternalTensor, name, lambda self: pytest.fail(f"{self.name} was mapped"))
    export(external, tmp_path / "m.air", weights="external")
    assert read_names == []


def test_small_integers_are_inline_wherever_the_model_has_them(tmp_path: Path) -> None:
    """GE reads shapes, axes and indices while it compiles."""
    info = helper.make_tensor_value_info("x", 1, ["n", 16])
    node = helper.make_node("Gather", ["x", "places"], ["y"])
    inits = [tensor("places", np.array([3, 1, 2], np.int64))]
    graph = helper.make_graph([node], "g", [info], [helper.make_empty_tensor_value_info("y")], inits)
    onnx.save(make_model(graph), tmp_path / "m.onnx", save_as_external_data=True, location="m.data", size_threshold=0)
    result = export(tmp_path / "m.onnx", tmp_path / "m.air", weights="external")
    assert (result.inline_bytes, result.external_bytes) == (24, 0)
    np.testing.assert_array_equal(run(tmp_path / "m.air", {"x": X})["y"], X[[3, 1, 2]])


def test_weights_in_memory_get_a_file_of_their_own(tmp_path: Path) -> None:
    result = export(small_model(), tmp_path / "m.air", weights="external")
    assert result.weight_files == [tmp_path / "m.weights"]
    nodes = {node.name: node for node in read(tmp_path / "m.air").root.of_type("FileConstant")}
    assert (nodes["w1"].value("offset"), nodes["w2"].value("offset")) == (0, 4096)
    assert_right(result)


def test_weights_in_memory_without_an_output_path() -> None:
    with pytest.raises(BadUsage, match="weights in memory do not fit into the file"):
        export(small_model(), weights="external")


def test_one_file_for_every_weight(external: Path, tmp_path: Path) -> None:
    (tmp_path / "m_weights").mkdir()
    (tmp_path / "m_weights" / "of_an_earlier_export").touch()
    result = export(external, tmp_path / "m.air", weights="file-per-tensor")
    assert [path.name for path in result.weight_files] == ["00000_w1", "00001_w2"]
    assert sorted(path.name for path in (tmp_path / "m_weights").iterdir()) == ["00000_w1", "00001_w2"]
    assert (tmp_path / "m_weights" / "00001_w2").read_bytes() == W2.tobytes()
    assert_right(result)
    moved = shutil.copytree(tmp_path, tmp_path.parent / "elsewhere")
    (external.parent / "m.data").unlink()
    np.testing.assert_allclose(run(moved / "m.air", {"x": X})["y"], WANTED, rtol=1e-5)


def test_no_file_grows_beyond_the_limit(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("ir_ops.ge.convert.weights.FILE_LIMIT", 5000)
    result = export(small_model(), tmp_path / "m.air", weights="external")
    assert [path.name for path in result.weight_files] == ["m.weights", "m.weights1"]
    assert_right(result)


@pytest.mark.parametrize(
    ("data", "air"), [("m.weights", "m.air"), ("m_weights/0", "m.air"), ("m.weights1", "m.air"), ("m.air", "m.air")]
)
def test_the_models_own_weights_are_never_overwritten(data: str, air: str, tmp_path: Path) -> None:
    (tmp_path / "m_weights").mkdir()
    onnx.save(small_model(), tmp_path / "m.onnx", save_as_external_data=True, location=data, size_threshold=0)
    before = (tmp_path / data).read_bytes()
    with pytest.raises(BadUsage, match="would overwrite the model's weights"):
        export(tmp_path / "m.onnx", tmp_path / air)
    assert (tmp_path / data).read_bytes() == before


@pytest.mark.parametrize("name", ["m.onnx", "m", "m.AIR"])
def test_the_file_is_called_air(name: str, tmp_path: Path) -> None:
    with pytest.raises(BadUsage, match=r"a GE IR file is called NAME.air.*write to m.air"):
        export(small_model(), tmp_path / name)


def test_a_weight_file_that_ends_early_leaves_nothing_behind(external: Path, tmp_path: Path) -> None:
    data = external.parent / "m.data"
    data.write_bytes(data.read_bytes()[:-600])
    for mode in ("inline", "file-per-tensor"):
        with pytest.raises(KvfuseError):
            export(external, tmp_path / "m.air", weights=mode)
    assert [path.name for path in tmp_path.iterdir()] == ["model"]


def test_inline_can_be_forced(external: Path, tmp_path: Path) -> None:
    result = export(external, tmp_path / "m.air", weights="inline", inline_limit=10)
    assert result.external_bytes == 0
    assert_right(result)


def test_one_weight_read_twice_is_stored_once(tmp_path: Path) -> None:
    model = small_model()
    model.graph.node[2].input[1] = "w1"
    result = export(model, tmp_path / "m.air")
    assert result.inline_bytes == 2048 + 128


@pytest.mark.parametrize("source", ["path", "proto", "ir"])
def test_every_form_of_a_model_gives_the_same_file(source: str, tmp_path: Path) -> None:
    onnx.save(small_model(), tmp_path / "m.onnx")
    model = {"path": str(tmp_path / "m.onnx"), "proto": small_model(), "ir": ir.from_proto(small_model())}[source]
    (tmp_path / "again").mkdir()
    export(model, tmp_path / "m.air")
    export(small_model(), tmp_path / "again" / "m.air")
    assert (tmp_path / "m.air").read_bytes() == (tmp_path / "again" / "m.air").read_bytes()


def test_the_given_model_is_left_alone() -> None:
    proto, model = small_model(), ir.from_proto(small_model())
    before, nodes = proto.SerializeToString(), [node.name for node in model.graph]
    export(proto)
    export(model)
    assert proto.SerializeToString() == before
    assert [node.name for node in model.graph] == nodes
