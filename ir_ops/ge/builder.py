"""Building a GE graph by hand or by program.

>>> b = GraphBuilder("preamble")
>>> kv = b.data("kv", "float16", (2, 1, 1, 576))
>>> y, rstd = b.RmsNorm(kv, b.const(gamma), epsilon=1e-6)
>>> b.output(y, "y")
>>> write(b.build(), "preamble.air")

Every operator of ``prototypes.json`` is a method named like the operator: inputs by GE's names or in GE's order
(dynamic ones as lists, absent optional ones None), attributes as keywords, ``name`` for the node. It returns one
tensor, or :class:`Outputs` when the operator has several outputs.
"""

from __future__ import annotations

import itertools
import os
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from ir_ops.dtypes import Array, DType, by_numpy
from ir_ops.errors import BadInput, BadUsage
from ir_ops.ge import infer as inference
from ir_ops.ge.assemble import (
    PlacedInputs,
    check_attrs,
    flatten_inputs,
    output_slots,
    place_inputs,
    with_defaults,
)  # fmt: skip
from ir_ops.ge.infer.call import OpCall
from ir_ops.ge.methods import operator_method
from ir_ops.ge.model import (
    FRACTAL_NZ,
    OUTPUT_NAME_ATTR,
    Attr,
    AttrKind,
    ConstTensor,
    Edge,
    Graph,
    Model,
    Node,
    Port,
    Shape,
    Slot,
    TensorType,
    bytes_of,
)  # fmt: skip
from ir_ops.ge.naming import Names, sanitise
from ir_ops.ge.nz import packed, storage_shape
from ir_ops.ge.prototypes import Prototype, find, prototypes
from ir_ops.ge.tensor import DTypeLike, Outputs, Tensor, TensorLike, as_dims, as_dtype

NET_OUTPUT = "NetOutput"

_OWN_METHODS = frozenset({"Data", "RefData", "Const", "Constant", "FileConstant", "NetOutput", "Variable"})
_SHARED_BYTES = 1024
"""Constants up to this size are stored once however often they are asked for."""


class GraphBuilder:
    """Collects the nodes of one graph; :meth:`build` gives the finished model.

    Args:
        name: name of the graph and of the model.
    """

    def __init__(self, name: str = "graph") -> None:
        self.name = sanitise(name)
        self._names = Names()
        self._names.unique(NET_OUTPUT)
        self._inputs: list[Node] = []
        self._refs: list[Node] = []
        self._nodes: list[Node] = []
        self._by_name: dict[str, Node] = {}
        self._outputs: list[tuple[Tensor, str]] = []
        self._last_controls: list[str] = []
        self._shared: dict[tuple[str, Shape, bytes], Tensor] = {}
        self._common: dict[str, Tensor] = {}

    # ------------------------------------------------------------------------------------------------ inputs

    def data(self, name: str, dtype: DTypeLike, shape: Sequence[int] | None, *, layout: str = "ND") -> Tensor:
        """A graph input. ``shape``: dims, -1 where they vary, None for an unknown rank.

        ``layout="FRACTAL_NZ"`` declares an input that is stored in NZ blocks; ``shape`` is its ND shape then.

        Raises:
            BadUsage: a name that is taken, an unknown element type, or dims that GE does not take.
        """
        return self._input("Data", self._inputs, name, dtype, shape, layout)

    def ref_data(self, name: str, dtype: DTypeLike, shape: Sequence[int] | None, *, layout: str = "ND") -> Tensor:
        """A graph input that is updated in place (a cache): feed it to the ref input of a ref operator.

        Indices of RefData continue after those of all Data, whatever the order of the calls.
        """
        return self._input("RefData", self._refs, name, dtype, shape, layout)

    def free_name(self, wanted: str, taken: Collection[str] = ()) -> str:
        """``wanted`` with its characters and a number changed so that :meth:`data` takes it as a new input's name.

        ``taken`` are names that other inputs will have.
        """
        name = sanitise(wanted)
        names = itertools.chain([name], (f"{name}_{i}" for i in itertools.count(1)))
        return next(entry for entry in names if entry not in self._names and entry not in taken)

    def _input(
        self, op_type: str, group: list[Node], name: str, dtype: DTypeLike, shape: Sequence[int] | None, layout: str
    ) -> Tensor:
        # the name is what a caller feeds the input by, so it is never changed silently
        if name in self._names:
            raise BadUsage("a graph input's name is taken", where=self.name, found=name, hint="choose another name")
        dims = None if shape is None else as_dims(shape, name)
        if dims is not None and any(dim == 0 or dim < -1 for dim in dims):
            raise BadUsage(
                "a graph input has a dim GE does not take",
                where=name,
                found=str(dims),
                wanted="dims > 0, or -1",
                hint="an empty buffer is TensorMove of an empty constant",
            )
        tensor = TensorType(as_dtype(dtype), dims, layout)
        node = Node(self._names.unique(name), op_type, [Slot("x", tensor, None)], [Port("y", tensor)])
        if layout == FRACTAL_NZ:
            node.attrs["_enable_storage_format_spread"] = Attr(AttrKind.BOOL, False)
        group.append(node)
        return self._register(node)

    def _register(self, node: Node) -> Tensor:
        self._by_name[node.name] = node
        return Tensor(Edge(node.name, 0), node.outputs[0].type)

    # ------------------------------------------------------------------------------------------------ constants

    def const(self, array: TensorLike, *, name: str = "", layout: str = "ND") -> Tensor:
        """An inline constant of a numpy array (bf16, fp8 and int4 as ml_dtypes arrays). Small equal ones are shared.

        ``layout="FRACTAL_NZ"`` stores a matrix in NZ blocks: the array is the plain matrix, here it is packed.
        """
        if isinstance(array, Tensor):
            return array
        values = np.asarray(array)
        try:
            dtype = by_numpy(values.dtype)
        except KeyError:
            raise BadInput("no GE element type for a constant", where=name, found=str(values.dtype)) from None
        return self.const_bytes(bytes_of(values), dtype, values.shape, name=name, known=values, layout=layout)

    def shared_const(self, name: str, array: Array) -> Tensor:
        """A constant that many nodes read, made on first use and found again by its name."""
        if name not in self._common:
            self._common[name] = self.const(array, name=name)
        return self._common[name]

    def const_bytes(
        self,
        data: bytes,
        dtype: DTypeLike,
        shape: Sequence[int],
        *,
        name: str = "",
        known: Array | None = None,
        layout: str = "ND",
    ) -> Tensor:
        """An inline constant of raw little-endian bytes: for element types numpy does not have (HiFloat8).

        Raises:
            BadInput: the number of bytes does not fit, or the matrix does not divide into NZ blocks.
        """
        row, dims = as_dtype(dtype), as_dims(shape, name)
        wanted = row.nbytes(int(np.prod(dims, dtype=np.int64)))
        if len(data) != wanted:
            raise BadInput(
                "a constant's bytes do not fit its shape", where=name, found=f"{len(data)} bytes", wanted=str(wanted)
            )
        key = (row.name + layout, dims, data)
        if len(data) <= _SHARED_BYTES and key in self._shared:
            made = self._shared[key]
            if made.known is None and known is not None:  # raw bytes came first, whose content nobody told
                made = self._shared[key] = replace(made, known=known)
            return made
        tensor = _constant_type(row, dims, layout)
        data = packed(data, row, dims) if layout == FRACTAL_NZ else data
        made = self._constant(
            "Const", tensor, {"value": Attr(AttrKind.TENSOR, ConstTensor(tensor, data))}, name or "const", known
        )
        if len(data) <= _SHARED_BYTES:
            self._shared[key] = made
        return made

    def const_file(
        self, location: str, dtype: DTypeLike, shape: Sequence[int], *, name: str = "", layout: str = "ND"
    ) -> Tensor:
        """A constant whose bytes are the whole of the file ``location``, relative to the ``.air`` file's folder.

        With ``layout="FRACTAL_NZ"`` the file holds the matrix in storage order; ``shape`` is the plain matrix'.
        """
        tensor = _constant_type(as_dtype(dtype), as_dims(shape, name), layout)
        assert tensor.dtype is not None
        attrs = {
            "value": Attr(AttrKind.TENSOR, ConstTensor(tensor, b"")),
            "location": Attr(AttrKind.STRING, location),
            "length": Attr(AttrKind.INT, tensor.dtype.nbytes(tensor.numel or 0)),
        }
        return self._constant("Const", tensor, attrs, name or location, None)

    def file_constant(
        self,
        path: str | os.PathLike[str],
        offset: int,
        length: int,
        dtype: DTypeLike,
        shape: Sequence[int],
        *,
        name: str = "",
    ) -> Tensor:
        """A constant of ``length`` bytes at ``offset`` of a file, which may hold many (ONNX external data, say).

        GE resolves a relative path against the folder ``atc`` runs in, so an absolute one is safer.

        Raises:
            BadInput: ``length`` does not fit type and shape.
        """
        tensor = TensorType(as_dtype(dtype), as_dims(shape, name))
        assert tensor.dtype is not None
        wanted = tensor.dtype.nbytes(tensor.numel or 0)
        if length != wanted:
            raise BadInput(
                "a file constant's length does not fit its shape",
                where=name,
                found=str(length),
                wanted=f"{wanted} bytes",
            )
        attrs = {
            "shape": Attr(AttrKind.LIST_INT, tensor.shape or ()),
            "dtype": Attr(AttrKind.TYPE, tensor.dtype),
            "location": Attr(AttrKind.STRING, os.fspath(path)),
            "offset": Attr(AttrKind.INT, int(offset)),
            "length": Attr(AttrKind.INT, int(length)),
        }
        return self._constant("FileConstant", tensor, attrs, name or "weight", None)

    def _constant(
        self, op_type: str, tensor: TensorType, attrs: dict[str, Attr], name: str, known: Array | None
    ) -> Tensor:
        node = Node(self._names.unique(name), op_type, [], [Port("y", tensor)], attrs)
        self._nodes.append(node)
        made = self._register(node)
        return Tensor(made.edge, made.type, known)

    # ------------------------------------------------------------------------------------------------ operators

    def add(
        self,
        op_type: str,
        inputs: Mapping[str, TensorLike | Sequence[TensorLike] | None],
        attrs: Mapping[str, Any] | None = None,
        *,
        name: str = "",
        types: Mapping[str, TensorType | Sequence[TensorType]] | None = None,
        known: Array | None = None,
    ) -> Outputs:
        """Adds one operator; the operator methods are this with their prototype's signature.

        Args:
            inputs: GE input name -> tensor, numpy array (becomes a constant), list (dynamic), or None (absent).
            attrs: GE attribute name -> value; missing ones take their default, an ``N`` that counts a dynamic input is
                filled in.
            types: output name -> type, instead of inference (needed for operators without a rule).
            known: what is known of the first output's content.

        Raises:
            BadUsage: an operator, input or attribute the prototypes do not have, or a missing required one.
            BadInput: types or shapes that do not fit.
        """
        prototype = find(op_type)
        if prototype is None:
            raise BadUsage("unknown GE operator", found=op_type, hint="see ir_ops/ge/prototypes.json")
        where = name or op_type
        placed = place_inputs(prototype, inputs, where, self._as_tensor)
        self._check_refs(prototype, placed, where)
        written = check_attrs(prototype, placed, attrs or {}, where)
        result = self._types(prototype, placed, written, types, where)
        node = Node(
            self._names.unique(where),
            op_type,
            flatten_inputs(prototype, placed),
            output_slots(prototype, result),
            written,
        )
        self._nodes.append(node)
        self._by_name[node.name] = node
        return _outputs(prototype, node, result, known)

    def _as_tensor(self, value: object, where: str) -> Tensor:
        if isinstance(value, Tensor):
            if value.edge.node not in self._by_name:
                raise BadUsage("a tensor of another graph", where=where, found=str(value.edge))
            return value
        if isinstance(value, (np.ndarray, np.generic)):
            return self.const(value, name=where)
        raise BadUsage("an input is neither a tensor nor a numpy array", where=where, found=type(value).__name__)

    def _check_refs(self, prototype: Prototype, placed: PlacedInputs, where: str) -> None:
        for name in prototype.ref_names:
            source = placed.single.get(name)
            if source is not None and self._by_name[source.edge.node].type in ("Const", "Constant", "FileConstant"):
                raise BadUsage(
                    "a constant cannot be updated in place",
                    where=f"{where} input {name}",
                    found=source.edge.node,
                    wanted="ref_data, or TensorMove of the constant",
                )

    def _types(
        self,
        prototype: Prototype,
        placed: PlacedInputs,
        attrs: Mapping[str, Attr],
        types: Mapping[str, TensorType | Sequence[TensorType]] | None,
        where: str,
    ) -> dict[str, list[TensorType]]:
        if types is not None:
            return {name: [found] if isinstance(found, TensorType) else list(found) for name, found in types.items()}
        if not inference.can_infer(prototype.name):
            raise BadUsage(
                "no rule infers this operator's output types", where=where, found=prototype.name, wanted="types={...}"
            )
        single = {name: tensor.type for name, tensor in placed.single.items()}
        known = {name: tensor.known for name, tensor in placed.single.items() if tensor.known is not None}
        dynamic = {name: [tensor.type for tensor in group] for name, group in placed.dynamic.items()}
        call = OpCall(prototype.name, prototype, single, dynamic, with_defaults(prototype, attrs), known, where)
        return inference.infer(call)

    def is_computed(self, tensor: Tensor) -> bool:
        """Whether a tensor comes out of an operator, rather than from outside or from a constant."""
        return self._by_name[tensor.edge.node].type not in ("Data", "RefData", "Const", "Constant", "FileConstant")

    def after(self, later: Tensor, earlier: Tensor) -> None:
        """Orders two nodes without a data edge: ``later``'s node runs after ``earlier``'s (a control edge).

        Raises:
            BadUsage: ``later`` was added before ``earlier``.
        """
        order = {node.name: i for i, node in enumerate(self._nodes)}
        if order.get(earlier.edge.node, -1) >= order.get(later.edge.node, -1):
            raise BadUsage(
                "a control edge against the order of the calls", found=f"{earlier.edge.node} -> {later.edge.node}"
            )
        controls = self._by_name[later.edge.node].controls
        if earlier.edge.node not in controls:
            controls.append(earlier.edge.node)

    # ------------------------------------------------------------------------------------------------ outputs

    def output(self, tensor: Tensor, name: str = "") -> None:
        """Makes ``tensor`` the next graph output; ``name`` is recorded in the file and shown in GE's output list."""
        node = self._by_name[tensor.edge.node]
        name = name or f"output{len(self._outputs)}"
        if node.type in ("Data", "RefData", "Const", "FileConstant"):
            (tensor,) = self.add("Identity", {"x": tensor}, name=f"{name}_identity")
        self._outputs.append((tensor, name))

    def build(self) -> Model:
        """The finished model: Data, RefData, the other nodes in the order of their calls, NetOutput.

        Raises:
            BadUsage: the graph has no output.
        """
        if not self._outputs:
            raise BadUsage("the graph has no output", where=self.name, hint="call output(tensor, name)")
        for i, node in enumerate(self._inputs + self._refs):
            node.attrs["index"] = Attr(AttrKind.INT, i)
        slots = [Slot(f"input{i}", tensor.type, tensor.edge) for i, (tensor, _) in enumerate(self._outputs)]
        names = tuple(name for _, name in self._outputs)
        last = Node(NET_OUTPUT, NET_OUTPUT, slots, attrs={OUTPUT_NAME_ATTR: Attr(AttrKind.LIST_STRING, names)})
        return Model(self.name, [Graph(self.name, [*self._inputs, *self._refs, *self._nodes, last])])

    def __getattr__(self, name: str) -> Callable[..., Any]:
        """Operator methods are made on first use; see the module's text."""
        prototype = find(name) if name[:1].isupper() and name not in _OWN_METHODS else None
        if prototype is None:
            raise AttributeError(f"GraphBuilder has no attribute and GE no operator {name!r}")
        setattr(type(self), name, operator_method(prototype))
        method: Callable[..., Any] = getattr(self, name)
        return method

    def __dir__(self) -> list[str]:
        return sorted({*object.__dir__(self), *(name for name in prototypes() if name not in _OWN_METHODS)})


def _constant_type(dtype: DType, shape: Shape, layout: str) -> TensorType:
    return TensorType(dtype, shape, layout, storage_shape(dtype, shape) if layout == FRACTAL_NZ else None)


def _outputs(
    prototype: Prototype, node: Node, types: Mapping[str, Sequence[TensorType]], known: Array | None
) -> Outputs:
    made: dict[str, Tensor | tuple[Tensor, ...]] = {}
    index = 0
    for port in prototype.outputs:
        group = []
        for tensor in types[port.name]:
            group.append(Tensor(Edge(node.name, index), tensor, known if index == 0 else None))
            index += 1
        made[port.name] = tuple(group) if port.is_dynamic else group[0]
    return Outputs(made)
