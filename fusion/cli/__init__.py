"""The ``kvfuse`` command.

A command is a module in `fusion.cli.commands` with ``HELP`` (one line), ``arguments(parser)`` and ``run(args) -> int``;
its name is the module's, with dashes. Nothing lists them by hand. Modules import what they need when they run, so that
``kvfuse --help`` answers at once.

Exit codes: 0 done; 1 bad input or usage, one line on stderr says what; 2 an ``--expect`` was not met; 3 a proof or
verification failed; 130 interrupted; 141 the reader of the output went away.
"""

from __future__ import annotations

import argparse
import difflib
import importlib
import os
import pkgutil
import sys
from collections.abc import Sequence
from typing import Any, NoReturn

from fusion.cli import commands
from fusion.cli.process import prepare

DONE, BAD, UNMET, FAILED = 0, 1, 2, 3
_INTERRUPTED, _CLOSED_PIPE = 130, 141

_EXIT_CODES = """\
exit codes: 0 done, 1 bad input or usage (one line on stderr), 2 an --expect was not met,
            3 a proof or verification failed
"""


class _Usage(Exception):
    """Wrong arguments; the text is the line for the user."""


class _Parser(argparse.ArgumentParser):
    """Reports wrong arguments as one line and with exit code 1."""

    def error(self, message: str) -> NoReturn:
        raise _Usage(f"{self.prog}: {message} (see {self.prog} --help)")


def main(argv: Sequence[str] | None = None) -> int:
    """Runs one command; returns the exit code."""
    if argv is None:
        prepare()
    try:
        code = _dispatch(list(sys.argv[1:] if argv is None else argv))
        sys.stdout.flush()
        return code
    except _Usage as error:
        return _complain(str(error))
    except KeyboardInterrupt:
        return _INTERRUPTED
    except BrokenPipeError:
        # Whoever read our output is gone; keep Python from complaining again when it closes stdout.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return _CLOSED_PIPE
    except Exception as error:
        from ir_ops.errors import KvfuseError

        if isinstance(error, KvfuseError):
            return _complain(f"kvfuse: {error}")
        if isinstance(error, (OSError, MemoryError)):
            return _complain(f"kvfuse: {_plain(error)}")
        raise


def _complain(line: str) -> int:
    print(" ".join(line.split()), file=sys.stderr)
    return BAD


def _plain(error: OSError | MemoryError) -> str:
    if isinstance(error, MemoryError):
        return "out of memory"
    return f"{error.filename}: {error.strerror}" if error.filename else str(error)


def command_names() -> list[str]:
    """All commands, as they are typed."""
    return sorted(info.name.replace("_", "-") for info in pkgutil.iter_modules(commands.__path__))


def _module(name: str) -> Any:
    return importlib.import_module(f"{commands.__name__}.{name.replace('-', '_')}")


def _dispatch(argv: list[str]) -> int:
    names = command_names()
    if not argv:
        raise _Usage("kvfuse: no command given (kvfuse --help lists them)")
    first = argv[0]
    if first in ("-h", "--help", "help"):
        print(_overview(names), end="")
        return DONE
    if first in ("-V", "--version"):
        from importlib.metadata import version

        print(f"kvfuse {version('kvfuse')}")
        return DONE
    if first not in names:
        near = difflib.get_close_matches(first, names, 1)
        kind = "option" if first.startswith("-") else "command"
        guess = f", did you mean {near[0]}?" if near else ""
        raise _Usage(f"kvfuse: unknown {kind} {first!r}{guess} (kvfuse --help lists the commands)")
    module = _module(first)
    parser = _Parser(prog=f"kvfuse {first}", description=module.HELP, allow_abbrev=False)
    module.arguments(parser)
    try:
        args = parser.parse_args(argv[1:])
    except SystemExit as stop:  # --help printed what was asked for
        return int(stop.code or 0)
    return int(module.run(args))


def _overview(names: Sequence[str]) -> str:
    width = max(map(len, names))
    lines = "\n".join(f"  {name:<{width}}  {_module(name).HELP}" for name in names)
    return (
        "usage: kvfuse COMMAND ...      kvfuse COMMAND --help explains one\n\n"
        "Fuses the attention preamble of DeepSeek and Qwen decoders in ONNX.\n\n"
        f"{lines}\n\n{_EXIT_CODES}"
    )
