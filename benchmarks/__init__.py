"""Measurements that ``kvfuse bench`` prints: ratios, taken in one process and in turns."""

from __future__ import annotations

from collections.abc import Sequence

NAMES = ("decode", "kernels", "mla", "attention", "scale")
DEFAULT = ("decode", "kernels")
"""What is measured unasked: ``mla`` and ``attention`` take a gigabyte of memory and more, ``scale`` takes minutes."""


def main(argv: Sequence[str] = ()) -> int:
    """Runs the benchmarks named in ``argv`` (``decode`` and ``kernels`` by default); prints each table as it comes.

    ``--quick`` measures for a fraction of the time, ``--threads N`` gives the kernels N threads, ``--small`` makes the
    layers of ``mla`` and ``decode`` a fraction of their size, ``--layers N`` and ``--long`` are ``decode``'s.

    Raises:
        BadUsage: an unknown name or option.
    """
    from benchmarks import attention, decode, kernel_rows, mla_prolog, scale

    parts = (decode, kernel_rows, mla_prolog, attention, scale)
    runs = dict(zip(NAMES, (part.run for part in parts), strict=True))
    gap = ""
    for name in _names(argv):
        for text in runs[name](argv):
            print(gap + text, flush=True)
            gap = "\n"
    return 0


def _names(argv: Sequence[str]) -> list[str]:
    from ir_ops.errors import BadUsage

    names, rest = [], list(argv)
    while rest:
        word = rest.pop(0)
        if word in NAMES:
            names.append(word)
        elif word in ("--threads", "--layers") and rest and rest[0].isdigit() and int(rest[0]) > 0:
            rest.pop(0)
        elif word not in ("--quick", "--small", "--long"):
            raise BadUsage(
                "unknown benchmark or option",
                found=word,
                wanted=" | ".join((*NAMES, "--quick", "--small", "--long", "--threads N", "--layers N")),
            )
    return names or list(DEFAULT)
