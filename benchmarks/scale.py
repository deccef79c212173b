"""Fusing decoders of full topology: seconds of processor time and memory, each run in a process of its own.

The time counted is what the process used, not what passed: other work on the machine does not show.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from benchmarks.timing import table

MODELS = ("deepseek-v3", "qwen3-32b")
BOUNDS = {
    ("deepseek-v3", "fuse"): (15.0, 900.0), ("deepseek-v3", "explain"): (3.0, 900.0),
    ("deepseek-v3", "export-ge"): (60.0, 2048.0),
    ("qwen3-32b", "fuse"): (2.0, 900.0), ("qwen3-32b", "explain"): (2.0, 900.0),
}  # fmt: skip
"""Seconds and megabytes that are meant to suffice."""


@dataclass(frozen=True)
class Cost:
    """Processor seconds and the largest resident size (MB) of one command."""

    seconds: float
    megabytes: float


def measure(words: Sequence[str]) -> Cost:
    """Runs ``kvfuse WORDS``, starting Python included.

    Raises:
        KvfuseError: the command failed.
    """
    from ir_ops.errors import KvfuseError

    program = "import sys; from fusion.cli import main; sys.exit(main())"
    ran = subprocess.Popen([sys.executable, "-c", program, *words], stdout=subprocess.DEVNULL, env=dict(os.environ))
    _, status, used = os.wait4(ran.pid, 0)
    ran.returncode = os.waitstatus_to_exitcode(status)
    if ran.returncode:
        raise KvfuseError(f"kvfuse {words[0]} failed", found=f"exit code {ran.returncode}")
    return Cost(used.ru_utime + used.ru_stime, used.ru_maxrss / 1024)


def best(words: Sequence[str], runs: int) -> Cost:
    """The cheapest of several runs."""
    return min((measure(words) for _ in range(runs)), key=lambda cost: cost.seconds)


def run(argv: Sequence[str] = ()) -> Iterator[str]:
    """The table: fusing, explaining and exporting, and how the time grows with the layers. ``--quick`` runs once."""
    runs = 1 if "--quick" in argv else 3
    rows: list[list[str]] = []
    with tempfile.TemporaryDirectory() as folder:
        for name in MODELS:
            path, out = Path(folder, f"{name}.onnx"), Path(folder, f"{name}.fused.onnx")
            nodes = _write(name, path)
            commands = {"fuse": ["fuse", str(path), str(out)], "explain": ["explain", str(path)]}
            if (name, "export-ge") in BOUNDS:
                commands["export-ge"] = ["export-ge", str(out), str(Path(folder, f"{name}.air"))]
            for command, words in commands.items():
                rows.append(_row(name, nodes, command, best(words, runs)))
        growth = _growth(Path(folder), runs)
    head = ["model", "nodes", "command", "s", "bound", "MB", "bound"]
    yield table(head, rows) + f"\ntwice the layers of deepseek-v3 (16, 32): {growth:.2f} times the time (bound 2.2)"


def _row(name: str, nodes: int, command: str, cost: Cost) -> list[str]:
    seconds, megabytes = BOUNDS[name, command]
    return [name, str(nodes), command, f"{cost.seconds:.1f}", f"{seconds:.0f}", f"{cost.megabytes:.0f}",
            f"{megabytes:.0f}"]  # fmt: skip


def _write(name: str, path: Path, layers: int = 0) -> int:
    from models.architecture import PRESETS
    from models.decoder import Options, write

    model = PRESETS[name]
    model = replace(model, layers=layers or model.layers)
    return write(model, path, Options("bfloat16", batch=1, length=4096), weights="sparse").nodes


def _growth(folder: Path, runs: int) -> float:
    costs = []
    for layers in (16, 32):
        path = folder / f"{layers}.onnx"
        _write("deepseek-v3", path, layers)
        costs.append(best(["fuse", str(path), str(folder / "fused.onnx")], runs).seconds)
    return costs[1] / costs[0]
