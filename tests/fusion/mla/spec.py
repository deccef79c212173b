"""What a preamble of absorbed latent attention looks like, in words: its sizes and its spellings."""

from __future__ import annotations

from dataclasses import dataclass

PAGES, BLOCK, LENGTH = 12, 4, 13
HIDDEN, RANK, HEADS, NOPE, ROPE, LATENT = 20, 12, 3, 6, 32, 64


@dataclass(frozen=True)
class Spec:
    """One preamble.

    Attributes:
        absorb: name in ABSORBS.
        flat: hidden states ``[T, H]``, not ``[B, S, H]``.
        project: ``matmul``, ``gemm`` (rank 2, transposed weight) or ``einsum``.
        kv: ``joint`` (one product for both parts), ``apart`` or ``all`` (the compressed query is in it too).
        split: heads are split off ``late`` (after the transpose to ``[B, N, S, D]``) or ``early``.
        kinds: of the caches: ``none``, ``kv`` or ``both`` are int8.
        scales: what compressed query and key rows are multiplied by; ``place`` says where that of the query is:
            behind the ``norm``, behind the ``up``-projection or on both ``parts``.
        complex: cos and sin come from one value of complex numbers; key and query each take them out of it.
        reads: further outputs: ``norm`` (the normed query).
        dims: ``named``, ``own`` or ``static``.
    """

    norm: str = "hf_reciprocal"
    rope: str = "deint_view"
    write: str = "flat_scatter_nd"
    quant: str = "divide"
    absorb: str = "einsum"
    opset: int = 18
    dtype: str = "float32"
    style: str = "dynamo"
    flat: bool = False
    project: str = "matmul"
    kv: str = "joint"
    split: str = "late"
    kinds: str = "none"
    scales: tuple[float, float] = (1.0, 1.0)
    place: str = "norm"
    complex: bool = False
    reads: str = ""
    dims: str = "named"
    eps: tuple[float, float] = (1e-6, 1e-5)
    heads: int = HEADS
    trap: str = ""
    sizes: tuple[int, int] = (2, 3)

    @property
    def fractal(self) -> int:
        """Columns of an NZ fractal of unquantised caches."""
        return 8 if self.dtype == "float32" else 16
