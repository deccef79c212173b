"""Errors a user can cause. Each prints as one line: what, where, found, wanted, what to do."""

from __future__ import annotations


class KvfuseError(Exception):
    """A user's mistake or an input kvfuse refuses; ``str()`` is always one line.

    Args:
        what: what is wrong, as a short sentence without a trailing dot.
        where: file, node, input or option it was found at.
        found: what was there.
        wanted: what would have been accepted.
        hint: what the user can do about it.
    """

    def __init__(self, what: str, *, where: str = "", found: str = "", wanted: str = "", hint: str = "") -> None:
        self.what, self.where, self.found, self.wanted, self.hint = what, where, found, wanted, hint
        super().__init__(self.line())

    def line(self) -> str:
        """The error as one line; line breaks inside the parts are folded."""
        text = f"{self.where}: {self.what}" if self.where else self.what
        facts = [f"{label} {value}" for label, value in (("found", self.found), ("wanted", self.wanted)) if value]
        if facts:
            text += "; " + ", ".join(facts)
        if self.hint:
            text += f" ({self.hint})"
        return " ".join(text.split())


class BadModel(KvfuseError):
    """A model file or graph that cannot be read or is not valid."""


class BadInput(KvfuseError):
    """Tensors or values that do not fit the model or operator they are given to."""


class BadUsage(KvfuseError):
    """A wrong option or argument."""


class ExportError(KvfuseError):
    """A model that cannot be exported; raised before anything is written."""
