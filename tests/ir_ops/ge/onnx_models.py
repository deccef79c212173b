"""Small ONNX models for conversion tests, and running them both ways."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import onnx
from onnx import helper
from onnx.reference import ReferenceEvaluator

from ir_ops.dtypes import Array, by_numpy
from ir_ops.ge import ExportResult, export, run
from ir_ops.ge.naming import sanitise


@dataclass(frozen=True)
class Fixed:
    """An input that is a constant of the model."""

    array: Array


@dataclass
class Case:
    """One node with its inputs; ``static`` where the conversion needs known dims."""

    op: str
    inputs: Sequence[Array | Fixed | None]
    attrs: Mapping[str, Any] = field(default_factory=dict)
    outputs: int = 1
    opset: int = 18
    domain: str = ""
    static: bool = False
    rtol: float = 1e-5

    def model(self, dynamic: bool = False) -> onnx.ModelProto:
        """The model; with ``dynamic`` every input dim has a name instead of a size."""
        infos, initializers, names = [], [], []
        for i, value in enumerate(self.inputs):
            names.append("" if value is None else f"in{i}")
            if isinstance(value, Fixed):
                initializers.append(tensor(names[-1], value.array))
            elif value is not None:
                dims = [f"d{i}_{axis}" if dynamic else dim for axis, dim in enumerate(value.shape)]
                infos.append(helper.make_tensor_value_info(names[-1], by_numpy(value.dtype).onnx or 0, dims))
        outs = [f"out{i}" for i in range(self.outputs)]
        node = helper.make_node(self.op, names, outs, name=f"the/{self.op}", domain=self.domain, **self.attrs)
        results = [helper.make_empty_tensor_value_info(name) for name in outs]
        graph = helper.make_graph([node], "g", infos, results, initializers)
        return make_model(graph, self.opset)

    def feeds(self) -> dict[str, Array]:
        return {f"in{i}": value for i, value in enumerate(self.inputs) if isinstance(value, np.ndarray)}


def tensor(name: str, array: Array) -> onnx.TensorProto:
    """An initializer of any element type."""
    return helper.make_tensor(name, by_numpy(array.dtype).onnx or 0, array.shape, array.tobytes(), raw=True)


def make_model(graph: onnx.GraphProto, opset: int = 18, **domains: int) -> onnx.ModelProto:
    opsets = [
        helper.make_opsetid("", opset),
        helper.make_opsetid("com.microsoft", 1),
        helper.make_opsetid("ai.ascend", 1),
    ]
    return helper.make_model(graph, opset_imports=opsets, ir_version=10)


def converted(
    model: onnx.ModelProto, feeds: Mapping[str, Array], **options: Any
) -> tuple[dict[str, Array], ExportResult]:
    """Outputs of the exported graph, and the export."""
    result = export(model, **options)
    return run(result.model, {sanitise(name): array for name, array in feeds.items()}), result


def expected(model: onnx.ModelProto, feeds: Mapping[str, Array]) -> dict[str, Array]:
    """ONNX's own reference results."""
    names = [output.name for output in model.graph.output]
    with np.errstate(all="ignore"):
        made = ReferenceEvaluator(model).run(None, dict(feeds))
    return dict(zip(names, made, strict=True))


def assert_same(got: Mapping[str, Array], wanted: Mapping[str, Array], rtol: float) -> None:
    assert list(got) == list(wanted)
    for name, array in wanted.items():
        assert got[name].dtype == array.dtype, name
        assert got[name].shape == array.shape, name
        a, b = (x.astype(np.float64) if x.dtype != np.bool_ else x for x in (got[name], array))
        np.testing.assert_allclose(a, b, rtol=rtol, atol=rtol, err_msg=name)
