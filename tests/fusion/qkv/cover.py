"""A small set of specs in which every spelling meets many partners, drawn as in :mod:`tests.fusion.zoo.cover`."""

from __future__ import annotations

import random
from collections.abc import Sequence
from itertools import combinations
from typing import Any

from tests.fusion.qkv.spec import QUERIES, ROWS, SOURCES, SPLITS, Spec, legal
from tests.fusion.zoo.norms import NORMS
from tests.fusion.zoo.quants import QUANTS
from tests.fusion.zoo.ropes import ROPES
from tests.fusion.zoo.writes import WRITES

NZ = [name for name, write in WRITES.items() if write.modes == ("PA_NZ",)]
FACTORS: dict[str, Sequence[Any]] = {
    "norm": tuple(NORMS),
    "rope": tuple(ROPES),
    "quant": ("none", "none", *(name for name in QUANTS if name != "linear_columns")),
    "write": tuple(NZ),
    "opset": tuple(range(11, 25)),
    "dtype": ("float32", "float16", "bfloat16"),
    "style": ("dynamo", "ts"),
    "source": SOURCES,
    "split": SPLITS,
    "rows": ROWS,
    "query": QUERIES,
    "heads": ((4, 2, 2), (2, 1, 1), (3, 3, 3), (4, 1, 2)),
    "quantised": ("both", "k", "v"),
    "offset": (False, True),
    "per_column": (True, False),
    "cos": ("input", "batch1", "table", "freq"),
    "dims": ("named", "own", "static"),
    "raw": (False, True),
    "layers": (1, 1, 2),
    "eps": (1e-5, 1e-6, 1e-3),
}


def draw(rng: random.Random, **fixed: Any) -> Spec:
    """A random legal spec with some choices fixed."""
    while True:
        spec = Spec(**({name: rng.choice(values) for name, values in FACTORS.items()} | fixed))
        if legal(spec):
            return spec


def cover(count: int, seed: int = 1, tries: int = 12) -> list[Spec]:
    """``count`` specs: first every spelling that is still missing, and always what adds most new pairs."""
    rng = random.Random(seed)
    seen: set[tuple[Any, ...]] = set()
    out: list[Spec] = []
    for _ in range(count):
        missing = [
            (name, value)
            for name in ("norm", "rope", "quant", "write", "source")
            for value in FACTORS[name]
            if not any(getattr(spec, name) == value for spec in out)
        ]
        fixed = dict(missing[:1])
        best = max((draw(rng, **fixed) for _ in range(tries)), key=lambda spec: len(_pairs(spec) - seen))
        seen |= _pairs(best)
        out.append(best)
    return out


def _pairs(spec: Spec) -> set[tuple[Any, ...]]:
    chosen = [(name, getattr(spec, name)) for name in FACTORS]
    return {(*first, *second) for first, second in combinations(chosen, 2)}


def label(spec: Spec) -> str:
    """A short name for a test id: what differs from the default."""
    default = Spec()
    parts = [f"{name}={value}" for name in FACTORS if (value := getattr(spec, name)) != getattr(default, name)]
    return "-".join(parts).replace(" ", "") or "default"
