"""A decoder three ways with the same weights and the same cached rows: as exported, converted, with onnxruntime's own
GroupQueryAttention on shared buffers."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import numpy as np
import onnx
import onnxruntime
from onnx import TensorProto, helper, numpy_helper

import custom_ort
from ir_ops.dtypes import Array
from models.architecture import PRESETS, Architecture, Latent, tiny
from models.blocks import inverse_frequencies
from models.decoder import Options, build
from models.weights import RandomWeights

VOCAB = 4096
_PER_LAYER = 7
"""Products of a Qwen layer in the order of the export: q, k, v, result, gate, up, down."""


def qwen(layers: int, small: bool = False) -> Architecture:
    """Qwen3-0.6B's layers."""
    model = PRESETS["qwen3-0.6b"]
    return replace(tiny(model), layers=layers) if small else replace(model, layers=layers, vocab=VOCAB)


def deepseek(layers: int, small: bool = False) -> Architecture:
    """DeepSeek-V3's attention with 16 heads, a dense MLP."""
    model = replace(PRESETS["deepseek-v3"], experts=None, layers=layers)
    if small:
        return replace(tiny(model), layers=layers)
    return replace(model, heads=16, hidden=2048, intermediate=1408, vocab=VOCAB, latent=Latent(1536, 512, 128, 64, 128))


@dataclass(frozen=True)
class Decoder:
    """Random weights of an architecture."""

    model: Architecture
    threads: int = 1

    @cached_property
    def export(self) -> onnx.ModelProto:
        """The decoder as an exporter writes it: caches grow by Concat."""
        return build(self.model, Options(cache="growth"), RandomWeights(0))

    def converted(self, cache: Any, capacity: int = 0, kv_dtype: Any = None) -> onnx.ModelProto:
        """The export with caches in place, ``auto`` (paged) or ``contiguous`` (with this capacity), and fused."""
        import fusion

        capacity = capacity if cache == "contiguous" else 0
        result = fusion.fuse(self.export, cache=cache, functions=False, capacity=capacity, kv_dtype=kv_dtype)
        model: onnx.ModelProto = result.model
        return model

    def open(self, model: onnx.ModelProto) -> Any:
        return custom_ort.session(model, sess_options=self.options)

    @property
    def options(self) -> Any:
        options = onnxruntime.SessionOptions()
        options.intra_op_num_threads = self.threads
        return options


@dataclass(frozen=True)
class State:
    """Random rows of ``batch`` sequences of ``context`` tokens, and the next tokens of each.

    Attributes:
        rows: cache input -> ``[B, N, context, D]``.
        ids: ``[B, S]``.
    """

    rows: dict[str, Array]
    ids: Array

    @property
    def context(self) -> int:
        return int(next(iter(self.rows.values())).shape[2])

    @property
    def batch(self) -> int:
        return len(self.ids)

    @property
    def total(self) -> int:
        """Tokens of a sequence after the next ones."""
        return self.context + int(self.ids.shape[1])


def state(decoder: Decoder, batch: int, context: int, tokens: int = 1) -> State:
    """Rows that are dear to make only once: a block repeated."""
    block = np.random.default_rng(1).standard_normal(1 << 20).astype(np.float32)
    rows = {}
    for entry in decoder.export.graph.input:
        if entry.name.startswith("past"):
            heads, width = (entry.type.tensor_type.shape.dim[axis].dim_value for axis in (1, 3))
            rows[entry.name] = np.resize(block, (batch, heads, context, width))
    return State(rows, np.arange(batch * tokens).reshape(batch, tokens) % decoder.model.vocab)


@dataclass(frozen=True)
class Running:
    """A decoder with its caches.

    Attributes:
        step: one step of all sequences.
        logits: of one more step, ``[B, V]``.
    """

    step: Callable[[], object]
    logits: Callable[[], Array]


def grown(session: Any, now: State) -> Running:
    """The export: past in, past and one row more out."""
    mask = np.ones((now.batch, now.total), np.int64)
    positions = np.tile(np.arange(now.context, now.total), (now.batch, 1))
    feeds = {"input_ids": now.ids, "attention_mask": mask, "position_ids": positions, **now.rows}
    return _bound(custom_ort.bind(session, feeds))


def in_place(decoder: Decoder, model: onnx.ModelProto, now: State, room: int, times: int = 1) -> Running:
    """The converted decoder as users run it. Every step is one token longer.

    Args:
        room: tokens of a sequence.
        times: how many times more of it the session is made for.
    """
    capacity = room * times
    run = custom_ort.DecodeSession(model, max_sequences=now.batch, capacity=capacity, sess_options=decoder.options)
    kinds = {name: run.cache_type(name) for name in now.rows}
    for number in range(now.batch):
        run.load({name: rows[number].transpose(1, 0, 2).astype(kinds[name]) for name, rows in now.rows.items()})

    def step() -> Array:
        return run.step(now.ids)

    return Running(step, step)


def prompt(decoder: Decoder, model: onnx.ModelProto, now: State, room: int) -> Running:
    """The converted decoder with new sequences, which are freed again."""
    run = custom_ort.DecodeSession(model, max_sequences=now.batch, capacity=room, sess_options=decoder.options)

    def step() -> Array:
        sequences, logits = run.prefill(now.ids)
        for sequence in sequences:
            run.free(sequence)
        return logits

    return Running(step, step)


def group_query(session: Any, now: State, room: int) -> Running:
    """onnxruntime's operator as its generator binds it: past and present are one buffer of ``room`` tokens."""
    feeds: dict[str, Array] = {
        "input_ids": now.ids,
        "seqlens": np.full(now.batch, now.total - 1, np.int32),
        "total": np.array(now.total, np.int32),
    }
    for name, rows in now.rows.items():
        feeds[name] = np.zeros((*rows.shape[:2], room, rows.shape[3]), np.float32)
        feeds[name][:, :, : now.context] = rows
    return _bound(custom_ort.bind(session, feeds, {name: _present(name) for name in now.rows}))


def _bound(binding: Any) -> Running:
    return Running(binding.step, lambda: np.asarray(binding.run()["logits"][:, -1]))


def _present(name: str) -> str:
    return name.replace("past_key_values", "present")


def group_query_graph(decoder: Decoder, room: int) -> onnx.ModelProto:
    """What onnxruntime's generator runs for a Qwen decoder, written by hand around the export's own weights."""
    return _Written(decoder, room).model()


class _Written:
    """The nodes of the graph with GroupQueryAttention."""

    def __init__(self, decoder: Decoder, room: int) -> None:
        self._decoder, self._room = decoder, room
        self._nodes: list[onnx.NodeProto] = []
        self._weights = {item.name: item for item in decoder.export.graph.initializer}
        self._products = [node.input[1] for node in decoder.export.graph.node
                          if node.op_type == "MatMul" and node.input[1] in self._weights]  # fmt: skip
        self._used: dict[str, onnx.TensorProto] = {}
        self._inputs = [
            helper.make_tensor_value_info("input_ids", TensorProto.INT64, ["B", "S"]),
            helper.make_tensor_value_info("seqlens", TensorProto.INT32, ["B"]),
            helper.make_tensor_value_info("total", TensorProto.INT32, []),
        ]
        self._outputs = [helper.make_tensor_value_info("logits", TensorProto.FLOAT, ["B", "S", decoder.model.vocab])]

    def model(self) -> onnx.ModelProto:
        sizes = self._decoder.model
        if len(self._products) != sizes.layers * _PER_LAYER + 1:
            raise ValueError(f"{len(self._products)} products in an export of {sizes.layers} layers")
        self._tables()
        x = self._node("Gather", [self._weight("m.model.embed_tokens.weight"), "input_ids"])
        skip = ""
        for layer in range(sizes.layers):
            prefix = f"m.model.layers.{layer}"
            x, skip = self._normed(x, skip, f"{prefix}.input_layernorm.weight")
            x = self._attention(x, layer)
            x, skip = self._normed(x, skip, f"{prefix}.post_attention_layernorm.weight")
            gate, up = (self._product(x, layer, place) for place in (4, 5))
            silu = self._node("Mul", [gate, self._node("Sigmoid", [gate])])
            x = self._product(self._node("Mul", [silu, up]), layer, 6)
        x, _ = self._normed(x, skip, "m.model.norm.weight")
        self._node("MatMul", [x, self._weight(self._products[-1])], outputs=["logits"])
        graph = helper.make_graph(self._nodes, "decoder", self._inputs, self._outputs, list(self._used.values()))
        imports = [helper.make_opsetid("", 21), helper.make_opsetid("com.microsoft", 1)]
        return helper.make_model(graph, opset_imports=imports, ir_version=10)

    def _attention(self, x: str, layer: int) -> str:
        sizes = self._decoder.model
        prefix = f"m.model.layers.{layer}.self_attn"
        heads = []
        for place, part in enumerate("qk"):
            shape = self._constant(f"by_head_{part}", np.array([0, 0, -1, sizes.head_dim]))
            by_head = self._node("Reshape", [self._product(x, layer, place), shape])
            gamma = self._weight(f"{prefix}.{part}_norm.weight")
            normed = self._node("SimplifiedLayerNormalization", [by_head, gamma], axis=-1, epsilon=sizes.epsilon)
            heads.append(self._node("Reshape", [normed, self._constant("joined", np.array([0, 0, -1]))]))
        past = [f"past_key_values.{layer}.{part}" for part in ("key", "value")]
        for name in past:
            dims: list[str | int | None] = ["B", sizes.kv_heads, self._room, sizes.head_dim]
            self._inputs.append(helper.make_tensor_value_info(name, TensorProto.FLOAT, dims))
            self._outputs.append(helper.make_tensor_value_info(_present(name), TensorProto.FLOAT, dims))
        operands = [*heads, self._product(x, layer, 2), *past, "seqlens", "total", "cos", "sin"]
        out = self._node(
            "GroupQueryAttention", operands, outputs=[f"attention_{layer}", *map(_present, past)],
            domain="com.microsoft", num_heads=sizes.heads, kv_num_heads=sizes.kv_heads, do_rotary=1,
        )  # fmt: skip
        return self._product(out, layer, 3)

    def _normed(self, x: str, skip: str, gamma: str) -> tuple[str, str]:
        """The normalised sum of x and what was skipped, and the sum."""
        epsilon = self._decoder.model.epsilon
        if not skip:
            operands = [x, self._weight(gamma)]
            return self._node("SimplifiedLayerNormalization", operands, axis=-1, epsilon=epsilon), x
        names = [f"normed_{len(self._nodes)}", "", "", f"sum_{len(self._nodes)}"]
        operands = [x, skip, self._weight(gamma)]
        self._node("SkipSimplifiedLayerNormalization", operands, names, "com.microsoft", epsilon=epsilon)
        return names[0], names[3]

    def _product(self, x: str, layer: int, place: int) -> str:
        return self._node("MatMul", [x, self._weight(self._products[layer * _PER_LAYER + place])])

    def _tables(self) -> None:
        frequencies, _ = inverse_frequencies(self._decoder.model)
        angles = np.arange(self._room, dtype=np.float32)[:, None] * frequencies
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
