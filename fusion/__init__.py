"""How a graph becomes a fused graph: recognising, proving, rewriting, verifying, reading and writing models."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from fusion.api import explain, fuse, verify
    from fusion.defusing import defuse
    from fusion.passes import DefusePass, FusionPass
    from fusion.result import Difference, FusionResult, Proof, Refusal, Site, VerifyResult

__all__ = [
    "DefusePass",
    "Difference",
    "FusionPass",
    "FusionResult",
    "Proof",
    "Refusal",
    "Site",
    "VerifyResult",
    "defuse",
    "explain",
    "fuse",
    "verify",
]

_HOMES = {
    "defuse": "fusion.defusing",
    "explain": "fusion.api",
    "fuse": "fusion.api",
    "verify": "fusion.api",
    "DefusePass": "fusion.passes",
    "FusionPass": "fusion.passes",
    "Difference": "fusion.result",
    "FusionResult": "fusion.result",
    "Proof": "fusion.result",
    "Refusal": "fusion.result",
    "Site": "fusion.result",
    "VerifyResult": "fusion.result",
}


def __getattr__(name: str) -> Any:
    """Public names are loaded on first use, so that ``kvfuse --help`` costs nothing."""
    import importlib

    if name in _HOMES:
        return getattr(importlib.import_module(_HOMES[name]), name)
    raise AttributeError(f"module 'fusion' has no attribute {name!r}")
