"""What ONNX operators do, in numpy: one table, used on concrete values, on unique tags and on symbolic terms.

Movement operators are only ever run on arrays, whatever these hold, so the three uses cannot disagree.
"""

from __future__ import annotations

from fusion.facts.semantics import arithmetic, caches, convolution, fused, indexing, integer, reduction, views
from fusion.facts.semantics.table import Attrs, Conflict, OpDef, OutOfRange, Unsupported, lookup

__all__ = ["Attrs", "Conflict", "OpDef", "OutOfRange", "Unsupported", "lookup"]

_FAMILIES = (arithmetic, caches, convolution, fused, indexing, integer, reduction, views)
"""Imported for their entries in the table."""
