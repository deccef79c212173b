"""What a near miss of QkvRmsNormRopeCache is, and the table of all."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from tests.fusion.qkv.spec import Spec, legal
from tests.fusion.qkv.spellings import Preamble


@dataclass(frozen=True)
class Trap:
    """One near miss.

    Attributes:
        preamble, spec: what builds it, and the preamble that it nearly is.
        text: what is different.
        words: one of them must occur in a refusal of the operator; empty where none is needed.
        sites: numbers of fused nodes that are right: 0 where the operator cannot say what the graph says.
    """

    preamble: type[Preamble]
    spec: Spec
    text: str
    words: tuple[str, ...]
    sites: tuple[int, ...]


TRAPS: dict[str, Trap] = {}


def trap(
    text: str, *words: str, sites: tuple[int, ...] = (0,), **choices: Any
) -> Callable[[type[Preamble]], type[Preamble]]:
    def enter(preamble: type[Preamble]) -> type[Preamble]:
        spec = Spec(**choices)
        assert legal(spec) and preamble.__name__ not in TRAPS
        TRAPS[preamble.__name__] = Trap(preamble, spec, text, words, sites)
        return preamble

    return enter
