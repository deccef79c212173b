"""bfloat16 models on the CPU: ONNX Runtime moves bfloat16 there, but has next to no kernels that compute with it.

A node without a bfloat16 kernel is computed in float32 between Casts, so every node's output is rounded to bfloat16 as
a device with bfloat16 arithmetic rounds it. Which kernels there are is asked of the installed runtime.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import onnx
from onnx import TensorProto, helper, inliner

from ir_ops.onnx_schema import register_onnx_schemas
from ir_ops.ops import DOMAIN

_TYPE_ATTRIBUTES = ("dtype", "output_dtype")
_BFLOAT16, _FLOAT = "tensor(bfloat16)", "tensor(float)"


@dataclass(frozen=True)
class _Version:
    """One version of an operator: type variables of its inputs and outputs, and what its kernels take."""

    inputs: tuple[str, ...]
    outputs: tuple[str, ...]
    kernels: tuple[Mapping[str, tuple[str, ...]], ...]

    def variable(self, names: tuple[str, ...], place: int) -> str:
        """The variable of an operand; the last one repeats (variadic)."""
        return names[min(place, len(names) - 1)] if names else ""

    def runs(self, types: Mapping[str, str]) -> bool:
        """Whether a kernel takes these types. An operator without kernels is a function of others."""
        return any(
            all(types[name] in taken for name, taken in kernel.items() if name in types) for kernel in self.kernels
        )


class _Runtime:
    """Operators and kernels of the installed ONNX Runtime."""

    def __init__(self) -> None:
        from onnxruntime.capi import onnxruntime_pybind11_state as state

        self._kernels: dict[tuple[str, str], list[Any]] = {}
        for kernel in state.get_all_opkernel_def():
            if kernel.provider == "CPUExecutionProvider":
                self._kernels.setdefault((_domain(kernel.domain), kernel.op_name), []).append(kernel)
        self._schemas: dict[tuple[str, str], list[Any]] = {}
        for schema in state.get_all_operator_schema():
            self._schemas.setdefault((_domain(schema.domain), schema.name), []).append(schema)

    def version(self, domain: str, name: str, opset: int) -> _Version | None:
        """What a node of an opset is; None for an operator that the runtime does not know."""
        fitting = [item for item in self._schemas.get((domain, name), ()) if item.since_version <= opset]
        if not fitting:
            return None
        schema = max(fitting, key=lambda item: int(item.since_version))
        kernels = [
            {variable: tuple(types) for variable, types in kernel.type_constraints.items()}
            for kernel in self._kernels.get((domain, name), ())
            if kernel.version_range[0] <= schema.since_version <= kernel.version_range[1]
        ]
        inputs, outputs = (tuple(item.typeStr for item in side) for side in (schema.inputs, schema.outputs))
        return _Version(inputs, outputs, tuple(kernels))


@lru_cache(maxsize=1)
def _runtime() -> _Runtime:
    return _Runtime()


def with_rounding(model: onnx.ModelProto, *, kernels: bool = True) -> tuple[onnx.ModelProto, int]:
    """A copy of ``model`` that computes in float32 where the runtime lacks bfloat16 kernels, rounding after every node.

    Args:
        model: weights may be external; they are not read and stay bfloat16.
        kernels: the session will have our kernels; otherwise their function bodies are inlined and treated too.

    Returns:
        The copy, and how many nodes are computed in float32.
    """
    copy = _inlined(model, kernels)
    opsets = {_domain(entry.domain): entry.version for entry in copy.opset_import}
    types = _declared(_typed(copy).graph, {})
    count = _Rounding(opsets, _names(copy.graph)).graph(copy.graph, types)
    return copy, count


def _inlined(model: onnx.ModelProto, kernels: bool) -> onnx.ModelProto:
    """A copy with local functions inlined, all but those that our kernels replace."""
    copy = onnx.ModelProto()
    copy.CopyFrom(model)
    foreign = [(item.domain, item.name) for item in copy.functions if not (kernels and item.domain == DOMAIN)]
    return inliner.inline_selected_functions(copy, foreign) if foreign else copy


def _typed(model: onnx.ModelProto) -> onnx.ModelProto:
    """The model with what shape inference knows of inner values; as it is where inference fails."""
    register_onnx_schemas()
    try:
        return onnx.shape_inference.infer_shapes(model)
    except (onnx.shape_inference.InferenceError, ValueError):
        return model


def _declared(graph: onnx.GraphProto, outer: Mapping[str, int]) -> dict[str, int]:
    """Element type of every value of a graph and its subgraphs that declares one; the outer scope's too."""
    types = dict(outer)
    types.update((item.name, item.data_type) for item in graph.initializer)
    for value in (*graph.input, *graph.value_info, *graph.output):
        if value.type.tensor_type.elem_type:
            types[value.name] = value.type.tensor_type.elem_type
    for node in graph.node:
        for inner in _graphs(node):
            types = _declared(inner, types)
    return types


def _graphs(node: onnx.NodeProto) -> Iterable[onnx.GraphProto]:
    for attribute in node.attribute:
        if attribute.HasField("g"):
            yield attribute.g
        yield from attribute.graphs


def _names(graph: onnx.GraphProto) -> set[str]:
    """Every value name of a graph and its subgraphs."""
    names = {item.name for item in graph.input} | {item.name for item in graph.initializer}
    for node in graph.node:
        names.update(node.output)
        for inner in _graphs(node):
            names |= _names(inner)
    return names


class _Rounding:
    """Puts the Casts in. ``names`` are taken; a name is new in all graphs, since subgraphs see the outer scope."""

    def __init__(self, opsets: Mapping[str, int], names: set[str]) -> None:
        self._opsets, self._names = opsets, names

    def graph(self, graph: onnx.GraphProto, types: dict[str, int]) -> int:
        """Rewrites a graph in place, and returns how many nodes it put Casts around; ``types`` gains what is learnt."""
        wide: dict[str, str] = {}
        nodes: list[onnx.NodeProto] = []
        count = 0
        for node in graph.node:
            count += sum(self.graph(inner, types) for inner in _graphs(node))
            version = _runtime().version(_domain(node.domain), node.op_type, self._opsets.get(_domain(node.domain), 1))
            variables = _missing(version, node, types) if version is not None else set()
            if version is not None and variables:
                nodes += self._between_casts(version, node, variables, types, wide)
                count += 1
            else:
                nodes.append(node)
        del graph.node[:]
        graph.node.extend(nodes)
        return count

    def _between_casts(
        self,
        version: _Version,
        node: onnx.NodeProto,
        variables: set[str],
        types: Mapping[str, int],
        wide: dict[str, str],
    ) -> list[onnx.NodeProto]:
        """The node on float32 copies of its bfloat16 operands, and what makes and rounds them."""
        before: list[onnx.NodeProto] = []
        after: list[onnx.NodeProto] = []
        for place, value in enumerate(node.input):
            if types.get(value) != TensorProto.BFLOAT16 or version.variable(version.inputs, place) not in variables:
                continue
            if value not in wide:
                wide[value] = self._name(f"{value}/float32")
                before.append(helper.make_node("Cast", [value], [wide[value]], wide[value], to=TensorProto.FLOAT))
            node.input[place] = wide[value]
        for place, value in enumerate(node.output):
            if types.get(value) == TensorProto.BFLOAT16 and version.variable(version.outputs, place) in variables:
                node.output[place] = self._name(f"{value}/unrounded")
                after.append(
                    helper.make_node(
                        "Cast", [node.output[place]], [value], f"{value}/rounding", to=TensorProto.BFLOAT16
                    )
                )
        for attribute in node.attribute:
            if attribute.name in _TYPE_ATTRIBUTES and attribute.i == TensorProto.BFLOAT16:
                attribute.i = TensorProto.FLOAT
        return [*before, node, *after]

    def _name(self, wanted: str) -> str:
        name, number = wanted, 1
        while name in self._names:
            number += 1
            name = f"{wanted}_{number}"
        self._names.add(name)
        return name


def _missing(version: _Version, node: onnx.NodeProto, types: dict[str, int]) -> set[str]:
    """The type variables that are bfloat16 at a node that has no kernel for it, but would run in float32.

    The types of the node's outputs are noted in ``types`` where they follow from its inputs.
    """
    bound: dict[str, str] = {}
    for names, values in ((version.inputs, node.input), (version.outputs, node.output)):
        for place, value in enumerate(values):
            if value and value in types:
                bound[version.variable(names, place)] = _text(types[value])
    for place, value in enumerate(node.output):
        known = bound.get(version.variable(version.outputs, place))
        if value and value not in types and known in (_BFLOAT16, _FLOAT):
            types[value] = TensorProto.BFLOAT16 if known == _BFLOAT16 else TensorProto.FLOAT
    lacking = {name for name, text in bound.items() if text == _BFLOAT16}
    if not lacking or version.runs(bound):
        return set()
    runs = not version.kernels or version.runs({name: _FLOAT if name in lacking else bound[name] for name in bound})
    return lacking if runs else set()


def _text(element_type: int) -> str:
    """ONNX Runtime's name of an element type."""
    if element_type == TensorProto.BFLOAT16:
        return _BFLOAT16
    name = TensorProto.DataType.Name(element_type).lower()
    return f"tensor({name})"


def _domain(name: str) -> str:
    return "" if name == "ai.onnx" else name
