"""Composes a complete KvRmsNormRopeCache preamble out of one spelling of every part.

``build(norm=..., rope=..., quant=..., write=..., opset=..., dtype=..., ...)`` gives the model. The class behind it has
one method a part, so that a trap is a subclass with one part done wrongly.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx

from tests.fusion.zoo.graph import Graph
from tests.fusion.zoo.norms import NORMS
from tests.fusion.zoo.quants import QUANTS
from tests.fusion.zoo.ropes import ROPES
from tests.fusion.zoo.spec import (
    HIDDEN,
    PAIR_SCALE,
    Parameters,
    Spec,
    grid_frequencies,
    inverse_frequencies,
    parameters,
    tables,
)
from tests.fusion.zoo.writes import WRITES

__all__ = ["NORMS", "QUANTS", "ROPES", "WRITES", "Preamble", "Spec", "build"]


def build(**choices: Any) -> onnx.ModelProto:
    """A preamble graph.

    Args:
        **choices: fields of :class:`Spec`.

    Returns:
        Inputs ``kv`` (or ``k``, ``v``, or ``hidden``), ``cos``, ``sin`` (or ``positions``), ``slots``,
        ``k_cache_<i>``, ``ckv_cache_<i>``; outputs ``k_cache_out_<i>``, ``ckv_cache_out_<i>`` and, with ``outs``,
        ``k_rope_<i>``, ``c_kv_<i>``.
    """
    return Preamble(Spec(**choices)).model()


class Preamble:
    """Writes the graph of one :class:`Spec`, part by part."""

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
            made.append(self.one_layer(self.parameters))
        for layer, (k_cache, ckv_cache, k_rope, c_kv) in enumerate(made):
            for which, name, value in (("k", "k_cache", k_cache), ("v", "ckv_cache", ckv_cache)):
                shape = self.spec.cache_shape(which, None)
                self.g.output(value, f"{name}_out_{layer}", self.spec.cache_dtype(which), shape)
            for which, name, value in (("k", "k_rope", k_rope), ("v", "c_kv", c_kv)):
                if self.spec.outs:
                    shape = [None, self.spec.heads, None, self.spec.columns(which)]
                    self.g.output(value, f"{name}_{layer}", self.spec.dtype, shape)
        self.finish()
        return self.g.model("preamble")

    def one_layer(self, p: Parameters) -> tuple[str, str, str, str]:
        if self.spec.form == "v1":
            left, right = self.divide(self.joined(p))
            c_kv, k_rope = self.normalise(left, p), self.rotate(right)
        else:
            key, c_kv = self.keys_values(p)
            k_rope = self.rotate_keys(self.normalise(key, p))
        rows = {"k": k_rope, "v": c_kv}
        for which in "kv":
            if self.spec.is_quantised(which):
                rows[which] = self.quantise(which, rows[which], p)
        written = [self.write(which, self.cache(which), rows[which]) for which in "kv"]
        return written[0], written[1], k_rope, c_kv

    def finish(self) -> None:
        """Something a trap adds at the end."""

    # -- the interface ----------------------------------------------------------------------------------------------

    @property
    def parameters(self) -> Parameters:
        return parameters(self.spec, self.layer)

    def dim(self, name: str, owner: str) -> int | str:
        """A dynamic size, named as the spec wants it."""
        batch, length = self.spec.sizes
        if self.spec.dims == "static":
            pages = batch * -(-length // self.spec.cache_sizes("k").block)
            return {"B": batch, "S": length, "T": batch * length, "P": pages}[name]
        return name if self.spec.dims == "named" else f"{owner}_{name.lower()}"

    def inputs(self) -> None:
        spec, g = self.spec, self.g
        if spec.kv != "input":
            g.input("hidden", spec.dtype, [self.dim("B", "hidden"), self.dim("S", "hidden"), HIDDEN])
        elif spec.form == "v1":
            width = spec.key_columns + spec.value_columns
            g.input("kv", spec.dtype, [self.dim("B", "kv"), 1, self.dim("S", "kv"), width])
        else:
            for name in "kv":
                g.input(name, spec.dtype, [self.dim("B", name), spec.heads, self.dim("S", name), spec.columns(name)])
        if spec.cos not in ("input", "batch1"):
            g.input("positions", "int64", [self.dim("B", "positions"), self.dim("S", "positions")])
        else:
            width = spec.rotated // 2 if spec.how_rotated.width == "half" else spec.rotated
            for name in ("cos", "sin"):
                batch = 1 if spec.cos == "batch1" else self.dim("B", name)
                g.input(name, spec.dtype, [batch, 1, self.dim("S", name), width])
        dims = {"tokens": "T", "shared": "S", "start": "B", "pages": "P", "rows": "BS"}[spec.how_written.slots]
        g.input("slots", "int64", [self.dim(name, "slots") for name in dims])
        for layer in range(spec.layers):
            for which, name in (("k", "k_cache"), ("v", "ckv_cache")):
                shape = spec.cache_shape(which, self.dim("B", f"{name}_{layer}"))
                g.input(f"{name}_{layer}", spec.cache_dtype(which), shape)

    def cache(self, which: str) -> str:
        return f"{'k' if which == 'k' else 'ckv'}_cache_{self.layer}"

    # -- the parts --------------------------------------------------------------------------------------------------

    def project(self, weight: Any, bias: Any, heads: int) -> str:
        """``[B, S, H]`` to ``[B, heads, S, D]`` by a constant weight."""
        g, spec = self.g, self.spec
        if spec.kv == "gemm":
            flat = g.reshape("hidden", -1, HIDDEN)
            x = g.op("Gemm", flat, g.const(weight.T), g.const(bias), transB=1)
        else:
            x = g.op("MatMul", "hidden", g.const(weight))
            x = g.op("Add", x, g.const(bias)) if spec.kv == "bias" else x
        columns = weight.shape[1] // heads
        view = g.reshape(x, ("hidden", 0), ("hidden", 1), heads, columns)
        return g.transpose(view, 0, 2, 1, 3)

    def joined(self, p: Parameters) -> str:
        return "kv" if self.spec.kv == "input" else self.project(p.weight_k, p.bias_k, 1)

    def keys_values(self, p: Parameters) -> tuple[str, str]:
        if self.spec.kv == "input":
            return "k", "v"
        heads = self.spec.heads
        return self.project(p.weight_k, p.bias_k, heads), self.project(p.weight_v, p.bias_v, heads)

    def divide(self, kv: str) -> tuple[str, str]:
        left, right = self.g.split(kv, [self.spec.value_columns, self.spec.key_columns], 3)
        return left, right

    def angles(self) -> tuple[str, str]:
        """cos and sin, ``[B, 1, S, width]``."""
        g, spec = self.g, self.spec
        if spec.cos in ("pairs", "grids"):
            halves = self.pairs() if spec.cos == "pairs" else self.grids()
            wide = spec.how_rotated.width != "half"
            made = [g.down(g.op("Concat", half, half, axis=-1) if wide else half) for half in halves]
        elif spec.cos == "freq":
            angle = g.op("Mul", g.cast(g.unsqueeze("positions", 2), "float32"), g.const(inverse_frequencies(spec)))
            if spec.how_rotated.width != "half":
                angle = g.op("Concat", angle, angle, axis=-1)
            made = [g.down(g.op(kind, angle)) for kind in ("Cos", "Sin")]
        elif spec.cos == "table":
            made = [g.op("Gather", g.const(table), "positions", axis=0) for table in tables(spec)]
        else:
            return "cos", "sin"
        return g.unsqueeze(made[0], 1), g.unsqueeze(made[1], 1)

    def pairs(self) -> list[str]:
        """Cosine and sine of an angle side by side, ``[B, S, D / 2, 2]``, scaled: complex numbers."""
        g = self.g
        angle = g.op("Mul", g.cast(g.unsqueeze("positions", 2), "float32"), g.const(inverse_frequencies(self.spec)))
        pair = g.op("Concat", *(g.unsqueeze(g.op(kind, angle), 3) for kind in ("Cos", "Sin")), axis=-1)
        scaled = g.op("Mul", pair, g.scalar(PAIR_SCALE))
        return [g.op("Gather", scaled, g.const(np.array(part, np.int64)), axis=3) for part in (0, 1)]

    def grids(self) -> list[str]:
        """Angles of three grids, ``[3, B, S, D / 2]``; column j is taken from grid j % 3 once they have a cosine."""
        g, half = self.g, self.spec.rotated // 2
        angle = g.op("Mul", g.cast(g.unsqueeze(g.unsqueeze("positions", 2), 0), "float32"),
                     g.const(grid_frequencies(self.spec)))  # fmt: skip
        columns = g.ints(*(3 * column + column % 3 for column in range(half)))
        made = []
        for kind in ("Cos", "Sin"):
            by_token = g.transpose(g.op(kind, angle), 1, 2, 3, 0)
            made.append(g.op("Gather", g.reshape(by_token, 0, 0, 3 * half), columns, axis=2))
        return made

    def normalise(self, x: str, p: Parameters) -> str:
        return NORMS[self.spec.norm](self.g, x, np.asarray(p.gamma), self.spec.eps, 4)

    def rotate(self, x: str) -> str:
        return self.spec.how_rotated.build(self.g, x, self.cos, self.sin, self.spec.rotated)

    def rotate_keys(self, y: str) -> str:
        """Form V2: the left columns of the normalised key are rotated, the others keep their place."""
        if self.spec.rotated == self.spec.key_columns:
            return self.rotate(y)
        turned, rest = self.g.split(y, [self.spec.rotated, self.spec.key_columns - self.spec.rotated])
        return self.g.op("Concat", self.rotate(turned), rest, axis=-1)

    def quantise(self, which: str, rows: str, p: Parameters) -> str:
        return QUANTS[self.spec.quant].build(self.g, rows, p.scale[which], p.offset[which])

    def slots(self, which: str) -> str:
        return "slots"

    def write(self, which: str, cache: str, rows: str) -> str:
        n = self.spec.cache_sizes(which)
        return self.spec.how_written.build(self.g, cache, rows, self.slots(which), n)
