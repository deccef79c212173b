"""The examples of the repository run and say what they promise."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from ir_ops.ge import execute, read, validate
from ir_ops.ops import OPS

EXAMPLES = Path(__file__).parents[3] / "examples"


def run(name: str, target: Path) -> str:
    root = EXAMPLES.parent
    call = [sys.executable, str(EXAMPLES / name), str(target)]
    done = subprocess.run(call, capture_output=True, text=True, cwd=root, env={"PYTHONPATH": str(root)}, timeout=60)
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_the_preamble_by_hand(tmp_path: Path) -> None:
    assert run("kv_rms_norm_rope_cache.py", tmp_path / "p.air") == f"written: {tmp_path / 'p.air'}\n"
    assert validate(tmp_path / "p.air") == []
    model, rng = read(tmp_path / "p.air"), np.random.default_rng(0)
    shapes = {"kv": (8, 1, 1, 576), "cos": (8, 1, 1, 64), "sin": (8, 1, 1, 64)}
    inputs = {name: rng.standard_normal(shape).astype(np.float16) for name, shape in shapes.items()}
    inputs |= {"index": np.arange(8), "k_cache": np.zeros((4, 16, 1, 64), np.float16)}
    inputs["ckv_cache"] = np.zeros((4, 16, 1, 512), np.float16)
    made = execute(model, inputs)
    operator = OPS["KvRmsNormRopeCache"]
    wanted = operator.reference(
        {**inputs, "gamma": np.ones(512, np.float16)}, {"cache_mode": "PA", "is_output_kv": True}
    )
    np.testing.assert_array_equal(made.caches["ckv_cache"], wanted["ckv_cache"])
    np.testing.assert_array_equal(made.outputs["k_rope"], wanted["k_rope"])


def test_the_page_shows_the_preamble() -> None:
    """The lines of the example stand in docs/ge.md word by word."""
    text = (EXAMPLES / "kv_rms_norm_rope_cache.py").read_text(encoding="utf-8")
    start = text.index('    b = GraphBuilder("preamble")')
    lines = [line.strip() for line in text[start : text.index("    return b.build()")].splitlines()]
    page = [line.strip() for line in (EXAMPLES.parent / "docs" / "ge.md").read_text(encoding="utf-8").splitlines()]
    assert len(lines) <= 10
    assert [line for line in lines if line not in page] == []


@pytest.mark.parametrize("name", ["decode_layer_by_hand.py"])
def test_other_examples_run(name: str, tmp_path: Path) -> None:
    assert "cache rows [0, 1, 17]; row [4, 1, 1, 576]" in run(name, tmp_path)
