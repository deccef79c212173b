"""What is measured computes the same; how fast it is only ``kvfuse bench`` says."""

from __future__ import annotations

import time

import numpy as np
import pytest

import benchmarks
from benchmarks import mla_prolog
from benchmarks.kv_graphs import VARIANTS, Problem
from benchmarks.timing import interleaved, table
from ir_ops.errors import BadUsage


@pytest.mark.parametrize("dtype", ["float32", "float16", "bfloat16"])
@pytest.mark.parametrize(("batch", "tokens"), [(1, 1), (3, 1), (1, 70)])
def test_variants_compute_the_same(dtype: str, batch: int, tokens: int) -> None:
    """The operator and both spellings leave the same rows in their caches, and the same rows alone."""
    problem = Problem(dtype, batch, tokens)
    results = {}
    for variant in VARIANTS:
        outputs = problem.binding(variant).run()
        results[variant] = {
            name: array.reshape(problem.slots, -1).astype(np.float64) for name, array in outputs.items()
        }
    step = {"float32": 1e-5, "float16": 2.0**-8, "bfloat16": 2.0**-6}[dtype]
    for variant in VARIANTS[1:]:
        for name, array in results["kvfuse"].items():
            np.testing.assert_allclose(results[variant][name], array, rtol=step, atol=step, err_msg=f"{variant} {name}")
            assert np.array_equal(array.any(axis=1), results[variant][name].any(axis=1))


@pytest.mark.parametrize("tokens", [1, 5])
def test_mla_variants_compute_the_same(tokens: int) -> None:
    """The kernel and the exporter's graph agree; bf16 and int8 weights as well as their precision allows."""
    problem = mla_prolog.Problem(mla_prolog.Sizes(hidden=64, q_rank=48, heads=2, nope=16, kv_rank=32, rope=8))
    expected = problem.exporter(tokens).run()
    for kind, step in (("float32", 1e-4), ("bfloat16", 0.1), ("int8", 0.3)):
        found = problem.ours(kind, tokens).run()
        for name, array in expected.items():
            result = found[name].reshape(array.shape).astype(np.float32)
            np.testing.assert_allclose(result, array, rtol=step, atol=step, err_msg=f"{kind} {name}")


def test_mla_benchmark_prints_ratios(capsys: pytest.CaptureFixture[str]) -> None:
    assert benchmarks.main(["mla", "--quick"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert [line.split("  ")[0] for line in lines[2:]] == ["M = 1", "M = 4", "M = 16", "M = 64"]


def test_interleaved_tells_slow_from_fast() -> None:
    times = interleaved({"fast": lambda: None, "slow": lambda: time.sleep(0.002)}, seconds=0.05)
    assert times["slow"] > 0.002 > times["fast"]


def test_table() -> None:
    assert table(["name", "x"], [["a", "1.0"], ["long", "10.0"]]).splitlines() == [
        "name     x",
        "----  ----",
        "a      1.0",
        "long  10.0",
    ]


def test_decode_benchmark_prints_its_verdict(capsys: pytest.CaptureFixture[str]) -> None:
    assert benchmarks.main(["decode", "--quick"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert [line.split("  ")[0] for line in lines[2:6]] == ["1 MB", "16 MB", "64 MB", "256 MB"]
    assert "1 to 256 MB: " in lines[-1]


@pytest.mark.parametrize("argv", [["speed"], ["--fast"], ["--threads"], ["--threads", "0"]])
def test_unknown_names_and_options(argv: list[str]) -> None:
    with pytest.raises(BadUsage, match="unknown benchmark or option"):
        benchmarks.main(argv)
