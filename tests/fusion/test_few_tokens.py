"""Graphs of one token, or of one sequence: what changes from token to token does not show, and all fuses as before."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import onnx
import pytest

import fusion
from tests.fusion.qkv import spec as qkv
from tests.fusion.qkv.spellings import Preamble as QkvPreamble
from tests.fusion.zoo import packed
from tests.fusion.zoo import spec as kv
from tests.fusion.zoo.graph import Array
from tests.fusion.zoo.run import run, worst
from tests.fusion.zoo.spellings import Preamble as KvPreamble

Feeds = dict[str, Array]


@dataclass(frozen=True)
class Graph:
    """A preamble with open sizes, and feeds of so many sequences of so many tokens."""

    op: str
    model: Callable[[], onnx.ModelProto]
    feeds: Callable[[int, int], Feeds]


def _kv(**choices: object) -> Graph:
    spec = kv.Spec(**choices)  # type: ignore[arg-type]
    return Graph("KvRmsNormRopeCache", lambda: KvPreamble(spec).model(), lambda b, s: kv.feeds(spec, b, s, seed=3))


def _qkv(**choices: object) -> Graph:
    spec = qkv.Spec(**choices)  # type: ignore[arg-type]
    return Graph("QkvRmsNormRopeCache", lambda: QkvPreamble(spec).model(), lambda b, s: qkv.feeds(spec, b, s, seed=3))


def _packed(**choices: object) -> Graph:
    spec = packed.Packed(**choices)  # type: ignore[arg-type]
    return Graph("DequantRopeQuantKvcache", lambda: packed.PackedPreamble(spec).model(),
                 lambda b, s: packed.feeds(spec, b, s))  # fmt: skip


GRAPHS = {
    "plain rows": _kv(form="v2", write="flat_scatter_nd"),
    "values quantised, with offset": _kv(
        form="v2",
        quant="linear_zero_point",
        offset=True,
        per_column=False,
        write="page_row_by_float",
        quantised="v",
        outs=True,
    ),
    "both quantised by column": _kv(form="v2", quant="multiply", kv="matmul"),
    "norm of the value rows, quantised": _kv(form="v1", quant="divide", offset=True),
    "queries, keys and values": _qkv(),
    "keys and values quantised": _qkv(quant="multiply"),
    "int32 sums": _packed(),
    "products of floats": _packed(rows="matmul_bias", write="rows_pairs"),
}
SIZES = ((1, 1), (1, 3), (3, 1))


def numbered(model: onnx.ModelProto, feeds: Feeds) -> onnx.ModelProto:
    """The same graph for the sizes of these feeds alone: no dim is open any more."""
    fixed = onnx.ModelProto()
    fixed.CopyFrom(model)
    for entry in fixed.graph.input:
        for dim, size in zip(entry.type.tensor_type.shape.dim, feeds[entry.name].shape, strict=True):
            dim.dim_value = size
    for entry in (*fixed.graph.output, *fixed.graph.value_info):
        for dim in entry.type.tensor_type.shape.dim:
            dim.ClearField("dim_param")
    return fixed


@pytest.mark.parametrize("size", SIZES, ids=str)
@pytest.mark.parametrize("name", GRAPHS)
def test_it_fuses_whatever_the_sizes(name: str, size: tuple[int, int]) -> None:
    graph = GRAPHS[name]
    given = graph.feeds(*size)
    model = numbered(graph.model(), given)
    result = fusion.fuse(model)
    assert result.count(graph.op) == 1, [str(refusal) for refusal in result.refusals]
    assert worst(run(result.model, given), run(model, given), "float32") == ""
