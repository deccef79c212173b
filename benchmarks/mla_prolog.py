"""MlaPrologV3 against the same computation as an exporter writes it, in onnxruntime with float32 weights.

Constant weights, one thread, everything at ORT_ENABLE_ALL, inputs and outputs bound, caches in place on both sides,
variants in turns in one process. The figures are ratios: time of the kernel / time of the float32 graph.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import onnx
from onnx import helper

import custom_ort
from benchmarks.timing import interleaved, table
from ir_ops.dtypes import Array, by_name, by_numpy
from ir_ops.ops import DOMAIN, OPS

TOKENS = (1, 4, 16, 64)
KINDS = ("float32", "bfloat16", "int8")
_ALIASES = {"kv_cache": "kv_cache_out", "kr_cache": "kr_cache_out"}
_EPSILON = 1e-5


@dataclass(frozen=True)
class Sizes:
    """The sizes of a model: hidden, query rank, heads, nope, key rank, rope."""

    hidden: int = 7168
    q_rank: int = 1536
    heads: int = 128
    nope: int = 128
    kv_rank: int = 512
    rope: int = 64


SMALL = Sizes(hidden=1024, q_rank=384, heads=16)


class Problem:
    """One layer's weights, and the calls and graphs made with them."""

    def __init__(self, sizes: Sizes) -> None:
        self.sizes = sizes
        rng = np.random.default_rng(0)

        def normal(*shape: int) -> Array:
            array: Array = rng.standard_normal(shape, np.float32) * np.float32(shape[-2] ** -0.5)
            return array

        s = sizes
        self.weights: dict[str, Array] = {
            "weight_dq": normal(s.hidden, s.q_rank),
            "weight_uq_qr": normal(s.q_rank, s.heads * (s.nope + s.rope)),
            "weight_uk": normal(s.heads, s.nope, s.kv_rank),
            "weight_dkv_kr": normal(s.hidden, s.kv_rank + s.rope),
            "rmsnorm_gamma_cq": np.ones(s.q_rank, np.float32),
            "rmsnorm_gamma_ckv": np.ones(s.kv_rank, np.float32),
        }

    def inputs(self, kind: str, tokens: int) -> dict[str, Array]:
        """A call with plain caches: float32, bfloat16, or int8 weights (weight_quant_mode 2) around bfloat16."""
        s, rng = self.sizes, np.random.default_rng(1)
        plain = by_name("bfloat16" if kind == "int8" else kind).np
        made = {name: array.astype(plain) for name, array in self.weights.items()}
        made["token_x"] = rng.standard_normal((tokens, s.hidden), np.float32).astype(plain)
        for name in ("rope_sin", "rope_cos"):
            made[name] = rng.standard_normal((tokens, s.rope), np.float32).astype(plain)
        made["kv_cache"] = np.zeros((1, tokens + 64, 1, s.kv_rank), plain)
        made["kr_cache"] = np.zeros((1, tokens + 64, 1, s.rope), plain)
        made["cache_index"] = np.arange(3, 3 + tokens, dtype=np.int64)
        if kind == "int8":
            for name in ("token_x", "weight_dq", "weight_uq_qr", "weight_dkv_kr"):
                full = (self.weights | {"token_x": made["token_x"].astype(np.float32)})[name]
                axis = 1 if name == "token_x" else 0
                scale = np.abs(full).max(axis=axis, keepdims=True) / 127
                made[name] = np.rint(full / scale).astype(np.int8)
                made[f"dequant_scale_{name.replace('weight', 'w').replace('token_x', 'x')}"] = scale.astype(np.float32)
        return made

    def ours(self, kind: str, tokens: int, threads: int = 1) -> custom_ort.Binding:
        inputs = self.inputs(kind, tokens)
        mode = 2 if kind == "int8" else 0
        names = [entry.name if entry.name in inputs else "" for entry in OPS["MlaPrologV3"].inputs]
        while not names[-1]:
            names.pop()
        outputs = [entry.onnx_name for entry in OPS["MlaPrologV3"].outputs[:4]]
        node = helper.make_node("MlaPrologV3", names, outputs, "mla", domain=DOMAIN, weight_quant_mode=mode)
        return self._bind([node], inputs, outputs, threads)

    def exporter(self, tokens: int, threads: int = 1) -> custom_ort.Binding:
        inputs = self.inputs("float32", tokens)
        inputs["cache_index"] = inputs["cache_index"].reshape(-1, 1)
        for name in _ALIASES:
            inputs[name] = inputs[name].reshape(-1, inputs[name].shape[-1])
        return self._bind(_exporter(self.sizes), inputs, ["query", "query_rope", *_ALIASES.values()], threads)

    def _bind(
        self, nodes: Sequence[onnx.NodeProto], inputs: dict[str, Array], outputs: Sequence[str], threads: int
    ) -> custom_ort.Binding:
        import onnxruntime

        fixed = {name: array for name, array in inputs.items() if "weight" in name or "gamma" in name or "_w_" in name}
        feeds = {name: array for name, array in inputs.items() if name not in fixed}

        def value(name: str, array: Array) -> onnx.ValueInfoProto:
            return helper.make_tensor_value_info(name, by_numpy(array.dtype).onnx or 0, array.shape)

        kind = by_numpy(inputs["kv_cache"].dtype).onnx or 0
        results = [helper.make_tensor_value_info(name, kind, None) for name in outputs]
        tensors = [
            helper.make_tensor(name, by_numpy(array.dtype).onnx or 0, array.shape, array.tobytes(), raw=True)
            for name, array in fixed.items()
        ]
        graph = helper.make_graph(
            list(nodes), "mla", [value(name, array) for name, array in feeds.items()], results, tensors
        )
        imports = [helper.make_opsetid("", 18), helper.make_opsetid(DOMAIN, 1)]
        model = helper.make_model(graph, opset_imports=imports, ir_version=10)
        options = onnxruntime.SessionOptions()
        options.intra_op_num_threads = threads
        options.log_severity_level = 3
        return custom_ort.bind(custom_ort.session(model, sess_options=options), _aligned(feeds), _ALIASES)


def _aligned(arrays: dict[str, Array]) -> dict[str, Array]:
    made = {}
    for name, array in arrays.items():
        made[name] = custom_ort.aligned_empty(array.shape, array.dtype)
        made[name][...] = array
    return made


class _Nodes(list[onnx.NodeProto]):
    def op(self, kind: str, *inputs: str, out: str = "", **attrs: Any) -> str:
        name = out or f"v{len(self)}"
        self.append(helper.make_node(kind, list(inputs), [name], name, **attrs))
        return name

    def const(self, value: Any, dtype: Any = np.int64) -> str:
        array = np.asarray(value, dtype)
        tensor = helper.make_tensor("", by_numpy(dtype).onnx or 0, array.shape, array.tobytes(), raw=True)
        return self.op("Constant", value=tensor)

    def columns(self, x: str, start: int, stop: int, step: int = 1) -> str:
        return self.op("Slice", x, *(self.const([bound]) for bound in (start, stop, -1, step)))

    def norm(self, x: str, gamma: str) -> str:
        mean = self.op("ReduceMean", self.op("Mul", x, x), self.const([-1]), keepdims=1)
        root = self.op("Sqrt", self.op("Add", mean, self.const(_EPSILON, np.float32)))
        return self.op("Mul", self.op("Div", x, root), gamma)

    def rotated(self, x: str, width: int, cos: str, sin: str, out: str = "") -> str:
        """Interleaved in, halves out: de-interleaved, then x * cos + (-right, left) * sin."""
        even, odd = self.columns(x, 0, width, 2), self.columns(x, 1, width, 2)
        straight = self.op("Mul", self.op("Concat", even, odd, axis=-1), cos)
        crossed = self.op("Mul", self.op("Concat", self.op("Neg", odd), even, axis=-1), sin)
        return self.op("Add", straight, crossed, out=out)


def _exporter(s: Sizes) -> list[onnx.NodeProto]:
    n = _Nodes()
    normed = n.norm(n.op("MatMul", "token_x", "weight_dq"), "rmsnorm_gamma_cq")
    up = n.op("Reshape", n.op("MatMul", normed, "weight_uq_qr"), n.const([0, s.heads, s.nope + s.rope]))
    left = n.op("Transpose", n.columns(up, 0, s.nope), perm=[1, 0, 2])
    n.op("Transpose", n.op("MatMul", left, "weight_uk"), perm=[1, 0, 2], out="query")
    cos, sin = (n.op("Unsqueeze", name, n.const([1])) for name in ("rope_cos", "rope_sin"))
    n.rotated(n.columns(up, s.nope, s.nope + s.rope), s.rope, cos, sin, out="query_rope")
    key = n.op("MatMul", "token_x", "weight_dkv_kr")
    rows = n.norm(n.columns(key, 0, s.kv_rank), "rmsnorm_gamma_ckv")
    n.op("ScatterND", "kv_cache", "cache_index", rows, out="kv_cache_out")
    turned = n.rotated(n.columns(key, s.kv_rank, s.kv_rank + s.rope), s.rope, "rope_cos", "rope_sin")
    n.op("ScatterND", "kr_cache", "cache_index", turned, out="kr_cache_out")
    return list(n)


def measure(problem: Problem, tokens: int, *, threads: int = 1, seconds: float = 2.0) -> dict[str, float]:
    """Seconds a call: the float32 graph of onnxruntime (``exporter``), and the kernel with each kind of weights."""
    bindings = {"exporter": problem.exporter(tokens, threads)}
    bindings |= {kind: problem.ours(kind, tokens, threads) for kind in KINDS}
    calls: dict[str, Callable[[], object]] = {name: binding.step for name, binding in bindings.items()}
    return interleaved(calls, seconds=seconds)


def run(argv: Sequence[str] = ()) -> Iterator[str]:
    """The table of ratios. ``--small`` has a layer of a fortieth of the size, ``--quick`` measures a short time,
    ``--threads N`` uses N threads.
    """
    small = "--small" in argv or "--quick" in argv
    problem = Problem(SMALL if small else Sizes())
    threads = int(argv[list(argv).index("--threads") + 1]) if "--threads" in argv else 1
    rows = []
    for tokens in TOKENS:
        times = measure(problem, tokens, threads=threads, seconds=0.3 if "--quick" in argv else 6.0)
        ratios = [f"{times[kind] / times['exporter']:.2f}" for kind in KINDS]
        rows.append([f"M = {tokens}", f"{times['exporter'] * 1e3:.2f}", *ratios])
    head = ["MlaPrologV3 kernel / onnxruntime float32", "float32 ms", *KINDS]
    yield table(head, rows)
