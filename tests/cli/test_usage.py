"""The command line itself: help, wrong usage, exit codes, and how it ends when interrupted."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

import models
from fusion.cli import command_names, main
from fusion.cli.console import PRODUCTS, size
from ir_ops.declaration import PRODUCTS as DECLARED
from ir_ops.ops import OPS

HEAVY = {"numpy", "onnx", "onnx_ir", "onnxruntime", "ml_dtypes", "google.protobuf", "ir_ops.ops", "custom_ort.library"}


def test_help_imports_nothing_heavy() -> None:
    code = "import sys; from fusion.cli import main; main(['--help']); print('|', *sys.modules)"
    said = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout
    text, _, modules = said.partition("|")
    assert "usage: kvfuse COMMAND" in text
    assert not HEAVY & set(modules.split())


@pytest.mark.parametrize("name", command_names())
def test_every_command_explains_itself(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main([name, "--help"]) == 0
    said = capsys.readouterr()
    assert said.out.startswith(f"usage: kvfuse {name}")
    assert said.err == ""
    assert main(["--help"]) == 0
    assert f"  {name} " in capsys.readouterr().out


@pytest.mark.parametrize("name", ["fuse", "explain", "verify", "run", "export-ge", "ge"])
def test_help_of_a_command_imports_nothing_heavy(name: str) -> None:
    code = f"import sys; from fusion.cli import main; main(['{name}', '--help']); print('|', *sys.modules)"
    said = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout
    assert not HEAVY & set(said.partition("|")[2].split())


def test_version(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--version"]) == 0
    assert capsys.readouterr().out.startswith("kvfuse 0.")


@pytest.mark.parametrize(
    ("argv", "words"),
    [
        ([], "no command given"),
        (["fuze"], "unknown command 'fuze', did you mean fuse?"),
        (["--fast"], "unknown option '--fast'"),
        (["fuse"], "kvfuse fuse: the following arguments are required: IN.onnx, OUT.onnx (see kvfuse fuse --help)"),
        (["fuse", "a", "b", "c"], "unrecognized arguments: c"),
        (["fuse", "a", "b", "--product", "A9"], "argument --product: invalid choice: 'A9'"),
        (["fuse", "a", "b", "--only", "Nope"], "argument --only: unknown operator 'Nope', known: "),
        (["fuse", "a", "b", "--expect", "KvRmsNormRopeCache"], "'KvRmsNormRopeCache' is not OP=N"),
        (["fuse", "a", "b", "--expect", "=3"], "'=3' names no operator"),
        (["fuse", "a", "b", "--expect", "Nope=3"], "unknown operator 'Nope'"),
        (["fuse", "a", "b", "--weights", "move"], "argument --weights: invalid choice: 'move'"),
        (["fuse", "a", "b", "--expand-prompts", "0"], "--expand-prompts: '0' is not a whole number of 1 or more"),
        (["explain", "a", "--layer", "two"], "argument --layer: 'two' is not a whole number of 0 or more"),
        (["bench", "--threads", "0"], "argument --threads: '0' is not a whole number of 1 or more"),
        (["run", "a"], "the following arguments are required: --inputs, --outputs"),
        (["verify", "a", "b", "--cases", "0"], "argument --cases: '0' is not a whole number of 1 or more"),
        (["verify", "a", "b", "--seed", "-1"], "argument --seed: '-1' is not a whole number of 0 or more"),
        (["ops", "Nope"], "unknown operator; found Nope (known: AddRmsNorm, "),
        (["ops", "kvrmsnormropecache"], "found kvrmsnormropecache (did you mean KvRmsNormRopeCache?)"),
        (["fuse", "a", "b", "--only", "KvRmsNormRope"], "'KvRmsNormRope', did you mean KvRmsNormRopeCache?"),
        (["ge", "dance", "x.air"], "argument action: invalid choice: 'dance'"),
        (["export-ge", "a", "b", "--input-shape", "x=1"], "'x=1' is not NAME:D,D,.."),
        (["export-ge", "a", "--onnx-plugin", "p", "--input-shape", "x:1"], "--input-shape is of OUT.air"),
    ],
)
def test_wrong_usage_is_one_line_and_exit_1(argv: list[str], words: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(argv) == 1
    said = capsys.readouterr()
    assert said.out == ""
    assert said.err.startswith("kvfuse")
    assert said.err.count("\n") == 1
    assert words in said.err


def test_interrupted(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    from fusion.cli.commands import ops

    def interrupt(args: object) -> int:
        raise KeyboardInterrupt

    monkeypatch.setattr(ops, "run", interrupt)
    assert main(["ops"]) == 130
    assert capsys.readouterr() == ("", "")


@pytest.mark.parametrize(
    ("error", "line"),
    [
        (OSError(28, "No space left on device", "out.onnx"), "kvfuse: out.onnx: No space left on device\n"),
        (MemoryError(), "kvfuse: out of memory\n"),
    ],
)
def test_what_the_system_refuses_is_one_line(
    error: Exception, line: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    from fusion.cli.commands import ops

    def fail(args: object) -> int:
        raise error

    monkeypatch.setattr(ops, "run", fail)
    assert main(["ops"]) == 1
    assert capsys.readouterr().err == line


def test_a_bug_is_not_hidden(monkeypatch: pytest.MonkeyPatch) -> None:
    from fusion.cli.commands import ops

    def fail(args: object) -> int:
        raise AttributeError("a bug")

    monkeypatch.setattr(ops, "run", fail)
    with pytest.raises(AttributeError, match="a bug"):
        main(["ops"])


def test_a_reader_that_goes_away() -> None:
    code = "import sys; from fusion.cli import main; sys.exit(main(['ops', 'KvRmsNormRopeCache']))"
    with subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, stderr=subprocess.PIPE) as process:
        assert process.stdout is not None
        assert process.stderr is not None
        process.stdout.close()
        assert process.stderr.read() == b""
    assert process.returncode == 141


def test_ops_lists_and_prints_contracts(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["ops"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert [line.split()[0] for line in lines[:-2]] == list(OPS)
    assert re.match("fuse looks for AddRmsNorm.*; run, export-ge and defuse take all", lines[-1])
    assert any(re.match("KvRmsNormRopeCache +RMSNorm, rotary embedding", line) for line in lines)
    assert main(["ops", "KvRmsNormRopeCache"]) == 0
    said = capsys.readouterr().out
    for part in ("Inputs\n", "Outputs\n", "Attributes\n", "KV-13", "c_kv_offset"):
        assert part in said


def test_products_are_the_declared_ones() -> None:
    assert PRODUCTS == DECLARED


def test_sizes() -> None:
    assert [size(count) for count in (0, 1023, 1536, 5 * 2**30)] == ["0 bytes", "1023 bytes", "1.5 KiB", "5.0 GiB"]


def test_colour_is_for_terminals_only(monkeypatch: pytest.MonkeyPatch) -> None:
    from fusion.cli import console

    assert not console.style().colour
    monkeypatch.setattr(sys.stdout, "isatty", lambda: True)
    monkeypatch.delenv("NO_COLOR", raising=False)
    monkeypatch.setenv("TERM", "xterm")
    assert console.style().colour
    monkeypatch.setenv("NO_COLOR", "1")
    assert not console.style().colour


def test_reports_are_as_wide_as_the_terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    from fusion.cli import console

    monkeypatch.setenv("COLUMNS", "80")
    assert console.style().width == 100
    monkeypatch.setattr(sys.stdout, "isatty", lambda: True)
    assert console.style().width == 80
    for columns, width in (("20", 60), ("300", 100)):
        monkeypatch.setenv("COLUMNS", columns)
        assert console.style().width == width


def test_the_demo_model_is_part_of_the_package() -> None:
    assert models.demo_graph().is_file()
    assert models.demo_record().is_file()
    assert Path(models.__file__).parent in models.demo_graph().parents
