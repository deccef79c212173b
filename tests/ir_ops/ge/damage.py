"""A graph with something of everything, for tests that damage it one rule at a time."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from ir_ops.ge import Finding, GraphBuilder, Model, air, validate
from ir_ops.ge.attrs import make_attr
from ir_ops.ge.model import TensorType

Damage = Callable[[Any], None]
"""Changes a ``ModelDef`` in place."""


def good_model(folder: Path) -> Model:
    """A model without any finding; its two weight files are written to ``folder``."""
    (folder / "w.bin").write_bytes(bytes(64))
    (folder / "big.bin").write_bytes(bytes(4096))
    b = GraphBuilder("good")
    x, scores = b.data("x", "float32", (4, 8)), b.data("scores", "float32", (4, 16))
    cache, at = b.ref_data("cache", "float32", (16, 8)), b.data("at", "int64", (4, 1))
    nz = b.data("nz", "float16", (16, 16), layout="FRACTAL_NZ")
    mask = b.data("mask", "bool", (4, 16))
    beside = b.const_file("w.bin", "float32", (2, 8), name="beside")
    shared = b.file_constant(folder / "big.bin", 1024, 128, "float32", (4, 8), name="shared")
    y, _ = b.RmsNorm(x, np.ones(8, np.float32), epsilon=1e-5, name="norm")
    left, right = b.SplitV(y, np.array([4, 4]), np.int32(1), num_split=2, name="split")
    back = b.ConcatD([left, right], concat_dim=1, name="concat")
    mean = b.ReduceMean(
        b.Transpose(back, np.array([1, 0]), name="transpose"), np.array([0]), keep_dims=True, name="mean"
    )
    rows = b.GatherV2(shared, np.array([0, 1]), np.int64(0), name="gather")
    values, places = b.TopKV2(scores, np.int32(2), name="topk")
    triangle = b.Trilu(x, name="triangle", upper=1)
    dims = b.Shape(x, dtype=9, name="shape")
    scale = np.full(8, 4.0, np.float32)
    mark = {"_onnx_scale": make_attr("ListFloat", [0.25])}
    quantised = b.AscendQuantV2(x, scale, name="quant", **mark)
    narrow = b.Cast(mean, dst_type=1, name="cast")
    float32 = x.dtype
    # q k v with a mask in the middle of the optionals: pse_shift is a placeholder
    attended = b.PromptFlashAttention(
        x, x, x, atten_mask=mask, num_heads=1, types={"attention_out": TensorType(float32, (4, 8))}, name="attention"
    )
    old = b.Neg(cache, name="old")
    new = b.ScatterNdUpdate(cache, at, b.Add(x, x), name="write")
    b.after(new, old)
    every = (
        new,
        old,
        back,
        narrow,
        rows,
        values,
        places,
        triangle,
        dims,
        quantised,
        attended,
        b.Neg(beside),
        b.Neg(nz),
    )
    for i, tensor in enumerate(every):
        b.output(tensor, f"out{i}")
    model = b.build()
    model.folder = folder
    return model


def op(message: Any, name: str) -> Any:
    """The op called ``name``."""
    return next(entry for entry in message.graph[0].op if entry.name == name)


def found(model: Model, damage: Damage, folder: Path) -> dict[int, set[str]]:
    """Rules that speak up after the damage and did not before: rule -> severities."""
    message = air.parse(air.serialise(model))
    before = {_key(f) for f in validate(message.SerializeToString(deterministic=True), folder=folder)}
    damage(message)
    rules: dict[int, set[str]] = {}
    for finding in validate(message.SerializeToString(deterministic=True), folder=folder):
        if _key(finding) not in before:
            rules.setdefault(finding.rule, set()).add(finding.severity)
    return rules


def _key(finding: Finding) -> tuple[int, str, str]:
    return finding.rule, finding.severity, finding.text
