"""Errors that a user sees: one line with all the facts."""

from __future__ import annotations

from pathlib import Path

import pytest

from ir_ops.errors import BadInput, BadModel, BadUsage, ExportError, KvfuseError
from ir_ops.files import replacing


def test_all_facts_in_one_line() -> None:
    error = KvfuseError("wrong shape", where="in.npz", found="[2, 3]", wanted="[3, 2]", hint="transpose it")
    assert str(error) == "in.npz: wrong shape; found [2, 3], wanted [3, 2] (transpose it)"
    assert (error.what, error.where, error.found, error.wanted, error.hint) == (
        "wrong shape", "in.npz", "[2, 3]", "[3, 2]", "transpose it",
    )  # fmt: skip


def test_only_what_is_known_is_said() -> None:
    assert str(KvfuseError("wrong")) == "wrong"
    assert str(KvfuseError("wrong", wanted="right")) == "wrong; wanted right"


@pytest.mark.parametrize("kind", [BadModel, BadInput, BadUsage, ExportError])
def test_line_breaks_are_folded(kind: type[KvfuseError]) -> None:
    assert str(kind("a\nb", found="c\r\n  d")) == "a b; found c d"
    assert issubclass(kind, KvfuseError)


def test_output_is_whole_or_absent(tmp_path: Path) -> None:
    """A block that fails leaves the old file and no rest beside it."""
    path = tmp_path / "out.txt"
    path.write_text("old")
    with pytest.raises(UnicodeEncodeError), replacing(path) as part:
        part.write_text("half \udc00", encoding="utf-8")
    assert path.read_text() == "old"
    with replacing(path) as part:
        part.write_text("new")
        assert path.read_text() == "old"
    assert path.read_text() == "new"
    assert list(tmp_path.iterdir()) == [path]


def test_output_folder_must_exist(tmp_path: Path) -> None:
    with pytest.raises(KvfuseError, match="no such folder"), replacing(tmp_path / "none" / "out.txt"):
        pass
    with pytest.raises(KvfuseError, match="a folder stands"), replacing(tmp_path):
        pass
