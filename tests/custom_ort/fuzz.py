"""`make fuzz`: calls as nobody should make them, at the entry of every kernel, through onnxruntime.

    python -m tests.custom_ort.fuzz --minutes 10           all operators, each in processes of its own
    python -m tests.custom_ort.fuzz --operator X --case N  one case again

A case is made of an operator and a number. Whatever it holds,

* nothing crashes;
* a refused call has written no byte, and names a rule that check() finds too, in the same words;
* an accepted call is one that check() accepts; its results have the declared shapes, and no byte beside caches changed.
"""

from __future__ import annotations

import argparse
import itertools
import os
import subprocess
import sys
import tempfile
import time
import traceback
import zlib
from collections import Counter
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

import custom_ort
from ir_ops.declaration import TensorSpec, Violation
from ir_ops.dtypes import Array, by_numpy
from ir_ops.errors import BadModel, KvfuseError
from ir_ops.ops import OPS
from tests.custom_ort import hostile, one_node
from tests.custom_ort.calls import Call
from tests.custom_ort.every_call import aliases, every_call
from tests.custom_ort.mla_calls import QUERY_TYPES

CALLS = every_call()
RUNS = 6
"""Calls that a case makes of one session."""
GUARD, CANARY = 256, 0xA5


@dataclass
class Outcome:
    """What became of a case: how its calls ended, and what must not be."""

    ends: Counter[str]
    findings: list[str]


class Guarded:
    """An array in memory of which the surroundings are known, at any address that its elements allow."""

    def __init__(self, rng: np.random.Generator, array: Array) -> None:
        start = GUARD + array.itemsize * int(rng.integers(0, 9))
        self.memory = np.full(start + array.nbytes + GUARD, CANARY, np.uint8)
        self.end = start + array.nbytes
        self.start = start
        self.array: Array = self.memory[start : self.end].view(array.dtype).reshape(array.shape)
        self.array[...] = array
        self.before = self.memory.copy()

    def changed(self) -> bool:
        return not np.array_equal(self.memory, self.before)

    def overrun(self) -> bool:
        return bool((self.memory[: self.start] != CANARY).any() or (self.memory[self.end :] != CANARY).any())


def errors(operator: str, inputs: Any, attrs: Any) -> list[Violation]:
    return [found for found in OPS[operator].check(inputs, attrs) if found.severity == "error"]


def explained(message: str, violations: list[Violation]) -> bool:
    return any(f"{found.id}: {found.text}; found " in message for found in violations)


def run_case(operator: str, number: int) -> Outcome:
    """Makes the case and its calls."""
    outcome = Outcome(Counter(), [])
    rng = np.random.default_rng([number, zlib.crc32(operator.encode())])
    call = CALLS[operator](rng)
    hostile.spoil_configuration(rng, call, operator)
    constants = {name for name in call.inputs if rng.random() < 0.5} if rng.random() < 0.3 else set()
    session = _session(rng, operator, call, constants, outcome)
    for _ in range(RUNS if session is not None else 0):
        changed = Call(dict(call.inputs), dict(call.attrs))
        hostile.spoil_arrays(rng, changed)
        changed.inputs |= {name: call.inputs[name] for name in constants}
        _run(rng, operator, session, changed, constants, outcome)
    return outcome


def _session(rng: np.random.Generator, operator: str, call: Call, constants: set[str], outcome: Outcome) -> Any:
    """A session, or None: the model cannot be written, or is refused."""
    import onnxruntime

    ranks = {name: one_node.unnamed(rank) for name, rank in one_node.ranks_of(operator, call.inputs).items()}
    outputs = OPS[operator].outputs
    plain = {entry.type for entry in OPS[operator].inputs} | {"float32"}
    wanted = [entry.name for entry in outputs if entry.ref or entry.type not in plain or rng.random() < 0.8]
    wanted = wanted or [outputs[0].name]
    fixed = {name: call.inputs[name] for name in constants}
    types = one_node.types_of(call.inputs)
    try:
        proto = one_node.model(operator, types, call.attrs, constants=fixed, shapes=ranks, outputs=wanted)
    except (KvfuseError, ValueError, LookupError, TypeError, StopIteration):
        outcome.ends["no model"] += 1
        return None
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = int(rng.integers(1, 3))
    options.log_severity_level = 4
    options.enable_cpu_mem_arena = False  # every result in memory of its own: a sanitiser sees its ends
    try:
        made = custom_ort.session(proto, sess_options=options)
    except BadModel as error:
        specs = {name: TensorSpec(kind, None) for name, kind in types.items()} | fixed
        known = explained(str(error), errors(operator, specs | call.inputs, call.attrs))
        # such a runtime derives the type of every output from the inputs
        known = known or (not QUERY_TYPES and "does not match expected type" in str(error))
        outcome.ends["session refused"] += 1
        if not known and not errors(operator, specs, call.attrs):
            outcome.findings.append(f"not loaded, and check() does not say why: {error}")
        return None
    return made


def _run(
    rng: np.random.Generator, operator: str, session: Any, call: Call, constants: set[str], outcome: Outcome
) -> None:
    held = {name: Guarded(rng, array) for name, array in call.inputs.items() if name not in constants}
    pairs = aliases(operator, held)
    violations = errors(operator, call.inputs, call.attrs)
    names = " ".join(f"{name}{list(array.shape)}" for name, array in call.inputs.items())
    try:
        binding = custom_ort.bind(session, {name: entry.array for name, entry in held.items()}, pairs)
        found = one_node.results(binding.run())
    except KvfuseError as error:
        outcome.ends["refused"] += 1
        written = [name for name, entry in held.items() if entry.changed()]
        if written:
            outcome.findings.append(f"refused, but {', '.join(written)} changed: {error}")
        too_deep = bool(violations) and violations[0].id == "IN-04"  # check() then says nothing else
        if "onnxruntime refuses the run" in str(error) and not (too_deep or explained(str(error), violations)):
            other = violations[0] if violations else "no violation"
            outcome.findings.append(f"refused with {error}; check() finds {other}; {names} {call.attrs}")
        return
    outcome.ends["ran"] += 1
    written = [name for name, entry in held.items() if entry.overrun() or (name not in pairs and entry.changed())]
    if written:
        outcome.findings.append(f"wrote outside of caches, at {', '.join(written)}")
    if violations:
        outcome.findings.append(f"ran in spite of {violations[0]}; {names} {call.attrs}")
        return
    specs = {name: TensorSpec(by_numpy(array.dtype).name, array.shape) for name, array in call.inputs.items()}
    for name, spec in OPS[operator].infer(specs, call.attrs).items():
        if name in found and None not in (spec.shape or (None,)) and found[name].shape != spec.shape:
            outcome.findings.append(f"{name} has shape {found[name].shape}, declared {spec.shape}")


def work(operator: str, first: int, seconds: float, progress: Path) -> int:
    """Cases from ``first`` on for so long; the number under way stands in ``progress``."""
    ends, end, bad = Counter[str](), time.monotonic() + seconds, 0
    with progress.open("wb", buffering=0) as file:
        for number in itertools.count(first):
            if time.monotonic() >= end:
                break
            os.pwrite(file.fileno(), f"{number:12d}".encode(), 0)
            try:
                outcome = run_case(operator, number)
            except Exception as error:  # check() and the rest of Python must not fail either
                place = traceback.extract_tb(error.__traceback__)[-1]
                outcome = Outcome(Counter(), [f"{type(error).__name__}: {error}, at {place.name} line {place.lineno}"])
            ends += outcome.ends
            bad += len(outcome.findings)
            for finding in outcome.findings[:1]:
                print(f"FOUND {operator} case {number}: {finding}", flush=True)
    print(f"{operator}: {number - first} cases, " + ", ".join(f"{count} {end}" for end, count in ends.most_common()))
    return 1 if bad else 0


def supervise(operator: str, seconds: float, seed: int) -> Iterator[str]:
    """Runs an operator's cases in processes; one that dies is reported, and the next goes on behind it."""
    first, end = seed, time.monotonic() + seconds
    with tempfile.TemporaryDirectory() as folder:
        progress = Path(folder) / "case"
        while (left := end - time.monotonic()) > 0:
            command = [sys.executable, "-m", __spec__.name, "--operator", operator, "--case", str(first)]
            command += ["--seconds", str(left), "--progress", str(progress)]
            done = subprocess.run(command, capture_output=True, text=True, check=False)
            yield done.stdout.strip()
            if done.returncode in (0, 1) and "cases, " in done.stdout:
                return
            number = int(progress.read_text()) if progress.exists() else first
            tail = "\n".join(done.stderr.strip().splitlines()[-40:])
            yield f"FOUND {operator} case {number}: the process ended with {done.returncode}\n{tail}"
            first = number + 1


def main(argv: Sequence[str] | None = None) -> int:
    """Exit code 1 when something was found."""
    parser = argparse.ArgumentParser(description="Hostile calls at the entry of every kernel.")
    parser.add_argument("--minutes", type=float, default=10.0, help="for all operators together")
    parser.add_argument("--jobs", type=int, default=2)
    parser.add_argument("--seed", type=int, default=int(time.time()) % 10**6 * 10**6, help="number of the first case")
    parser.add_argument("--operator", choices=CALLS, help="this one only")
    parser.add_argument("--case", type=int, help="one case of the operator")
    parser.add_argument("--seconds", type=float, help=argparse.SUPPRESS)
    parser.add_argument("--progress", type=Path, help=argparse.SUPPRESS)
    args = parser.parse_args(argv)
    if args.progress:
        return work(args.operator, args.case, args.seconds, args.progress)
    if args.case is not None:
        outcome = run_case(args.operator, args.case)
        print(dict(outcome.ends), *outcome.findings, sep="\n")
        return 1 if outcome.findings else 0
    operators = [args.operator] if args.operator else list(CALLS)
    seconds = args.minutes * 60 * min(args.jobs, len(operators)) / len(operators)
    print(f"{len(operators)} operators, {seconds:.0f} s each, cases from {args.seed}", flush=True)
    found = False
    with ThreadPoolExecutor(args.jobs) as pool:
        for lines in pool.map(lambda name: list(supervise(name, seconds, args.seed)), operators):
            print("\n".join(lines), flush=True)
            found = found or any("FOUND" in line for line in lines)
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
