"""A decoder three ways with the same weights and the same cached rows: as exported, converted, with onnxruntime's own
GroupQueryAttention on shared buffers (:mod:`benchmarks.genai_graph`)."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import numpy as np
import onnx
import onnxruntime
from onnx import numpy_helper

import custom_ort
from ir_ops.dtypes import Array
from models.architecture import PRESETS, Architecture, Latent, tiny
from models.decoder import Options, build
from models.weights import RandomWeights

VOCAB = 4096


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

    @cached_property
    def expanded(self) -> onnx.ModelProto:
        """A decoder on latents as transformers 4 exports it: caches of keys and values of every head grow."""
        return build(self.model, Options(cache="growth", expanded=True), RandomWeights(0))

    def converted(
        self, cache: Any, capacity: int = 0, kv_dtype: Any = None, expand_prompts: int = 0
    ) -> onnx.ModelProto:
        """The export with caches in place, as :func:`converted` gives it."""
        return converted(self.export, cache, capacity, kv_dtype, expand_prompts)

    def open(self, model: onnx.ModelProto) -> Any:
        return custom_ort.session(model, sess_options=self.options)

    @property
    def options(self) -> Any:
        options = onnxruntime.SessionOptions()
        options.intra_op_num_threads = self.threads
        return options


def converted(
    model: onnx.ModelProto, cache: Any, capacity: int = 0, kv_dtype: Any = None, expand_prompts: int = 0
) -> onnx.ModelProto:
    """A decoder with caches in place, ``auto`` (paged) or ``contiguous`` (with this capacity), and fused."""
    import fusion

    capacity = capacity if cache == "contiguous" else 0
    result: onnx.ModelProto = fusion.fuse(
        model, cache=cache, functions=False, capacity=capacity, kv_dtype=kv_dtype, expand_prompts=expand_prompts
    ).model
    return result


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


def of_heads(decoder: Decoder, now: State) -> State:
    """The same state in caches of keys and values of every head."""
    sizes = decoder.model.latent
    assert sizes is not None
    heads, both = decoder.model.heads, sizes.nope + sizes.value
    kinds = [item for item in decoder.export.graph.initializer if list(item.dims) == [sizes.kv_rank, heads * both]]
    rows = {}
    for layer, weight in enumerate(kinds):
        content, keys = (now.rows[f"past_key_values.{layer}.{part}"] for part in ("key", "value"))
        wide = (content[:, 0] @ numpy_helper.to_array(weight)).reshape(now.batch, now.context, heads, both)
        k_nope, values = np.split(wide.transpose(0, 2, 1, 3), [sizes.nope], axis=3)
        spread = np.broadcast_to(keys, (*k_nope.shape[:3], sizes.rope))
        rows[f"past_key_values.{layer}.key"] = np.concatenate([k_nope, spread], axis=3)
        rows[f"past_key_values.{layer}.value"] = np.ascontiguousarray(values)
    return State(rows, now.ids)


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
    feeds: dict[str, Array] = {"input_ids": now.ids, "attention_mask": np.ones((now.batch, now.total), np.int64)}
    for name, rows in now.rows.items():
        feeds[name] = np.zeros((*rows.shape[:2], room, rows.shape[3]), np.float32)
        feeds[name][:, :, : now.context] = rows
    return _bound(custom_ort.bind(session, feeds, {name: present(name) for name in now.rows}))


def _bound(binding: Any) -> Running:
    return Running(binding.step, lambda: np.asarray(binding.run()["logits"][:, -1]))


def present(name: str) -> str:
    return name.replace("past_key_values", "present")
