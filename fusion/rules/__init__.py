"""One rule per fused operator: facts in, candidates and refusals out. A file with a ``RULE`` is a rule."""

from __future__ import annotations

import importlib
import pkgutil

from fusion.candidate import Rule


def all_rules() -> list[Rule]:
    """The rules, the largest operator first."""
    names = sorted(info.name for info in pkgutil.iter_modules(__path__) if not info.name.startswith("_"))
    rules: list[Rule] = [importlib.import_module(f"{__name__}.{name}").RULE for name in names]
    return sorted(rules, key=lambda rule: -rule.size)
