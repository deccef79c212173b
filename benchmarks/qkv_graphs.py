"""One QkvRmsNormRopeCache call as three graphs, like kv_graphs: 64 query heads, 4 key and 4 value heads of 128 columns.

Our operator writes pages of NZ fractals; the other graphs scatter plain rows, which costs them less.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
import onnx

import custom_ort
from benchmarks.graph import Graph, bound
from ir_ops.dtypes import Array, by_name
from ir_ops.layout import nz_block
from ir_ops.ops import DOMAIN

HEADS, WIDTH, PAGE = (64, 4, 4), 128, 16
VARIANTS = ("kvfuse", "exporter", "fused-ort")
ALIASES = {"k_cache": "k_cache_out", "v_cache": "v_cache_out"}


@dataclass
class Problem:
    """Sizes and arrays of one call of so many tokens."""

    dtype: str
    batch: int
    tokens: int
    arrays: dict[str, Array] = field(default_factory=dict)

    def __post_init__(self) -> None:
        rng = np.random.default_rng(0)
        kind = by_name(self.dtype).np
        self.rows = self.batch * self.tokens
        half = rng.standard_normal((2, self.rows, WIDTH // 2)).astype(np.float32)
        cos, sin = np.concatenate([half, half], axis=-1)
        self.arrays = {
            "qkv": rng.standard_normal((self.rows, sum(HEADS) * WIDTH), np.float32).astype(kind),
            "cos": cos.astype(kind),
            "sin": sin.astype(kind),
            "index": np.arange(3, 3 + self.rows, dtype=np.int64),
        }
        self.gammas: dict[str, Array] = {
            name: rng.standard_normal(WIDTH).astype(kind) for name in ("q_gamma", "k_gamma")
        }
        self.pages = -(-(self.rows + 3) // PAGE) + 4

    @property
    def moved(self) -> int:
        """Half of the bytes that a call reads and writes: a copy of so many moves as much."""
        return self.arrays["qkv"].nbytes + self.arrays["cos"].nbytes

    def feeds(self, variant: str) -> dict[str, Array]:
        kind, made = self.arrays["qkv"].dtype, dict(self.arrays)
        if variant == "kvfuse":
            d0 = nz_block(self.dtype)
            caches: list[tuple[int, ...]] = [(self.pages, heads * WIDTH // d0, PAGE, d0) for heads in HEADS[1:]]
        else:
            made["index"] = made["index"].reshape(-1, 1)
            caches = [(self.pages * PAGE, heads * WIDTH) for heads in HEADS[1:]]
        return made | {name: np.zeros(shape, kind) for name, shape in zip(ALIASES, caches, strict=True)}

    def binding(self, variant: str, threads: int = 1) -> custom_ort.Binding:
        """A session of the variant with its own caches and query rows bound."""
        return bound(self.model(variant), self.feeds(variant), ALIASES, threads)

    def model(self, variant: str) -> onnx.ModelProto:
        graph = Graph(self.dtype)
        {"kvfuse": _ours, "exporter": _exporter, "fused-ort": _fused_ort}[variant](self, graph)
        outputs = dict.fromkeys(("q", *ALIASES.values()), self.dtype)
        return graph.model(self.feeds(variant), outputs, self.gammas)


def _ours(problem: Problem, graph: Graph) -> None:
    graph.op(
        "QkvRmsNormRopeCache", "qkv", "q_gamma", "k_gamma", "cos", "sin", "index", "", "k_cache", "v_cache",
        outputs=["q", *ALIASES.values()], domain=DOMAIN, head_nums=list(HEADS), epsilon=1e-5,
        qkv_size=[problem.batch, problem.tokens, sum(HEADS), WIDTH],
    )  # fmt: skip


def _split(graph: Graph) -> None:
    columns = [heads * WIDTH for heads in HEADS]
    graph.op("Split", "qkv", graph.const(columns), outputs=["query", "key", "value"], axis=-1)
    graph.scatter("value", "v_cache")


def _exporter(problem: Problem, graph: Graph) -> None:
    _split(graph)
    cos, sin = (graph.reshape(name, problem.rows, 1, WIDTH) for name in ("cos", "sin"))
    for name, heads in zip(("query", "key"), HEADS, strict=False):
        normed = graph.exporters_norm(graph.reshape(name, -1, heads, WIDTH), f"{name[0]}_gamma")
        rotated = graph.exporters_rotation(normed, cos, sin, WIDTH)
        flat = graph.reshape(rotated, -1, heads * WIDTH, out="q" if name == "query" else "")
    graph.scatter(flat, "k_cache")


def _fused_ort(problem: Problem, graph: Graph) -> None:
    _split(graph)
    cos, sin = (graph.halves(name, WIDTH, problem.batch, problem.tokens) for name in ("cos", "sin"))
    for name, heads in zip(("query", "key"), HEADS, strict=False):
        normed = graph.runtimes_norm(graph.reshape(name, -1, heads, WIDTH), f"{name[0]}_gamma")
        rows = graph.reshape(normed, problem.batch, problem.tokens, heads * WIDTH)
        rotated = graph.runtimes_rotation(rows, cos, sin, num_heads=heads)
        flat = graph.reshape(rotated, -1, heads * WIDTH, out="q" if name == "query" else "")
    graph.scatter(flat, "k_cache")
