"""Why a node cannot be converted."""

from __future__ import annotations


class Unsupported(Exception):
    """A node that cannot be converted; ``nearest`` names what could be used instead."""

    def __init__(self, reason: str, nearest: str = "") -> None:
        super().__init__(reason)
        self.reason, self.nearest = reason, nearest
