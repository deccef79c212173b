"""Sessions with the kvfuse operators, and running them with numpy arrays of every element type."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Literal

import numpy as np
import onnx
from google.protobuf.message import DecodeError

from custom_ort.bfloat16 import with_rounding
from custom_ort.diagnose import broken_rules
from custom_ort.library import register, runtime
from custom_ort.values import element_type, from_ortvalue, to_ortvalue
from ir_ops.dtypes import Array, by_name
from ir_ops.errors import BadInput, BadModel

BFloat16 = Literal["auto", "native", "round"]

_ORT_TYPES = {"float": "float32", "double": "float64", "float8e4m3fn": "float8_e4m3fn", "float8e5m2": "float8_e5m2"}
_RULE = re.compile(r": [A-Z]+-\d+: ")
_EXTERNAL_FOLDER = "session.model_external_initializers_file_folder_path"
_QUIET = 4  # a refused model is reported by our exception; onnxruntime need not print it as well


def session(
    model: str | os.PathLike[str] | bytes | onnx.ModelProto,
    *,
    sess_options: Any = None,
    providers: Any = None,
    bf16: BFloat16 = "auto",
) -> Any:
    """An ``onnxruntime.InferenceSession`` that knows the operators of ``ai.ascend``.

    Args:
        model: file, serialised model, or model.
        sess_options: ``onnxruntime.SessionOptions`` to use; the operators are registered with them.
        providers: execution providers, the CPU by default; our operators run on the CPU.
        bf16: ``round`` computes in float32 where the runtime has no bfloat16 kernel and rounds every node's output to
            bfloat16 (:func:`custom_ort.bfloat16.with_rounding`); ``auto`` does so where the runtime refuses the model
            otherwise; ``native`` never.

    Raises:
        BadModel: the file is missing, or onnxruntime refuses the model; an operator's refusal names node and rule.
        KvfuseError: the library or onnxruntime is missing or too old.
    """
    options = sess_options
    if options is None:
        options = runtime().SessionOptions()
        options.log_severity_level = _QUIET
    register(options)
    where = "model"
    source: Any = model
    if isinstance(model, onnx.ModelProto):
        source = model.SerializeToString()
    elif not isinstance(model, bytes):
        where = source = str(model)
        if not Path(source).is_file():
            raise BadModel("no such model file", where=where)
    try:
        return _open(source, options, providers or ["CPUExecutionProvider"], bf16)
    except Exception as error:
        lacking = bf16 == "native" and "NOT_IMPLEMENTED" in str(error)
        hint = "bf16='round' computes in float32 where the runtime has no bfloat16 kernel" if lacking else ""
        raise _refused_model(source, where, error, hint) from None


def _open(source: str | bytes, options: Any, providers: Any, bf16: BFloat16) -> Any:
    """The session as it is or with Casts around what has no bfloat16 kernel."""
    if bf16 != "round":
        try:
            return runtime().InferenceSession(source, options, providers=providers)
        except Exception as error:
            if bf16 == "native" or "NOT_IMPLEMENTED" not in str(error):
                raise
            rounding, count = with_rounding(_proto(source))
            if not count:
                raise
    else:
        rounding, _ = with_rounding(_proto(source))
    if isinstance(source, str):
        if runtime().__version__.startswith("1.20."):  # does not look into the folder
            onnx.external_data_helper.load_external_data_for_model(rounding, str(Path(source).parent))
        options.add_session_config_entry(_EXTERNAL_FOLDER, str(Path(source).absolute().parent))
    return runtime().InferenceSession(rounding.SerializeToString(), options, providers=providers)


def _proto(source: str | bytes) -> onnx.ModelProto:
    return onnx.load_from_string(source) if isinstance(source, bytes) else onnx.load(source, load_external_data=False)


def _refused_model(source: str | bytes, where: str, error: Exception, hint: str) -> BadModel:
    """Says which rule of ours the model breaks, that it is none, or else onnxruntime's own words."""
    found = _message(error)
    if not _RULE.search(found):
        try:
            model = _proto(source)
            if not model.HasField("graph"):
                raise DecodeError
            found = next(broken_rules(model), found)
        except DecodeError:
            return BadModel("this is no ONNX model", where=where, wanted="a ModelProto with a graph")
        except (OSError, ValueError):
            pass
    return BadModel("onnxruntime does not take the model", where=where, found=found, hint=hint)


def run(session: Any, feeds: Mapping[str, Array]) -> dict[str, Array]:
    """Runs a session: input name -> array in, output name -> array out.

    Caches are copied: neither ``feeds`` nor its arrays change. :func:`custom_ort.bind` works in place.

    Raises:
        BadInput: an input is unknown, missing, or of another type or shape than the model declares; or an operator
            refuses it, with the rule's id and text.
    """
    check_feeds(session, feeds)
    values = {name: to_ortvalue(np.asarray(array)) for name, array in feeds.items()}
    names = [output.name for output in session.get_outputs()]
    try:
        results = session.run_with_ort_values(names, values)
    except Exception as error:
        raise refused(error) from None
    return {name: from_ortvalue(value) for name, value in zip(names, results, strict=True)}


def check_feeds(session: Any, feeds: Mapping[str, Array]) -> None:
    """Compares names, element types and shapes with the session's inputs.

    Raises:
        BadInput: the first difference.
    """
    declared = {entry.name: entry for entry in session.get_inputs()}
    for name in feeds:
        if name not in declared:
            raise BadInput("the model has no such input", found=name, wanted=", ".join(declared))
    missing = [name for name in declared if name not in feeds]
    if missing:
        raise BadInput("an input is missing", found="no " + ", no ".join(missing))
    for name, array in feeds.items():
        check_array(name, np.asarray(array), declared[name])


def check_array(name: str, array: Array, declared: Any) -> None:
    """Compares an array with what a session declares for an input or output.

    Raises:
        BadInput: element type or shape differ.
    """
    wanted = dtype_of(declared)
    if element_type(array, name).name != wanted:
        raise BadInput("an array has another element type", where=name, found=str(array.dtype), wanted=wanted)
    shape = declared.shape
    fits = len(shape) == array.ndim and all(
        not isinstance(size, int) or size < 0 or size == given for size, given in zip(shape, array.shape, strict=True)
    )
    if shape and not fits:  # [] stands for a scalar and for an unknown rank
        sizes = ", ".join("?" if size is None else str(size) for size in shape)
        raise BadInput("an array has another shape", where=name, found=str(list(array.shape)), wanted=f"[{sizes}]")


def dtype_of(declared: Any) -> str:
    """kvfuse's name of a session input's or output's element type, of ``tensor(float16)`` for example."""
    text = re.sub(r"^tensor\((.*)\)$", r"\1", declared.type)
    name = _ORT_TYPES.get(text, text)
    try:
        return by_name(name).name
    except KeyError:
        raise BadInput("a value is not a tensor of a known type", where=declared.name, found=declared.type) from None


def refused(error: Exception) -> BadInput:
    """onnxruntime's failure of a run as one line."""
    return BadInput("onnxruntime refuses the run", found=_message(error))


def _message(error: Exception) -> str:
    """The part of onnxruntime's text that says why: after ``Status Message:`` where it wraps an operator's status."""
    text = str(error).rpartition("Status Message: ")[2]
    return text.rpartition("Exception during initialization: ")[2].removeprefix("[ONNXRuntimeError] : ")
