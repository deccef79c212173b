"""A few hostile calls of every operator; `make fuzz` makes them for minutes, under sanitisers."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import numpy as np
import pytest

from ir_ops.ops import OPS
from tests.custom_ort import fuzz, one_node
from tests.custom_ort.effort import how_many


@pytest.mark.parametrize("operator", fuzz.CALLS)
def test_hostile_calls_end_in_a_result_or_a_status(operator: str) -> None:
    ends = Counter[str]()
    for number in range(how_many(20, share=0.2)):
        outcome = fuzz.run_case(operator, number)
        assert not outcome.findings, f"case {number}"
        ends += outcome.ends
    assert ends["ran"] and ends["refused"]


def test_a_byte_beside_an_array_is_seen() -> None:
    guarded = fuzz.Guarded(np.random.default_rng(0), np.arange(5, dtype=np.int16))
    assert not guarded.changed()
    guarded.memory[guarded.end] += 1
    assert guarded.changed() and guarded.overrun()


def test_a_dead_process_is_reported_and_the_next_case_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A case that kills its process is named, with the way to repeat it; the cases behind it are run."""
    calls: list[list[str]] = []

    class Done:
        returncode, stdout, stderr = -11, "", "stack of the crash"

    def run(command: list[str], **_: object) -> Done:
        calls.append(command)
        Path(command[command.index("--progress") + 1]).write_text("     7")
        done = Done()
        if len(calls) == 2:
            done.returncode, done.stdout = 0, "RmsNorm: 3 cases, 3 ran"  # type: ignore[misc]
        return done

    monkeypatch.setattr(fuzz.subprocess, "run", run)
    lines = list(fuzz.supervise("RmsNorm", 5.0, 0))
    assert any("FOUND RmsNorm case 7: the process ended with -11\nstack of the crash" in line for line in lines)
    assert calls[1][calls[1].index("--case") + 1] == "8"


@pytest.mark.parametrize("operator", fuzz.CALLS)
def test_a_tensor_of_nine_dims_is_refused(operator: str) -> None:
    """IN-04, from check() and from the kernel."""
    call = fuzz.CALLS[operator](np.random.default_rng(1))
    name = next(iter(call.inputs))
    call.inputs[name] = np.zeros([1] * 9, call.inputs[name].dtype)
    expected = OPS[operator].check(call.inputs, call.attrs)[0]
    assert str(expected) == f"IN-04: an input has too many dims; found {name} [{', '.join('1' * 9)}], wanted at most 8"
    assert str(expected) in one_node.refusal(operator, call.inputs, call.attrs)
