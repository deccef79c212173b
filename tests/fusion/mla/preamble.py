"""A preamble of absorbed latent attention, described and written as ONNX, and what it should give.

Built from the spellings of the zoo (norms, rotations, writes, quantisation); what is new here is the query: how the
hidden states are projected, how heads are split, how the nope part is absorbed. Nothing of the project is used.
"""

from __future__ import annotations

import ml_dtypes
import numpy as np
import onnx

from tests.fusion.mla.absorbs import ABSORBS
from tests.fusion.mla.spec import BLOCK, HIDDEN, LATENT, LENGTH, NOPE, PAGES, RANK, ROPE, Spec
from tests.fusion.zoo import expected as define
from tests.fusion.zoo.graph import NUMPY, Array, Graph
from tests.fusion.zoo.norms import NORMS
from tests.fusion.zoo.quants import QUANTS
from tests.fusion.zoo.ropes import ROPES
from tests.fusion.zoo.writes import WRITES, Sizes


class Weights:
    """Random parameters, in the activation type, numbers as the graph has them."""

    def __init__(self, spec: Spec) -> None:
        rng = np.random.default_rng(3)
        kind = NUMPY[spec.dtype]

        def draw(*shape: int) -> Array:
            return (rng.standard_normal(shape) / np.sqrt(shape[-2] if len(shape) > 1 else 4)).astype(kind)

        self.dq, self.uq = draw(HIDDEN, RANK), draw(RANK, spec.heads * (NOPE + ROPE))
        self.uk, self.dkv = draw(spec.heads, NOPE, LATENT), draw(HIDDEN, LATENT + ROPE)
        self.g_cq, self.g_ckv = (1 + draw(RANK)).astype(kind), (1 + draw(LATENT)).astype(kind)
        self.s_ckv = np.abs(rng.standard_normal(LATENT)) * 10 + 20
        self.s_kr = np.abs(rng.standard_normal(ROPE)) * 10 + 20


class Preamble:
    """Writes the graph of a spec."""

    def __init__(self, spec: Spec) -> None:
        self.spec, self.w = spec, Weights(spec)
        self.g = Graph(spec.opset, spec.dtype, spec.style)
        self.how = WRITES[spec.write]

    def model(self) -> onnx.ModelProto:
        g, spec = self.g, self.spec
        self.declare()
        q, rope = self.query()
        c, k = self.key()
        caches = [self.write(name, rows, width) for name, rows, width in
                  (("kv_cache", c, LATENT), ("kr_cache", k, ROPE))]  # fmt: skip
        lead = self.dim("q", 0), self.dim("q", 1)
        for value, name, width in ((q, "query", LATENT), (rope, "query_rope", ROPE)):
            g.output(value, name, spec.dtype, [lead[0], spec.heads, lead[1], width])
        for value, name, width in zip(caches, ("kv_cache", "kr_cache"), (LATENT, ROPE), strict=True):
            g.output(value, f"{name}_out", self.type_of(name), self.cache_dims(name, width))
        if spec.reads:
            g.output(self.normed, "normed", spec.dtype, [*(self.x_dims()[:-1]), RANK])
        if spec.trap == "key_read":
            g.output(k, "k_out", spec.dtype, [lead[0], 1, lead[1], ROPE])
        if spec.trap == "row_read":
            g.output(c, "c_out", spec.dtype, [lead[0], 1, lead[1], LATENT])
        return g.model("mla")

    # interface ------------------------------------------------------------------------------------------------------

    def dim(self, name: str, axis: int) -> int | str:
        if self.spec.dims == "static":
            return self.spec.sizes[axis]
        return f"{name}_{axis}" if self.spec.dims == "own" else ("B", "S")[axis]

    def x_dims(self) -> list[int | str | None]:
        if not self.spec.flat:
            return [self.dim("x", 0), self.dim("x", 1), HIDDEN]
        total = int(np.prod(self.spec.sizes))
        return [total if self.spec.dims == "static" else "T", HIDDEN]

    def type_of(self, name: str) -> str:
        return "int8" if self.spec.kinds == "both" or (self.spec.kinds == "kv" and name == "kv_cache") else (
            self.spec.dtype
        )  # fmt: skip

    def fractal(self, name: str) -> int:
        return 32 if self.type_of(name) == "int8" else self.spec.fractal

    def cache_dims(self, name: str, width: int) -> list[int | str | None]:
        d0 = self.fractal(name)
        batch = self.spec.sizes[0] if self.spec.dims == "static" else "B" if self.spec.dims == "named" else f"{name}_b"
        shapes: dict[str, list[int | str | None]] = {
            "page": [PAGES, BLOCK, 1, width], "batch": [batch, 1, LENGTH, width], "bmd": [batch, LENGTH, width],
            "nz4": [PAGES, width // d0, BLOCK, d0], "nz5": [PAGES, 1, width // d0, BLOCK, d0],
            "flat": [PAGES * BLOCK, 1, width],
        }  # fmt: skip
        return shapes[self.how.cache]

    def declare(self) -> None:
        g, spec = self.g, self.spec
        g.input("x", spec.dtype, self.x_dims())
        g.input("x2", spec.dtype, self.x_dims())
        table: list[int | str | None] = [self.dim("t", 0), 1, self.dim("t", 1), ROPE]
        wide = ROPES[spec.rope].width != "half"
        table[-1] = ROPE if wide else ROPE // 2
        for name in ("cos", "sin", "cos2"):
            g.input(name, spec.dtype, table)
        B, S = self.dim("s", 0), self.dim("s", 1)
        total = int(np.prod(spec.sizes)) if spec.dims == "static" else "T" if spec.flat else "BS"
        pages = "P" if spec.dims != "static" else spec.sizes[0] * -(-spec.sizes[1] // BLOCK)
        slots: dict[str, list[int | str | None]] = {
            "tokens": [total], "rows": [B, S], "shared": [S], "start": [B], "pages": [pages]
        }  # fmt: skip
        g.input("slots", "int64", slots[self.how.slots])
        if spec.trap == "other_slots":
            g.input("slots2", "int64", slots[self.how.slots])
        for name, width in (("kv_cache", LATENT), ("kr_cache", ROPE)):
            g.input(name, self.type_of(name), self.cache_dims(name, width))

    # rows -----------------------------------------------------------------------------------------------------------

    def product(self, x: str, weight: Array) -> str:
        g, flat = self.g, self.spec.flat
        if self.spec.project == "gemm":
            rows = x if flat else g.reshape(x, -1, weight.shape[0])
            y = g.op("Gemm", rows, g.const(np.ascontiguousarray(weight.T)), transB=1)
            return y if flat else g.reshape(y, ("x", 0), ("x", 1), weight.shape[1])
        if self.spec.project == "einsum":
            turned = g.const(np.ascontiguousarray(weight.T))
            return g.op("Einsum", x, turned, equation="th,qh->tq" if flat else "bsh,qh->bsq")
        return g.op("MatMul", x, g.const(weight))

    def norm(self, x: str, gamma: Array, eps: float) -> str:
        return NORMS[self.spec.norm](self.g, x, gamma, eps, 2 if self.spec.flat else 3)

    def times(self, x: str, number: float) -> str:
        return x if number == 1 else self.g.op("Mul", x, self.g.scalar(number, self.spec.dtype))

    def by_head(self, x: str, heads: int, width: int) -> str:
        """``[.., N*D]`` as ``[B, S, N, D]``; batch and tokens of flat rows come from cos."""
        lead = ("cos", 0) if self.spec.flat else ("x", 0)
        return self.g.reshape(x, lead, ("cos", 2) if self.spec.flat else ("x", 1), heads, width)

    def query(self) -> tuple[str, str]:
        g, spec, w = self.g, self.spec, self.w
        self.joint = ""
        if spec.kv == "all":
            self.joint = self.product("x", np.concatenate([w.dq, w.dkv], 1))
            low = g.split(self.joint, [RANK, LATENT + ROPE], -1)[0]
        else:
            low = self.product("x2" if spec.trap == "other_x" else "x", w.dq)
        if spec.trap == "bias":
            low = g.op("Add", low, g.const(np.ones(RANK), spec.dtype))
        self.normed = low if spec.trap == "no_norm" else self.norm(low, w.g_cq, spec.eps[0])
        if spec.trap == "norm_of_part":
            half = self.norm(g.slice(low, 0, RANK // 2, -1), w.g_cq[: RANK // 2], spec.eps[0])
            self.normed = g.op("Concat", half, g.slice(low, RANK // 2, RANK, -1), axis=-1)
        in_norm, in_up, in_parts = (spec.scales[0] if spec.place == place else 1.0 for place in ("norm", "up", "parts"))
        m = self.times(self.product(self.times(self.normed, in_norm), w.uq), in_up)
        m = self.by_head(m, spec.heads, NOPE + ROPE)
        if spec.trap == "rolled_heads":
            m = g.op("Concat", g.slice(m, 1, spec.heads, 2), g.slice(m, 0, 1, 2), axis=2)
        if spec.trap == "rope_first":
            m = g.op("Concat", g.slice(m, ROPE, NOPE + ROPE, 3), g.slice(m, 0, ROPE, 3), axis=3)
        sizes = [NOPE, ROPE]
        if spec.split == "late":
            nope, rope = g.split(g.transpose(m, 0, 2, 1, 3), sizes, 3)
        else:
            nope, rope = (g.transpose(part, 0, 2, 1, 3) for part in g.split(m, sizes, 3))
        nope = self.times(nope, in_parts)
        rope = self.times(rope, in_parts)
        return self.absorbed(nope), self.rotated(rope)

    def absorbed(self, nope: str) -> str:
        g, spec, w = self.g, self.spec, self.w
        trap = spec.trap
        if trap == "not_absorbed":
            return g.op("Concat", nope, g.op("Expand", g.scalar(0.0, spec.dtype),
                        g.shape((nope, 0), spec.heads, (nope, 2), LATENT - NOPE)), axis=-1)  # fmt: skip
        if trap == "one_matrix":
            return g.op("MatMul", nope, g.const(w.uk[0]))
        if trap == "heads_mixed":
            return g.op("Einsum", nope, g.const(w.uk), equation="bnsd,mdc->bmsc")
        if trap == "by_token":
            weight = g.op("Mul", g.const(w.uk[None]), g.op("ReduceMean", "x", keepdims=1))
            weight = g.reshape(weight, spec.heads, NOPE, LATENT)
            return g.op("Einsum", nope, weight, equation="bnsd,ndc->bnsc")
        if trap == "part_absorbed":
            half = g.slice(nope, 0, NOPE - 2, 3)
            return g.op("Einsum", half, g.const(w.uk[:, : NOPE - 2]), equation="bnsd,ndc->bnsc")
        if trap == "nope_bias":
            nope = g.op("Add", nope, g.const(np.ones(NOPE), spec.dtype))
        if trap == "nope_relu":
            nope = g.op("Relu", nope)
        if trap == "nope_scaled":
            nope = self.times(nope, 2.0)
        return ABSORBS[spec.absorb](g, nope, w.uk, spec)

    def tables(self) -> tuple[str, str]:
        """cos and sin; with ``complex``, parts of one value that holds them side by side."""
        if not self.spec.complex:
            return "cos", "sin"
        g = self.g
        pair = g.op("Concat", g.unsqueeze("cos", 4), g.unsqueeze("sin", 4), axis=-1)
        held = g.op("Mul", pair, g.scalar(1.0, self.spec.dtype))
        cos, sin = (g.op("Gather", held, g.const(np.array(part, np.int64)), axis=-1) for part in (0, 1))
        return cos, sin

    def rotated(self, rope: str) -> str:
        spec, g = self.spec, self.g
        cos, sin = self.tables()
        kind = ROPES[spec.rope]
        build = kind.build
        if spec.trap == "other_cos":
            cos = "cos2"
        if spec.trap == "swapped_tables":
            cos, sin = sin, cos
        if spec.trap == "inverse":
            sin = g.op("Neg", sin)
        if spec.trap == "rope_plain":
            return g.op("Identity", rope)
        if spec.trap == "rope_scaled":
            rope = self.times(rope, 2.0)
        if spec.trap == "rope_bias":
            rope = g.op("Add", rope, g.const(np.ones(ROPE), spec.dtype))
        if spec.trap == "shifted_tokens":
            cos, sin = (g.op("Concat", g.slice(t, 1, 2**62, 2), g.slice(t, 0, 1, 2), axis=2) for t in (cos, sin))
        if spec.trap == "other_pairs":
            build = ROPES["half_slices" if kind.kind == "deinterleave" else "deint_view"].build
            # pairs of the key differ from those of the query: that is legal, columns are permuted
        return build(g, rope, cos, sin, ROPE)

    def key(self) -> tuple[str, str]:
        g, spec, w = self.g, self.spec, self.w
        if spec.kv == "apart":
            c, k = self.product("x", w.dkv[:, :LATENT]), self.product("x", w.dkv[:, LATENT:])
        else:
            both = g.split(self.joint, [RANK, LATENT + ROPE], -1)[1] if self.joint else self.product("x", w.dkv)
            c, k = g.split(both, [LATENT, ROPE], -1)
        if spec.trap == "key_bias":
            k = g.op("Add", k, g.const(np.ones(ROPE), spec.dtype))
        c = self.times(self.norm(c, w.g_ckv, spec.eps[1]), spec.scales[1])
        c = self.rows(c, LATENT)
        k = ROPES[spec.rope].build(g, self.rows(k, ROPE), *self.tables(), ROPE)
        return c, k

    def rows(self, x: str, width: int) -> str:
        """``[B, 1, S, D]``."""
        lead = (("cos", 0), 1, ("cos", 2)) if self.spec.flat else (("x", 0), 1, ("x", 1))
        return self.g.reshape(x, *lead, width)

    def write(self, name: str, rows: str, width: int) -> str:
        g, spec = self.g, self.spec
        if self.type_of(name) == "int8":
            scale = self.w.s_ckv if name == "kv_cache" else self.w.s_kr
            rows = QUANTS[spec.quant].build(g, rows, scale[:1] if spec.kinds == "kv" else scale, None)
        slots = "slots2" if spec.trap == "other_slots" and name == "kr_cache" else "slots"
        return self.how.build(g, name, rows, slots, Sizes(1, width, BLOCK, self.fractal(name)))


def legal(spec: Spec) -> bool:
    """Whether the parts go together."""
    how, rope = WRITES[spec.write], ROPES[spec.rope]
    if spec.opset < max(12, how.since, rope.since) or (spec.norm == "standard_op" and spec.opset < 23):
        return False
    if spec.norm == "runtime_op" or (spec.dtype == "bfloat16" and spec.opset < 13):
        return False
    if spec.kinds != "none" and (how.cache.startswith("nz") or spec.opset < QUANTS[spec.quant].since):
        return False
    if spec.quant == "linear_columns" or (spec.kinds == "both" and not QUANTS[spec.quant].per_column):
        return False
    if spec.reads and spec.scales[0] != 1:
        return False
    rows = how.slots in ("rows", "shared", "start")
    return not (spec.flat and (rows or how.slots == "pages"))


def feeds(spec: Spec, seed: int) -> dict[str, Array]:
    """Random inputs for the spec's sizes."""
    rng = np.random.default_rng(seed)
    B, S = spec.sizes
    kind, how, made = NUMPY[spec.dtype], WRITES[spec.write], Preamble(spec)
    shape = (B * S, HIDDEN) if spec.flat else (B, S, HIDDEN)
    width = ROPE // 2 if ROPES[spec.rope].width == "half" else ROPE
    given: dict[str, Array] = {name: rng.standard_normal(shape).astype(kind) for name in ("x", "x2")}
    for name in ("cos", "sin", "cos2"):
        given[name] = rng.standard_normal((B, 1, S, width)).astype(kind)
    for name in ("slots", "slots2"):
        given[name] = define.slot_values(rng, how.slots, B, S, PAGES, BLOCK, LENGTH)
    for name, columns in (("kv_cache", LATENT), ("kr_cache", ROPE)):
        dims = [B if isinstance(dim, str) else int(dim or 0) for dim in made.cache_dims(name, columns)]
        drawn = rng.standard_normal(dims) * 10
        given[name] = np.rint(drawn).astype(np.int8) if made.type_of(name) == "int8" else drawn.astype(kind)
    return given


def meaning(spec: Spec, given: dict[str, Array]) -> dict[str, Array]:
    """What the preamble gives, in float64."""
    w, how, made = Weights(spec), WRITES[spec.write], Preamble(spec)
    B, S = spec.sizes

    def f(array: Array) -> Array:
        return np.asarray(array, np.float64)

    x = f(given["x"]).reshape(B, S, HIDDEN)
    cos, sin = (f(given[name]) for name in ("cos", "sin"))
    rope = ROPES[spec.rope]
    if rope.width == "half":
        cos, sin = (np.concatenate([table, table], -1) for table in (cos, sin))
    if rope.width == "first":
        cos, sin = (np.concatenate([table[..., : ROPE // 2]] * 2, -1) for table in (cos, sin))
    normed = define.rms_norm(x @ f(w.dq), f(w.g_cq), spec.eps[0])
    m = (spec.scales[0] * normed @ f(w.uq)).reshape(B, S, spec.heads, NOPE + ROPE).transpose(0, 2, 1, 3)
    both = x @ f(w.dkv)
    c = spec.scales[1] * define.rms_norm(both[..., :LATENT], f(w.g_ckv), spec.eps[1])
    k = define.rotate(both[:, None, :, LATENT:], cos, sin, rope.kind)
    results = {
        "query": np.einsum("bnsd,ndc->bnsc", m[..., :NOPE], f(w.uk)),
        "query_rope": define.rotate(m[..., NOPE:], cos, sin, rope.kind),
    }
    page, row = define.places(given["slots"], how.slots, B, S, BLOCK)
    for name, rows, scale in (("kv_cache", c[:, None], w.s_ckv), ("kr_cache", k, w.s_kr)):
        if made.type_of(name) == "int8":
            rows = define.quantise(rows, scale[:1] if spec.kinds == "kv" else scale, None)
        written = define.write(given[name], rows, page, row, how.cache, BLOCK, made.fractal(name))
        results[f"{name}_out"] = written
    if spec.reads:
        results["normed"] = normed.reshape((*given["x"].shape[:-1], RANK))
    return results


TOLERANCE = {"float32": 1e-4, "float16": 2e-2, "bfloat16": 1.5e-1}
"""Relative to the largest value of an output; int8 may be some steps apart where rows were rounded to 16 bits."""
STEPS = {"float32": 1, "float16": 2, "bfloat16": 12}


def worst(got: dict[str, Array], wanted: dict[str, Array], dtype: str) -> str:
    """Empty when results agree, else what differs."""
    for name, value in wanted.items():
        if got[name].shape != value.shape:
            return f"{name}: {got[name].shape}, wanted {value.shape}"
        gap = np.abs(got[name].astype(np.float64) - value.astype(np.float64)).max(initial=0)
        limit = STEPS[dtype] if value.dtype == np.int8 else TOLERANCE[dtype] * np.abs(value.astype(np.float64)).max()
        if not gap <= limit:
            return f"{name}: {gap:.3g} apart, at most {limit:.3g}"
    return ""


assert ml_dtypes  # numpy needs it imported for bfloat16
