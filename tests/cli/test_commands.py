"""The commands on the shipped graph: what they write, print and return."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import onnx
import pytest

import models
from fusion import explain, fuse
from fusion.cli import main
from fusion.rules import all_rules
from fusion.verification import read_feeds
from ir_ops.npz import load_npz, save_npz
from ir_ops.ops import OPS

OP = "KvRmsNormRopeCache"
DATA = Path(__file__).parent.parent / "data"
DEMO, RECORD = str(models.demo_graph()), str(models.demo_record())


@pytest.fixture(scope="module")
def fused(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("fused") / "fused.onnx"
    assert main(["fuse", DEMO, str(path)]) == 0
    return path


def fused_nodes(path: Path) -> int:
    return sum(node.op_type == OP and node.domain == "ai.ascend" for node in onnx.load_model(path).graph.node)


def test_fuse_prints_the_report_and_writes_the_model(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = tmp_path / "out.onnx"
    assert main(["fuse", DEMO, str(out)]) == 0
    said = capsys.readouterr()
    assert said.err == ""
    assert f"fused: 1 x {OP}" in said.out
    assert said.out.rstrip().endswith(f"written: {out}")
    assert fused_nodes(out) == 1
    assert [path.name for path in tmp_path.iterdir()] == ["out.onnx"]


def test_fuse_replaces_an_existing_output_and_may_be_given_the_input(tmp_path: Path) -> None:
    path = tmp_path / "model.onnx"
    path.write_bytes(models.demo_graph().read_bytes())
    assert main(["fuse", str(path), str(path)]) == 0
    assert fused_nodes(path) == 1


@pytest.mark.parametrize("suffix", ["json", "html"])
def test_fuse_writes_reports(tmp_path: Path, suffix: str) -> None:
    report = tmp_path / f"report.{suffix}"
    assert main(["fuse", DEMO, str(tmp_path / "out.onnx"), "--report", str(report)]) == 0
    if suffix == "json":
        said = json.loads(report.read_text())
        assert [site["op"] for site in said["sites"]].count(OP) == 1
        assert said["ops_after"][f"ai.ascend::{OP}"] == 1
    else:
        assert "1 × KvRmsNormRopeCache" in report.read_text()


def test_expectations_that_are_met(tmp_path: Path) -> None:
    out = tmp_path / "out.onnx"
    assert main(["fuse", DEMO, str(out), "--expect", f"{OP}=1"]) == 0
    assert fused_nodes(out) == 1


def test_expectations_that_are_not_met_write_no_model(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out, report = tmp_path / "out.onnx", tmp_path / "report.json"
    out.write_bytes(b"old")
    assert main(["fuse", DEMO, str(out), "--report", str(report), "--expect", f"{OP}=61"]) == 2
    assert capsys.readouterr().err == f"kvfuse fuse: {OP}: expected 61, got 1; {out} is not written\n"
    assert out.read_bytes() == b"old"
    assert report.is_file()


def test_strict_slots_refuses_and_says_why(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = tmp_path / "out.onnx"
    assert main(["fuse", DEMO, str(out), "--strict-slots", "--only", OP]) == 0
    assert "fused: nothing" in capsys.readouterr().out
    assert fused_nodes(out) == 0


def external_copy(folder: Path) -> Path:
    """The demo graph with its weights outside."""
    folder.mkdir()
    model = onnx.load_model(DEMO)
    path = folder / "model.onnx"
    onnx.save_model(model, path, save_as_external_data=True, location="weights.bin", size_threshold=1024)
    return path


def test_external_weights_are_shared_beside_the_input_and_copied_when_asked(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    source = external_copy(tmp_path / "in")
    beside, elsewhere = tmp_path / "in/fused.onnx", tmp_path / "fused.onnx"
    assert main(["fuse", str(source), str(beside)]) == 0
    (tmp_path / "other").mkdir()
    away = tmp_path / "other/fused.onnx"
    capsys.readouterr()
    assert main(["fuse", str(source), str(away)]) == 1
    assert "weights cannot be shared from there" in capsys.readouterr().err
    assert not away.exists()
    assert main(["fuse", str(source), str(away), "--weights", "copy"]) == 0
    assert main(["fuse", str(source), str(elsewhere), "--expect", f"{OP}=1"]) == 0
    for path in (beside, away, elsewhere):
        assert main(["verify", DEMO, str(path), "--cases", "1"]) == 0
    source.unlink()
    (tmp_path / "in/weights.bin").unlink()
    assert main(["verify", DEMO, str(away), "--cases", "1"]) == 0


def test_explain(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["explain", DEMO]) == 0
    assert f"would be fused: 1 x {OP}" in capsys.readouterr().out
    assert main(["explain", DEMO, "--json", "--layer", "0", "--op", OP]) == 0
    said = json.loads(capsys.readouterr().out)
    (site,) = said["sites"]
    assert (site["op"], site["layer"], site["attrs"]["cache_mode"]) == (OP, 0, "Norm")
    assert site["proof"]["max_error"] <= site["proof"]["bound"]


def test_explain_says_where_there_is_something_to_see(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["explain", DEMO, "--layer", "7"]) == 0
    said = capsys.readouterr().out
    assert "would be fused: nothing" in said
    assert "note: nothing in layer 7; there are places in layer 0" in said
    assert main(["explain", DEMO, "--json", "--layer", "7"]) == 0
    assert json.loads(capsys.readouterr().out)["sites"] == []


def test_explain_counts_what_fuse_removes_and_leaves_the_model_alone() -> None:
    model = onnx.load_model(DEMO)
    content = model.SerializeToString(deterministic=True)
    explained, fused = explain(model), fuse(model)
    assert explained.model is model
    assert model.SerializeToString(deterministic=True) == content
    assert [(node.name, *node.output) for node in explain(DEMO).model.graph.node] == [
        (node.name, *node.output) for node in model.graph.node
    ]
    assert [site.removed for site in explained.sites] == [site.removed for site in fused.sites]
    assert [site.outputs for site in explained.sites] == [site.outputs for site in fused.sites]
    assert fuse(model, only=OP).count(OP) == 1


def test_explain_for_a_product(capsys: pytest.CaptureFixture[str]) -> None:
    float32 = str(DATA / "graphs/hand_kvrrc_pa_ts17_fp32.onnx")
    assert main(["explain", float32, "--product", "kirin"]) == 0
    said = capsys.readouterr().out
    assert "    rule     the product does not take this element type\n" in said
    assert "    from     a limit of product kirin\n" in said


def test_verify(fused: Path, capsys: pytest.CaptureFixture[str]) -> None:
    capsys.readouterr()
    assert main(["verify", DEMO, str(fused), "--inputs", RECORD]) == 0
    assert "equal: 12 comparisons over 2 case(s)" in capsys.readouterr().out
    assert main(["verify", DEMO, str(fused), "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["ok"] is True


def test_verify_exits_with_3_where_results_differ(
    fused: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    model = onnx.load_model(fused)
    node = next(node for node in model.graph.node if node.op_type == OP)
    next(a for a in node.attribute if a.name == "epsilon").f = 0.5
    wrong = tmp_path / "wrong.onnx"
    wrong.write_bytes(model.SerializeToString())
    capsys.readouterr()
    assert main(["verify", DEMO, str(wrong), "--cases", "1"]) == 3
    said = capsys.readouterr().out
    assert "DIFFERS" in said
    assert "NOT equal" in said


def test_verify_says_why_a_model_without_bodies_needs_the_kernels(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    bare = tmp_path / "bare.onnx"
    assert main(["fuse", DEMO, str(bare), "--no-functions"]) == 0
    assert main(["verify", DEMO, str(bare), "--cases", "1"]) == 0
    assert main(["verify", DEMO, str(bare), "--no-kernel"]) == 1
    assert "a fused model without function bodies runs with the kvfuse kernels only" in capsys.readouterr().err


def test_defuse_turns_a_fused_model_back(fused: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    plain = tmp_path / "plain.onnx"
    assert main(["defuse", str(fused), str(plain)]) == 0
    model = onnx.load_model(plain)
    assert not model.functions
    assert all(node.domain == "" for node in model.graph.node)
    assert [item.domain for item in model.opset_import] == [""]
    said = capsys.readouterr().out
    assert f"ai.ascend::{OP}" in said
    last = said.split("\n\n")[-2:]
    assert last[0].startswith("turned back: ") and f"1 x {OP}" in last[0]
    assert last[1] == f"written: {plain}\n"
    assert main(["defuse", str(plain), str(plain)]) == 0
    assert "turned back: nothing\n" in capsys.readouterr().out
    assert main(["verify", DEMO, str(plain), "--inputs", RECORD, "--no-kernel"]) == 0


def test_run_writes_every_case_under_its_name(fused: Path, tmp_path: Path) -> None:
    out = tmp_path / "out.npz"
    assert main(["run", str(fused), "--inputs", RECORD, "--outputs", str(out)]) == 0
    got, want = load_npz(out), load_npz(RECORD)
    assert set(got) == {name for name in want if "/out/" in name}
    for name, array in got.items():
        np.testing.assert_allclose(array.astype(np.float32), want[name].astype(np.float32), atol=0.02)


def test_run_takes_plain_inputs(fused: Path, tmp_path: Path) -> None:
    feed, _ = read_feeds(RECORD)[1]
    save_npz(tmp_path / "in.npz", feed.inputs)
    assert main(["run", str(fused), "--inputs", str(tmp_path / "in.npz"), "--outputs", str(tmp_path / "out.npz")]) == 0
    assert set(load_npz(tmp_path / "out.npz")) == {"logits", "key_cache_out.0", "value_cache_out.0"}


def test_export_and_the_ge_commands(fused: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    air = tmp_path / "fused.air"
    capsys.readouterr()
    assert main(["export-ge", str(fused), str(air), "--text"]) == 0
    assert "GE nodes" in capsys.readouterr().out
    assert sorted(path.name for path in tmp_path.iterdir()) == ["fused.air", "fused.io.json", "fused.txt"]
    assert main(["ge", "validate", str(air)]) == 0
    assert f"{air}: good" in capsys.readouterr().out
    assert main(["ge", "show", str(air)]) == 0
    assert OP in capsys.readouterr().out
    out = tmp_path / "out.npz"
    assert main(["ge", "run", str(air), "--inputs", RECORD, "--outputs", str(out)]) == 0
    got, want = load_npz(out)["case1/out/logits"], load_npz(RECORD)["case1/out/logits"]
    np.testing.assert_allclose(got.astype(np.float32), want.astype(np.float32), atol=0.02)


def test_a_file_that_breaks_a_rule_of_ge_is_exit_3(
    fused: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    from ir_ops import ge

    result = ge.export(fused)
    assert len(repr(result)) < 5000, "the result is shown without the weights"
    model = result.model
    node = next(node for node in model.root.nodes if node.type == OP)
    node.type = "KvRmsNormRopeCash"
    air = ge.write(model, tmp_path / "wrong.air")
    assert main(["ge", "validate", str(air)]) == 3
    assert "error(s)" in capsys.readouterr().out


def test_export_says_how_to_compile(fused: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    argv = [
        "export-ge",
        str(fused),
        str(tmp_path / "m.air"),
        "--weights",
        "file-per-tensor",
        "--soc",
        "Ascend950PR_9589",
    ]
    capsys.readouterr()
    assert main(argv) == 0
    out = capsys.readouterr().out
    assert f"compile: atc --mode=0 --framework=1 --model={tmp_path / 'm.air'}" in out
    assert "--soc_version=Ascend950PR_9589" in out
    assert f"written: {tmp_path / 'm_weights'} (" in out


def test_export_by_the_onnx_route(fused: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = tmp_path / "plugin"
    capsys.readouterr()
    assert main(["export-ge", str(fused), "--onnx-plugin", str(folder)]) == 0
    said = capsys.readouterr().out
    model = f"{fused.stem}_opset18.onnx"
    assert {path.name for path in folder.rglob("*") if path.is_file()} == {
        model, "kvfuse_onnx_plugin.py", "kvfuse_onnx_plugin.cc", "CMakeLists.txt",
    }  # fmt: skip
    assert f"--framework=5 --model={folder / model}" in said
    assert main(["verify", str(fused), str(folder / model), "--inputs", RECORD]) == 0


def test_export_with_a_fixed_input_shape(fused: Path, tmp_path: Path) -> None:
    air = tmp_path / "one.air"
    assert main(["export-ge", str(fused), str(air), "--input-shape", "input_ids:2,1"]) == 0
    shapes = {entry["name"]: entry["shape"] for entry in json.loads((tmp_path / "one.io.json").read_text())["inputs"]}
    assert (shapes["input_ids"], shapes["cache_position"]) == ([2, 1], [1])


def test_an_input_has_one_shape(fused: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    shapes = ["--input-shape", "input_ids:2,1", "--input-shape", "input_ids:2,3"]
    assert main(["export-ge", str(fused), str(tmp_path / "two.air"), *shapes]) == 1
    assert "--input-shape input_ids: an input is given two shapes; found [2, 1] and [2, 3]" in capsys.readouterr().err
    assert list(tmp_path.iterdir()) == []


def test_demo(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["demo", "--out", str(tmp_path / "demo")]) == 0
    said = capsys.readouterr()
    assert said.err == ""
    for heading in (
        "1  What is in it?",
        "2  Fuse it",
        "3  Is it the same?",
        "4  Decode with it",
        "5  Take it to Ascend",
        "6  The files",
    ):
        assert heading in said.out
    assert "tokens equal" in said.out
    assert "NOT equal" not in said.out
    names = {path.name for path in (tmp_path / "demo").iterdir()}
    assert names == {"fused.onnx", "fused.html", "fused.json", "fused.air", "fused.io.json", "fused.txt"}


def test_operators_that_no_rule_fuses_to(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    unfused = next(name for name in OPS if name not in {rule.op for rule in all_rules()})
    assert main(["fuse", DEMO, str(tmp_path / "out.onnx"), "--only", unfused]) == 1
    assert f"no rule fuses to this operator; found {unfused}, wanted AddRmsNorm" in capsys.readouterr().err
    assert list(tmp_path.iterdir()) == []
