"""Composes a QkvRmsNormRopeCache preamble out of one spelling of every part; a trap is a subclass with a part wrong."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import numpy as np
import onnx

from tests.fusion.qkv.spec import HIDDEN, WIDTH, Parameters, Spec, biased, inverse_frequencies, parameters, tables
from tests.fusion.zoo.graph import Array, Graph
from tests.fusion.zoo.norms import NORMS
from tests.fusion.zoo.quants import QUANTS


class Preamble:
    """Writes the graph of one :class:`Spec`, part by part.

    Inputs ``hidden`` (or ``qkv``, or ``q``, ``k``, ``v``), ``cos``, ``sin`` (or ``positions``), ``slots``,
    ``k_cache_<i>``, ``v_cache_<i>``; outputs ``q_out_<i>``, ``k_cache_out_<i>``, ``v_cache_out_<i>`` and, with ``raw``,
    ``k_raw_<i>`` and ``v_raw_<i>``, ``[B, N, S, D]``.
    """

    def __init__(self, spec: Spec) -> None:
        self.spec = spec
        self.g = Graph(spec.opset, spec.dtype, spec.style)
        self.layer = 0
        self.cos = self.sin = ""

    # -- the whole --------------------------------------------------------------------------------------------------

    def model(self) -> onnx.ModelProto:
        self.inputs()
        self.cos, self.sin = self.angles()
        made = []
        for layer in range(self.spec.layers):
            self.layer = layer
            made.append(self.one_layer(parameters(self.spec, layer)))
        for layer, values in enumerate(made):
            for name, value in values.items():
                kind = self.spec.cache_dtype(name[0]) if "cache" in name else self.spec.dtype
                shape = self.shape_of(name)
                self.g.output(value, f"{name}_{layer}", kind, list(shape))
        self.finish()
        return self.g.model("qkv_preamble")

    def shape_of(self, name: str) -> list[Any]:
        spec = self.spec
        if "cache" in name:
            return list(spec.cache_shape(name[0]))
        heads = spec.count(name[0])
        if name != "q_out":
            return [None, heads, None, WIDTH]
        forms: dict[str, list[Any]] = {
            "bnsd": [None, heads, None, WIDTH],
            "bsnd": [None, None, heads, WIDTH],
            "flat": [None, None, heads * WIDTH],
            "rows": [None, heads * WIDTH],
        }
        return forms[spec.query]

    def one_layer(self, p: Parameters) -> dict[str, str]:
        q, k, v = self.heads_of(p)
        q, k = self.turned("q", q, p), self.turned("k", k, p)
        v = self.values(v, p)
        raw = {"k": self.in_front("k", k), "v": self.in_front("v", v)}
        rows = {
            which: self.quantise(which, raw[which], p) if self.spec.is_quantised(which) else raw[which]
            for which in "kv"
        }
        out = {"q_out": self.delivered(q)}
        for which in "kv":
            out[f"{which}_cache_out"] = self.write(which, f"{which}_cache_{self.layer}", rows[which])
        if self.spec.raw:
            out |= {f"{which}_raw": raw[which] for which in "kv"}
        return out

    def finish(self) -> None:
        """Something a trap adds at the end."""

    # -- the interface ----------------------------------------------------------------------------------------------

    def dim(self, name: str, owner: str) -> int | str:
        """A dynamic size, named as the spec wants it."""
        batch, length = self.spec.sizes
        if self.spec.dims == "static":
            return {"B": batch, "S": length, "T": batch * length}[name]
        return name if self.spec.dims == "named" else f"{owner}_{name.lower()}"

    def inputs(self) -> None:
        spec, g = self.spec, self.g
        widths = {"hidden": HIDDEN, "qkv": sum(spec.heads) * WIDTH} | {w: spec.count(w) * WIDTH for w in "qkv"}
        names = {"input": ["qkv"], "inputs": ["q", "k", "v"]}.get(spec.source, ["hidden"])
        for name in names:
            g.input(name, spec.dtype, [self.dim("B", name), self.dim("S", name), widths[name]])
        if spec.cos in ("table", "freq"):
            g.input("positions", "int64", [self.dim("B", "positions"), self.dim("S", "positions")])
        else:
            for name in ("cos", "sin"):
                batch = 1 if spec.cos == "batch1" else self.dim("B", name)
                g.input(name, spec.dtype, [batch, self.dim("S", name), spec.table_width])
        g.input("slots", "int64", [self.dim("T", "slots")])
        for layer in range(spec.layers):
            for which in "kv":
                g.input(f"{which}_cache_{layer}", spec.cache_dtype(which), list(spec.cache_shape(which)))

    # -- projections ------------------------------------------------------------------------------------------------

    def heads_of(self, p: Parameters) -> tuple[str, str, str]:
        """Queries, keys and values as ``[B, S, N, D]``."""
        spec = self.spec
        if spec.is_packed:
            return self.taken_apart(self.packed(p), "qkv")
        if spec.source == "inputs":
            return self.apart("q", "q"), self.apart("k", "k"), self.apart("v", "v")
        if spec.source == "kv_joint":
            joint = self.project(np.concatenate([p.weight["k"], p.weight["v"]], 1), None)
            k, v = self.taken_apart(joint, "kv")
            return self.apart(self.project(p.weight["q"], None), "q"), k, v
        q, k, v = (self.apart(self.projected(which, p), which) for which in "qkv")
        return q, k, v

    def projected(self, which: str, p: Parameters) -> str:
        """One of three projections ``[B, S, columns]``."""
        return self.project(p.weight[which], p.bias[which] if biased(self.spec, which) else None)

    def packed(self, p: Parameters) -> str:
        if self.spec.source == "input":
            return "qkv"
        weight = np.concatenate([p.weight[which] for which in "qkv"], 1)
        bias = np.concatenate([p.bias[which] for which in "qkv"])
        return self.project(weight, bias if biased(self.spec, "q") else None)

    def project(self, weight: Array, bias: Array | None, x: str = "hidden") -> str:
        g, source = self.g, self.spec.source
        if source in ("gemm", "separate_gemm"):
            tail = [] if bias is None else [g.const(bias)]
            flat = g.op("Gemm", g.reshape(x, -1, HIDDEN), g.const(np.ascontiguousarray(weight.T)), *tail, transB=1)
            return g.reshape(flat, (x, 0), (x, 1), weight.shape[1])
        if source == "separate_turned":
            stored = g.transpose(g.const(np.ascontiguousarray(weight.T)), 1, 0)
        else:
            stored = g.const(weight)
        if source == "computed":
            stored = g.op("Mul", g.const(2 * weight), g.scalar(0.5, self.spec.dtype))
        y = g.op("MatMul", x, stored)
        return y if bias is None else g.op("Add", g.const(bias), y)

    def apart(self, x: str, which: str) -> str:
        """``[B, S, N * D]`` as ``[B, S, N, D]``."""
        return self.g.reshape(x, 0, 0, self.spec.count(which), WIDTH)

    def taken_apart(self, x: str, which: str) -> Any:
        """The heads of a packed value, each as ``[B, S, N, D]``."""
        g, counts = self.g, [self.spec.count(name) for name in which]
        firsts = np.cumsum([0, *counts]).tolist()
        if self.spec.split == "view":
            view = g.reshape(x, 0, 0, sum(counts), WIDTH)
            return tuple(g.slice(view, first, last, 2) for first, last in pairwise(firsts))
        if self.spec.split == "split":
            parts = g.split(x, [count * WIDTH for count in counts])
        elif self.spec.split == "slice":
            spans = pairwise(firsts)
            parts = [g.slice(x, first * WIDTH, last * WIDTH, 2) for first, last in spans]
        else:
            spans = pairwise(firsts)
            picks = [g.ints(*range(first * WIDTH, last * WIDTH)) for first, last in spans]
            parts = [g.op("Gather", x, pick, axis=-1) for pick in picks]
        return tuple(self.apart(part, name) for part, name in zip(parts, which, strict=True))

    # -- norm, rotation, quantisation, writing ----------------------------------------------------------------------

    def angles(self) -> tuple[str, str]:
        """cos and sin as they broadcast against heads in the form that is rotated."""
        g, spec = self.g, self.spec
        if spec.cos == "freq":
            angle = g.op("Mul", g.cast(g.unsqueeze("positions", 2), "float32"), g.const(inverse_frequencies(spec)))
            if spec.how_rotated.width != "half":
                angle = g.op("Concat", angle, angle, axis=-1)
            made = [g.down(g.op(kind, angle)) for kind in ("Cos", "Sin")]
        elif spec.cos == "table":
            made = [g.op("Gather", g.const(table), "positions", axis=0) for table in tables(spec)]
        else:
            made = ["cos", "sin"]
        if spec.rows == "tokens":
            return tuple(g.reshape(value, -1, 1, 1, spec.table_width) for value in made)  # type: ignore[return-value]
        axis = 2 if spec.rows == "bsnd" else 1
        return g.unsqueeze(made[0], axis), g.unsqueeze(made[1], axis)

    def turned(self, which: str, x: str, p: Parameters) -> str:
        """Norm and rotation of ``[B, S, N, D]``, in the form of ``rows``."""
        g, rows = self.g, self.spec.rows
        if rows == "bnsd":
            x = g.transpose(x, 0, 2, 1, 3)
        elif rows == "tokens":
            x = g.reshape(x, -1, self.spec.count(which), 1, WIDTH)
        x = self.normalise(which, x, p)
        return self.rotate(which, g.transpose(x, 0, 2, 1, 3) if rows == "late" else x)

    def values(self, x: str, p: Parameters) -> str:
        """Values ``[B, S, N, D]`` in the form of ``rows``."""
        g, rows = self.g, self.spec.rows
        if rows in ("bnsd", "late"):
            return g.transpose(x, 0, 2, 1, 3)
        return g.reshape(x, -1, self.spec.count("v"), 1, WIDTH) if rows == "tokens" else x

    def gamma(self, which: str, p: Parameters) -> Array:
        return p.gamma[which]

    def epsilon(self, which: str) -> float:
        return self.spec.eps

    def normalise(self, which: str, x: str, p: Parameters) -> str:
        return NORMS[self.spec.norm](self.g, x, np.asarray(self.gamma(which, p)), self.epsilon(which), 4)

    def rotate(self, which: str, x: str) -> str:
        return self.spec.how_rotated.build(self.g, x, self.cos, self.sin, WIDTH)

    def in_front(self, which: str, x: str) -> str:
        """Rows as ``[B, N, S, D]``; of tokens without a batch as ``[T, N, 1, D]``, where nothing needs more."""
        g, spec = self.g, self.spec
        if spec.rows == "bsnd":
            return g.transpose(x, 0, 2, 1, 3)
        if spec.rows == "tokens" and (spec.raw or spec.write == "nz_page_starts"):
            source = {"input": "qkv", "inputs": "q"}.get(spec.source, "hidden")
            heads = spec.count(which)
            return g.transpose(g.reshape(x, (source, 0), (source, 1), heads, WIDTH), 0, 2, 1, 3)
        return x

    def delivered(self, q: str) -> str:
        g, spec = self.g, self.spec
        heads = spec.count("q")
        by_token = g.transpose(q, 0, 2, 1, 3) if spec.rows in ("bnsd", "late") else q
        if spec.query == "rows":
            return g.reshape(by_token, -1, heads * WIDTH)
        source = {"input": "qkv", "inputs": "q"}.get(spec.source, "hidden")
        if spec.query == "flat":
            return g.reshape(by_token, (source, 0), (source, 1), heads * WIDTH)
        if spec.query == "bnsd" and spec.rows in ("bnsd", "late"):
            return q
        by_token = g.reshape(by_token, (source, 0), (source, 1), heads, WIDTH)
        return by_token if spec.query == "bsnd" else g.transpose(by_token, 0, 2, 1, 3)

    def quantise(self, which: str, rows: str, p: Parameters) -> str:
        return QUANTS[self.spec.quant].build(self.g, rows, p.scale[which], p.offset[which])

    def slots(self, which: str) -> str:
        return "slots"

    def write(self, which: str, cache: str, rows: str) -> str:
        n = self.spec.cache_sizes(which)
        return self.spec.how_written.build(self.g, cache, rows, self.slots(which), n)
