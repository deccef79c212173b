"""Models of a single operator, and running them: what the kernel tests are made of."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

import numpy as np
import onnx
import onnxruntime
from onnx import helper

import custom_ort
from ir_ops.declaration import TensorSpec
from ir_ops.dtypes import Array, by_name, by_numpy
from ir_ops.errors import KvfuseError
from ir_ops.ops import DOMAIN, DOMAIN_VERSION, OPS

MINOR = int(onnxruntime.__version__.split(".")[1])
CHOSEN_TYPES = MINOR >= 24
"""Whether the runtime can be told an element type that an attribute chooses; older ones take the operator's first."""
_FIRST = {"dst_type": (2,), "dtype": ("torch.qint8", 1)}
INFERS = MINOR >= 24
"""Whether shapes are inferred for operators with optional inputs."""


def loads(attrs: Mapping[str, Any]) -> bool:
    """Whether the runtime can run a call with these attributes: their element type is the operator's first."""
    return CHOSEN_TYPES or all(name not in attrs or attrs[name] in first for name, first in _FIRST.items())


def model(
    operator: str,
    types: Mapping[str, str],
    attrs: Mapping[str, Any],
    *,
    constants: Mapping[str, Array] | None = None,
    shapes: Mapping[str, Iterable[int | str]] | None = None,
    outputs: Iterable[str] | None = None,
) -> onnx.ModelProto:
    """A graph of one node.

    Args:
        types: name of each given input -> element type. Inputs keep their names, ref outputs get ``_out``.
        constants: inputs that are initializers instead of graph inputs.
        shapes: declared shapes; an input without one has no declared rank, so that one session takes all shapes.
        outputs: GE names of the outputs that the graph asks for; all of them by default.
    """
    declared = OPS[operator]
    constants, shapes = constants or {}, shapes or {}
    given = [entry.name if entry.name in types else "" for entry in declared.inputs]
    wanted = [entry.name for entry in declared.outputs] if outputs is None else list(outputs)
    kinds = _results(operator, types, attrs)
    names = [entry.onnx_name if entry.name in wanted else "" for entry in declared.outputs]
    while given[-1] == "":
        given.pop()
    node = helper.make_node(operator, given, names, name="the node", domain=DOMAIN, **_plain(attrs))
    nodes = [node]
    for entry in declared.outputs:
        if entry.name in wanted and kinds[entry.name] == "int4":  # which no Python binding takes out of a session
            kinds[entry.name] = "int8"
            packed = f"{entry.name}_packed"
            node.output[list(node.output).index(entry.onnx_name)] = packed
            nodes.append(helper.make_node("Cast", [packed], [entry.onnx_name], to=onnx.TensorProto.INT8))
    graph = helper.make_graph(
        nodes,
        "one_node",
        [
            helper.make_tensor_value_info(name, by_name(types[name]).onnx, shapes.get(name))
            for name in given
            if name and name not in constants
        ],
        [
            helper.make_tensor_value_info(entry.onnx_name, by_name(kinds[entry.name]).onnx, None)
            for entry in declared.outputs
            if entry.name in wanted
        ],
        [_tensor(name, array) for name, array in constants.items()],
    )
    imports = [helper.make_opsetid("", 20 if len(nodes) == 1 else 21), helper.make_opsetid(DOMAIN, DOMAIN_VERSION)]
    return helper.make_model(graph, opset_imports=imports, ir_version=10)


def _results(operator: str, types: Mapping[str, str], attrs: Mapping[str, Any]) -> dict[str, str]:
    """Element types of the outputs; those of a call that is to be refused follow from its type variables."""
    declared = OPS[operator]
    choice = {entry.type: types[entry.name] for entry in declared.inputs if entry.name in types}
    known = {attr.name for attr in declared.attrs if attr.name in attrs and attr.accepts(attrs[attr.name])}
    specs = {name: TensorSpec(dtype, None) for name, dtype in types.items()}
    inferred = declared.infer(specs, {name: attrs[name] for name in known})
    return {entry.name: choice.get(entry.type, inferred[entry.name].dtype) for entry in declared.outputs}


def _plain(attrs: Mapping[str, Any]) -> dict[str, Any]:
    return {name: int(value) if isinstance(value, bool) else value for name, value in attrs.items()}


def _tensor(name: str, array: Array) -> onnx.TensorProto:
    data = np.ascontiguousarray(array).tobytes()
    return helper.make_tensor(name, by_numpy(array.dtype).onnx, array.shape, data, raw=True)


def types_of(inputs: Mapping[str, Array]) -> dict[str, str]:
    return {name: by_numpy(array.dtype).name for name, array in inputs.items()}


def ranks_of(operator: str, inputs: Mapping[str, Array]) -> dict[str, int]:
    """The ranks that a model must declare: where attributes choose the element type of an output."""
    declared = OPS[operator]
    known = {entry.type for entry in declared.inputs}
    chosen = any(entry.type not in known and len(declared.types[entry.type]) > 1 for entry in declared.outputs)
    return {name: array.ndim for name, array in inputs.items()} if chosen else {}


def unnamed(rank: int) -> list[Any]:
    """A shape of which only the rank is known."""
    return [None] * rank


class Sessions:
    """Sessions by configuration: making one costs more than running it."""

    def __init__(self, **options: Any) -> None:
        self.options = options
        self._made: dict[Any, Any] = {}

    def get(
        self, operator: str, types: Mapping[str, str], attrs: Mapping[str, Any], ranks: Mapping[str, int] | None = None
    ) -> Any:
        """The session for a configuration; ``ranks`` declares those of inputs, without sizes."""
        key = (operator, tuple(sorted(types.items())), repr(sorted(attrs.items())), tuple((ranks or {}).items()))
        if key not in self._made:
            shapes = {name: unnamed(rank) for name, rank in (ranks or {}).items()}
            self._made[key] = session(model(operator, types, attrs, shapes=shapes), **self.options)
        return self._made[key]

    def run(self, operator: str, inputs: Mapping[str, Array], attrs: Mapping[str, Any]) -> dict[str, Array]:
        """Results by GE output name."""
        return results(custom_ort.run(self.get(operator, types_of(inputs), attrs, ranks_of(operator, inputs)), inputs))


def session(proto: onnx.ModelProto, *, threads: int = 1) -> Any:
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = threads
    options.log_severity_level = 4
    return custom_ort.session(proto, sess_options=options)


def run(
    operator: str, inputs: Mapping[str, Array], attrs: Mapping[str, Any], *, constants: Iterable[str] = ()
) -> dict[str, Array]:
    """Results of a call by GE output name; the inputs named in ``constants`` are initializers."""
    fixed = {name: inputs[name] for name in constants}
    feeds = {name: array for name, array in inputs.items() if name not in fixed}
    shapes = {name: unnamed(rank) for name, rank in ranks_of(operator, inputs).items()}
    proto = model(operator, types_of(inputs), attrs, constants=fixed, shapes=shapes)
    return results(custom_ort.run(session(proto), feeds))


_GE_NAMES = {entry.onnx_name: entry.name for operator in OPS.values() for entry in operator.outputs}


def results(outputs: Mapping[str, Array]) -> dict[str, Array]:
    """By GE name what is named as in ONNX."""
    return {_GE_NAMES.get(name, name): array for name, array in outputs.items()}


def refusal(operator: str, inputs: Mapping[str, Array], attrs: Mapping[str, Any]) -> str:
    """The one line with which a call is refused; fails when it is not."""
    try:
        run(operator, inputs, attrs)
    except KvfuseError as error:
        return str(error)
    raise AssertionError("the kernel took it")


def bits(array: Array) -> Array:
    """The array's memory as unsigned integers: equal bits, NaN included."""
    kinds = {1: np.uint8, 2: np.uint16, 4: np.uint32, 8: np.uint64}
    return np.ascontiguousarray(array).view(kinds[array.dtype.itemsize])
