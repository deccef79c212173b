"""Graphs to edit: small preambles of the four large operators, building blocks, and recorded exports."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cache, cached_property
from pathlib import Path

import numpy as np
import onnx

import fusion
from ir_ops.npz import load_npz
from tests.conftest import DATA
from tests.fusion.metamorphic.draft import Kind, kinds_of
from tests.fusion.mla import cover as mla_cover
from tests.fusion.mla import preamble as mla
from tests.fusion.qkv import cover as qkv_cover
from tests.fusion.qkv import spec as qkv_spec
from tests.fusion.qkv.spellings import Preamble as QkvPreamble
from tests.fusion.rules import test_dynamic_quant, test_swi_glu
from tests.fusion.rules.block_models import model_of, random
from tests.fusion.rules.test_rms_norm import norm_model
from tests.fusion.rules.test_rotary import WIDTH, one, rotary_model, tables
from tests.fusion.test_packed_zoo import specs as packed_specs
from tests.fusion.zoo import cover as kv_cover
from tests.fusion.zoo import packed
from tests.fusion.zoo import spec as kv_spec
from tests.fusion.zoo.graph import Array
from tests.fusion.zoo.norms import NORMS
from tests.fusion.zoo.ropes import ROPES
from tests.fusion.zoo.run import run
from tests.fusion.zoo.spellings import Preamble as KvPreamble

FEW_NODES = 165
Feeds = dict[str, Array]


@dataclass
class Base:
    """A graph, feeds it runs on, and what fuses in it before any edit."""

    name: str
    build: Callable[[], onnx.ModelProto]
    given: Callable[[], list[Feeds]]

    @cached_property
    def model(self) -> onnx.ModelProto:
        return self.build()

    @cached_property
    def feeds(self) -> list[Feeds]:
        return self.given()

    @cached_property
    def results(self) -> list[Feeds]:
        """What the graph computes for the first of its feeds."""
        return [run(self.model, self.feeds[0])]

    @cached_property
    def kinds(self) -> dict[str, Kind]:
        return kinds_of(self.model)

    @cached_property
    def sites(self) -> Counter[str]:
        return Counter(site.op for site in fusion.fuse(self.model).sites)


@cache
def bases() -> tuple[Base, ...]:
    """All that are small: an edit should not cost much."""
    found = [*_key_values(), *_queries(), *_packed(), *_latent(), *_blocks()]
    return (*(base for base in found if len(base.model.graph.node) <= FEW_NODES), *_recorded())


def _key_values() -> Iterator[Base]:
    for number, spec in enumerate(kv_cover.cover(60)):
        if spec.dtype == "float32" and spec.layers == 1 and spec.style == "dynamo":
            sizes = [spec.sizes] if spec.dims == "static" else [(2, 3), (1, 5)]
            yield Base(
                f"kv{number}",
                lambda spec=spec: KvPreamble(spec).model(),  # type: ignore[misc]
                lambda spec=spec, sizes=sizes: [kv_spec.feeds(spec, *size, seed=3) for size in sizes],  # type: ignore[misc]
            )


def _queries() -> Iterator[Base]:
    for number, spec in enumerate(qkv_cover.cover(24)):
        if spec.dtype == "float32" and spec.layers == 1:
            sizes = [spec.sizes] if spec.dims == "static" else [(2, 3), (3, 1)]
            yield Base(
                f"qkv{number}",
                lambda spec=spec: QkvPreamble(spec).model(),  # type: ignore[misc]
                lambda spec=spec, sizes=sizes: [qkv_spec.feeds(spec, *size, seed=9) for size in sizes],  # type: ignore[misc]
            )


def _packed() -> Iterator[Base]:
    for number, spec in enumerate(packed_specs(30)):
        if spec.dtype == "float32" and spec.style == "dynamo":
            sizes = [(2, 1), (1, 1)] if spec.rank == 2 else [(2, 3), (1, 4)]
            yield Base(
                f"packed{number}",
                lambda spec=spec: packed.PackedPreamble(spec).model(),  # type: ignore[misc]
                lambda spec=spec, sizes=sizes: [packed.feeds(spec, *size) for size in sizes],  # type: ignore[misc]
            )


def _latent() -> Iterator[Base]:
    for number, spec in enumerate(mla_cover.cover(30, 7)):
        if spec.dtype == "float32" and spec.style == "dynamo":
            yield Base(
                f"mla{number}",
                lambda spec=spec: mla.Preamble(spec).model(),  # type: ignore[misc]
                lambda spec=spec: [mla.feeds(spec, 1), mla.feeds(spec, 2)],  # type: ignore[misc]
            )


def _blocks() -> Iterator[Base]:
    for norm in NORMS:
        for residual in (False, True):
            yield Base(
                f"norm-{norm}{'-residual' * residual}",
                lambda norm=norm, residual=residual: norm_model(norm, "float32", residual=residual),  # type: ignore[misc]
                lambda: [{"x": random((2, 3, WIDTH)), "h": random((2, 3, WIDTH), seed=1)}],
            )
    for rope, how in ROPES.items():
        width = WIDTH // 2 if how.width == "half" else WIDTH
        yield Base(
            f"rope-{rope}",
            lambda how=how, width=width: rotary_model(one(how.build), width, opset=max(18, how.since)),  # type: ignore[misc]
            lambda width=width: [{"x": random((3, 2, 5, WIDTH)), **tables(3, 5, width)}],  # type: ignore[misc]
        )
    for form, build in test_swi_glu.APART_FORMS.items():
        yield Base(
            f"swiglu-{form}",
            lambda build=build: model_of(build, test_swi_glu.APART),  # type: ignore[misc]
            lambda: [{"x": random((2, 3, WIDTH)), "u": random((2, 3, WIDTH), seed=1)}],
        )
    for form, (build, opset) in test_swi_glu.PACKED_FORMS.items():
        yield Base(
            f"swiglu-{form}",
            lambda build=build, opset=opset: model_of(build, test_swi_glu.PACKED, opset=opset),  # type: ignore[misc]
            lambda: [{"x": random((2, 3, 2 * WIDTH))}],
        )
    for form, build in test_dynamic_quant.FORMS.items():
        kinds = test_dynamic_quant.KINDS
        yield Base(
            f"dynamic-{form}",
            lambda build=build, kinds=kinds: model_of(build, test_dynamic_quant.ROWS, kinds=kinds),  # type: ignore[misc]
            lambda: [{"x": random((2, 3, WIDTH))}],
        )


def _recorded() -> Iterator[Base]:
    for name in ("hand_kvrrc_v2_dynamo18_fp32", "hand_kvrrc_pa_ts17_fp32", "qwen3attn_nz_dynamo18_fp32"):
        path = DATA / "graphs" / f"{name}.onnx"
        yield Base(name, lambda path=path: onnx.load_model(path), lambda path=path: recorded(path))  # type: ignore[misc]


def recorded(path: Path) -> list[Feeds]:
    """Inputs of the cases in the record beside a graph."""
    cases: dict[str, Feeds] = {}
    for key, value in load_npz(path.with_suffix(".npz")).items():
        case, side, name = key.split("/", 2)
        if side == "in":
            cases.setdefault(case, {})[name] = np.asarray(value)
    return list(cases.values())
