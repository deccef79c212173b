"""One KvRmsNormRopeCache call as three graphs: our operator, and two spellings that exporters write.

All take ``kv [B, 1, S, 576]``, ``gamma [512]``, ``cos`` and ``sin`` ``[B, 1, S, 64]``, slots, and caches that are bound
in place on both sides. ``exporter`` spells the norm with Reciprocal and the rotation with Slice, Neg and Concat, as
torch.onnx does; ``fused-ort`` uses onnxruntime's own RMSNormalization and RotaryEmbedding.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
import onnx

import custom_ort
from benchmarks.graph import Graph, bound
from ir_ops.dtypes import Array, by_name
from ir_ops.ops import DOMAIN

NORM, ROPE = 512, 64
VARIANTS = ("kvfuse", "exporter", "fused-ort")
ALIASES = {"k_cache": "k_cache_out", "ckv_cache": "ckv_cache_out"}


@dataclass
class Problem:
    """Sizes and arrays of one call."""

    dtype: str
    batch: int
    tokens: int
    spare_rows: int = 64
    arrays: dict[str, Array] = field(default_factory=dict)

    def __post_init__(self) -> None:
        rng = np.random.default_rng(0)
        kind = by_name(self.dtype).np
        half = rng.standard_normal((2, self.batch, 1, self.tokens, ROPE // 2)).astype(np.float32)
        cos, sin = np.concatenate([half, half], axis=-1)
        self.rows = self.batch * self.tokens
        self.slots = self.rows + self.spare_rows
        self.arrays = {
            "kv": rng.standard_normal((self.batch, 1, self.tokens, NORM + ROPE)).astype(kind),
            "cos": cos.astype(kind),
            "sin": sin.astype(kind),
        }
        self.gamma: Array = rng.standard_normal(NORM).astype(kind)
        self.index = np.arange(3, 3 + self.rows, dtype=np.int64)

    @property
    def moved(self) -> int:
        """Half of the bytes that a call reads and writes: a copy of so many moves as much."""
        return self.arrays["kv"].nbytes + self.arrays["cos"].nbytes

    def feeds(self, variant: str) -> dict[str, Array]:
        ours = variant == "kvfuse"
        shape = (1, self.slots, 1) if ours else (self.slots,)
        return {
            **self.arrays,
            "index": self.index if ours else self.index.reshape(-1, 1),
            "k_cache": np.zeros((*shape, ROPE), self.gamma.dtype),
            "ckv_cache": np.zeros((*shape, NORM), self.gamma.dtype),
        }

    def binding(self, variant: str, threads: int = 1) -> custom_ort.Binding:
        """A session of the variant with its own caches bound in place."""
        return bound(self.model(variant), self.feeds(variant), ALIASES, threads)

    def model(self, variant: str) -> onnx.ModelProto:
        graph = Graph(self.dtype)
        {"kvfuse": _ours, "exporter": _exporter, "fused-ort": _fused_ort}[variant](self, graph)
        outputs = dict.fromkeys(ALIASES.values(), self.dtype)
        return graph.model(self.feeds(variant), outputs, {"gamma": self.gamma})


def _ours(_: Problem, graph: Graph) -> None:
    inputs = ["kv", "gamma", "cos", "sin", "index", "k_cache", "ckv_cache"]
    graph.op("KvRmsNormRopeCache", *inputs, outputs=list(ALIASES.values()), domain=DOMAIN, cache_mode="PA")


def _split(problem: Problem, graph: Graph) -> str:
    """The latent part as ``left``; the rotated part with its pairs apart."""
    graph.op("Split", "kv", graph.const([NORM, ROPE]), outputs=["left", "right"], axis=-1)
    lead = (problem.batch, 1, problem.tokens)
    turned = graph.op("Transpose", graph.reshape("right", *lead, ROPE // 2, 2), perm=[0, 1, 2, 4, 3])
    return graph.reshape(turned, *lead, ROPE)


def _exporter(problem: Problem, graph: Graph) -> None:
    apart = _split(problem, graph)
    graph.scatter(graph.reshape(graph.exporters_norm("left", "gamma"), -1, NORM), "ckv_cache")
    graph.scatter(graph.reshape(graph.exporters_rotation(apart, "cos", "sin", ROPE), -1, ROPE), "k_cache")


def _fused_ort(problem: Problem, graph: Graph) -> None:
    apart = _split(problem, graph)
    graph.scatter(graph.reshape(graph.runtimes_norm("left", "gamma"), -1, NORM), "ckv_cache")
    cos, sin = (graph.halves(name, ROPE, problem.batch, problem.tokens) for name in ("cos", "sin"))
    graph.scatter(graph.reshape(graph.runtimes_rotation(apart, cos, sin), -1, ROPE), "k_cache")
