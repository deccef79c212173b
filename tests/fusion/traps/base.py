"""Near misses: preambles with one part done differently, and what a fuser has to say about them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from tests.fusion.zoo.spec import Spec, legal
from tests.fusion.zoo.spellings import Preamble


@dataclass(frozen=True)
class Trap:
    """One near miss.

    Attributes:
        name: of the class that builds it.
        preamble: the class.
        spec: the preamble that it nearly is.
        text: what is different, in words.
        keywords: one of them must occur in the refusal (lower case); empty when no refusal is needed because nothing
            in the graph looks like the operator.
        sites: numbers of fused nodes that are right. ``(0,)`` where the operator cannot say what the graph says;
            ``(0, 1)`` where a fuser may refuse or may put something in front; ``(1,)`` where refusing would be a miss.
        same: the graph computes the definition all the same (aliasing and type traps).
        assumes: a fused node must state an assumption with this word in it.
    """

    name: str
    preamble: type[Preamble]
    spec: Spec
    text: str
    keywords: tuple[str, ...]
    sites: tuple[int, ...]
    same: bool
    assumes: str


TRAPS: dict[str, Trap] = {}


def trap(
    text: str,
    *keywords: str,
    sites: tuple[int, ...] = (0,),
    same: bool = False,
    assumes: str = "",
    **choices: Any,
) -> Callable[[type[Preamble]], type[Preamble]]:
    """Enter a subclass of :class:`Preamble` as a trap; ``choices`` are fields of the spec that it nearly is."""

    def enter(preamble: type[Preamble]) -> type[Preamble]:
        spec = Spec(**choices)
        assert legal(spec), preamble.__name__
        name = preamble.__name__
        assert name not in TRAPS, name
        TRAPS[name] = Trap(name, preamble, spec, text, keywords, sites, same, assumes)
        return preamble

    return enter
