"""How many random calls the tests make: `make test` a few hundred, `make thorough` thousands, `make sanitize` few."""

from __future__ import annotations

import os


def how_many(usual: int, *, share: float = 1.0) -> int:
    """``usual``, or ``share`` of what the environment variable ``KVFUSE_CASES`` says."""
    wanted = os.environ.get("KVFUSE_CASES")
    return usual if wanted is None else max(1, round(int(wanted) * share))
