"""Decoders of many layers: the work grows with their number, although each layer depends on all before it."""

from __future__ import annotations

import subprocess
import sys
from collections import Counter
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnx_ir as ir
import pytest

import fusion
from fusion.facts.trial.probe import Probe
from models.architecture import PRESETS, tiny
from models.decoder import Options, build, write
from models.weights import RandomWeights
from tests.fusion.zoo.spec import HIDDEN, Parameters, Spec
from tests.fusion.zoo.spellings import Preamble

OP = "KvRmsNormRopeCache"


class Chain(Preamble):
    """Layers behind each other: the next reads what this one has written."""

    hidden = "hidden"

    def project(self, weight: np.ndarray, bias: np.ndarray, heads: int) -> str:  # type: ignore[type-arg]
        x = self.g.op("MatMul", self.hidden, self.g.const(weight))
        view = self.g.reshape(x, (self.hidden, 0), (self.hidden, 1), heads, weight.shape[1] // heads)
        return self.g.transpose(view, 0, 2, 1, 3)

    def one_layer(self, p: Parameters) -> tuple[str, str, str, str]:
        made = super().one_layer(p)
        width = self.spec.columns("k")
        read = self.g.op("Gather", self.g.reshape(made[0], -1, width), "slots", axis=0)
        rows = self.g.reshape(read, (self.hidden, 0), (self.hidden, 1), width)
        weight = np.random.default_rng(self.layer).standard_normal((width, HIDDEN)).astype(np.float32)
        self.hidden = self.g.op("Add", self.hidden, self.g.op("MatMul", rows, self.g.const(weight)))
        return made


def chain(layers: int, dims: str = "named") -> onnx.ModelProto:
    return Chain(Spec(layers=layers, kv="matmul", dims=dims)).model()


def test_61_layers_are_found_and_share_one_proof() -> None:
    result = fusion.fuse(chain(61, "own"))
    assert result.count(OP) == 61 and not result.refusals
    # the first layer reads an input, the others what the one before has written
    assert sum(site.proof.shared_with is None for site in result.sites) <= 2
    pairs = [(site.inputs[5].rsplit("_")[-1], site.inputs[6].rsplit("_")[-1]) for site in result.sites]
    assert pairs == [(str(layer), str(layer)) for layer in range(61)]


@pytest.fixture
def evaluated(monkeypatch: pytest.MonkeyPatch) -> Counter[str]:
    """Operator -> how many nodes were evaluated under trial sizes."""
    counted: Counter[str] = Counter()
    original = Probe._evaluate

    def counting(self: Probe, node: ir.Node, *operands: Any) -> Any:
        counted[node.op_type] += 1
        return original(self, node, *operands)

    monkeypatch.setattr(Probe, "_evaluate", counting)
    return counted


@pytest.mark.parametrize("dims", ["named", "own"])
def test_nodes_evaluated_grow_with_the_layers(dims: str, evaluated: Counter[str]) -> None:
    """Counted, not timed: four times the layers, four times the evaluations."""
    totals = []
    for layers in (4, 16):
        evaluated.clear()
        assert fusion.fuse(chain(layers, dims)).count(OP) == layers
        totals.append(evaluated.total())
    assert totals[1] < 4.5 * totals[0]


def decoder(layers: int, experts: int, length: int = 16) -> onnx.ModelProto:
    """DeepSeek-V3 at toy width, all layers but the first with experts."""
    model = tiny(PRESETS["deepseek-v3"])
    assert model.experts is not None
    model = replace(model, layers=layers, experts=replace(model.experts, count=experts))
    return build(model, Options("float16", length=length), RandomWeights(0))


def test_experts_cost_no_evaluations(evaluated: Counter[str]) -> None:
    few, many = decoder(3, 4), decoder(3, 64)
    assert fusion.fuse(few, only=[OP]).count(OP) == 3
    before = evaluated.total()
    evaluated.clear()
    assert fusion.fuse(many, only=[OP]).count(OP) == 3
    assert len(many.graph.node) > 2 * len(few.graph.node)
    assert evaluated.total() < 1.1 * before


@pytest.mark.parametrize("length", [16, 8192])
def test_layers_behind_experts_are_reached_once(length: int, evaluated: Counter[str]) -> None:
    totals = []
    for layers in (6, 12):
        evaluated.clear()
        assert fusion.fuse(decoder(layers, 4, length), only=[OP]).count(OP) == layers
        totals.append(evaluated.total())
    assert totals[1] < 2.2 * totals[0]


UNREAD = """
import os, sys
from fusion.cli import main

def hook(event, args):
    if event == "open" and str(args[0]).endswith(".onnx.data"):
        os.write(2, f"opened {args[0]}\\n".encode())
        os._exit(9)

sys.addaudithook(hook)
sys.exit(main(sys.argv[1:]))
"""


@pytest.mark.parametrize("command", ["fuse", "explain"])
def test_the_weight_file_is_never_opened(command: str, tmp_path: Path) -> None:
    """With gigabytes of weights that are nothing but holes, in a process that dies when it opens them."""
    model = replace(PRESETS["deepseek-v3"], layers=4)
    written = write(model, tmp_path / "m.onnx", Options("bfloat16", batch=1, length=4096))
    assert written.data is not None and written.weight_bytes > 1e10
    words = [command, str(tmp_path / "m.onnx"), *([str(tmp_path / "f.onnx")] if command == "fuse" else [])]
    ran = subprocess.run([sys.executable, "-c", UNREAD, *words], capture_output=True, text=True, check=False)
    assert ran.returncode == 0, ran.stderr
    assert f"4 x {OP}" in ran.stdout
    if command == "fuse":
        fused = onnx.load_model(tmp_path / "f.onnx", load_external_data=False)
        assert sum(node.op_type == OP for node in fused.graph.node) == 4
        assert [path.name for path in tmp_path.iterdir() if path.name.endswith(".data")] == ["m.onnx.data"]


def test_the_hook_would_notice(tmp_path: Path) -> None:
    write(tiny(PRESETS["qwen3-8b"]), tmp_path / "m.onnx", Options("float32"), weights="sparse")
    program = UNREAD.replace("from fusion.cli import main", "from fusion.cli import main; import numpy as np").replace(
        "sys.exit(main(sys.argv[1:]))", f"np.memmap({str(tmp_path / 'm.onnx.data')!r})"
    )
    ran = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False)
    assert ran.returncode == 9 and "opened" in ran.stderr
