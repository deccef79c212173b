"""Where the bytes of a model's weights go: into the ``.air`` file, or referred to where they are, or beside it.

A protobuf message holds less than 2 GiB. A model whose weights do not fit keeps them in files: FileConstant nodes that
point straight at the ONNX external data (offset and length), which is never read then. Weights of such a model that are
in memory are written once into ``NAME.weights`` beside the ``.air`` file. ``file-per-tensor`` copies every weight into
a file of its own in ``NAME_weights``, which can be moved together with the ``.air`` file.
"""

from __future__ import annotations

import os
import re
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import BinaryIO

import numpy as np
import onnx_ir as ir

from ir_ops.dtypes import Array, DType
from ir_ops.errors import BadInput, BadModel, BadUsage
from ir_ops.files import replacing
from ir_ops.ge.builder import GraphBuilder
from ir_ops.ge.model import FRACTAL_NZ, Shape, TensorType, array_from_bytes
from ir_ops.ge.nz import packed, storage_shape
from ir_ops.ge.tensor import Tensor

MARGIN = 200 * 2**20
"""Room left for the graph itself below the 2 GiB that a message can have."""
INLINE_LIMIT = 2**31 - MARGIN
FILE_LIMIT = 2**31 - 2**20
"""Size that no file written here reaches."""
SMALL = 1024
"""Constants up to this size stay inline, but for weights that have a place in external data: GE reads many of them, and
integers above all, while it compiles."""
_STRUCTURE = ("int32", "int64", "bool")
"""Element types of shapes, axes, indices and masks."""
_ALIGNMENT = 4096
_CHUNK = 1 << 24

MODES = ("auto", "inline", "external", "file-per-tensor")
NZ_MODES = ("auto", "always", "never")


@dataclass(frozen=True)
class _Piece:
    """A weight to write: its place in one of our files."""

    tensor: ir.TensorProtocol
    dtype: DType
    shape: Shape
    offset: int
    layout: str = "ND"

    @property
    def size(self) -> int:
        return int(self.tensor.nbytes)

    def write(self, file: BinaryIO) -> None:
        """Appends the bytes; a weight in external data is copied in chunks, not read whole."""
        if self.layout == FRACTAL_NZ:
            file.write(packed(_read(self.tensor), self.dtype, self.shape))
        elif isinstance(self.tensor, ir.ExternalTensor):
            _copy(self.tensor, file)
        else:
            file.write(_read(self.tensor))


@dataclass
class WeightPlan:
    """Decides for each weight, and writes what has no file yet.

    Attributes:
        mode: "inline", "external" or "file-per-tensor".
        out: the ``.air`` file, None where nothing may be written.
        nz: which weights that an operator wants in FRACTAL_NZ are packed: "auto" those that are stored anew anyway.
        inline_bytes: bytes of weights put into the ``.air`` file so far.
        external_bytes: bytes of weights in other files.
    """

    mode: str
    out: Path | None
    nz: str = "auto"
    inline_bytes: int = 0
    external_bytes: int = 0
    _pieces: dict[Path, list[_Piece]] = field(default_factory=dict)
    _shared: list[Path] = field(default_factory=list)

    def add(self, builder: GraphBuilder, tensor: ir.TensorProtocol, dtype: DType, shape: Shape, name: str) -> Tensor:
        """The constant node of a weight."""
        if self._is_inline(tensor, dtype):
            self.inline_bytes += tensor.nbytes
            return builder.const_bytes(_read(tensor, name), dtype, shape, name=name)
        if self.mode == "file-per-tensor":
            return self._own_file(builder, tensor, dtype, shape, name)
        self.external_bytes += tensor.nbytes
        if isinstance(tensor, ir.ExternalTensor):
            path, offset = os.path.abspath(tensor.path), int(tensor.offset or 0)
        else:
            path, offset = self._append(tensor, dtype, shape)
        return builder.file_constant(path, offset, tensor.nbytes, dtype, shape, name=name)

    def add_nz(
        self, builder: GraphBuilder, tensor: ir.TensorProtocol, dtype: DType, shape: Shape, name: str
    ) -> Tensor | None:
        """The constant node of a weight in FRACTAL_NZ; None where it stays as it is and GE packs it.

        FileConstant says nothing of formats, so a packed weight that does not go into the ``.air`` file gets a file of
        its own.
        """
        inline = self._is_inline(tensor, dtype)
        stays = self.mode == "external" and isinstance(tensor, ir.ExternalTensor)
        if self.nz == "never" or (self.nz == "auto" and stays and not inline):
            return None
        try:
            storage_shape(dtype, shape)
        except BadInput:
            return None
        if not inline:
            return self._own_file(builder, tensor, dtype, shape, name, FRACTAL_NZ)
        self.inline_bytes += tensor.nbytes
        return builder.const_bytes(_read(tensor, name), dtype, shape, name=name, layout=FRACTAL_NZ)

    def _is_inline(self, tensor: ir.TensorProtocol, dtype: DType) -> bool:
        """Whether a constant goes into the ``.air`` file."""
        if self.mode == "inline" or not tensor.nbytes:
            return True
        refers = self.mode == "external" and isinstance(tensor, ir.ExternalTensor)
        return tensor.nbytes <= SMALL and not (refers and dtype.name not in _STRUCTURE)

    # ------------------------------------------------------------------------------------------------ own files

    def _folder(self) -> Path:
        assert self.out is not None
        return self.out.with_name(f"{self.out.stem}_weights")

    def _own_file(
        self,
        builder: GraphBuilder,
        tensor: ir.TensorProtocol,
        dtype: DType,
        shape: Shape,
        name: str,
        layout: str = "ND",
    ) -> Tensor:
        self.external_bytes += tensor.nbytes
        folder = self._folder()
        # the number keeps names apart that differ only in characters a file name does not take, or in case
        label = re.sub(r"[^A-Za-z0-9_.-]", "_", name)[:120]
        path = folder / f"{len(self._pieces):05d}_{label}"
        self._pieces[path] = [_Piece(tensor, dtype, shape, 0, layout)]
        return builder.const_file(f"{folder.name}/{path.name}", dtype, shape, name=name, layout=layout)

    def _append(self, tensor: ir.TensorProtocol, dtype: DType, shape: Shape) -> tuple[str, int]:
        """A place in ``NAME.weights``; a file that would grow too large is followed by the next one."""
        if self.out is None:
            raise BadUsage("weights in memory do not fit into the file", hint="give an output path")
        end = 0
        if self._shared:
            last = self._pieces[self._shared[-1]][-1]
            end = -(-(last.offset + last.size) // _ALIGNMENT) * _ALIGNMENT
        if not self._shared or end + tensor.nbytes > FILE_LIMIT:
            number, end = len(self._shared), 0
            self._shared.append(self.out.with_suffix(f".weights{'' if number == 0 else number}"))
        self._pieces.setdefault(self._shared[-1], []).append(_Piece(tensor, dtype, shape, end))
        return os.path.abspath(self._shared[-1]), end

    def sizes(self) -> dict[Path, int]:
        """Size of every file that :meth:`write` makes, by absolute path."""
        return {
            Path(os.path.abspath(path)): pieces[-1].offset + pieces[-1].size for path, pieces in self._pieces.items()
        }

    def write(self) -> list[Path]:
        """Writes the files. A folder of weights from an earlier export is replaced."""
        folder = self._folder() if self.out is not None else None
        own = [path for path in self._pieces if path.parent == folder]
        if folder is not None and own:
            with _replacing_folder(folder) as part:
                for path in own:
                    with (part / path.name).open("wb") as file:
                        self._pieces[path][0].write(file)
        for path in self._shared:
            with replacing(path) as part, part.open("wb") as file:
                for piece in self._pieces[path]:
                    file.seek(piece.offset)
                    piece.write(file)
        return list(self._pieces)


@contextmanager
def _replacing_folder(folder: Path) -> Iterator[Path]:
    """A folder beside ``folder`` to fill; it takes the place of ``folder`` when the block ends well."""
    if folder.exists() and not folder.is_dir():
        raise BadUsage("a file stands where the folder of weights should go", where=str(folder))
    part, old = (folder.with_name(f".{folder.name}.{os.getpid()}.{kind}") for kind in ("part", "old"))
    try:
        part.mkdir()
    except OSError as error:
        raise BadUsage("cannot write", where=str(folder), found=error.strerror or str(error)) from None
    try:
        yield part
        if folder.exists():
            folder.replace(old)
        part.replace(folder)
    finally:
        shutil.rmtree(part, ignore_errors=True)
        shutil.rmtree(old, ignore_errors=True)


def _read(tensor: ir.TensorProtocol, name: str = "") -> bytes:
    """A weight's bytes. Of external data only these are read: onnx_ir would map the whole file for each tensor."""
    try:
        if not isinstance(tensor, ir.ExternalTensor):
            return tensor.tobytes()
        with Path(tensor.path).open("rb") as file:
            file.seek(int(tensor.offset or 0))
            data = file.read(tensor.nbytes)
        if len(data) != tensor.nbytes:
            raise ValueError(f"the file ends {tensor.nbytes - len(data)} bytes early")
    except (OSError, ValueError) as error:
        raise _unreadable(tensor, name, error) from None
    return data


def content(tensor: ir.TensorProtocol, dtype: DType, shape: Shape) -> Array:
    """A weight's values. Raises BadModel when its file cannot be read."""
    if not isinstance(tensor, ir.ExternalTensor) or dtype.np is None:
        return np.asarray(tensor.numpy())
    return array_from_bytes(_read(tensor), TensorType(dtype, shape))


def _unreadable(tensor: ir.TensorProtocol, name: str, error: Exception) -> BadModel:
    where = name or tensor.name or ""
    return BadModel("the model's external data cannot be read", where=where, found=str(error))


def _copy(tensor: ir.ExternalTensor, file: BinaryIO) -> None:
    left = int(tensor.nbytes)
    try:
        with Path(tensor.path).open("rb") as source:
            source.seek(int(tensor.offset or 0))
            while left > 0:
                chunk = source.read(min(left, _CHUNK))
                if not chunk:
                    raise ValueError(f"the file ends {left} bytes early")
                file.write(chunk)
                left -= len(chunk)
    except (OSError, ValueError) as error:
        raise _unreadable(tensor, "", error) from None


def _weights(model: ir.Model) -> Iterator[ir.TensorProtocol]:
    return (value.const_value for value in model.graph.initializers.values() if value.const_value is not None)


def _check_sizes(model: ir.Model) -> None:
    """Refuses weights whose dims, length and place contradict each other."""
    for tensor in _weights(model):
        where, dims = tensor.name or "", tuple(tensor.shape.numpy())
        if min(dims, default=0) < 0:
            raise BadModel("a weight has a negative dim", where=where, found=str(list(dims)), wanted="0 or more")
        if not isinstance(tensor, ir.ExternalTensor):
            continue
        if "\0" in os.fspath(tensor.location):
            raise BadModel("a weight's file has no valid name", where=where, found=repr(os.fspath(tensor.location)))
        if tensor.length is not None and tensor.length != tensor.nbytes:
            raise BadModel("the length of a weight's external data is not its size", where=where,
                           found=f"{tensor.length} bytes", wanted=f"{tensor.nbytes} for {list(dims)}")  # fmt: skip


def _check_target(model: ir.Model, out: Path) -> None:
    """Refuses to write over the model's own weights."""
    files = {os.fspath(tensor.path) for tensor in _weights(model) if isinstance(tensor, ir.ExternalTensor)}
    taken = {Path(os.path.realpath(file)) for file in files}
    folder = out.with_name(f"{out.stem}_weights")
    for path in taken:
        own = path.name.startswith(f"{out.stem}.weights") and path.parent == Path(os.path.realpath(out.parent))
        if own or path == Path(os.path.realpath(out)) or Path(os.path.realpath(folder)) in path.parents:
            raise BadUsage("the export would overwrite the model's weights", where=str(out), found=str(path),
                           hint="choose another name")  # fmt: skip


def make_plan(model: ir.Model, mode: str, out: Path | None, limit: int = INLINE_LIMIT, nz: str = "auto") -> WeightPlan:
    """The plan for a model: ``auto`` keeps weights inline as long as they fit into one file.

    Raises:
        BadModel: weights whose dims and external data contradict each other.
        BadUsage: an unknown mode, weights that are only in memory and may not be written anywhere, or an output that
            would overwrite the model's own weights.
    """
    if mode not in MODES:
        raise BadUsage("unknown place for weights", found=mode, wanted=" | ".join(MODES))
    if nz not in NZ_MODES:
        raise BadUsage("unknown choice of NZ weights", found=nz, wanted=" | ".join(NZ_MODES))
    _check_sizes(model)
    if mode == "auto":
        mode = "external" if sum(tensor.nbytes for tensor in _weights(model)) >= limit else "inline"
    if out is None:
        homeless = (t for t in _weights(model) if t.nbytes > SMALL and not isinstance(t, ir.ExternalTensor))
        first = next(homeless, None)
        if mode == "file-per-tensor" or (mode == "external" and first is not None):
            where = (first.name or "") if first is not None else ""
            raise BadUsage("weights in memory do not fit into the file", where=where, hint="give an output path")
    else:
        _check_target(model, out)
    return WeightPlan(mode, out, nz)
