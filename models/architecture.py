"""Sizes of the decoders that :mod:`models` can build, from the published configurations, and toy versions of them."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace


@dataclass(frozen=True)
class Yarn:
    """YaRN scaling of the rotation's frequencies, as in the models' ``rope_scaling``."""

    factor: float
    original_length: int
    mscale: float
    mscale_all_dim: float
    beta_fast: float = 32.0
    beta_slow: float = 1.0

    def gain(self, mscale: float) -> float:
        return 0.1 * mscale * math.log(self.factor) + 1.0 if self.factor > 1 else 1.0


@dataclass(frozen=True)
class Experts:
    """A mixture of experts.

    Attributes:
        count, top_k, width: routed experts, how many of them a token uses, and their intermediate size.
        shared: experts that every token uses, built as one of ``shared * width``.
        dense_layers: first layers that have a plain MLP.
        groups, top_groups: routing limited to groups; 0 for none.
        scale: factor of the routed result.
        normalised: the chosen weights are divided by their sum.
        sigmoid: scores by sigmoid with a correction bias, otherwise by softmax.
    """

    count: int
    top_k: int
    width: int
    shared: int = 0
    dense_layers: int = 0
    groups: int = 0
    top_groups: int = 0
    scale: float = 1.0
    normalised: bool = True
    sigmoid: bool = False


@dataclass(frozen=True)
class Latent:
    """Multi-head latent attention; ``q_rank`` 0 means that queries are projected in one step."""

    q_rank: int
    kv_rank: int
    nope: int
    rope: int
    value: int


@dataclass(frozen=True)
class Architecture:
    """A decoder.

    Attributes:
        family: the ``model_type``: qwen2, qwen3, qwen3_moe, deepseek_v2, deepseek_v3.
        kv_heads, head_dim: of grouped-query attention; latent attention has ``latent`` instead.
    """

    family: str
    layers: int
    hidden: int
    heads: int
    intermediate: int
    vocab: int
    kv_heads: int = 0
    head_dim: int = 128
    epsilon: float = 1e-6
    theta: float = 10000.0
    latent: Latent | None = None
    experts: Experts | None = None
    yarn: Yarn | None = None

    @property
    def rotary(self) -> int:
        """Columns that are rotated."""
        return self.latent.rope if self.latent else self.head_dim

    def has_experts(self, layer: int) -> bool:
        return self.experts is not None and layer >= self.experts.dense_layers


_V3 = Experts(256, 8, 2048, 1, 3, 8, 4, 2.5, sigmoid=True)
_V2 = Experts(160, 6, 1536, 2, 1, 8, 3, 16.0, normalised=False)
_LATENT = Latent(1536, 512, 128, 64, 128)
_QWEN3 = {
    "0.6b": (28, 1024, 16, 3072, 8),
    "4b": (36, 2560, 32, 9728, 8),
    "8b": (36, 4096, 32, 12288, 8),
    "14b": (40, 5120, 40, 17408, 8),
    "32b": (64, 5120, 64, 25600, 8),
}
_QWEN2 = {
    "0.5b": (24, 896, 14, 4864, 2, 151936),
    "7b": (28, 3584, 28, 18944, 4, 152064),
    "72b": (80, 8192, 64, 29568, 8, 152064),
}
PRESETS: dict[str, Architecture] = {
    "deepseek-v3": Architecture(
        "deepseek_v3", 61, 7168, 128, 18432, 129280, latent=_LATENT, experts=_V3, yarn=Yarn(40.0, 4096, 1.0, 1.0)
    ),
    "deepseek-v2": Architecture(
        "deepseek_v2", 60, 5120, 128, 12288, 102400, latent=_LATENT, experts=_V2, yarn=Yarn(40.0, 4096, 0.707, 0.707)
    ),
    "deepseek-v2-lite": Architecture(
        "deepseek_v2", 27, 2048, 16, 10944, 102400, latent=replace(_LATENT, q_rank=0),
        experts=Experts(64, 6, 1408, 2, 1, normalised=False), yarn=Yarn(40.0, 4096, 0.707, 0.707),
    ),
    **{
        f"qwen3-{size}": Architecture("qwen3", layers, hidden, heads, width, 151936, kv, theta=1e6)
        for size, (layers, hidden, heads, width, kv) in _QWEN3.items()
    },
    "qwen3-30b-a3b": Architecture(
        "qwen3_moe", 48, 2048, 32, 6144, 151936, 4, theta=1e6, experts=Experts(128, 8, 768)
    ),
    "qwen3-235b-a22b": Architecture(
        "qwen3_moe", 94, 4096, 64, 12288, 151936, 4, theta=1e6, experts=Experts(128, 8, 1536)
    ),
    **{
        f"qwen2-{size}": Architecture("qwen2", layers, hidden, heads, width, vocab, kv, hidden // heads, theta=1e6)
        for size, (layers, hidden, heads, width, kv, vocab) in _QWEN2.items()
    },
}  # fmt: skip
ALIASES = {"qwen3": "qwen3-32b", "qwen3-moe": "qwen3-235b-a22b", "qwen2": "qwen2-7b"}


def tiny(model: Architecture) -> Architecture:
    """A toy of the same structure: two layers (the second with experts), small widths; widths of heads and of the
    latent stay the real ones."""
    latent = model.latent and replace(model.latent, q_rank=min(model.latent.q_rank, 96))
    experts = model.experts and replace(
        model.experts, count=4, top_k=2, width=32, dense_layers=1,
        groups=2 if model.experts.groups else 0, top_groups=1 if model.experts.groups else 0,
    )  # fmt: skip
    return replace(
        model, layers=2, hidden=128, heads=4 if model.kv_heads else 2, kv_heads=2 if model.kv_heads else 0,
        intermediate=64, vocab=64, latent=latent, experts=experts,
    )  # fmt: skip
