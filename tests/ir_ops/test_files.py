"""Files are replaced by complete ones or stay as they are; what cannot be written is one line about the target."""

from __future__ import annotations

import errno
from pathlib import Path

import pytest

from ir_ops.errors import KvfuseError
from ir_ops.files import replacing


def test_a_complete_file_takes_the_place_of_the_old_one(tmp_path: Path) -> None:
    target = tmp_path / "out.txt"
    target.write_text("old")
    with replacing(target) as part:
        part.write_text("new")
        assert target.read_text() == "old"
    assert target.read_text() == "new"
    assert [path.name for path in tmp_path.iterdir()] == ["out.txt"]


def test_a_failed_write_leaves_the_old_file_and_nothing_else(tmp_path: Path) -> None:
    target = tmp_path / "out.txt"
    target.write_text("old")

    def write_half() -> None:
        with replacing(target) as part:
            part.write_text("half")
            raise RuntimeError("the other half fails")

    with pytest.raises(RuntimeError, match="the other half fails"):
        write_half()
    assert target.read_text() == "old"
    assert [path.name for path in tmp_path.iterdir()] == ["out.txt"]


def test_places_that_are_none(tmp_path: Path) -> None:
    with pytest.raises(KvfuseError, match="no such folder to write to"), replacing(tmp_path / "absent/x"):
        pass
    with pytest.raises(KvfuseError, match="a folder stands where the file should go"), replacing(tmp_path):
        pass


@pytest.mark.parametrize("code", [errno.EACCES, errno.ENOENT, errno.ENOSPC])
@pytest.mark.parametrize("named", [True, False])
def test_what_the_system_refuses_names_the_target(code: int, named: bool, tmp_path: Path) -> None:
    with pytest.raises(KvfuseError, match=r"out\.txt: cannot write; found the reason") as caught, \
            replacing(tmp_path / "out.txt") as part:  # fmt: skip
        raise OSError(code, "the reason", str(part) if named else None)
    assert ".part" not in str(caught.value)


def test_another_file_that_fails_meanwhile_is_not_blamed_on_the_target(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError, match="weights"), replacing(tmp_path / "out.txt"):
        (tmp_path / "weights").read_bytes()
