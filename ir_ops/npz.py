"""Tensors in npz files: types numpy cannot name are stored by bit pattern, with the type in the key suffix.

``k_cache`` of bfloat16 is stored as uint16 under ``k_cache__bf16``; int4 one value a byte under ``__int4``.
"""

from __future__ import annotations

import os
import zipfile
from collections.abc import Mapping
from pathlib import Path
from typing import BinaryIO

import numpy as np

from ir_ops.dtypes import Array, by_numpy, by_suffix
from ir_ops.errors import BadInput
from ir_ops.files import replacing

_BITS = {1: np.uint8, 2: np.uint16}


def save_npz(path: str | os.PathLike[str], arrays: Mapping[str, Array]) -> None:
    """Writes ``arrays`` to ``path``, complete or not at all."""
    stored: dict[str, Array] = {}
    for name, array in arrays.items():
        suffix = by_numpy(array.dtype).suffix
        stored[name + suffix] = np.asarray(array, order="C").view(_BITS[array.dtype.itemsize]) if suffix else array
    with replacing(path) as part, part.open("wb") as file:
        np.savez_compressed(file, allow_pickle=False, **stored)


def load_npz(path: str | os.PathLike[str]) -> dict[str, Array]:
    """Reads an npz file back into arrays of their real types.

    Raises:
        BadInput: the file is missing, is not an npz file, or holds pickled objects.
    """
    try:
        with Path(path).open("rb") as raw:
            if not zipfile.is_zipfile(raw):  # numpy would read other formats, too
                raise BadInput("not a readable npz file", where=str(path), found=_what_else(raw))
            raw.seek(0)
            with np.load(raw, allow_pickle=False) as file:
                return dict(_decoded(key, file[key]) for key in file.files)
    except FileNotFoundError:
        raise BadInput("no such file", where=str(path)) from None
    except (OSError, ValueError, zipfile.BadZipFile, EOFError, AttributeError) as error:
        found = error.strerror if isinstance(error, OSError) and error.strerror else str(error)
        raise BadInput("not a readable npz file", where=str(path), found=found) from None


def _what_else(file: BinaryIO) -> str:
    file.seek(0)
    start = file.read(6)
    if start == b"\x93NUMPY":
        return "one array without a name (.npy; save with numpy.savez)"
    return "no archive of arrays" if start else "an empty file"


def _decoded(key: str, array: Array) -> tuple[str, Array]:
    name, mark, suffix = key.rpartition("__")
    if not mark or not name:
        return key, array
    try:
        dtype = by_suffix("__" + suffix)
    except KeyError:
        return key, array
    assert dtype.np is not None
    return name, array.view(dtype.np)
