"""Weights that onnxruntime maps from a file are not kept in memory twice."""

from __future__ import annotations

import mmap
from pathlib import Path

import numpy as np
import onnx
import pytest

import custom_ort
from tests.custom_ort import one_node
from tests.custom_ort.calls import values
from tests.custom_ort.mla_calls import NAME, WEIGHTS
from tests.custom_ort.test_mla_reference import large

PAGEOUT = 21


def resident(path: Path) -> int:
    """Bytes of a mapped file that are in memory."""
    total, counts = 0, False
    for line in Path("/proc/self/smaps").read_text().splitlines():
        if "-" in line.split(" ", 1)[0]:
            counts = line.endswith(str(path))
        elif counts and line.startswith("Rss:"):
            total += int(line.split()[1]) * 1024
    return total


def handed_back(path: Path) -> bool:
    """Whether this system takes pages of the file back when it is asked to."""
    with path.open("rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as mapped:
        sum(mapped[:: mmap.PAGESIZE])
        full = resident(path)
        try:
            mapped.madvise(PAGEOUT)
        except OSError:
            return False
        return resident(path) < full / 2


def test_pages_of_packed_weights_are_handed_back(tmp_path: Path) -> None:
    if not Path("/proc/self/smaps").exists():
        pytest.skip("no /proc/self/smaps")
    call, rng = large("float32", 3), np.random.default_rng(1)
    for name, columns in (("weight_dq", 100), ("weight_dkv_kr", 96)):
        call.inputs[name] = values(rng, (6000, columns), "float32", 0.01)
    call.inputs["token_x"] = values(rng, (3, 6000), "float32")
    fixed = {name: call.inputs[name] for name in WEIGHTS}
    proto = one_node.model(NAME, one_node.types_of(call.inputs), call.attrs, constants=fixed)
    path, data = tmp_path / "model.onnx", tmp_path / "weights.data"
    onnx.save_model(proto, path, save_as_external_data=True, location=data.name, size_threshold=0)
    if not handed_back(data):
        pytest.skip("the system keeps the pages")
    session = custom_ort.session(path)
    assert resident(data) < data.stat().st_size / 2
    found = custom_ort.run(session, {name: array for name, array in call.inputs.items() if name not in fixed})
    expected = one_node.run(NAME, call.inputs, call.attrs)
    for name, array in one_node.results(found).items():
        assert np.array_equal(one_node.bits(array), one_node.bits(expected[name])), name
