"""One DequantRopeQuantKvcache call as three graphs, like kv_graphs: 32 query heads, 8 key and 8 value heads of 128
columns, int8 caches.

``int32`` is an int8 product's result with its two scales in front of float16 rotations; the other types are rows as
they are. ``exporter`` quantises with Div, Round, Clip and Cast, ``fused-ort`` with QuantizeLinear.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
import onnx

import custom_ort
from benchmarks.graph import WIDE, Graph, bound
from ir_ops.dtypes import Array, by_name
from ir_ops.ops import DOMAIN

HEADS, WIDTH = (32, 8, 8), 128
COLUMNS = [heads * WIDTH for heads in HEADS]
VARIANTS = ("kvfuse", "exporter", "fused-ort")
ALIASES = {"k_cache": "k_cache_out", "v_cache": "v_cache_out"}


@dataclass
class Problem:
    """Sizes and arrays of one call."""

    dtype: str
    batch: int
    tokens: int
    arrays: dict[str, Array] = field(default_factory=dict)
    fixed: dict[str, Array] = field(default_factory=dict)

    def __post_init__(self) -> None:
        rng = np.random.default_rng(0)
        self.plain = "float16" if self.integers else self.dtype
        kind = by_name(self.plain).np
        self.rows, lead = self.batch * self.tokens, (self.batch, self.tokens)
        half = rng.standard_normal((2, *lead, 1, WIDTH // 2)).astype(np.float32)
        cos, sin = np.concatenate([half, half], axis=-1)
        x = rng.standard_normal((*lead, sum(COLUMNS)), np.float32)
        self.arrays = {
            "x": (x * 3000).astype(np.int32) if self.integers else x.astype(kind),
            "cos": cos.astype(kind),
            "sin": sin.astype(kind),
            "indices": np.arange(3, 3 + self.rows, dtype=np.int64),
        }
        self.fixed = {
            name: rng.uniform(0.02, 0.05, (HEADS[1], WIDTH)).astype(np.float32) for name in ("scale_k", "scale_v")
        }
        if self.integers:
            self.fixed["weight_scale"] = rng.uniform(2e-4, 5e-4, sum(COLUMNS)).astype(np.float32)
            self.arrays["activation_scale"] = rng.uniform(0.5, 2, self.rows).astype(np.float32)
        self.slots = self.rows + 64

    @property
    def integers(self) -> bool:
        return self.dtype == "int32"

    @property
    def moved(self) -> int:
        """Half of the bytes that a call reads and writes: a copy of so many moves as much."""
        written = self.rows * (COLUMNS[0] * self.arrays["cos"].itemsize + 2 * COLUMNS[1])
        return (self.arrays["x"].nbytes + 2 * self.arrays["cos"].nbytes + written) // 2

    def feeds(self, variant: str) -> dict[str, Array]:
        made = dict(self.arrays)
        shape: tuple[int, ...] = (self.slots, 1, HEADS[1], WIDTH)
        if variant != "kvfuse":
            made["indices"] = made["indices"].reshape(-1, 1)
            shape = (self.slots, COLUMNS[1])
        return made | {name: np.zeros(shape, np.int8) for name in ALIASES}

    def binding(self, variant: str, threads: int = 1) -> custom_ort.Binding:
        """A session of the variant with its own caches bound in place."""
        return bound(self.model(variant), self.feeds(variant), ALIASES, threads)

    def model(self, variant: str) -> onnx.ModelProto:
        graph = Graph(self.plain)
        {"kvfuse": _ours, "exporter": _exporter, "fused-ort": _fused_ort}[variant](self, graph)
        outputs = {"q": self.plain} | dict.fromkeys(ALIASES.values(), "int8")
        fixed = dict(self.fixed)
        if variant != "kvfuse":
            fixed |= {name: array.reshape(-1) for name, array in fixed.items()}
        return graph.model(self.feeds(variant), outputs, fixed)


def _ours(problem: Problem, graph: Graph) -> None:
    inputs = ["x", "cos", "sin", "k_cache", "v_cache", "indices", "scale_k", "scale_v"]
    inputs += ["", "", "weight_scale", "activation_scale"] if problem.integers else []
    graph.op(
        "DequantRopeQuantKvcache", *inputs, outputs=["q", "", "", *ALIASES.values()], domain=DOMAIN,
        size_splits=COLUMNS, cache_mode="page",
    )  # fmt: skip


def _split(problem: Problem, graph: Graph) -> None:
    x = "x"
    if problem.integers:
        scaled = graph.op("Mul", graph.op("Cast", "x", to=by_name(WIDE).onnx), "weight_scale")
        rows = graph.reshape("activation_scale", problem.batch, problem.tokens, 1)
        x = graph.back(graph.op("Mul", scaled, rows), WIDE)
    graph.op("Split", x, graph.const(COLUMNS), outputs=["query", "key", "value"], axis=-1)


def _exporter(problem: Problem, graph: Graph) -> None:
    _split(problem, graph)
    for name, heads in zip(("query", "key"), HEADS, strict=False):
        rows = graph.reshape(name, problem.batch, problem.tokens, heads, WIDTH)
        rotated = graph.exporters_rotation(rows, "cos", "sin", WIDTH)
        flat = graph.reshape(rotated, -1, heads * WIDTH, out="q" if name == "query" else "")
    for name, rows in (("k", flat), ("v", graph.reshape("value", -1, COLUMNS[2]))):
        divided = graph.op("Div", graph.cast(rows, WIDE), f"scale_{name}")
        limits = [graph.const(limit, np.float32) for limit in (-128, 127)]
        clipped = graph.op("Clip", graph.op("Round", divided), *limits)
        graph.scatter(graph.op("Cast", clipped, to=by_name("int8").onnx), f"{name}_cache", "indices")


def _fused_ort(problem: Problem, graph: Graph) -> None:
    _split(problem, graph)
    cos, sin = (graph.halves(name, WIDTH, problem.batch, problem.tokens) for name in ("cos", "sin"))
    for name, heads in zip(("query", "key"), HEADS, strict=False):
        rotated = graph.runtimes_rotation(name, cos, sin, num_heads=heads)
        flat = graph.reshape(rotated, -1, heads * WIDTH, out="q" if name == "query" else "")
    zeros = graph.const(np.zeros(COLUMNS[1]), np.int8)
    for name, rows in (("k", flat), ("v", graph.reshape("value", -1, COLUMNS[2]))):
        quantised = graph.op("QuantizeLinear", graph.cast(rows, WIDE), f"scale_{name}", zeros, axis=1)
        graph.scatter(quantised, f"{name}_cache", "indices")
