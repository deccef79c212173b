"""The JSON form is public: its field names, and that every value survives a JSON parser."""

from __future__ import annotations

import dataclasses
import json
import math
from collections import Counter
from pathlib import Path

import numpy as np
import pytest

from fusion.result import Difference, FusionResult, Proof, Refusal, Site, VerifyResult

PROOF = Proof(6, 0.001, 0.0078, "float16", None, "one step at exact ties")
SITE = Site(
    op="KvRmsNormRopeCache",
    name="kv_0",
    place="layer 0, node /model/layers.0/scatter",
    layer=0,
    inputs=("kv", "gamma", "", "index"),
    outputs=("k", "v"),
    attrs={"epsilon": np.float32(1e-6), "cache_mode": "PA", "is_output_kv": True, "sizes": (1, 2), "text": b"raw"},
    assumptions=("slots >= 0",),
    proof=PROOF,
    removed=31,
    notes=("columns of kv_a_proj permuted",),
)
REFUSAL = Refusal("alias-second-reader", "layer 1", 1, "KvRmsNormRopeCache", "one reader", "two", "one", "drop one")
DIFFERENCE = Difference(
    "case0", "y", "original", "float16", (2, 3), math.inf, math.nan, 0.1, 7.5, 0.5, (0, 1), False, "odd"
)


def test_fusion_result() -> None:
    result = FusionResult(
        None, [SITE], [REFUSAL], {"match": 0.1234567891}, Counter({"Mul": 3, "Add": 2}), Counter({"Add": 2})
    )
    said = json.loads(json.dumps(result.to_json(), allow_nan=False))
    assert list(said) == ["kind", "format", "sites", "refusals", "timings", "ops_before", "ops_after", "notes"]
    assert (said["kind"], said["format"]) == ("fusion", 1)
    assert said["timings"] == {"match": 0.123457}
    assert list(said["ops_before"].items()) == [("Add", 2), ("Mul", 3)]
    (site,) = said["sites"]
    assert list(site) == [field.name for field in dataclasses.fields(Site)]
    assert site["attrs"] == {
        "epsilon": pytest.approx(1e-6), "cache_mode": "PA", "is_output_kv": True, "sizes": [1, 2], "text": "raw",
    }  # fmt: skip
    assert site["inputs"] == ["kv", "gamma", "", "index"]
    assert site["proof"] == {
        "cases": 6, "max_error": 0.001, "bound": 0.0078, "dtype": "float16", "shared_with": None,
        "text": "one step at exact ties",
    }  # fmt: skip
    (refusal,) = said["refusals"]
    assert refusal == dataclasses.asdict(REFUSAL)
    assert result.count("KvRmsNormRopeCache") == 1
    assert result.count("MlaPrologV3") == 0


def test_verify_result() -> None:
    good = dataclasses.replace(DIFFERENCE, ok=True, max_abs=0.01, max_rel=0.02, case="case1", first=None)
    result = VerifyResult([DIFFERENCE, good], "both in ONNX Runtime", ("a note",))
    said = json.loads(json.dumps(result.to_json(), allow_nan=False))
    assert list(said) == ["kind", "format", "ok", "how", "notes", "cases", "differences"]
    assert (said["ok"], said["cases"]) == (False, ["case0", "case1"])
    first, second = said["differences"]
    assert list(first) == [field.name for field in dataclasses.fields(Difference)]
    assert (first["max_abs"], first["max_rel"], first["first"]) == (None, None, [0, 1])
    assert (second["max_abs"], second["first"]) == (0.01, None)


def test_nothing_compared_is_not_equal() -> None:
    assert not VerifyResult([], "nothing").ok


@pytest.mark.parametrize("record", [PROOF, SITE, REFUSAL, DIFFERENCE], ids=lambda record: type(record).__name__)
def test_records_do_not_change(record: object) -> None:
    with pytest.raises(dataclasses.FrozenInstanceError):
        record.text = "other"  # type: ignore[attr-defined]


@pytest.mark.parametrize("record", [Proof, Site, Refusal, Difference], ids=lambda record: record.__name__)
def test_every_field_is_documented(record: type) -> None:
    page = (Path(__file__).parents[2] / "docs/json.md").read_text()
    for field in dataclasses.fields(record):
        assert f"`{field.name}`" in page
