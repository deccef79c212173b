"""Bad input, for every command that reads: one line on stderr, exit 1, nothing written, an old output unchanged."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper

import models
from fusion.cli import main
from ir_ops.npz import save_npz

OLD = b"the old output"


def missing(path: Path) -> None:
    pass


def folder(path: Path) -> None:
    path.mkdir()


def empty_file(path: Path) -> None:
    path.write_bytes(b"")


def text(path: Path) -> None:
    path.write_text("this is not a model\n")


def archive(path: Path) -> None:
    with path.open("wb") as file:
        np.savez(file, x=np.zeros(3))


def one_array(path: Path) -> None:
    with path.open("wb") as file:
        np.save(file, np.zeros(3))


def cut_off(path: Path) -> None:
    path.write_bytes(models.demo_graph().read_bytes()[:400_000])


def unreadable_bytes(path: Path) -> None:
    path.write_bytes(bytes(range(256)) * 16)


def edited(path: Path, change: Callable[[onnx.ModelProto], None]) -> None:
    model = onnx.load_model(models.demo_graph())
    change(model)
    path.write_bytes(model.SerializeToString())


def no_external_data(path: Path) -> None:
    def change(model: onnx.ModelProto) -> None:
        tensor = next(t for t in model.graph.initializer if t.name == "val_52")
        tensor.ClearField("raw_data")
        tensor.data_location = TensorProto.EXTERNAL
        tensor.external_data.add(key="location", value="nowhere.bin")

    edited(path, change)


def unknown_opset(path: Path) -> None:
    edited(path, lambda model: setattr(model.opset_import[0], "version", 99))


def no_opset(path: Path) -> None:
    edited(path, lambda model: model.ClearField("opset_import"))


def empty_graph(path: Path) -> None:
    edited(path, lambda model: model.graph.ClearField("node"))


def duplicate_value(path: Path) -> None:
    edited(path, lambda model: model.graph.node.append(model.graph.node[3]))


def duplicate_initializer(path: Path) -> None:
    edited(path, lambda model: model.graph.initializer.append(model.graph.initializer[0]))


def undefined_value(path: Path) -> None:
    edited(path, lambda model: model.graph.node.append(helper.make_node("Neg", ["ghost"], ["g"])))


MODELS = {
    missing: "no such file",
    folder: "a folder, not a file",
    empty_file: "the file is empty",
    text: "not an ONNX model",
    archive: "not an ONNX model",
    unreadable_bytes: "not an ONNX model",
    cut_off: "the file is cut off",
    no_external_data: "external weights are missing",
    unknown_opset: "unknown opset version of ai.onnx; found 99",
    no_opset: "no opset of 'ai.onnx' is imported",
    empty_graph: "the graph is empty",
    duplicate_value: "two nodes write one value",
    duplicate_initializer: "one name is given twice",
    undefined_value: "reads a value that nothing produces; found 'ghost'",
}


def refused(argv: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> str:
    """Runs the command and checks that it is refused without a trace; gives the line."""
    before = {path: path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()}
    assert main(argv) == 1
    said = capsys.readouterr()
    assert said.out == ""
    assert said.err.count("\n") == 1
    assert said.err.startswith("kvfuse: ")
    assert {path: path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()} == before
    return said.err


@pytest.mark.parametrize("make", MODELS, ids=lambda make: make.__name__)
@pytest.mark.parametrize("command", ["fuse", "explain", "verify", "defuse"])
def test_bad_models(
    make: Callable[[Path], None], command: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path, out = tmp_path / "in.onnx", tmp_path / "out.onnx"
    make(path)
    out.write_bytes(OLD)
    argv = {
        "fuse": [str(path), str(out)],
        "explain": [str(path)],
        "verify": [str(path), str(models.demo_graph())],
        "defuse": [str(path), str(out)],
    }
    line = refused([command, *argv[command]], tmp_path, capsys)
    assert MODELS[make] in line
    assert line.startswith(f"kvfuse: {path}: ")
    if make is not no_external_data:  # there the weight file is named, too
        assert line.count(str(tmp_path)) == 1
    assert out.read_bytes() == OLD


@pytest.mark.parametrize("make", [missing, folder, empty_file, text, archive, cut_off], ids=lambda make: make.__name__)
@pytest.mark.parametrize("command", ["run", "verify", "export-ge", "ge"])
def test_bad_fused_models(
    make: Callable[[Path], None], command: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path, out = tmp_path / "fused.onnx", tmp_path / "out.npz"
    make(path)
    out.write_bytes(OLD)
    argv = {
        "run": [str(path), "--inputs", str(models.demo_record()), "--outputs", str(out)],
        "verify": [str(models.demo_graph()), str(path)],
        "export-ge": [str(path), str(out.with_suffix(".air"))],
        "ge": ["validate", str(path)],
    }
    line = refused([command, *argv[command]], tmp_path, capsys)
    assert line.startswith(f"kvfuse: {path}: ")
    if command != "ge" or make in (missing, folder):
        assert MODELS[make] in line


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (missing, "no such file"),
        (empty_file, "not a readable npz file"),
        (text, "not a readable npz file; found no archive of arrays"),
        (folder, "not a readable npz file; found Is a directory"),
        (one_array, "not a readable npz file; found one array without a name (.npy; save with numpy.savez)"),
        (lambda path: save_npz(path, {}), "no arrays in it"),
        (lambda path: save_npz(path, {"x": np.zeros(2)}), "the inputs do not fit the model; found unknown x"),
        (
            lambda path: save_npz(path, {"x": np.zeros(2), "case0/in/x": np.zeros(2)}),
            "plain and recorded names are mixed",
        ),
    ],
    ids=["missing", "empty", "text", "folder", "npy", "nothing", "other-names", "mixed"],
)
@pytest.mark.parametrize("command", ["run", "verify"])
def test_bad_inputs(
    make: Callable[[Path], None], words: str, command: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path, out, demo = tmp_path / "in.npz", tmp_path / "out.npz", str(models.demo_graph())
    make(path)
    out.write_bytes(OLD)
    argv = {"run": [demo, "--inputs", str(path), "--outputs", str(out)], "verify": [demo, demo, "--inputs", str(path)]}
    assert words in refused([command, *argv[command]], tmp_path, capsys)


def test_outputs_that_cannot_be_written(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    demo = str(models.demo_graph())
    line = refused(["fuse", demo, str(tmp_path / "absent/out.onnx")], tmp_path, capsys)
    assert "no such folder to write to" in line
    assert "a folder stands where the file should go" in refused(["fuse", demo, str(tmp_path)], tmp_path, capsys)
    assert "no such folder to write to" in refused(
        ["export-ge", demo, str(tmp_path / "absent/x.air")], tmp_path, capsys
    )


def test_results_are_refused_before_the_work_is_done(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = str(tmp_path / "absent/out.npz")
    for command in (["run", "no.onnx"], ["ge", "run", "no.air"]):
        line = refused([*command, "--inputs", "no.npz", "--outputs", out], tmp_path, capsys)
        assert "no such folder to write to" in line
    text(tmp_path / "taken")
    line = refused(["demo", "--out", str(tmp_path / "taken")], tmp_path, capsys)
    assert "cannot make this folder; found File exists" in line


def test_files_that_would_overwrite_each_other(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "in.onnx"
    path.write_bytes(models.demo_graph().read_bytes())
    out = str(tmp_path / "out.json")
    assert "report and output are one file" in refused(["fuse", str(path), out, "--report", out], tmp_path, capsys)
    assert "unknown kind of report" in refused(["fuse", str(path), out, "--report", "r.txt"], tmp_path, capsys)
    assert "report and input are one file" in refused(["fuse", str(path), out, "--report", str(path)], tmp_path, capsys)
    inputs = str(tmp_path / "x.npz")
    save_npz(inputs, {"x": np.zeros(1)})
    argv = ["run", str(path), "--inputs", inputs, "--outputs", inputs]
    assert "outputs and inputs are one file" in refused(argv, tmp_path, capsys)
    argv = ["run", str(path), "--inputs", inputs, "--outputs", str(path)]
    assert "outputs and model are one file" in refused(argv, tmp_path, capsys)
    assert "output and model are one file" in refused(["export-ge", str(path), str(path)], tmp_path, capsys)


def test_export_writes_to_air_files_only(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    other = tmp_path / "other.onnx"
    other.write_bytes(OLD)
    demo = str(models.demo_graph())
    line = refused(["export-ge", demo, str(other)], tmp_path, capsys)
    assert "a GE IR file is called NAME.air; found .onnx (write to other.air)" in line
    assert "nothing to write; wanted OUT.air or --onnx-plugin DIR" in refused(["export-ge", demo], tmp_path, capsys)
    line = refused(["export-ge", demo, "--onnx-plugin", str(other)], tmp_path, capsys)
    assert "cannot make this folder; found File exists" in line
    assert other.read_bytes() == OLD


def test_ge_run_says_what_it_needs(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert "ge run needs --inputs F.npz and --outputs F.npz" in refused(["ge", "run", "x.air"], tmp_path, capsys)
