"""A GE graph as Python objects: what an ``.air`` file says, without the spellings that do not matter.

Two files that GE loads as the same graph decode to equal models (``==``). The wire form with its reserved attributes
is :mod:`ir_ops.ge.codec`'s business.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from enum import Enum
from pathlib import Path
from typing import Any

import numpy as np

from ir_ops.dtypes import Array, DType, by_numpy
from ir_ops.errors import BadInput, BadModel
from ir_ops.ge import prototypes

Shape = tuple[int, ...]
"""Dims of a tensor, -1 where not known before run time."""

FRACTAL_NZ = "FRACTAL_NZ"


@dataclass(frozen=True, slots=True)
class TensorType:
    """Element type, shape and storage format of a tensor.

    Attributes:
        dtype: None only for the placeholder of an absent optional input.
        shape: None when even the rank is unknown.
        layout: "ND", or "FRACTAL_NZ" for tensors stored in 16-row blocks.
        storage: the dims in memory where ``layout`` is FRACTAL_NZ and they are stored (constants).
        device: "NPU", or "CPU" for host scalars.
    """

    dtype: DType | None
    shape: Shape | None = None
    layout: str = "ND"
    storage: Shape | None = None
    device: str = "NPU"

    @property
    def is_placeholder(self) -> bool:
        return self.dtype is None

    @property
    def rank(self) -> int | None:
        return None if self.shape is None else len(self.shape)

    @property
    def numel(self) -> int | None:
        """Number of elements, None when a dim is unknown."""
        if self.shape is None or any(dim < 0 for dim in self.shape):
            return None
        return int(np.prod(self.shape, dtype=np.int64))

    def __str__(self) -> str:
        if self.dtype is None:
            return "absent"
        dims = "..." if self.shape is None else ",".join("?" if dim < 0 else str(dim) for dim in self.shape)
        return f"{self.dtype.name}[{dims}]" + ("" if self.layout == "ND" else f":{self.layout}")


PLACEHOLDER = TensorType(None, None, layout="")
"""The type of an input slot that stands for an absent optional input."""


class AttrKind(str, Enum):
    """GE's attribute types, by the word the prototypes use."""

    INT = "Int"
    FLOAT = "Float"
    BOOL = "Bool"
    STRING = "String"
    BYTES = "Bytes"
    TYPE = "Type"
    TENSOR = "Tensor"
    LIST_INT = "ListInt"
    LIST_FLOAT = "ListFloat"
    LIST_BOOL = "ListBool"
    LIST_STRING = "ListString"
    LIST_TYPE = "ListType"
    LIST_LIST_INT = "ListListInt"
    LIST_LIST_FLOAT = "ListListFloat"
    RAW = "Raw"
    """An attribute kvfuse passes through without reading it (graphs, functions, tensor lists)."""


@dataclass(frozen=True, slots=True)
class ConstTensor:
    """A constant's type and its little-endian contiguous bytes (empty when they stand in a file)."""

    type: TensorType
    data: bytes

    def array(self) -> Array:
        """The values as numpy; 4-bit types are unpacked to one value an element.

        Raises:
            BadInput: numpy has no such element type (HiFloat8), or the bytes do not fit the shape.
        """
        return array_from_bytes(self.data, self.type)


@dataclass(frozen=True, slots=True)
class Attr:
    """An attribute value with its GE type."""

    kind: AttrKind
    value: Any


@dataclass(frozen=True, slots=True)
class Edge:
    """Where an input comes from: output ``index`` of node ``node``."""

    node: str
    index: int

    def __str__(self) -> str:
        return f"{self.node}:{self.index}"


@dataclass(frozen=True, slots=True)
class Slot:
    """One input slot; ``source`` is None for absent optional inputs and for Data."""

    name: str
    type: TensorType
    source: Edge | None


@dataclass(frozen=True, slots=True)
class Port:
    """One output."""

    name: str
    type: TensorType


@dataclass(slots=True)
class Node:
    """One operator of a graph. ``controls`` names nodes that must run before it."""

    name: str
    type: str
    inputs: list[Slot] = field(default_factory=list)
    outputs: list[Port] = field(default_factory=list)
    attrs: dict[str, Attr] = field(default_factory=dict)
    controls: list[str] = field(default_factory=list)
    subgraphs: list[str] = field(default_factory=list)

    def value(self, attr: str) -> Any:
        """An attribute's value, its prototype's default where it is not written."""
        found = self.attrs.get(attr)
        return prototypes.default_of(self.type, attr) if found is None else found.value

    def slot(self, name: str) -> Slot | None:
        """The input slot of that name, None when absent."""
        return next((slot for slot in self.inputs if slot.name == name and not slot.type.is_placeholder), None)


@dataclass(slots=True)
class Graph:
    name: str
    nodes: list[Node] = field(default_factory=list)

    def node(self, name: str) -> Node:
        """The node called ``name``. Raises KeyError when there is none."""
        for node in self.nodes:
            if node.name == name:
                return node
        raise KeyError(name)

    def of_type(self, *types: str) -> Iterator[Node]:
        return (node for node in self.nodes if node.type in types)


@dataclass(slots=True)
class Model:
    """A whole ``.air`` file: ``graphs[0]`` is the root, the others are subgraphs.

    Attributes:
        folder: where weight files are looked up; not part of equality.
        source_names: graph input -> its name in the model it was made from; not part of equality.
    """

    name: str
    graphs: list[Graph]
    version: int = 1
    folder: Path | None = field(default=None, compare=False)
    source_names: dict[str, str] = field(default_factory=dict, compare=False)

    @property
    def root(self) -> Graph:
        return self.graphs[0]


@dataclass(frozen=True)
class ModelInput:
    """A graph input, in the order of its index."""

    name: str
    index: int
    type: TensorType
    is_ref: bool


@dataclass(frozen=True)
class ModelOutput:
    """A graph output: its name outside and where it comes from."""

    name: str
    type: TensorType
    source: Edge


OUTPUT_NAME_ATTR = "_origin_output_tensor_name"


def inputs_of(model: Model) -> list[ModelInput]:
    """The root graph's inputs (Data and RefData), ordered by index.

    Raises:
        BadModel: one has no index, or not one output.
    """
    found: list[ModelInput] = []
    for node in model.root.of_type("Data", "RefData"):
        index = node.value("index")
        if not isinstance(index, int) or len(node.outputs) != 1:
            raise BadModel("a graph input without an index or an output", where=node.name, found=f"index {index!r}",
                           wanted="a number and one output")  # fmt: skip
        found.append(ModelInput(node.name, index, node.outputs[0].type, node.type == "RefData"))
    return sorted(found, key=lambda entry: entry.index)


def outputs_of(model: Model) -> list[ModelOutput]:
    """The root graph's outputs in order; those without a recorded name are called ``output<i>``."""
    found: list[ModelOutput] = []
    for node in model.root.of_type("NetOutput"):
        names = node.attrs.get(OUTPUT_NAME_ATTR)
        for i, slot in enumerate(node.inputs):
            if slot.source is not None:
                name = names.value[i] if names is not None and i < len(names.value) else ""
                found.append(ModelOutput(name or f"output{i}", slot.type, slot.source))
    return found


def bytes_of(array: Array) -> bytes:
    """An array as GE stores it: little-endian, contiguous, 4-bit types two a byte with the first in the low half."""
    row = by_numpy(array.dtype)
    if row.bits != 4:
        data = np.ascontiguousarray(array)
        return data.astype(data.dtype.newbyteorder("<"), copy=False).tobytes()
    nibbles = np.ascontiguousarray(array).reshape(-1).view(np.uint8) & 0xF
    if nibbles.size % 2:
        nibbles = np.append(nibbles, np.uint8(0))
    return (nibbles[0::2] | (nibbles[1::2] << 4)).astype(np.uint8).tobytes()


def array_from_bytes(data: bytes, tensor: TensorType) -> Array:
    """The inverse of :func:`bytes_of`. Raises BadInput when type, shape and bytes do not fit."""
    shape, dtype = tensor.storage or tensor.shape, tensor.dtype
    if dtype is None or dtype.np is None:
        raise BadInput("numpy has no such element type", found="none" if dtype is None else dtype.name)
    if shape is None or any(dim < 0 for dim in shape):
        raise BadInput("a constant's shape is not known", found=str(tensor))
    count = int(np.prod(shape, dtype=np.int64))
    if len(data) != dtype.nbytes(count):
        raise BadInput("a constant's bytes do not fit its shape", found=f"{len(data)} bytes",
                       wanted=f"{dtype.nbytes(count)} for {tensor}")  # fmt: skip
    raw = np.frombuffer(data, dtype=np.uint8)
    if dtype.bits == 4:
        nibbles = np.stack([raw & 0xF, raw >> 4], axis=-1).reshape(-1)[:count]
        return nibbles.view(dtype.np).reshape(shape)
    return raw.view(dtype.np).reshape(shape)
