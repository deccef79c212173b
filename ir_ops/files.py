"""Outputs are written beside their target and renamed: a reader sees the old file or the whole new one."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from ir_ops.errors import KvfuseError


def check_place(path: str | os.PathLike[str]) -> Path:
    """The path, if a file can stand there. Raises KvfuseError otherwise."""
    target = Path(path)
    if not target.parent.is_dir():
        raise KvfuseError("no such folder to write to", where=str(target), hint=f"create {target.parent} first")
    if target.is_dir():
        raise KvfuseError("a folder stands where the file should go", where=str(target))
    return target


@contextmanager
def replacing(path: str | os.PathLike[str]) -> Iterator[Path]:
    """Yields a path beside ``path`` to write to, and renames it to ``path`` when the block ends well.

    Raises:
        KvfuseError: the folder does not exist or cannot be written.
    """
    target = check_place(path)
    part = target.with_name(f".{target.name}.{os.getpid()}.part")
    try:
        yield part
        part.replace(target)
    except OSError as error:
        if error.filename is not None and os.fspath(error.filename) != os.fspath(part):
            raise  # something else was read or written meanwhile
        raise KvfuseError("cannot write", where=str(target), found=error.strerror or str(error)) from None
    finally:
        part.unlink(missing_ok=True)
