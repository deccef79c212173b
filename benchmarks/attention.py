"""FusedInferAttentionScore against onnxruntime's own attention operators, alone: one decoding step of some layers.

Everything is bound in place, variants take turns in one process, and there are so many layers that their caches do not
fit into the processor's. Ratios are to GroupQueryAttention with fp32 caches on a shared buffer [B, N, S, D].
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import onnx
import onnxruntime
from onnx import TensorProto, helper

import custom_ort
from benchmarks.timing import interleaved, table
from ir_ops.dtypes import Array, by_name, by_numpy
from ir_ops.layout import nz_block
from ir_ops.ops import DOMAIN, DOMAIN_VERSION, OPS

_OP = OPS["FusedInferAttentionScore"]
_PAGE = 128
_LEAST_BYTES = 192 << 20
"""Of what is read of all layers' fp32 caches together: several times a processor's last cache."""


@dataclass(frozen=True)
class Problem:
    """Shapes of a step: Qwen3-0.6B's heads unless said otherwise."""

    context: int
    batch: int = 1
    tokens: int = 1
    heads: int = 16
    kv_heads: int = 8
    width: int = 128
    capacity: int = 1  # times the context
    threads: int = 1

    @property
    def cache_bytes(self) -> int:
        """Of one layer, in fp32, as far as it is read."""
        return 2 * 4 * self.batch * self.kv_heads * self.width * self.context

    @property
    def layers(self) -> int:
        return max(2, -(-_LEAST_BYTES // self.cache_bytes))

    @property
    def room(self) -> int:
        return self.context * self.capacity


Call = Callable[[], object]


def _random(shape: tuple[int, ...], dtype: str) -> Array:
    """Numbers that cost little to make: a block repeated."""
    count = int(np.prod(shape))
    block = np.random.default_rng(0).standard_normal(min(count, 1 << 20)).astype(np.float32)
    return np.resize(block.astype(by_name(dtype).np), count).reshape(shape)


def _session(model: onnx.ModelProto, threads: int) -> Any:
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = threads
    return custom_ort.session(model, sess_options=options)


def _bound(nodes: list[onnx.NodeProto], feeds: dict[str, Array], outputs: list[str], threads: int,
           aliases: dict[str, str] | None = None) -> Call:  # fmt: skip
    def info(name: str, array: Array | None) -> onnx.ValueInfoProto:
        kind = TensorProto.FLOAT if array is None else by_numpy(array.dtype).onnx or 0
        return helper.make_tensor_value_info(name, kind, None if array is None else array.shape)

    shapes = {output: feeds[name] for name, output in (aliases or {}).items()}
    graph = helper.make_graph(
        nodes,
        "attention",
        [info(name, array) for name, array in feeds.items()],
        [info(name, shapes.get(name)) for name in outputs],
    )
    imports = [helper.make_opsetid("", 24), helper.make_opsetid("com.microsoft", 1),
               helper.make_opsetid(DOMAIN, DOMAIN_VERSION)]  # fmt: skip
    model = helper.make_model(graph, opset_imports=imports, ir_version=10)
    binding = custom_ort.bind(_session(model, threads), feeds, aliases or {})
    return binding.step


def ours(p: Problem, cache: str, layout: str) -> Call:
    """The operator: ``layout`` is ``BNSD``, ``BSND`` (contiguous), ``paged`` or ``NZ``; ``cache`` the element type."""
    query = "BNSD" if layout == "BNSD" else "BSND"
    dims = {"B": p.batch, "S": p.tokens, "N": p.heads, "D": p.width}
    feeds = {"query": _random(tuple(dims[axis] for axis in query), "float32")}
    feeds["lengths"] = np.full(p.batch, p.context, np.int64)
    attrs: dict[str, Any] = {"num_heads": p.heads, "num_key_value_heads": p.kv_heads, "scale": p.width**-0.5,
                             "input_layout": query, "sparse_mode": 3}  # fmt: skip
    pages = p.batch * p.room // _PAGE
    shape = {
        "BNSD": (p.batch, p.kv_heads, p.room, p.width),
        "BSND": (p.batch, p.room, p.kv_heads, p.width),
        "paged": (pages, _PAGE, p.kv_heads * p.width),
        "NZ": (pages, p.kv_heads, p.width // nz_block(cache), _PAGE, nz_block(cache)),
    }[layout]
    if layout in ("paged", "NZ"):
        attrs["block_size"] = _PAGE
        order = np.random.default_rng(1).permutation(pages).astype(np.int32)
        feeds["table"] = order.reshape(p.batch, -1)
    if cache == "int8":
        feeds["factors"] = np.full(p.kv_heads * p.width, 0.02, np.float32)
    nodes = []
    for layer in range(p.layers):
        named = {"query": "query", "actual_seq_lengths_kv": "lengths"}
        if "table" in feeds:
            named["block_table"] = "table"
        if cache == "int8":
            named |= {"key_antiquant_scale": "factors", "value_antiquant_scale": "factors"}
        for name in ("key", "value"):
            named[name] = f"{name}{layer}"
            feeds[named[name]] = _random(shape, "float32" if cache != "int8" else "int8").astype(by_name(cache).np)
        inputs = [named.get(entry.name, "") for entry in _OP.inputs]
        while not inputs[-1]:
            inputs.pop()
        nodes.append(helper.make_node(_OP.name, inputs, [f"y{layer}"], domain=DOMAIN, **attrs))
    return _bound(nodes, feeds, [f"y{layer}" for layer in range(p.layers)], p.threads)


def group_query(p: Problem) -> Call:
    """onnxruntime's operator as its generator binds it: the new rows come in, the cache is one buffer."""
    feeds = {"query": _random((p.batch, p.tokens, p.heads * p.width), "float32")}
    feeds["rows"] = _random((p.batch, p.tokens, p.kv_heads * p.width), "float32")
    feeds["seqlens"] = np.full(p.batch, p.context - 1, np.int32)
    feeds["total"] = np.array(p.context, np.int32)
    nodes: list[onnx.NodeProto] = []
    outputs: list[str] = []
    aliases: dict[str, str] = {}
    for layer in range(p.layers):
        names = [f"key{layer}", f"value{layer}"]
        feeds |= {name: _random((p.batch, p.kv_heads, p.room, p.width), "float32") for name in names}
        results = [f"y{layer}", *(f"{name}_out" for name in names)]
        outputs += results
        aliases |= {name: f"{name}_out" for name in names}
        nodes.append(helper.make_node(
            "GroupQueryAttention", ["query", "rows", "rows", *names, "seqlens", "total"], results,
            domain="com.microsoft", num_heads=p.heads, kv_num_heads=p.kv_heads,
        ))  # fmt: skip
    return _bound(nodes, feeds, outputs, p.threads, aliases)


def standard(p: Problem) -> Call:
    """ai.onnx Attention over the capacity, which masks what lies behind the lengths."""
    feeds = {"query": _random((p.batch, p.heads, p.tokens, p.width), "float32")}
    feeds["valid"] = np.full(p.batch, p.context, np.int64)
    nodes = []
    for layer in range(p.layers):
        names = [f"key{layer}", f"value{layer}"]
        feeds |= {name: _random((p.batch, p.kv_heads, p.room, p.width), "float32") for name in names}
        nodes.append(helper.make_node("Attention", ["query", *names, "", "", "", "valid"], [f"y{layer}"]))
    return _bound(nodes, feeds, [f"y{layer}" for layer in range(p.layers)], p.threads)


def streaming(p: Problem) -> Call:
    """Reading as many bytes as the fp32 caches of all layers have, with one thread."""
    data = np.ones(p.layers * p.cache_bytes // 8, np.int64)
    return lambda: np.bitwise_or.reduce(data)


VARIANTS = (
    ("BNSD f32", "float32", "BNSD"),
    ("BSND f32", "float32", "BSND"),
    ("paged f32", "float32", "paged"),
    ("NZ f32", "float32", "NZ"),
    ("BNSD f16", "float16", "BNSD"),
    ("paged f16", "float16", "paged"),
    ("NZ f16", "float16", "NZ"),
    ("NZ int8", "int8", "NZ"),
)


def measure(p: Problem, names: Sequence[str] = (), *, seconds: float = 2.0) -> dict[str, float]:
    """Seconds of a step of all layers: ``GQA``, ``Attention``, ``read``, and the named variants of the operator."""
    calls = {"GQA": group_query(p), "Attention": standard(p), "read": streaming(p)}
    calls |= {name: ours(p, cache, layout) for name, cache, layout in VARIANTS if not names or name in names}
    return interleaved(calls, seconds=seconds)


def run(argv: Sequence[str] = ()) -> Iterator[str]:
    """The tables. ``--quick`` measures short contexts for a short time, ``--threads N`` uses N threads."""
    quick = "--quick" in argv
    threads = int(argv[list(argv).index("--threads") + 1]) if "--threads" in argv else 1
    seconds = 0.2 if quick else 4.0
    sizes = [(256, 1)] if quick else [(1024, 1), (4096, 1), (8192, 1), (4096, 4)]
    rows, speeds = [], []
    for context, batch in sizes:
        p = Problem(context, batch, threads=threads)
        times = measure(p, seconds=seconds)
        label = f"{context} tokens, batch {batch}"
        ratios = [f"{times[name] / times['GQA']:.2f}" for name, _, _ in VARIANTS]
        rows.append(
            [label, f"{times['GQA'] / p.layers * 1e3:.2f}", f"{times['Attention'] / times['GQA']:.2f}", *ratios]
        )
        share = [by_name(cache).itemsize / 4 * times["read"] / times[name] for name, cache, _ in VARIANTS]
        speed = p.layers * p.cache_bytes / times["read"] / 1e9
        speeds.append([label, f"{speed:.1f} GB/s", "", *(f"{value:.2f}" for value in share)])
    head = [
        "attention step / onnxruntime GroupQueryAttention",
        "GQA ms",
        "Attention",
        *(name for name, _, _ in VARIANTS),
    ]
    yield table(head, rows)
    yield table(["bytes a second / streaming read", "read", "", *(name for name, _, _ in VARIANTS)], speeds)
    far = measure_capacity(threads, quick)
    yield table(["8x the capacity / 1x", *far], [["", *far.values()]])


def measure_capacity(threads: int, quick: bool) -> dict[str, str]:
    """The same length in a cache of eight times the room."""
    context = 256 if quick else 1024
    ratios = {}
    for name, cache, layout in (VARIANTS[0], VARIANTS[2]):
        near, far = Problem(context, capacity=1, threads=threads), Problem(context, capacity=8, threads=threads)
        calls = {"1x": ours(near, cache, layout), "8x": ours(far, cache, layout)}
        times = interleaved(calls, seconds=0.2 if quick else 3.0)
        ratios[name] = f"{times['8x'] / times['1x']:.2f}"
    return ratios
