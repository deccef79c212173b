"""What the README shows is what happens."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from fusion.cli import command_names, main

ROOT = Path(__file__).parent.parent.parent
README = (ROOT / "README.md").read_text(encoding="utf-8")


def test_the_printed_report_is_a_real_one(graphs: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Every line of the example, in order; ``...`` stands for what was left out."""
    name = re.search(r"`tests/data/graphs/(\w+\.onnx)`", README)
    assert name is not None
    assert main(["fuse", str(graphs / name[1]), str(tmp_path / "fused.onnx")]) == 0
    printed = iter(capsys.readouterr().out.splitlines())
    shown = README.partition("the first prints")[2].partition("\n| command")[0].splitlines()[1:]
    figures = re.compile(r"    proof|" + " " * 13)  # the last digits are the machine's
    for line in (text.removeprefix("    ") for text in shown):
        assert line in ("", "...") or figures.match(line) or line in printed, line


def test_every_command_is_in_the_table_and_every_document_is_linked() -> None:
    table = README.partition("| command")[2].partition("\n\n")[0]
    assert {name for name in command_names() if f"`kvfuse {name}" not in table} == set()
    linked = set(re.findall(r"\]\((docs/[^)]*)\)", README))
    assert linked == {f"docs/{path.name}" for path in (ROOT / "docs").iterdir()}
    assert all((ROOT / path).exists() for path in linked)
