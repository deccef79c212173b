"""Measurements that ``kvfuse bench`` prints: ratios, taken in one process and in turns."""

from __future__ import annotations

from collections.abc import Sequence

NAMES = ("decode", "kernels")


def main(argv: Sequence[str] = ()) -> int:
    """Runs the benchmarks named in ``argv`` (``decode``, ``kernels``; all by default) and prints their tables.

    ``--quick`` measures for a fraction of the time, ``--threads N`` gives the kernels N threads.

    Raises:
        BadUsage: an unknown name or option.
    """
    from benchmarks import decode_cache_size, kernel_rows

    names = _names(argv)
    for name in names:
        print({"decode": decode_cache_size, "kernels": kernel_rows}[name].run(argv), flush=True)
        if name != names[-1]:
            print()
    return 0


def _names(argv: Sequence[str]) -> list[str]:
    from ir_ops.errors import BadUsage

    names, rest = [], list(argv)
    while rest:
        word = rest.pop(0)
        if word in NAMES:
            names.append(word)
        elif word == "--threads" and rest and rest[0].isdigit() and int(rest[0]) > 0:
            rest.pop(0)
        elif word != "--quick":
            raise BadUsage(
                "unknown benchmark or option", found=word, wanted=" | ".join((*NAMES, "--quick", "--threads N"))
            )
    return names or list(NAMES)
