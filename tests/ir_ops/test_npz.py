"""Arrays of every element type through npz files."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from ir_ops.dtypes import TABLE, DType
from ir_ops.errors import BadInput
from ir_ops.npz import load_npz, save_npz

STORED = [row for row in TABLE if row.np is not None]


@pytest.mark.parametrize("row", STORED, ids=lambda row: row.name)
def test_round_trip_keeps_type_and_bits(row: DType, tmp_path: Path) -> None:
    """All bit patterns of the 8- and 16-bit types, NaN payloads included; some values of the others."""
    if row.suffix and row.bits >= 8:
        array = np.arange(2**row.bits, dtype={8: np.uint8, 16: np.uint16}[row.bits]).view(row.np).reshape(2, -1)
    else:
        array = np.arange(6).reshape(2, 3).astype(row.np)
    save_npz(tmp_path / "a.npz", {"k_cache": array, "scalar": array[0, 1]})
    back = load_npz(tmp_path / "a.npz")
    assert list(back) == ["k_cache", "scalar"]
    assert back["k_cache"].dtype == row.np
    assert back["k_cache"].shape == array.shape
    assert back["k_cache"].tobytes() == array.tobytes()
    assert back["scalar"].shape == ()


def test_suffix_is_in_the_key_on_disk(tmp_path: Path) -> None:
    """Other programs read the bit pattern as an unsigned integer."""
    bf16 = next(row for row in STORED if row.name == "bfloat16")
    save_npz(tmp_path / "a.npz", {"x": np.ones(2, bf16.np)})
    with np.load(tmp_path / "a.npz") as file:
        assert file.files == ["x__bf16"]
        assert file["x__bf16"].tolist() == [0x3F80, 0x3F80]


def test_names_that_only_look_like_suffixes_stay(tmp_path: Path) -> None:
    save_npz(tmp_path / "a.npz", {"layer__0": np.ones(1, np.int8), "__bf16": np.ones(1, np.uint16)})
    assert set(load_npz(tmp_path / "a.npz")) == {"layer__0", "__bf16"}


@pytest.mark.parametrize("content", [b"", b"not a zip", b"PK\x03\x04 cut short"])
def test_unreadable_file_is_one_line(content: bytes, tmp_path: Path) -> None:
    path = tmp_path / "a.npz"
    path.write_bytes(content)
    with pytest.raises(BadInput, match="not a readable npz file") as caught:
        load_npz(path)
    assert "\n" not in str(caught.value)


def test_pickled_objects_are_not_loaded(tmp_path: Path) -> None:
    np.savez(tmp_path / "a.npz", x=np.array([{"a": 1}], dtype=object))
    with pytest.raises(BadInput, match="not a readable npz file"):
        load_npz(tmp_path / "a.npz")


def test_missing_file(tmp_path: Path) -> None:
    with pytest.raises(BadInput, match="no such file"):
        load_npz(tmp_path / "none.npz")


def test_failed_write_keeps_the_old_file(tmp_path: Path) -> None:
    path = tmp_path / "a.npz"
    save_npz(path, {"x": np.ones(3, np.float32)})
    with pytest.raises(KeyError):
        save_npz(path, {"x": np.array(["text"])})
    assert load_npz(path)["x"].tolist() == [1, 1, 1]
    assert [item.name for item in tmp_path.iterdir()] == ["a.npz"]
