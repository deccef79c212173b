"""What a near miss of DequantRopeQuantKvcache is, and the table of all."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from tests.fusion.zoo.packed import Packed, PackedPreamble
from tests.fusion.zoo.quants import rounded, shifted


@dataclass(frozen=True)
class Trap:
    """A preamble with one part done otherwise; ``code`` is the refusal's, "" where several say it."""

    name: str
    preamble: type[PackedPreamble]
    code: str
    choices: dict[str, Any] = field(default_factory=dict, hash=False)

    @property
    def spec(self) -> Packed:
        return Packed(**self.choices)


TRAPS: dict[str, Trap] = {}


def trap(code: str, **choices: Any) -> Callable[[type[PackedPreamble]], type[PackedPreamble]]:
    def enter(preamble: type[PackedPreamble]) -> type[PackedPreamble]:
        TRAPS[preamble.__name__] = Trap(preamble.__name__, preamble, code, choices)
        return preamble

    return enter


class Own(PackedPreamble):
    """Quantises by a hook: ``steps`` of the scaled rows."""

    def quantise(self, which: str, rows: str) -> str:
        g = self.g
        scale, offset = self.p[f"scale_{which}"][:, None, :], self.p[f"offset_{which}"][:, None, :]
        return self.steps(which, shifted(g, g.op("Mul", rows, g.const(scale)), offset))

    def steps(self, which: str, rows: str) -> str:
        return rounded(self.g, rows)


# -- rounding and limits ---------------------------------------------------------------------------------------------
