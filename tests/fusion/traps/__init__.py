"""Near-miss graphs. Importing this package enters all of them in ``TRAPS``."""

from __future__ import annotations

from tests.fusion.traps import alias_traps, norm_traps, quant_traps, rope_traps, write_traps
from tests.fusion.traps.base import TRAPS, Trap

__all__ = ["TRAPS", "Trap", "alias_traps", "norm_traps", "quant_traps", "rope_traps", "write_traps"]
