"""Where the bytes of a model's weights go: into the ``.air`` file, or referred to where they are.

A protobuf message holds less than 2 GiB. A model whose weights do not fit keeps them in files: FileConstant nodes that
point straight at the ONNX external data (offset and length), which is never read then. Weights of such a model that are
in memory are written once into ``NAME.weights`` beside the ``.air`` file.
"""

from __future__ import annotations

import os
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import onnx_ir as ir

from ir_ops.dtypes import DType
from ir_ops.errors import BadModel, BadUsage
from ir_ops.files import replacing
from ir_ops.ge.builder import GraphBuilder
from ir_ops.ge.model import Shape
from ir_ops.ge.tensor import Tensor

MARGIN = 200 * 2**20
"""Room left for the graph itself below the 2 GiB that a message can have."""
INLINE_LIMIT = 2**31 - MARGIN
SMALL = 1024
"""Constants up to this size stay inline always: GE reads many of them while it compiles."""
_ALIGNMENT = 4096

MODES = ("auto", "inline", "external")


@dataclass
class WeightPlan:
    """Decides for each weight, and writes what has no file yet.

    Attributes:
        external: whether large weights are FileConstant.
        own_file: file for weights that are only in memory, None where nothing may be written.
        inline_bytes: bytes of weights put into the ``.air`` file so far.
        external_bytes: bytes of weights referred to.
    """

    external: bool
    own_file: Path | None
    inline_bytes: int = 0
    external_bytes: int = 0
    files: set[Path] = field(default_factory=set)
    _pending: list[tuple[int, Any]] = field(default_factory=list)
    _end: int = 0

    def add(self, builder: GraphBuilder, tensor: ir.TensorProtocol, dtype: DType, shape: Shape, name: str) -> Tensor:
        """The constant node of a weight."""
        if not self.external or tensor.nbytes <= SMALL:
            self.inline_bytes += tensor.nbytes
            return builder.const_bytes(_read(tensor, name), dtype, shape, name=name)
        self.external_bytes += tensor.nbytes
        if isinstance(tensor, ir.ExternalTensor):
            path = Path(os.path.abspath(tensor.path))
            offset = int(tensor.offset or 0)
        else:
            assert self.own_file is not None
            path, offset = Path(os.path.abspath(self.own_file)), self._append(tensor)
        self.files.add(path)
        return builder.file_constant(path, offset, tensor.nbytes, dtype, shape, name=name)

    def _append(self, tensor: Any) -> int:
        offset = self._end
        self._pending.append((offset, tensor))
        self._end = -(-(offset + tensor.nbytes) // _ALIGNMENT) * _ALIGNMENT
        return offset

    def write(self) -> Path | None:
        """Writes the weights that are only in memory; returns their file, None when there are none."""
        if not self._pending or self.own_file is None:
            return None
        with replacing(self.own_file) as part, part.open("wb") as file:
            for offset, tensor in self._pending:
                file.seek(offset)
                file.write(tensor.tobytes())
        return self.own_file


def _read(tensor: ir.TensorProtocol, name: str) -> bytes:
    try:
        return tensor.tobytes()
    except (OSError, ValueError) as error:
        raise BadModel("the model's external data cannot be read", where=name, found=str(error)) from None


def make_plan(model: ir.Model, mode: str, out: Path | None, limit: int = INLINE_LIMIT) -> WeightPlan:
    """The plan for a model: ``auto`` keeps weights inline as long as they fit into one file.

    Raises:
        BadUsage: an unknown mode, or weights that are only in memory and may not be written anywhere.
    """
    if mode not in MODES:
        raise BadUsage("unknown place for weights", found=mode, wanted=" | ".join(MODES))
    tensors = [value.const_value for value in model.graph.initializers.values() if value.const_value is not None]
    external = mode == "external" or (mode == "auto" and sum(tensor.nbytes for tensor in tensors) >= limit)
    homeless = [tensor for tensor in tensors if tensor.nbytes > SMALL and not isinstance(tensor, ir.ExternalTensor)]
    if external and out is None and homeless:
        where, hint = homeless[0].name or "", "give an output path"
        raise BadUsage("weights in memory do not fit into the file", where=where, hint=hint)
    return WeightPlan(external, None if out is None else out.with_suffix(".weights"))
