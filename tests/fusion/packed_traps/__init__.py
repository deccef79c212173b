"""Graphs that nearly are a DequantRopeQuantKvcache: preambles with one part done otherwise."""

from tests.fusion.packed_traps import caches, quantisation, rotation
from tests.fusion.packed_traps.registry import TRAPS, Trap

__all__ = ["TRAPS", "Trap", "caches", "quantisation", "rotation"]
