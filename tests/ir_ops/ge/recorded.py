"""Exported graphs with recorded inputs and outputs, under the names of the exported GE graph."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from ir_ops.dtypes import Array
from ir_ops.ge import Model
from ir_ops.ge.model import inputs_of
from ir_ops.ge.naming import sanitise

Case = tuple[dict[str, Array], dict[str, Array]]


def recorded(path: Path) -> list[Case]:
    """(inputs, outputs) of each recorded case; bfloat16 is stored as float32."""
    arrays = np.load(path.with_suffix(".npz"))
    labels = sorted({key.split("/", 1)[0] for key in arrays.files})
    return [(_part(arrays, f"{label}/in/"), _part(arrays, f"{label}/out/")) for label in labels]


def _part(arrays: np.lib.npyio.NpzFile, prefix: str) -> dict[str, Array]:
    return {key.removeprefix(prefix): arrays[key] for key in arrays.files if key.startswith(prefix)}


def feeds(model: Model, inputs: dict[str, Array]) -> dict[str, Array]:
    """Recorded inputs under their GE names, in their declared types."""
    by_ge_name = {sanitise(name): array for name, array in inputs.items()}
    types = {entry.name: entry.type.dtype for entry in inputs_of(model)}
    return {name: by_ge_name[name].astype(dtype.np) for name, dtype in types.items() if dtype is not None}


# dtype -> (relative, absolute) difference from PyTorch's results over a whole layer
TOLERANCES = {"float32": (1e-4, 1e-5), "float16": (0.01, 0.01), "bfloat16": (0.05, 0.05), "int8": (0.0, 1.0)}


def assert_recorded(got: dict[str, Array], wanted: dict[str, Array]) -> None:
    """Every recorded output within its type's tolerance."""
    assert set(got) == set(wanted)
    for name, array in wanted.items():
        assert got[name].shape == array.shape, name
        rtol, atol = TOLERANCES[got[name].dtype.name]
        a, b = got[name].astype(np.float64), array.astype(np.float64)
        np.testing.assert_allclose(a, b, rtol=rtol, atol=atol, err_msg=name)
