"""Every slot and callback that ort_abi.h declares does in the installed runtime what kvfuse relies on.

A probe library is built from ``abi_probe.cc`` with the project's own header. Its operator runs in a session and
reports, for each slot, something that only that slot's function could have produced.
"""

from __future__ import annotations

import ctypes
import gc
import os
import re
import subprocess
from pathlib import Path

import numpy as np
import onnx
import onnxruntime
import pytest
from onnx import TensorProto, helper, numpy_helper

HERE = Path(__file__).parent
SOURCES = HERE.parents[1] / "custom_ort" / "src"

MINOR = int(onnxruntime.__version__.split(".")[1])
SHAPES_WITH_ABSENT = MINOR >= 24
"""Older runtimes crash when they infer the shapes of a node with an absent input: there the probe gets all of them."""

SLOTS = {
    "CreateStatus": "made",
    "GetErrorCode": "2",
    "GetErrorMessage": "made by the probe",
    "CreateCustomOpDomain": "made",
    "CustomOpDomain_Add": "added",
    "AddCustomOpDomain": "added",
    "GetTensorMutableData": "1 2 3 4 5 6",
    "CreateTensorTypeAndShapeInfo": "made",
    "SetTensorElementType": "16",
    "SetDimensions": "2 -1 5",
    "GetTensorElementType": "16",
    "GetDimensionsCount": "3",
    "GetDimensions": "2 -1 5",
    "GetSymbolicDimensions": "'' 'tokens' ''",
    "GetTensorTypeAndShape": "type 1 dims 2 3",
    "KernelInfoGetAttribute_float": "2.500000",
    "KernelInfoGetAttribute_int64": "-7",
    "KernelInfoGetAttribute_string": "a text",
    "KernelInfoGetAttributeArray_int64": "3: 4 -5 6",
    "KernelContext_GetInputCount": "3",
    "KernelContext_GetOutputCount": "1",
    "KernelContext_GetInput": "x-x" if SHAPES_WITH_ABSENT else "xxx",
    "KernelContext_GetOutput": "x-",
    "ReleaseStatus": "freed",
    "ReleaseTensorTypeAndShapeInfo": "freed",
    "ReleaseCustomOpDomain": "freed",
    "KernelInfo_GetInputCount": "3",
    "KernelInfo_GetNodeName": "the probe",
    "KernelInfoGetConstantInput_tensor": "--[10 20]",
    "ShapeInferContext_GetInputCount": "3",
    "ShapeInferContext_GetInputTypeShape": "batch 3",
    "ShapeInferContext_GetAttribute": "found, and not another",
    "ShapeInferContext_SetOutputTypeShape": "set",
    "SetSymbolicDimensions": "'' 'tokens' ''",
    "ReadOpAttr": "-7, 24 bytes: 4 -5 6",
    "KernelContext_ParallelFor": "100 calls, sum 4950",
    "GetTensorElementTypeAndShapeDataReference": "type 1 dims 2 3",
}
"""What each slot's function must have shown."""
LATE = {"GetTensorElementTypeAndShapeDataReference"} if MINOR < 24 else set()
"""Slots that this runtime does not have, and that kvfuse does not use with it."""

CALLBACKS = [
    "GetName",
    "GetExecutionProviderType",
    "GetInputType",
    "GetInputTypeCount",
    "GetOutputType",
    "GetOutputTypeCount",
    "GetInputCharacteristic",
    "GetOutputCharacteristic",
    "GetInputMemoryType",
    "CreateKernelV2",
    "KernelComputeV2",
    "KernelDestroy",
    "GetMayInplace",
    "ReleaseMayInplace",
]
"""Fields of OrtCustomOp that the runtime must have called (InferOutputShapeFn shows in its slots)."""


@pytest.fixture(scope="module")
def probe(tmp_path_factory: pytest.TempPathFactory) -> Path:
    target = tmp_path_factory.mktemp("abi") / "libabi_probe.so"
    compiler = os.environ.get("CXX", "c++")
    flags = ["-std=c++17", "-O1", "-shared", "-fPIC", "-fvisibility=hidden", "-Wall", "-Wextra", "-Werror"]
    subprocess.run([compiler, *flags, f"-I{SOURCES}", str(HERE / "abi_probe.cc"), "-o", str(target)], check=True)
    return target


def probe_model() -> bytes:
    node = helper.make_node(
        "AbiProbe", ["x", "" if SHAPES_WITH_ABSENT else "x", "c"], ["y"], name="the probe", domain="kvfuse.abi_probe",
        number=2.5, integer=-7, text="a text", integers=[4, -5, 6],
    )  # fmt: skip
    x = helper.make_tensor_value_info("x", TensorProto.FLOAT, ["batch", 3])
    y = helper.make_tensor_value_info("y", TensorProto.FLOAT, None)
    constant = numpy_helper.from_array(np.array([10, 20], np.float32), "c")
    imports = [helper.make_opsetid("", 20), helper.make_opsetid("kvfuse.abi_probe", 1)]
    graph = helper.make_graph([node], "probe", [x], [y], [constant])
    model: onnx.ModelProto = helper.make_model(graph, opset_imports=imports, ir_version=10)
    return model.SerializeToString()


@pytest.fixture(scope="module")
def report(probe: Path) -> dict[str, str]:
    """Runs the probe once, its session created and destroyed."""
    options = onnxruntime.SessionOptions()
    options.register_custom_ops_library(str(probe))
    session = onnxruntime.InferenceSession(probe_model(), options, providers=["CPUExecutionProvider"])
    (result,) = session.run(None, {"x": np.arange(1, 7, dtype=np.float32).reshape(2, 3)})
    shapes = [output.shape for output in session.get_outputs()]
    del session, options
    gc.collect()
    library = ctypes.CDLL(str(probe))
    library.abi_probe_report.restype = ctypes.c_char_p
    lines = library.abi_probe_report().decode().splitlines()
    seen = dict(line.split("\t", 1) for line in lines)
    seen["result"], seen["shapes"] = str(result.tolist()), str(shapes)
    return seen


def declared_slots() -> dict[str, int]:
    text = (SOURCES / "ort_abi.h").read_text()
    return {name: int(slot) for slot, name in re.findall(r"\bX\((\d+), (\w+),", text)}


def test_every_declared_slot_is_proven() -> None:
    assert set(declared_slots()) == set(SLOTS)


def test_slots_rise_and_are_distinct() -> None:
    numbers = list(declared_slots().values())
    assert numbers == sorted(set(numbers))


@pytest.mark.parametrize("slot", [slot for slot in SLOTS if slot not in LATE])
def test_slot(slot: str, report: dict[str, str]) -> None:
    assert report[slot] == SLOTS[slot]


@pytest.mark.parametrize("field", CALLBACKS)
def test_callback_is_where_the_runtime_looks(field: str, report: dict[str, str]) -> None:
    assert report.get(field) == "called"


def test_the_probe_computed_and_its_shape_was_inferred(report: dict[str, str]) -> None:
    """What GetOutput and SetOutputTypeShape did is seen from outside too."""
    assert report["result"] == "[[3.0, 6.0, 9.0], [12.0, 15.0, 18.0]]"
    assert report["shapes"] == "[['batch', 3]]"
