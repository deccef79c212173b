"""Static caches with tokens in front of heads, ``[B, M, N, D]``, and flat ones, ``[slots, 1, D]``, of any length.

Modules exported by torch 2.13; recorded outputs are PyTorch's. Rows go to positions ``[B, S]``, to positions that the
batch shares, behind a start, to slots, or to the first places of the cache (``prefix``); the lengths of the two caches
are dims of different names.
"""

from __future__ import annotations

from functools import cache

import numpy as np
import onnx
import pytest

import custom_ort
import fusion
from fusion import FusionResult
from ir_ops.npz import load_npz
from tests.conftest import DATA

FOLDER = DATA / "rows"
SITES = {
    "kv_positions_dynamo18_fp32": ("KvRmsNormRopeCache", "PA"),
    "kv_shared_dynamo18_fp32": ("KvRmsNormRopeCache", "PA"),
    "kv_start_ts17_fp32": ("KvRmsNormRopeCache", "PA"),
    "mla_positions_dynamo18_fp32": ("MlaPrologV3", "PA_BSND"),
    "mla_start_ts17_fp32": ("MlaPrologV3", "PA_BSND"),
    "mla_tokens_dynamo18_fp32": ("MlaPrologV3", "PA_BSND"),
    "mla_prefix_ts17_fp32": ("MlaPrologV3", "PA_BSND"),
    "mla_tokens_prefix_dynamo18_fp32": ("MlaPrologV3", "PA_BSND"),
}


@cache
def fused(name: str) -> FusionResult:
    return fusion.fuse(FOLDER / f"{name}.onnx")


@pytest.mark.parametrize("name", SITES)
def test_the_whole_preamble_is_one_operator(name: str) -> None:
    result = fused(name)
    assert [(site.op, site.attrs["cache_mode"]) for site in result.sites] == [SITES[name]]
    assert not result.refusals


@pytest.mark.parametrize("name", SITES)
@pytest.mark.parametrize("kernel", [True, False], ids=["kernel", "body"])
def test_it_gives_what_torch_gives(name: str, kernel: bool) -> None:
    record = load_npz(FOLDER / f"{name}.npz")
    verified = fusion.verify(FOLDER / f"{name}.onnx", fused(name).model, inputs=record, kernel=kernel)
    assert verified.ok, verified.differences
    assert "recorded" in {item.against for item in verified.differences}


@pytest.mark.parametrize("name", [name for name in SITES if "prefix" in name])
def test_first_places_are_never_minus_one(name: str) -> None:
    assert fused(name).sites[0].assumptions == ("slots are distinct",)
    assert fusion.fuse(FOLDER / f"{name}.onnx", strict_slots=True).count("MlaPrologV3") == 1


@pytest.mark.parametrize("name", ["kv_positions_dynamo18_fp32", "mla_positions_dynamo18_fp32"])
def test_a_position_of_minus_one_touches_no_other_sequence(name: str) -> None:
    """The site says that the operator skips it: its slot is none, not the last row of the sequence in front."""
    record = load_npz(FOLDER / f"{name}.npz")
    given = {key.split("/in/")[1]: value for key, value in record.items() if "/in/" in key}
    assert any(text.startswith("slots >= 0") for text in fused(name).sites[0].assumptions)
    given["pos"] = given["pos"].copy()
    given["pos"][1, 0] = -1
    model = fused(name).model
    assert isinstance(model, onnx.ModelProto)
    got = custom_ort.run(custom_ort.session(model), given)
    for cache_name in [key for key in given if key.endswith("cache")]:
        written = got[cache_name.replace("cache", "out")]
        for entry, positions in enumerate(given["pos"]):
            kept = np.setdiff1d(np.arange(written.shape[1]), positions)
            assert np.array_equal(written[entry, kept], given[cache_name][entry, kept])
            assert not np.isclose(written[entry, positions[-1]], given[cache_name][entry, positions[-1]]).all()
