"""Ways to write the product of each head's query with its matrix."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from tests.fusion.mla.spec import LATENT, NOPE, Spec
from tests.fusion.zoo.graph import Array, Graph

Absorb = Callable[[Graph, str, Array, Spec], str]
ABSORBS: dict[str, Absorb] = {}


def absorb(build: Absorb) -> Absorb:
    """An absorption takes q_nope ``[B, N, S, D]`` and gives ``[B, N, S, C]``."""
    ABSORBS[build.__name__] = build
    return build


@absorb
def einsum(g: Graph, q: str, uk: Array, spec: Spec) -> str:
    return g.op("Einsum", q, g.const(uk), equation="bnsd,ndc->bnsc")


@absorb
def einsum_weight_first(g: Graph, q: str, uk: Array, spec: Spec) -> str:
    return g.op("Einsum", g.const(uk.transpose(0, 2, 1)), q, equation="ncd,bnsd->bnsc")


@absorb
def einsum_ellipsis(g: Graph, q: str, uk: Array, spec: Spec) -> str:
    return g.op("Einsum", q, g.const(uk), equation="...nsd,ndc->...nsc")


@absorb
def einsum_out_of_order(g: Graph, q: str, uk: Array, spec: Spec) -> str:
    made = g.op("Einsum", q, g.const(uk.transpose(2, 0, 1)), equation="bnsd,cnd->sbnc")
    return g.transpose(made, 1, 2, 0, 3)


@absorb
def matmul(g: Graph, q: str, uk: Array, spec: Spec) -> str:
    return g.op("MatMul", q, g.const(uk))


@absorb
def matmul_unit_batch(g: Graph, q: str, uk: Array, spec: Spec) -> str:
    return g.op("MatMul", q, g.const(uk[None]))


@absorb
def matmul_from_left(g: Graph, q: str, uk: Array, spec: Spec) -> str:
    made = g.op("MatMul", g.const(uk.transpose(0, 2, 1)), g.transpose(q, 0, 1, 3, 2))
    return g.transpose(made, 0, 1, 3, 2)


@absorb
def by_row(g: Graph, q: str, uk: Array, spec: Spec) -> str:
    """Each head's row alone: ``[B, S, N, 1, D] x [N, D, C]``."""
    rows = g.unsqueeze(g.transpose(q, 0, 2, 1, 3), 3)
    return g.transpose(g.squeeze(g.op("MatMul", rows, g.const(uk)), 3), 0, 2, 1, 3)


@absorb
def bmm(g: Graph, q: str, uk: Array, spec: Spec) -> str:
    """``[N, B*S, D] x [N, D, C]``."""
    rows = g.reshape(g.transpose(q, 1, 0, 2, 3), spec.heads, -1, NOPE)
    made = g.op("MatMul", rows, g.const(uk))
    return g.transpose(g.reshape(made, spec.heads, (q, 0), (q, 2), LATENT), 1, 0, 2, 3)


@absorb
def product_and_sum(g: Graph, q: str, uk: Array, spec: Spec) -> str:
    made = g.op("Mul", g.unsqueeze(g.transpose(q, 0, 2, 1, 3), 4), g.const(uk))
    return g.transpose(g.reduce("ReduceSum", made, 3, keepdims=0), 0, 2, 1, 3)


@absorb
def from_kv_b(g: Graph, q: str, uk: Array, spec: Spec) -> str:
    """The weight is cut out of kv_b_proj ``[N * (D + V), C]``, as a model that absorbs on the fly does."""
    both = np.concatenate([uk, np.ones((spec.heads, 5, LATENT), uk.dtype)], 1).reshape(-1, LATENT)
    view = g.reshape(g.const(both), spec.heads, NOPE + 5, LATENT)
    return g.op("Einsum", q, g.slice(view, 0, NOPE, 1), equation="bhqd,hdc->bhqc")


@absorb
def from_kv_b_turned(g: Graph, q: str, uk: Array, spec: Spec) -> str:
    """kv_b_proj as MatMul has it, ``[C, N * (D + V)]``: Reshape, Split and Transpose."""
    both = np.concatenate([uk, np.ones((spec.heads, 5, LATENT), uk.dtype)], 1).reshape(-1, LATENT).T
    view = g.reshape(g.const(np.ascontiguousarray(both)), LATENT, spec.heads, NOPE + 5)
    return g.op("MatMul", q, g.transpose(g.split(view, [NOPE, 5], 2)[0], 1, 2, 0))
