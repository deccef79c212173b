"""Golden vectors under tests/data: inputs and outputs of published reference implementations.

``golden`` has the fused operators, ``golden2`` the building blocks. ``manifest.json`` in an operator's folder lists its
cases with attributes, arrays and tolerances. No project code took part in making an expected value. Some cases have a
second accepted set of results, ``alt_*``: those of a device that rounds elsewhere.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np

from ir_ops.dtypes import Array, by_numpy
from ir_ops.npz import load_npz

FOLDER = Path(__file__).parent / "data" / "golden"
BLOCKS = Path(__file__).parent / "data" / "golden2"
COUNTS = {"KvRmsNormRopeCache": 29, "QkvRmsNormRopeCache": 16, "DequantRopeQuantKvcache": 15}
"""Published cases of each operator that must be there."""


@dataclass(frozen=True)
class GoldenCase:
    """One case: ``inputs`` and ``outputs`` by GE name, ``attrs`` as the operator takes them.

    ``same`` are inputs that are another one's array, ``triangles`` masks that are not stored.
    """

    operator: str
    name: str
    attrs: dict[str, Any]
    tolerance: dict[str, dict[str, Any]]
    path: Path
    same: tuple[tuple[str, str], ...] = ()
    triangles: tuple[str, ...] = ()

    def __str__(self) -> str:
        return self.name

    @property
    def inputs(self) -> dict[str, Array]:
        arrays = self._arrays("in_")
        arrays |= {name: np.triu(np.ones((2048, 2048), np.bool_), 1) for name in self.triangles}
        return arrays | {name: arrays[other] for name, other in self.same}

    @property
    def outputs(self) -> dict[str, Array]:
        return self._arrays("out_")

    def _arrays(self, prefix: str) -> dict[str, Array]:
        arrays = load_npz(self.path)
        return {name.removeprefix(prefix): array for name, array in arrays.items() if name.startswith(prefix)}

    def check(self, results: dict[str, Array]) -> None:
        """Asserts that every recorded output is within the manifest's tolerance of ``results``.

        Where a case has a second accepted set of outputs (``alt_``), all outputs may be of that one instead.
        """
        try:
            self._check("out_", results)
        except AssertionError:
            if not self._arrays("alt_"):
                raise
            self._check("alt_", results)

    def _check(self, prefix: str, results: dict[str, Array]) -> None:
        for name, expected in self._arrays(prefix).items():
            assert_within(results[name], expected, self.tolerance[prefix + name], f"{self.name} {prefix}{name}")


def cases(operator: str, *, not_attrs: tuple[str, ...] = ("form", "dims"), base: Path = FOLDER) -> list[GoldenCase]:
    """The operator's cases; ``not_attrs`` are manifest labels that are no attributes of the operator."""
    folder = base / operator
    manifest = json.loads((folder / "manifest.json").read_text())
    return [
        GoldenCase(
            operator,
            entry["case"],
            {name: value for name, value in entry["attrs"].items() if name not in (*not_attrs, "value_is_key")},
            entry["tolerance"],
            folder / Path(entry["file"]).name,
            (("value", "key"),) if entry["attrs"].get("value_is_key") else (),
            tuple(name.removeprefix("in_") for name, array in entry["arrays"].items() if "generate" in array),
        )
        for entry in manifest["cases"]
    ]


def assert_within(found: Array, expected: Array, tolerance: dict[str, Any], where: str) -> None:
    """Asserts a tolerance of the manifest: ``int`` (max_step, max_share), ``float`` (rtol, atol) or ``packed_tile``."""
    if by_numpy(found.dtype).name == "int4":
        found = found.astype(np.int8)  # as the vectors store it
    assert found.dtype == expected.dtype, f"{where}: {found.dtype}, wanted {expected.dtype}"
    assert found.shape == expected.shape, f"{where}: {found.shape}, wanted {expected.shape}"
    if tolerance["kind"] == "packed_tile":
        for part, dtype in (("int8", np.int8), ("rope", ml_dtypes.bfloat16), ("scale", np.float32)):
            keys = {"int8": "int8", "rope": "rope_bf16_bytes", "scale": "scale_f32_bytes"}
            start, stop = tolerance[keys[part]]
            pair = [np.ascontiguousarray(array[..., start:stop]).view(dtype) for array in (found, expected)]
            # rows that nothing was written to hold arbitrary bytes, the same on both sides
            equal = (pair[0].view(np.uint8) == pair[1].view(np.uint8)).all(axis=-1, keepdims=True)
            pair = [np.where(equal, np.zeros_like(array), array) for array in pair]
            assert_within(pair[0], pair[1], tolerance[f"{part}_tol"], f"{where} {part}")
        return
    with np.errstate(invalid="ignore"):
        difference = np.abs(found.astype(np.float64) - expected.astype(np.float64))
    difference[(found == expected) & np.isinf(expected.astype(np.float64))] = 0
    if tolerance["kind"] == "int":
        assert not tolerance["max_step"] or found.dtype.kind in "iu"
        assert difference.max() <= tolerance["max_step"], f"{where}: off by {difference.max()}"
        share = np.count_nonzero(difference) / difference.size
        assert share <= tolerance["max_share"], f"{where}: {share:.2%} of the elements differ"
    else:
        size = np.nan_to_num(np.abs(expected.astype(np.float64)), posinf=0.0)
        worst = float((difference - tolerance["atol"] - tolerance["rtol"] * size).max())
        assert worst <= 0, f"{where}: {worst} beyond the tolerance"
