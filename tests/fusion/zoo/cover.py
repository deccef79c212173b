"""A small set of specs in which every spelling meets many partners.

The full product has about a billion members. ``cover`` draws legal specs greedily so that each adds as many new pairs
of choices as possible; every spelling appears, and the result depends on the arguments only.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from itertools import combinations
from typing import Any

from tests.fusion.zoo.norms import NORMS
from tests.fusion.zoo.quants import QUANTS
from tests.fusion.zoo.ropes import ROPES
from tests.fusion.zoo.spec import Spec, legal
from tests.fusion.zoo.writes import WRITES

FACTORS: dict[str, Sequence[Any]] = {
    "norm": tuple(NORMS),
    "rope": tuple(ROPES),
    "quant": ("none", "none", *QUANTS),
    "write": tuple(WRITES),
    "opset": tuple(range(11, 25)),
    "dtype": ("float32", "float16", "bfloat16"),
    "style": ("dynamo", "ts"),
    "form": ("v1", "v2", "v2part"),
    "quantised": ("both", "k", "v"),
    "offset": (False, True),
    "per_column": (True, False),
    "kv": ("input", "matmul", "gemm", "bias"),
    "cos": ("input", "batch1", "table", "freq"),
    "dims": ("named", "own", "static"),
    "outs": (False, True),
    "layers": (1, 1, 2),
    "eps": (1e-5, 1e-6, 1e-3),
}


def draw(rng: random.Random, **fixed: Any) -> Spec:
    """A random legal spec with some choices fixed. Sizes stay the same, so that static graphs can be fed alike."""
    while True:
        spec = Spec(**({name: rng.choice(values) for name, values in FACTORS.items()} | fixed))
        if legal(spec):
            return spec


def pairs(spec: Spec) -> set[tuple[str, Any, str, Any]]:
    chosen = [(name, getattr(spec, name)) for name in FACTORS]
    return {(*first, *second) for first, second in combinations(chosen, 2)}


def cover(count: int, seed: int = 1, tries: int = 12) -> list[Spec]:
    """``count`` specs: first every spelling that is still missing, and always what adds most new pairs."""
    rng = random.Random(seed)
    seen: set[tuple[str, Any, str, Any]] = set()
    out: list[Spec] = []
    for _ in range(count):
        missing = [
            (name, value)
            for name in ("norm", "rope", "quant", "write")
            for value in FACTORS[name]
            if not any(getattr(spec, name) == value for spec in out)
        ]
        fixed = dict(missing[:1])
        best = max((draw(rng, **fixed) for _ in range(tries)), key=lambda spec: len(pairs(spec) - seen))
        seen |= pairs(best)
        out.append(best)
    return out


def label(spec: Spec) -> str:
    """A short name for a test id: what differs from the default."""
    default = Spec()
    parts = [f"{getattr(spec, name)}" for name in ("norm", "rope", "quant", "write")]
    parts += [
        f"{name}={getattr(spec, name)}"
        for name in FACTORS
        if name not in ("norm", "rope", "quant", "write") and getattr(spec, name) != getattr(default, name)
    ]
    return "-".join(parts)
