"""Names that GE takes: letters, digits and ``_ . / -`` only, unique in their graph."""

from __future__ import annotations

import re

_BAD = re.compile(r"[^A-Za-z0-9_./-]")


def sanitise(name: str) -> str:
    """``name`` with every character that GE's tools trip over replaced by ``_``; "unnamed" for an empty one."""
    return _BAD.sub("_", name) or "unnamed"


def is_clean(name: str) -> bool:
    return bool(name) and not _BAD.search(name)


class Names:
    """Hands out unique sanitised names; the same sequence of requests gives the same names."""

    def __init__(self) -> None:
        self._taken: set[str] = set()
        self._counters: dict[str, int] = {}

    def __contains__(self, name: str) -> bool:
        """Whether ``name``, sanitised, is taken."""
        return sanitise(name) in self._taken

    def unique(self, wanted: str) -> str:
        """``wanted`` sanitised, with ``_1``, ``_2``, ... at the end when it is taken."""
        base = name = sanitise(wanted)
        while name in self._taken:
            self._counters[base] = self._counters.get(base, 0) + 1
            name = f"{base}_{self._counters[base]}"
        self._taken.add(name)
        return name
