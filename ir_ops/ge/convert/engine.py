"""Walking an ONNX graph and converting node by node."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from functools import partial

import numpy as np
import onnx_ir as ir

from ir_ops.dtypes import Array, DType, by_numpy, by_onnx
from ir_ops.errors import BadModel, ExportError, KvfuseError
from ir_ops.ge.builder import GraphBuilder
from ir_ops.ge.convert import load_families
from ir_ops.ge.convert.caches import in_place_inputs
from ir_ops.ge.convert.call import NodeCall
from ir_ops.ge.convert.fold import fold, folded_dtype, nonneg_outputs
from ir_ops.ge.convert.load import attributes, opset, plain_domain
from ir_ops.ge.convert.node_check import check_node
from ir_ops.ge.convert.operand import Operand, settle
from ir_ops.ge.convert.registry import Converter, find_converter
from ir_ops.ge.convert.spelled import spelled_attention
from ir_ops.ge.convert.unsupported import Unsupported
from ir_ops.ge.convert.weights import WeightPlan, content
from ir_ops.ge.infer.call import Known
from ir_ops.ge.model import Model, Shape, TensorType
from ir_ops.ge.tensor import Outputs, Tensor


@dataclass(frozen=True)
class Failure:
    """A node that cannot be exported."""

    op: str
    node: str
    reason: str
    nearest: str


@dataclass
class Engine:
    """One conversion.

    Attributes:
        shapes: dims of the graph inputs.
        cache: "ref" updates caches in place where the model allows it, "copy" never.
        source_names: graph input -> its ONNX name.
    """

    model: ir.Model
    shapes: Mapping[str, Shape | None]
    weights: WeightPlan
    cache: str
    product: str
    builder: GraphBuilder
    attention: str = "auto"
    notes: list[str] = field(default_factory=list)
    failures: list[Failure] = field(default_factory=list)
    source_names: dict[str, str] = field(default_factory=dict)
    _values: dict[ir.Value, Operand | None] = field(default_factory=dict)

    def run(self) -> Model:
        """The GE model.

        Raises:
            ExportError: some nodes cannot be converted; the text lists all of them.
        """
        load_families()
        in_place = in_place_inputs(self.model.graph) if self.cache == "ref" else {}
        self._add_inputs({node.inputs[i] for node, slots in in_place.items() for i in slots})
        for value in self.model.graph.initializers.values():
            self._add_initializer(value)
        for node in self.model.graph:
            self._convert(node, frozenset(in_place.get(node, ())))
        if self.failures:
            raise ExportError("the model cannot be exported to GE", where=self.model.graph.name or "",
                              found=failure_text(self.failures))  # fmt: skip
        for value in self.model.graph.outputs:
            self.builder.output(self._operand(value).tensor(), value.name or "")
        return self.builder.build()

    # ------------------------------------------------------------------------------------------------ leaves

    def _input_names(self) -> dict[str, str]:
        """ONNX name -> GE name of the graph inputs: names that GE takes stay, the others change around them."""
        names = [value.name or "" for value in self.model.graph.inputs]
        found = {name: name for name in names if self.builder.free_name(name) == name}
        taken = set(found)
        for name in names:
            if name not in found:
                found[name] = self.builder.free_name(name, taken)
                taken.add(found[name])
        return found

    def _add_inputs(self, refs: set[ir.Value | None]) -> None:
        names = self._input_names()
        for value in self.model.graph.inputs:
            name = value.name or ""
            if name in self.model.graph.initializers:
                continue
            dtype = _dtype(value)
            if dtype is None:
                raise ExportError("a graph input has no element type GE knows", where=name, found=str(value.dtype))
            dims = self.shapes[name]
            if dims is not None and 0 in dims and -1 not in dims and dtype.np is not None:
                self._add_empty_input(value, dtype, dims)
                continue
            add = self.builder.ref_data if value in refs else self.builder.data
            tensor = add(names[name], dtype, dims)
            self.source_names[tensor.edge.node] = name
            self._values[value] = Operand(name, tensor.type, made=tensor)

    def _add_empty_input(self, value: ir.Value, dtype: DType, dims: Shape) -> None:
        """An input that can only be empty: GE takes no such input, and an empty constant is the same."""
        name, content = value.name or "", np.zeros(dims, dtype.np)
        make = partial(self.builder.const, content, name=name)
        self._values[value] = Operand(name, TensorType(dtype, dims), make=make, content=content)
        self.notes.append(f"input {name} has no element: it is a constant of the GE graph, not an input")

    def _add_initializer(self, value: ir.Value) -> None:
        tensor, name = value.const_value, value.name or ""
        if tensor is None:
            return
        dtype = _dtype_of(int(tensor.dtype))
        if dtype is None:
            self._fail("Initializer", name, f"element type {tensor.dtype.name}", "a numeric type")
            self._values[value] = None
            return
        shape = tuple(tensor.shape.numpy())
        make = partial(self.weights.add, self.builder, tensor, dtype, shape, name)
        make_nz = partial(self.weights.add_nz, self.builder, tensor, dtype, shape, name)
        load = partial(content, tensor, dtype, shape)
        self._values[value] = Operand(name, TensorType(dtype, shape), make=make, load=load, make_nz=make_nz)

    # ------------------------------------------------------------------------------------------------ nodes

    def _convert(self, node: ir.Node, in_place: frozenset[int]) -> None:
        domain = plain_domain(node.domain)
        name = node.name or (node.outputs[0].name or node.op_type)
        label = f"{domain}.{node.op_type}" if domain else node.op_type
        version = node.version or opset(self.model, domain)
        try:
            if node.op_type == "If" and not domain:
                self._branch(node)
                return
            converter = find_converter(domain, node.op_type, version)
            if not domain:
                check_node(node, version)
            inputs = [None if value is None else self._values[value] for value in node.inputs]
            if any(value is not None and operand is None for value, operand in zip(node.inputs, inputs, strict=True)):
                raise _Poisoned
            self._convert_known(node, converter, inputs, name, version, in_place)
            return
        except _Poisoned:
            pass
        except Unsupported as reason:
            self._fail(label, name, reason.reason, reason.nearest)
        except BadModel:
            # unreadable weights are no matter of this node's conversion
            raise
        except KvfuseError as error:
            self._fail(label, name, error.what + (f" (found {error.found})" if error.found else ""), error.wanted)
        except (TypeError, ValueError, IndexError, OverflowError, ZeroDivisionError) as error:
            # operands and attributes that contradict each other in ways that nobody foresaw: still a line of the list
            self._fail(label, name, f"its operands do not fit: {str(error).splitlines()[0]}", "a valid node")
        for value in node.outputs:
            self._values[value] = None

    def _branch(self, node: ir.Node) -> None:
        """An If whose condition is known at export is the branch it takes."""
        condition = self._values[node.inputs[0]] if node.inputs[0] is not None else None
        if condition is None:
            raise _Poisoned
        known = condition.constant()
        if known is None:
            raise Unsupported("a branch that is chosen at run time", "fixed input shapes, or an export without If")
        graph = node.attributes["then_branch" if bool(known.reshape(-1)[0]) else "else_branch"].as_graph()
        for value in graph.initializers.values():
            self._add_initializer(value)
        for inner in graph:
            self._convert(inner, frozenset())
        for value, made in zip(node.outputs, graph.outputs, strict=True):
            self._values[value] = self._values[made]

    def _store(self, array: Array, name: str) -> Tensor:
        """A weight that the conversion made: kept where the model's weights are kept."""
        tensor = ir.Tensor(array, name=name)
        return self.weights.add(self.builder, tensor, by_numpy(array.dtype), array.shape, name)

    def _convert_known(
        self,
        node: ir.Node,
        converter: Converter,
        inputs: list[Operand | None],
        name: str,
        version: int,
        in_place: frozenset[int],
    ) -> None:
        attrs = attributes(node)
        domain = plain_domain(node.domain)
        count = len(node.outputs)
        contents: list[Known | None] = [None] * count
        if not domain:
            contents = fold(node.op_type, inputs, attrs, version, count)
            made_of = folded_dtype(node.op_type, inputs, attrs) if contents[0] is not None else None
            settled = [_settled(known, value, made_of) for known, value in zip(contents, node.outputs, strict=True)]
            if all(operand is not None for operand in settled):
                for value, operand in zip(node.outputs, settled, strict=True):
                    self._values[value] = self._folded(operand, value)
                return
        used = [bool(value.uses()) or value.is_graph_output() for value in node.outputs]
        call = NodeCall(
            self.builder,
            node.op_type,
            domain,
            name,
            version,
            inputs,
            attrs,
            used,
            in_place,
            self.product,
            self.notes,
            self.attention,
            self._store,
        )
        made = spelled_attention(call, node, self._values) or converter.run(call)
        tensors = [made] if isinstance(made, Tensor) else made.flat() if isinstance(made, Outputs) else list(made)
        signs = nonneg_outputs(node.op_type, inputs, attrs, count) if not domain else [False] * count
        for i, value in enumerate(node.outputs):
            tensor = tensors[i] if i < len(tensors) else None
            if tensor is None and used[i]:
                raise Unsupported(f"output {i} has no counterpart in GE")
            self._values[value] = None if tensor is None else self._result(tensor, value, contents[i], signs[i])

    def _result(self, tensor: Tensor, value: ir.Value, known: Known | None, nonneg: bool) -> Operand:
        declared = _dtype(value)
        if declared is not None and tensor.dtype != declared:
            raise Unsupported(f"comes out as {tensor.dtype.name}, the model says {declared.name}")
        tensor = replace(tensor, type=_refined(tensor.type, value))
        if known is not None:
            tensor = replace(tensor, known=known)
        return Operand(value.name or "", tensor.type, made=tensor, content=tensor.known, nonneg=nonneg)

    def _folded(self, operand: Operand | None, value: ir.Value) -> Operand:
        assert operand is not None
        assert operand.content is not None
        operand.make = partial(self.builder.const, operand.content, name=value.name or "folded")
        return operand

    def _operand(self, value: ir.Value) -> Operand:
        operand = self._values.get(value)
        if operand is None:
            raise ExportError("a graph output is computed by nothing", where=value.name or "")
        return operand

    def _fail(self, op: str, node: str, reason: str, nearest: str) -> None:
        self.failures.append(Failure(op, node, reason, nearest))


class _Poisoned(Exception):
    """An input comes from a node that failed already."""


def _settled(known: Known | None, value: ir.Value, made_of: DType | None) -> Operand | None:
    """A fully folded output as an operand, None when an element is unknown."""
    if known is None:
        return None
    dtype = _dtype(value) or made_of
    final = settle(known, dtype) if dtype is not None else known
    if dtype is None or dtype.np is None or final.dtype == object:
        return None
    final = final.astype(dtype.np)
    return Operand(value.name or "", TensorType(dtype, final.shape), content=final)


def _refined(tensor: TensorType, value: ir.Value) -> TensorType:
    """Dims the model declares where ours are unknown; a declared 0 means nothing in exported graphs."""
    if value.shape is None:
        return tensor
    declared = tuple(dim if isinstance(dim, int) and dim > 0 else -1 for dim in value.shape)
    if tensor.shape is None:
        return replace(tensor, shape=declared)
    if len(declared) != len(tensor.shape):
        return tensor
    return replace(tensor, shape=tuple(b if a < 0 else a for a, b in zip(tensor.shape, declared, strict=True)))


def _dtype_of(number: int) -> DType | None:
    try:
        return by_onnx(number)
    except KeyError:
        return None


def _dtype(value: ir.Value) -> DType | None:
    return None if value.dtype is None else _dtype_of(int(value.dtype))


def failure_text(failures: list[Failure]) -> str:
    """All failures in one line: operators with counts, reason, nearest alternative, and the first place of each."""
    return "; ".join(_grouped(failures))


def _grouped(failures: list[Failure]) -> Iterator[str]:
    counts = Counter((entry.op, entry.reason, entry.nearest) for entry in failures)
    for (op, reason, nearest), count in counts.items():
        first = next(entry.node for entry in failures if (entry.op, entry.reason) == (op, reason))
        yield f"{count} x {op}: {reason}" + (f", nearest: {nearest}" if nearest else "") + f" (first: {first})"
