"""Random legal specs, and a small set in which every spelling appears."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import fields
from typing import Any

from tests.fusion.mla.absorbs import ABSORBS
from tests.fusion.mla.preamble import QUANTS, ROPES, WRITES, legal
from tests.fusion.mla.spec import Spec
from tests.fusion.zoo.norms import NORMS

FACTORS: dict[str, Sequence[Any]] = {
    "norm": tuple(NORMS),
    "rope": tuple(ROPES),
    "write": tuple(WRITES),
    "quant": tuple(QUANTS),
    "absorb": tuple(ABSORBS),
    "opset": tuple(range(12, 25)),
    "dtype": ("float32", "float16", "bfloat16"),
    "style": ("dynamo", "ts"),
    "flat": (False, True),
    "project": ("matmul", "gemm", "einsum"),
    "kv": ("joint", "apart", "all"),
    "split": ("late", "early"),
    "kinds": ("none", "none", "none", "kv", "both"),
    "scales": ((1.0, 1.0), (1.0, 1.0), (2.0, 1.0), (1.5, 3.0)),
    "place": ("norm", "up", "parts"),
    "reads": ("", "norm"),
    "dims": ("named", "own", "static"),
    "heads": (1, 2, 3, 5),
}


def draw(rng: random.Random, **fixed: Any) -> Spec:
    """A random legal spec with some choices fixed."""
    while True:
        spec = Spec(**({name: rng.choice(values) for name, values in FACTORS.items()} | fixed))
        if legal(spec):
            return spec


def cover(count: int, seed: int) -> list[Spec]:
    """``count`` specs; each takes up a norm, a rotation, a write or an absorption that is still missing."""
    rng = random.Random(seed)
    found: list[Spec] = []
    for number in range(count):
        names = ("absorb", "write", "rope", "norm", "kv", "project")
        name = names[number % len(names)]
        missing = [value for value in FACTORS[name] if not any(getattr(spec, name) == value for spec in found)]
        for value in missing[:1]:
            # some spellings need a newer opset than was drawn, or do not exist in these graphs at all
            newest = {"opset": 24} if name in ("write", "rope", "norm") else {}
            if value not in ("runtime_op",):
                found.append(draw(rng, **{name: value}, **newest))
        if not missing:
            found.append(draw(rng))
    return found


def label(spec: Spec) -> str:
    """What differs from the default, for a test id."""
    default = Spec()
    names = [field.name for field in fields(spec) if field.name in FACTORS]
    return "-".join(str(getattr(spec, name)) for name in names if getattr(spec, name) != getattr(default, name))
