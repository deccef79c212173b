"""A Qwen decoder as onnxruntime-genai's builder writes it, around the weights of an export.

GroupQueryAttention takes the caches and gives them back; its lengths come from the attention mask. Weights are float32,
with queries, keys and values apart, or int4 in blocks, with these in one product, as the builder has them.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

from benchmarks.decode_graphs import Decoder, present
from ir_ops.dtypes import Array
from models.blocks import inverse_frequencies

BLOCK = 32
"""Rows of a weight that have one scale."""
_PER_LAYER = 7
"""Products of a Qwen layer in the order of the export: q, k, v, result, gate, up, down."""
_MICROSOFT = "com.microsoft"


def genai_graph(decoder: Decoder, rows: int, *, int4: bool = False, rounded: bool = True) -> onnx.ModelProto:
    """The graph, written by hand.

    Args:
        rows: of the tables of cosines and sines: most tokens of a sequence.
        int4: MatMulNBits on weights that are quantised here.
        rounded: it rounds activations to 8 bits, as the builder asks; else it takes them as they are.
    """
    return _Written(decoder, rows, int4, rounded).model()


def quantised(weight: Array) -> tuple[Array, Array]:
    """A weight ``[K, N]`` as MatMulNBits wants it: ``[N, K / 32, 16]`` bytes of two numbers, scales ``[N, K / 32]``.

    A number is ``(nibble - 8) * scale``, the nearest one; the scale lets the largest of a block be 7.
    """
    blocks = -(-len(weight) // BLOCK)
    padded = np.zeros((weight.shape[1], blocks * BLOCK), np.float32)
    padded[:, : len(weight)] = weight.T
    parts = padded.reshape(-1, blocks, BLOCK)
    scales = np.maximum(np.abs(parts).max(axis=2), np.float32(1e-8)) / np.float32(7)
    numbers = (np.rint(parts / scales[..., None]) + 8).astype(np.uint8)
    return numbers[..., ::2] | (numbers[..., 1::2] << 4), scales


class _Written:
    """The nodes of the graph."""

    def __init__(self, decoder: Decoder, rows: int, int4: bool, rounded: bool) -> None:
        self._sizes, self._rows, self._int4, self._level = decoder.model, rows, int4, 4 if rounded else 1
        self._nodes: list[onnx.NodeProto] = []
        self._weights = {item.name: item for item in decoder.export.graph.initializer}
        self._products = [node.input[1] for node in decoder.export.graph.node
                          if node.op_type == "MatMul" and node.input[1] in self._weights]  # fmt: skip
        self._used: dict[str, onnx.TensorProto] = {}
        self._inputs = [helper.make_tensor_value_info("input_ids", TensorProto.INT64, ["B", "S"]),
                        helper.make_tensor_value_info("attention_mask", TensorProto.INT64, ["B", "T"])]  # fmt: skip
        self._outputs = [helper.make_tensor_value_info("logits", TensorProto.FLOAT, ["B", "S", self._sizes.vocab])]

    def model(self) -> onnx.ModelProto:
        if len(self._products) != self._sizes.layers * _PER_LAYER + 1:
            raise ValueError(f"{len(self._products)} products in an export of {self._sizes.layers} layers")
        self._tables()
        lengths = self._lengths()
        x = self._node("Gather", [self._weight("m.model.embed_tokens.weight"), "input_ids"])
        skip = ""
        for layer in range(self._sizes.layers):
            prefix = f"m.model.layers.{layer}"
            x, skip = self._normed(x, skip, f"{prefix}.input_layernorm.weight")
            x = self._attention(x, layer, lengths)
            x, skip = self._normed(x, skip, f"{prefix}.post_attention_layernorm.weight")
            gate, up = (self._product(x, layer, place) for place in (4, 5))
            silu = self._node("Mul", [gate, self._node("Sigmoid", [gate])])
            x = self._product(self._node("Mul", [silu, up]), layer, 6)
        x, _ = self._normed(x, skip, "m.model.norm.weight")
        self._multiplied(x, [self._products[-1]], "logits")
        graph = helper.make_graph(self._nodes, "decoder", self._inputs, self._outputs, list(self._used.values()))
        imports = [helper.make_opsetid("", 21), helper.make_opsetid(_MICROSOFT, 1)]
        return helper.make_model(graph, opset_imports=imports, ir_version=10)

    def _lengths(self) -> list[str]:
        """The last token of each sequence, and how many the longest has."""
        one = self._constant("one", np.array([1]))
        last = self._node("Sub", [self._node("ReduceSum", ["attention_mask", one], keepdims=0), one])
        shape = self._node("Shape", ["attention_mask"])
        total = self._node("Gather", [shape, self._constant("second", np.array(1))], axis=0)
        return [self._node("Cast", [value], to=TensorProto.INT32) for value in (last, total)]

    def _attention(self, x: str, layer: int, lengths: list[str]) -> str:
        sizes = self._sizes
        prefix = f"m.model.layers.{layer}.self_attn"
        rows, heads = self._projected(x, layer), []
        for part, joined in zip("qk", rows, strict=False):
            shape = self._constant("by_head", np.array([0, -1, sizes.head_dim]))
            by_head = self._node("Reshape", [joined, shape])
            gamma = self._weight(f"{prefix}.{part}_norm.weight")
            normed = self._node("SimplifiedLayerNormalization", [by_head, gamma], axis=-1, epsilon=sizes.epsilon)
            columns = (sizes.heads if part == "q" else sizes.kv_heads) * sizes.head_dim
            heads.append(self._node("Reshape", [normed, self._constant(f"flat_{part}", np.array([0, -1, columns]))]))
        past = [f"past_key_values.{layer}.{part}" for part in ("key", "value")]
        for name in past:
            for values, own, length in ((self._inputs, name, "P"), (self._outputs, present(name), "T")):
                dims: list[str | int] = ["B", sizes.kv_heads, length, sizes.head_dim]
                values.append(helper.make_tensor_value_info(own, TensorProto.FLOAT, dims))
        operands = [*heads, rows[2], *past, *lengths, "cos", "sin"]
        out = self._node(
            "GroupQueryAttention", operands, outputs=[f"attention_{layer}", *map(present, past)],
            domain=_MICROSOFT, num_heads=sizes.heads, kv_num_heads=sizes.kv_heads, do_rotary=1,
        )  # fmt: skip
        return self._product(out, layer, 3)

    def _projected(self, x: str, layer: int) -> list[str]:
        """Queries, keys and values."""
        if not self._int4:
            return [self._product(x, layer, place) for place in (0, 1, 2)]
        first, sizes = layer * _PER_LAYER, self._sizes
        packed = self._multiplied(x, self._products[first : first + 3])
        columns = np.array([sizes.heads, sizes.kv_heads, sizes.kv_heads]) * sizes.head_dim
        parts = [f"{part}_{layer}" for part in "qkv"]
        self._node("Split", [packed, self._constant("columns", columns)], parts, axis=-1)
        return parts

    def _normed(self, x: str, skip: str, gamma: str) -> tuple[str, str]:
        """The normalised sum of x and what was skipped, and the sum."""
        epsilon = self._sizes.epsilon
        if not skip:
            operands = [x, self._weight(gamma)]
            return self._node("SimplifiedLayerNormalization", operands, axis=-1, epsilon=epsilon), x
        names = [f"normed_{len(self._nodes)}", "", "", f"sum_{len(self._nodes)}"]
        operands = [x, skip, self._weight(gamma)]
        self._node("SkipSimplifiedLayerNormalization", operands, names, _MICROSOFT, epsilon=epsilon)
        return names[0], names[3]

    def _product(self, x: str, layer: int, place: int) -> str:
        return self._multiplied(x, [self._products[layer * _PER_LAYER + place]])

    def _multiplied(self, x: str, names: list[str], result: str = "") -> str:
        """The product of x and weights side by side."""
        outputs = [result] if result else None
        if not self._int4:
            return self._node("MatMul", [x, self._weight(names[0])], outputs)
        weight = np.concatenate([numpy_helper.to_array(self._weights[name]) for name in names], axis=1)
        numbers, scales = quantised(weight)
        operands = [x, self._constant(f"{names[0]}_q4", numbers), self._constant(f"{names[0]}_scales", scales)]
        return self._node("MatMulNBits", operands, outputs, _MICROSOFT, K=len(weight), N=weight.shape[1], bits=4,
                          block_size=BLOCK, accuracy_level=self._level)  # fmt: skip

    def _tables(self) -> None:
        frequencies, _ = inverse_frequencies(self._sizes)
        angles = np.arange(self._rows, dtype=np.float32)[:, None] * frequencies
        self._constant("cos", np.cos(angles))
        self._constant("sin", np.sin(angles))

    def _constant(self, name: str, array: Array) -> str:
        self._used.setdefault(name, numpy_helper.from_array(array, name))
        return name

    def _weight(self, name: str) -> str:
        self._used[name] = self._weights[name]
        return name

    def _node(
        self, op: str, inputs: list[str], outputs: list[str] | None = None, domain: str = "", **attrs: Any
    ) -> str:
        outputs = outputs or [f"{op}_{len(self._nodes)}"]
        self._nodes.append(helper.make_node(op, inputs, outputs, domain=domain, **attrs))
        return outputs[0]
