"""What commands share: printing, options that several of them have, reports."""

from __future__ import annotations

import argparse
import difflib
import json
import os
import shutil
import sys
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from fusion.report import Style
    from fusion.result import FusionResult
    from ir_ops.dtypes import Array

PRODUCTS = ("generic", "950", "A3", "A2", "kirin")


def style() -> Style:
    """Colour only for a terminal, and not when NO_COLOR is set; as wide as the terminal, 60 to 100 columns."""
    from fusion.report import WIDTH, Style

    if not sys.stdout.isatty():
        return Style()
    dumb = os.environ.get("TERM") == "dumb" or bool(os.environ.get("NO_COLOR"))
    columns = shutil.get_terminal_size((WIDTH, 24)).columns
    return Style(colour=not dumb, width=min(max(columns, 60), WIDTH))


def print_json(value: Any) -> None:
    """Stable JSON on stdout."""
    print(json.dumps(value, indent=2))


def names(text: str) -> tuple[str, ...]:
    """``A,B`` as a tuple; the type of options that take operator names.

    Raises:
        argparse.ArgumentTypeError: a name that is no operator of kvfuse.
    """
    from ir_ops import OPS

    found = tuple(part.strip() for part in text.split(",") if part.strip())
    for name in found:
        if name not in OPS:
            raise argparse.ArgumentTypeError(f"unknown operator {name!r}, {near(name, OPS)}")
    return found


def near(name: str, known: Iterable[str]) -> str:
    """What a wrong name may have been meant to be: the nearest of ``known``, or all of them."""
    spelled = {item.lower(): item for item in known}
    found = difflib.get_close_matches(name.lower(), spelled, 1)
    return f"did you mean {spelled[found[0]]}?" if found else f"known: {', '.join(spelled.values())}"


def at_least(least: int) -> Callable[[str], int]:
    """The type of an option that takes a whole number of at least ``least``."""

    def number(text: str) -> int:
        if not text.isdigit() or int(text) < least:
            raise argparse.ArgumentTypeError(f"{text!r} is not a whole number of {least} or more")
        return int(text)

    return number


def expectation(text: str) -> tuple[str, int]:
    """``OP=N`` of ``--expect``.

    Raises:
        argparse.ArgumentTypeError: not of that form, or no operator of kvfuse.
    """
    name, mark, number = text.partition("=")
    if not mark or not number.isdigit():
        raise argparse.ArgumentTypeError(f"{text!r} is not OP=N, e.g. KvRmsNormRopeCache=61")
    return names(name)[0] if name else _unnamed(text), int(number)


def _unnamed(text: str) -> str:
    raise argparse.ArgumentTypeError(f"{text!r} names no operator")


def unmet(result: FusionResult, expected: list[tuple[str, int]]) -> list[str]:
    """Expectations that the result does not meet, in words."""
    return [f"{op}: expected {count}, got {result.count(op)}" for op, count in expected if result.count(op) != count]


def add_expect(parser: argparse.ArgumentParser) -> None:
    """The option ``--expect OP=N ..``."""
    parser.add_argument(
        "--expect",
        metavar="OP=N",
        nargs="+",
        type=expectation,
        action="extend",
        default=[],
        help="exit with 2 unless exactly N nodes of OP result",
    )


def add_product(parser: argparse.ArgumentParser) -> None:
    """The option ``--product``."""
    parser.add_argument(
        "--product",
        choices=PRODUCTS,
        default="generic",
        help="keep to what this product can run; generic (default) takes all that has a meaning",
    )


def add_weights(parser: argparse.ArgumentParser) -> None:
    """The option ``--weights``."""
    parser.add_argument(
        "--weights",
        choices=("share", "copy"),
        default="share",
        help="external weights: go on using the input's files (default), or copy them beside the output",
    )


def check_paths(**paths: str | None) -> None:
    """Refuses two outputs, or an input and an output of different kind, in one file.

    Raises:
        BadUsage: two of the named paths are one file.
    """
    from ir_ops.errors import BadUsage

    seen: dict[Path, str] = {}
    for role, path in paths.items():
        if path is None:
            continue
        real = Path(path).resolve()
        if real in seen:
            raise BadUsage(f"{role} and {seen[real]} are one file", where=path, hint="choose another name")
        seen[real] = role


def write_report(result: FusionResult, path: str, title: str) -> None:
    """Writes a fusion report as JSON or HTML, by the path's suffix.

    Raises:
        BadUsage: another suffix.
    """
    from ir_ops.files import replacing

    text = json.dumps(result.to_json(), indent=2) + "\n" if report_kind(path) == ".json" else _html(result, title)
    with replacing(path) as part:
        part.write_text(text, encoding="utf-8")


def report_kind(path: str) -> str:
    """``.json`` or ``.html``.

    Raises:
        BadUsage: another suffix.
    """
    from ir_ops.errors import BadUsage

    suffix = Path(path).suffix.lower()
    if suffix not in (".json", ".html"):
        raise BadUsage("unknown kind of report", where=path, found=suffix or "no suffix", wanted=".json or .html")
    return suffix


def _html(result: FusionResult, title: str) -> str:
    from fusion.html import fusion_html

    return fusion_html(result, title)


def write_outputs(path: str, results: Mapping[str, Mapping[str, Array]]) -> None:
    """Writes the outputs of one or several feeds to an npz file, named as the inputs were, and lists them.

    Args:
        path: the file.
        results: feed name -> output name -> array; the plain form's feed is called ``inputs``.
    """
    from ir_ops.npz import save_npz

    plain = list(results) == ["inputs"]
    arrays = {
        name if plain else f"{feed}/out/{name}": array
        for feed, outputs in results.items()
        for name, array in outputs.items()
    }
    save_npz(path, arrays)
    for name, array in arrays.items():
        print(f"{name}: {array.dtype}{list(array.shape)}")
    print(f"written: {path}")


def size(count: int) -> str:
    """Bytes for people: ``1.5 MiB``."""
    value, unit = float(count), "bytes"
    for larger in ("KiB", "MiB", "GiB", "TiB"):
        if value < 1024:
            break
        value, unit = value / 1024, larger
    return f"{count} bytes" if unit == "bytes" else f"{value:.1f} {unit}"
