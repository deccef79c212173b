"""Running a GE graph in numpy: each operator from its documented meaning, in files by family.

This is how an export is tested by result without Ascend hardware. It is a reference and not fast.
"""

from __future__ import annotations

import importlib
import os
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from graphlib import CycleError, TopologicalSorter

import numpy as np

from ir_ops.dtypes import Array
from ir_ops.errors import BadInput, BadModel
from ir_ops.ge import air
from ir_ops.ge.evaluator.registry import EvalCall, Evaluate, Result, evaluators
from ir_ops.ge.model import Edge, Model, Node, TensorType, inputs_of, outputs_of
from ir_ops.ge.naming import sanitise
from ir_ops.ge.prototypes import find

_FAMILIES = ("sources", "elementwise", "movement", "indexing", "reduction", "products", "fused")
_INTERFACE = ("Data", "RefData", "NetOutput")

__all__ = ["Execution", "can_run", "execute", "run"]


@cache
def _load() -> None:
    for family in _FAMILIES:
        importlib.import_module(f"{__name__}.{family}")


def can_run(op_type: str) -> bool:
    """Whether there is an evaluator for an operator type."""
    _load()
    return op_type in evaluators()


@dataclass
class Execution:
    """What running a graph gave.

    Attributes:
        outputs: graph output name -> array.
        caches: RefData name -> its content afterwards.
    """

    outputs: dict[str, Array]
    caches: dict[str, Array]


def run(source: str | os.PathLike[str] | Model, inputs: Mapping[str, Array]) -> dict[str, Array]:
    """Runs a graph on named inputs and returns its outputs by name; see :func:`execute`."""
    return execute(source, inputs).outputs


def execute(source: str | os.PathLike[str] | Model, inputs: Mapping[str, Array]) -> Execution:
    """Runs a graph on named inputs. The given arrays are not written, caches are returned.

    Args:
        source: an ``.air`` file or a model.
        inputs: input name, or the ONNX name it was made from -> array of the declared type (bf16 and fp8 as ml_dtypes
            arrays).

    Raises:
        BadModel: the file cannot be read, or has an operator without an evaluator.
        BadInput: an input is missing or has another type, or an operator refuses its inputs.
    """
    _load()
    model = source if isinstance(source, Model) else air.read(source)
    missing = Counter(node.type for node in model.root.nodes if node.type not in _INTERFACE and not can_run(node.type))
    if missing:
        listed = ", ".join(f"{count} x {name}" for name, count in missing.items())
        raise BadModel("operators without an evaluator", where=model.name, found=listed)
    return _Run(model, _checked(model, inputs)).go()


def _checked(model: Model, inputs: Mapping[str, Array]) -> dict[str, Array]:
    wanted = {entry.name: entry.type for entry in inputs_of(model)}
    # names as the ONNX model had them, before characters that GE does not take were replaced
    renamed = {source: name for name, source in model.source_names.items()}
    inputs = {name if name in wanted else renamed.get(name, sanitise(name)): array for name, array in inputs.items()}
    # an input that can only be empty is a constant of the graph: GE has no such inputs
    inputs = {name: array for name, array in inputs.items() if name in wanted or np.asarray(array).size}
    unknown, absent = sorted(set(inputs) - set(wanted)), sorted(set(wanted) - set(inputs))
    if unknown or absent:
        found = "; ".join(f"{what} {names}" for what, names in (("unknown", unknown), ("missing", absent)) if names)
        raise BadInput("inputs do not fit the graph", where=model.name, found=found, wanted=", ".join(wanted))
    for name, tensor in wanted.items():
        problem = _misfit(np.asarray(inputs[name]), tensor)
        if problem:
            raise BadInput("an input has another type", where=name, found=problem, wanted=str(tensor))
    return {name: np.asarray(array) for name, array in inputs.items()}


def _misfit(array: Array, tensor: TensorType) -> str:
    """How an array differs from its declared type; "" when it does not."""
    if tensor.dtype is None or array.dtype != tensor.dtype.np:
        return f"{array.dtype}{list(array.shape)}"
    # values are plain arrays here, whatever their storage
    shape = tensor.shape
    if shape is None:
        return ""
    same = len(shape) == array.ndim and all(a in (-1, b) for a, b in zip(shape, array.shape, strict=True))
    return "" if same else f"{array.dtype}{list(array.shape)}"


class _Run:
    def __init__(self, model: Model, inputs: Mapping[str, Array]) -> None:
        self._model, self._inputs = model, inputs
        self._values: dict[Edge, Array] = {}
        self._readers = Counter(slot.source for node in model.root.nodes for slot in node.inputs if slot.source)
        self._buffers: dict[Edge, str] = {}
        self._caches: dict[str, Array] = {}

    def go(self) -> Execution:
        # numpy's warnings about infinities and NaN are the graph's business
        with np.errstate(all="ignore"):
            for node in _ordered(self._model):
                self._step(node)
        outputs = {entry.name: self._value(entry.source) for entry in outputs_of(self._model)}
        return Execution(outputs, self._caches)

    def _value(self, edge: Edge) -> Array:
        if edge not in self._values:
            raise BadModel("nothing computes a value", where=self._model.name, found=str(edge))
        return self._values[edge]

    def _step(self, node: Node) -> None:
        if node.type in ("Data", "RefData"):
            self._values[Edge(node.name, 0)] = self._inputs[node.name]
            if node.type == "RefData":
                self._buffers[Edge(node.name, 0)] = node.name
                self._caches[node.name] = self._inputs[node.name]
            return
        if node.type == "NetOutput":
            return
        call = self._call(node)
        function: Evaluate = evaluators()[node.type]
        try:
            made = _in_order(call, function(call))
            if len(made) != len(node.outputs):
                raise ValueError(f"{len(made)} results for {len(node.outputs)} outputs")
        except (ValueError, LookupError, TypeError, ArithmeticError, MemoryError, OSError) as error:
            shapes = ", ".join(f"{name} {array.dtype}{list(array.shape)}" for name, array in call.inputs.items())
            what = f"no {error.args[0]}" if isinstance(error, KeyError) else str(error).partition("\n")[0]
            raise BadInput(f"cannot be computed: {what}", where=f"{node.name} ({node.type})", found=shapes) from None
        for i, (port, array) in enumerate(zip(node.outputs, made, strict=True)):
            problem = _misfit(array, port.type)
            if problem:
                where = f"{node.name} ({node.type}) {port.name}"
                raise BadModel("an output has another type than declared", where=where,
                               found=problem, wanted=str(port.type))  # fmt: skip
            self._values[Edge(node.name, i)] = array
        self._follow_buffers(node, call)
        self._release(node)

    def _call(self, node: Node) -> EvalCall:
        prototype = find(node.type)
        assert prototype is not None
        single: dict[str, Array] = {}
        dynamic: dict[str, list[Array]] = {name: [] for name in prototype.dynamic_inputs}
        for slot in node.inputs:
            if slot.source is None:
                continue
            base = slot.name.rstrip("0123456789")
            if prototype.input(slot.name) is None and base in dynamic:
                dynamic[base].append(self._value(slot.source))
            else:
                single[slot.name] = self._value(slot.source)
        return EvalCall(node, prototype, single, dynamic, self._model.folder)

    def _follow_buffers(self, node: Node, call: EvalCall) -> None:
        for name, output in call.prototype.ref_names.items():
            slot = node.slot(name)
            if slot is None or slot.source not in self._buffers:
                continue
            edge = Edge(node.name, [port.name for port in call.prototype.outputs].index(output))
            self._buffers[edge] = self._buffers[slot.source]
            self._caches[self._buffers[edge]] = self._values[edge]

    def _release(self, node: Node) -> None:
        for slot in node.inputs:
            if slot.source is None:
                continue
            self._readers[slot.source] -= 1
            if self._readers[slot.source] == 0:
                del self._values[slot.source]


def _ordered(model: Model) -> list[Node]:
    """The nodes of the root graph, each behind those it reads: GE takes them in any order.

    Raises:
        BadModel: the graph has a cycle, or two nodes of one name.
    """
    nodes = {node.name: node for node in model.root.nodes}
    if len(nodes) != len(model.root.nodes):
        raise BadModel("two nodes have one name", where=model.name, hint="kvfuse ge validate says which")
    waits = {
        name: {slot.source.node for slot in node.inputs if slot.source is not None} | (set(node.controls) & set(nodes))
        for name, node in nodes.items()
    }
    places = {name: place for place, name in enumerate(nodes)}
    if all(places[source] < places[name] for name, sources in waits.items() for source in sources):
        return model.root.nodes  # as files are written: constants stand in front of their readers, not all at once
    try:
        return [nodes[name] for name in TopologicalSorter(waits).static_order()]
    except CycleError as error:
        raise BadModel("the graph has a cycle", where=model.name, found=" <- ".join(error.args[1][:5])) from None


def _in_order(call: EvalCall, result: Result) -> list[Array]:
    if isinstance(result, (np.ndarray, np.generic)):
        # numpy turns results of rank 0 into bare elements
        return [np.asarray(result)]
    if isinstance(result, Mapping):
        return [result[port.name] for port in call.prototype.outputs]
    return [np.asarray(array) for array in result]
