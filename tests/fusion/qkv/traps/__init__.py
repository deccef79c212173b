"""Near misses of QkvRmsNormRopeCache: preambles with one part done differently."""

from tests.fusion.qkv.traps import caches, norms, rotation, rows
from tests.fusion.qkv.traps.registry import TRAPS, Trap

__all__ = ["TRAPS", "Trap", "caches", "norms", "rotation", "rows"]
