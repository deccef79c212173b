"""What is measured computes the same; how fast it is only ``kvfuse bench`` says."""

from __future__ import annotations

import dataclasses
import time
from typing import Any

import numpy as np
import pytest
from onnx import TensorProto, helper, numpy_helper

import benchmarks
import custom_ort
from benchmarks import (
    attention,
    decode,
    decode_cache_size,
    decode_graphs,
    dequant_graphs,
    genai_graph,
    kernel_rows,
    kv_graphs,
    mla_prolog,
    qkv_graphs,
)  # fmt: skip
from benchmarks.kernel_rows import VARIANTS
from benchmarks.timing import interleaved, table
from ir_ops.dtypes import Array
from ir_ops.errors import BadUsage, KvfuseError

STEP = {"float32": 1e-5, "float16": 2.0**-8, "bfloat16": 2.0**-6}
SIZES = [(1, 1), (3, 1), (1, 70), (2, 9)]


def wide(outputs: dict[str, Array], rows: int) -> dict[str, Array]:
    return {name: array.reshape(rows if "cache" in name else array.size, -1).astype(np.float64)
            for name, array in outputs.items()}  # fmt: skip


@pytest.mark.parametrize("dtype", STEP)
@pytest.mark.parametrize(("batch", "tokens"), SIZES)
def test_kv_variants_compute_the_same(dtype: str, batch: int, tokens: int) -> None:
    """The operator and both spellings leave the same rows in their caches, and the same rows alone."""
    problem = kv_graphs.Problem(dtype, batch, tokens)
    results = {name: wide(problem.binding(name).run(), problem.slots) for name in VARIANTS}
    for variant in VARIANTS[1:]:
        for name, array in results["kvfuse"].items():
            other = results[variant][name]
            np.testing.assert_allclose(other, array, rtol=STEP[dtype], atol=STEP[dtype], err_msg=f"{variant} {name}")
            assert np.array_equal(array.any(axis=1), other.any(axis=1))


@pytest.mark.parametrize("dtype", STEP)
@pytest.mark.parametrize(("batch", "tokens"), SIZES)
def test_qkv_variants_compute_the_same(dtype: str, batch: int, tokens: int) -> None:
    """Queries are the same; the rows are, once ours are taken out of their fractals."""
    problem = qkv_graphs.Problem(dtype, batch, tokens)
    results = {name: problem.binding(name).run() for name in VARIANTS}
    for name in qkv_graphs.ALIASES.values():
        pages, fractals, page, d0 = results["kvfuse"][name].shape
        rows = results["kvfuse"][name].transpose(0, 2, 1, 3).reshape(pages * page, fractals * d0)
        results["kvfuse"][name] = rows
    for variant in VARIANTS[1:]:
        for name, array in results["kvfuse"].items():
            other, step = results[variant][name].astype(np.float64), 2 * STEP[dtype]
            np.testing.assert_allclose(other, array.astype(np.float64), rtol=step, atol=step, err_msg=name)


@pytest.mark.parametrize("dtype", [*STEP, "int32"])
@pytest.mark.parametrize(("batch", "tokens"), SIZES)
def test_dequant_variants_compute_the_same(dtype: str, batch: int, tokens: int) -> None:
    """int8 rows differ by a step at most: exporters round on the way."""
    problem = dequant_graphs.Problem(dtype, batch, tokens)
    results = {name: wide(problem.binding(name).run(), problem.slots) for name in VARIANTS}
    for variant in VARIANTS[1:]:
        for name, array in results["kvfuse"].items():
            step = 1.0 if "cache" in name else 2 * STEP[problem.plain]
            relative = 0.0 if "cache" in name else step
            np.testing.assert_allclose(results[variant][name], array, rtol=relative, atol=step, err_msg=name)
            assert array.any()


def test_a_call_moves_what_it_reads_and_writes() -> None:
    """Half of the bytes of rows, cos, sin and results."""
    for module in (kv_graphs, qkv_graphs, dequant_graphs):
        problem = module.Problem("float16", 2, 3)
        names = {"x", "kv", "qkv", "cos", "sin"} & problem.arrays.keys()
        read = sum(problem.arrays[name].nbytes for name in names)
        row = {"k_cache_out": 0, "v_cache_out": 0, "ckv_cache_out": 0, "q": 0}
        for name, array in problem.binding("exporter").run().items():
            row[name] = array.nbytes if name == "q" else array[0].nbytes * problem.rows
        assert problem.moved == (read + sum(row.values())) // 2


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


def test_kernel_benchmark_prints_every_operator(capsys: pytest.CaptureFixture[str], monkeypatch: Any) -> None:
    monkeypatch.setattr(kernel_rows, "SHAPES", (kernel_rows.SHAPES[0], LAST := ("prefill", 1, 40)))
    monkeypatch.setattr(kernel_rows, "LONGEST", LAST)
    assert benchmarks.main(["kernels", "--quick"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert [line.split()[0] for line in lines if "memcpy" in line] == list(kernel_rows.OPERATORS)
    assert sum(line.startswith("prefill") and line.endswith("x") for line in lines) == 10


@pytest.mark.parametrize("variant", attention.VARIANTS, ids=lambda variant: variant[0])
def test_attention_variants_run(variant: tuple[str, str, str], monkeypatch: pytest.MonkeyPatch) -> None:
    """Every kind of cache, and both of onnxruntime's operators, in a step of two small layers."""
    monkeypatch.setattr(attention, "_LEAST_BYTES", 1)
    problem = attention.Problem(128, batch=2, heads=4, kv_heads=2, width=32)
    times = attention.measure(problem, variant[:1], seconds=0.01)
    assert set(times) == {"GQA", "Attention", "read", variant[0]}
    assert min(times.values()) > 0


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


def test_decode_benchmark_prints_its_verdict() -> None:
    lines = decode_cache_size.run(["--quick"]).splitlines()
    assert [line.split("  ")[0] for line in lines[2:6]] == ["1 MB", "16 MB", "64 MB", "256 MB"]
    assert "1 to 256 MB: " in lines[-1]


def test_decode_benchmark_compares_whole_decoders(capsys: pytest.CaptureFixture[str], monkeypatch: Any) -> None:
    """Toys of both decoders: the tables, each after a comparison of logits."""
    monkeypatch.setattr(decode_cache_size, "run", lambda argv: "")
    assert benchmarks.main(["decode", "--quick", "--small", "--layers", "1"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert [line.split(",")[0] for line in lines if "-- " not in line and line] == [
        "qwen3", "128 tokens", "128 tokens", "qwen3", "128 tokens", "128 tokens",
        "deepseek_v3", "128 tokens", "128 tokens",
        "capacity 8x / 1x", "qwen3", "qwen3", "deepseek_v3", "prefill", "qwen3", "deepseek_v3",
        "deepseek_v3", "first prompt", "a step",
    ]  # fmt: skip
    assert sum("x" in line for line in lines if line.startswith("128")) == 4
    assert any("int4: step / GroupQueryAttention" in line for line in lines)


def test_weights_of_int4_are_what_the_runtime_multiplies_with() -> None:
    """The nearest of 15 numbers for each weight, in the order of MatMulNBits; a last block may be short."""
    rng = np.random.default_rng(0)
    weight, x = (rng.standard_normal(shape).astype(np.float32) for shape in ((80, 6), (3, 80)))
    numbers, scales = genai_graph.quantised(weight)
    apart = np.stack([numbers & 15, numbers >> 4], axis=-1).reshape(6, 3, genai_graph.BLOCK).astype(np.float32) - 8
    stored = (apart * scales[..., None]).reshape(6, -1)[:, :80].T
    assert np.abs(stored - weight).max() <= scales.max() / 2 + 1e-6
    node = helper.make_node("MatMulNBits", ["x", "numbers", "scales"], ["y"], domain="com.microsoft", K=80, N=6, bits=4,
                            block_size=genai_graph.BLOCK, accuracy_level=1)  # fmt: skip
    graph = helper.make_graph(
        [node], "one", [helper.make_tensor_value_info("x", TensorProto.FLOAT, [3, 80])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, [3, 6])],
        [numpy_helper.from_array(numbers, "numbers"), numpy_helper.from_array(scales, "scales")],
    )  # fmt: skip
    imports = [helper.make_opsetid("", 21), helper.make_opsetid("com.microsoft", 1)]
    session = custom_ort.session(helper.make_model(graph, opset_imports=imports, ir_version=10))
    np.testing.assert_allclose(session.run(None, {"x": x})[0], x @ stored, atol=1e-4)


def test_decoders_that_differ_are_not_compared() -> None:
    """Another token: the logits are far apart, and no ratio is printed."""
    decoder = decode_graphs.Decoder(decode_graphs.qwen(1, small=True))
    now = decode_graphs.state(decoder, 1, 16)
    session = decoder.open(decoder.export)
    same = decode_graphs.grown(session, now)
    other = decode_graphs.grown(session, dataclasses.replace(now, ids=now.ids + 1))
    decode.measure({"one": same, "two": same}, 1)
    with pytest.raises(KvfuseError, match="two decoders differ"):
        decode.measure({"one": same, "two": other}, 1)


@pytest.mark.parametrize("argv", [["speed"], ["--fast"], ["--threads"], ["--threads", "0"]])
def test_unknown_names_and_options(argv: list[str]) -> None:
    with pytest.raises(BadUsage, match="unknown benchmark or option"):
        benchmarks.main(argv)
