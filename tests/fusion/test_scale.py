"""Decoders of many layers: the work grows with their number, although each layer depends on all before it."""

from __future__ import annotations

from collections import Counter

import numpy as np
import onnx
import pytest

import fusion
from fusion.facts.probe import Probe
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
    assert sum(site.proof.shared_with is None for site in result.sites) == 1
    pairs = [(site.inputs[5].rsplit("_")[-1], site.inputs[6].rsplit("_")[-1]) for site in result.sites]
    assert pairs == [(str(layer), str(layer)) for layer in range(61)]


@pytest.mark.parametrize("dims", ["named", "own"])
def test_nodes_evaluated_grow_with_the_layers(dims: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Counted, not timed: four times the layers, four times the evaluations."""
    evaluated: Counter[int] = Counter()
    original = Probe._evaluate

    for layers in (4, 16):

        def counting(self: Probe, node: object, layers: int = layers) -> object:
            evaluated[layers] += 1
            return original(self, node)  # type: ignore[arg-type]

        monkeypatch.setattr(Probe, "_evaluate", counting)
        assert fusion.fuse(chain(layers, dims)).count(OP) == layers
    assert evaluated[16] < 4.5 * evaluated[4]
