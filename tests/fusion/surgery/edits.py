"""Recorded decoders with growing caches, changed by hand: models that somebody might have exported."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from typing import Any

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

from tests.conftest import DATA

ONE = "qwen3_dynamo23_fp32_dyncache"
"""One layer: queries add_284, keys present.0.key, mask expand [B, 1, S, T]."""
TWO = "qwen3_dynamo18_fp32_dyncache"
LATENT = "dsv3_il_dynamo18_fp32_latentcache"
ROWS, COLUMNS, SEEN = "unsqueeze_8", "unsqueeze_11", "le_2"
"""Of ONE: number of each new token [1, 1, S, 1], of each token [1, 1, 1, T], and who sees whom."""


@cache
def _stored(name: str) -> bytes:
    return (DATA / "graphs" / f"{name}.onnx").read_bytes()


class Edit:
    """A model that is being changed. Values go by their names."""

    def __init__(self, name: str = ONE) -> None:
        self.model = onnx.load_from_string(_stored(name))
        self.graph = self.model.graph
        self._count = 0

    def const(self, array: Any, dtype: Any = None) -> str:
        self._count += 1
        name = f"edit_c{self._count}"
        self.graph.initializer.append(numpy_helper.from_array(np.asarray(array, dtype), name))
        return name

    def op(self, kind: str, *inputs: str, **attrs: Any) -> str:
        """A new node; the name of its result."""
        self._count += 1
        name = f"edit_{self._count}"
        self.graph.node.append(helper.make_node(kind, list(inputs), [name], name=f"node_{name}", **attrs))
        return name

    def maker(self, value: str) -> onnx.NodeProto:
        return next(node for node in self.graph.node if value in node.output)

    def feed(self, value: str, place: int, other: str) -> None:
        """The node that makes ``value`` reads another input."""
        self.maker(value).input[place] = other

    def swap(self, value: str, other: str, but: tuple[str, ...] = ()) -> None:
        """All that read ``value`` read ``other``, but the nodes that make ``but`` and ``other`` itself."""
        for node in self.graph.node:
            if not {*but, other} & set(node.output):
                for place, name in enumerate(node.input):
                    node.input[place] = other if name == value else name

    def after(self, value: str, kind: str, *others: str, first: bool = True, **attrs: Any) -> str:
        """A node behind a value, whose readers read it."""
        new = self.op(kind, *((value, *others) if first else (*others, value)), **attrs)
        self.swap(value, new)
        return new

    def on_logits(self, kind: str, *others: str, **attrs: Any) -> None:
        self.maker("logits").output[0] = "edit_logits"
        self.graph.node.append(helper.make_node(kind, ["edit_logits", *others], ["logits"], name="node_last", **attrs))

    def input(self, name: str) -> onnx.ValueInfoProto:
        return next(item for item in self.graph.input if item.name == name)

    def drop_input(self, name: str) -> None:
        self.graph.input.remove(self.input(name))

    def spelled(self) -> tuple[str, str, str]:
        """The Attention node of :data:`ONE` in its parts: names of scores, masked scores and weights."""
        node = self.maker("scaled_dot_product_attention")
        query, key, value, mask = node.input
        scores = self.op("MatMul", query, self.op("Transpose", key, perm=[0, 1, 3, 2]))
        scaled = self.op("Mul", scores, self.const(np.float32(128**-0.5)))
        masked = self.op("Where", mask, scaled, self.const(np.float32(-np.inf)))
        weights = self.op("Softmax", masked, axis=-1)
        node.op_type = "MatMul"
        del node.attribute[:], node.input[:]
        node.input.extend([weights, value])
        return scaled, masked, weights

    def done(self) -> onnx.ModelProto:
        """The model, its nodes in order, without what nothing reads."""
        del self.graph.value_info[:]
        makers = {name: node for node in self.graph.node for name in node.output if name}
        order: list[onnx.NodeProto] = []
        seen: set[str] = set()

        def visit(name: str) -> None:
            stack = [name]
            while stack:
                node = makers.get(stack[-1])
                if node is None or node.output[0] in seen:
                    stack.pop()
                    continue
                missing = [item for item in node.input if item in makers and makers[item].output[0] not in seen]
                if missing:
                    stack.extend(missing)
                else:
                    seen.add(node.output[0])
                    order.append(node)

        for item in self.graph.output:
            visit(item.name)
        copies = [onnx.NodeProto.FromString(node.SerializeToString()) for node in order]
        del self.graph.node[:]
        self.graph.node.extend(copies)
        return self.model


Builder = Callable[[Edit], None]


def typed_ids(edit: Edit, kind: int = TensorProto.INT32) -> None:
    edit.input("input_ids").type.tensor_type.elem_type = kind
