"""What a command's process does without, and that nothing misses it."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from models.architecture import PRESETS, tiny
from models.decoder import Options, write


def said(code: str, **more: str) -> str:
    return subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True, env={**os.environ, **more}
    ).stdout


def test_explaining_a_model_loads_no_sympy(tmp_path: Path) -> None:
    write(tiny(PRESETS["qwen3-8b"]), tmp_path / "m.onnx", Options("float32"))
    code = "import sys; from fusion.cli import main; main(); print('|', *sys.modules)"
    argv = f"import sys; sys.argv = ['kvfuse', 'explain', {str(tmp_path / 'm.onnx')!r}]; {code}"
    text, _, modules = said(argv).partition("|")
    assert "would be fused" in text
    assert "onnx_ir" in modules.split() and "sympy.core" not in modules.split()


def test_symbolic_dims_still_compute() -> None:
    code = "from fusion.cli.process import prepare; prepare(); import onnx_ir as ir"
    assert said(f"{code}; print((ir.SymbolicDim('a') + 1).evaluate({{'a': 4}}))") == "5\n"
    assert said(f"{code}; from sympy import Symbol; print(Symbol('x') * 2)") == "2*x\n"


@pytest.mark.parametrize(("given", "wanted"), [({}, "1"), ({"OPENBLAS_NUM_THREADS": "3"}, "3")])
def test_products_have_one_thread_unless_told(
    given: dict[str, str], wanted: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("OPENBLAS_NUM_THREADS", raising=False)
    code = "import os, gc; from fusion.cli.process import prepare; prepare(); assert not gc.isenabled()"
    assert said(f"{code}; print(os.environ['OPENBLAS_NUM_THREADS'])", **given) == f"{wanted}\n"


def test_what_is_left_is_not_looked_through_at_exit() -> None:
    code = "import atexit, gc; from fusion.cli.process import prepare"
    assert said(f"{code}; atexit.register(lambda: print(gc.get_freeze_count() > 0)); prepare()") == "True\n"
