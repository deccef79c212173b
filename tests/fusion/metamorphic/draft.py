"""A model that is being edited: its nodes, what is known of its values, and a source of choices."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

from tests.fusion.zoo.graph import Array

FLOATS = (TensorProto.FLOAT, TensorProto.FLOAT16)


@dataclass(frozen=True)
class Kind:
    """Element type and sizes (0: unknown) of a value."""

    type: int
    dims: tuple[int, ...]

    @property
    def rank(self) -> int:
        return len(self.dims)

    @property
    def numpy(self) -> Any:
        return helper.tensor_dtype_to_np_dtype(self.type)


def kinds_of(model: onnx.ModelProto) -> dict[str, Kind]:
    """What shape inference knows of the values; values of unknown rank are left out."""
    inferred = onnx.shape_inference.infer_shapes(model).graph
    found = {item.name: Kind(item.data_type, tuple(item.dims)) for item in model.graph.initializer}
    for entry in (*inferred.input, *inferred.output, *inferred.value_info):
        tensor = entry.type.tensor_type
        if tensor.elem_type and tensor.HasField("shape"):
            found[entry.name] = Kind(tensor.elem_type, tuple(dim.dim_value for dim in tensor.shape.dim))
    return found


class Draft:
    """An edit takes one, changes ``model`` and says whether it found a place.

    Attributes:
        model: its own copy.
        kinds: of the values whose rank is known; edits enter what they add.
        rng: source of all choices, so that a case can be repeated.
    """

    def __init__(self, model: onnx.ModelProto, kinds: dict[str, Kind], rng: random.Random, step: int) -> None:
        self.model, self.kinds, self.rng, self.step = model, kinds, rng, step
        self._count = 0

    @property
    def nodes(self) -> Any:
        return self.model.graph.node

    @property
    def opset(self) -> int:
        return next((entry.version for entry in self.model.opset_import if entry.domain in ("", "ai.onnx")), 1)

    def new(self, hint: str) -> str:
        self._count += 1
        return f"edit{self.step}_{hint}_{self._count}"

    def pick(self, entries: Sequence[Any] | Iterator[Any]) -> Any:
        """One of them at random, None of none."""
        found = list(entries)
        return self.rng.choice(found) if found else None

    def inserted(self, at: int, op: str, inputs: Sequence[str], kind: Kind | None, **attributes: Any) -> str:
        """A new node in front of the node at ``at``; gives the value's name."""
        name = self.new(op.lower())
        self.nodes.insert(at, helper.make_node(op, list(inputs), [name], name=name, **attributes))
        if kind is not None:
            self.kinds[name] = kind
        return name

    def constant(self, array: Array) -> str:
        name = self.new("constant")
        self.model.graph.initializer.append(numpy_helper.from_array(array, name))
        self.kinds[name] = Kind(helper.np_dtype_to_tensor_dtype(array.dtype), tuple(array.shape))
        return name

    def constants(self) -> list[onnx.TensorProto]:
        """The tensors of all constants, to read or to change."""
        held = [
            node.attribute[0].t for node in self.nodes if node.op_type == "Constant" and node.attribute[0].HasField("t")
        ]
        return [*self.model.graph.initializer, *held]

    def constant_names(self) -> set[str]:
        made = {node.output[0] for node in self.nodes if node.op_type == "Constant"}
        return made | {item.name for item in self.model.graph.initializer}

    def value_of(self, name: str) -> Array | None:
        """The numbers of a constant."""
        for item in self.model.graph.initializer:
            if item.name == name:
                return numpy_helper.to_array(item)
        for node in self.nodes:
            if node.op_type == "Constant" and node.output[0] == name and node.attribute[0].HasField("t"):
                return numpy_helper.to_array(node.attribute[0].t)
        return None

    def edge(
        self, wanted: Callable[[Kind], bool] = lambda kind: True, constants: bool = False
    ) -> tuple[int, int] | None:
        """A node and an input of it that carries a value of a wanted kind."""
        held = set() if constants else self.constant_names()
        places = [
            (at, place)
            for at, node in enumerate(self.nodes)
            for place, name in enumerate(node.input)
            if name in self.kinds and name not in held and wanted(self.kinds[name])
        ]
        return self.rng.choice(places) if places else None

    def readers(self) -> dict[str, list[tuple[int, int]]]:
        found: dict[str, list[tuple[int, int]]] = {}
        for at, node in enumerate(self.nodes):
            for place, name in enumerate(node.input):
                found.setdefault(name, []).append((at, place))
        return found

    def results(self) -> set[str]:
        """Names of the graph's outputs."""
        return {item.name for item in self.model.graph.output}

    def replace(self, at: int, nodes: Sequence[onnx.NodeProto]) -> None:
        del self.nodes[at]
        for offset, node in enumerate(nodes):
            self.nodes.insert(at + offset, node)


def is_float(kind: Kind) -> bool:
    return kind.type in FLOATS


def is_rows(kind: Kind) -> bool:
    """Floats with axes."""
    return is_float(kind) and kind.rank > 0


def attribute(node: onnx.NodeProto, name: str) -> onnx.AttributeProto | None:
    return next((item for item in node.attribute if item.name == name), None)


def scalar(value: float, kind: Kind) -> Array:
    return np.array(value, kind.numpy)
