"""Reading and writing ``.air`` files, and the sidecar that tells a deployment script what goes in and out.

``NAME.air`` is accompanied by ``NAME.io.json``: inputs in index order, outputs in order, and which output is the new
content of which cache (see :func:`io_record`).
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from ir_ops.errors import BadModel, ExportError
from ir_ops.files import replacing
from ir_ops.ge.codec import decode, encode
from ir_ops.ge.messages import Message, ModelDef
from ir_ops.ge.model import Edge, Model, inputs_of, outputs_of
from ir_ops.ge.prototypes import find

SIZE_LIMIT = 2**31 - 1
"""GE reads and writes a protobuf message of less than this many bytes."""

SIDECAR_SUFFIX = ".io.json"


def serialise(model: Model) -> bytes:
    """The bytes of the model's ``.air`` file; the same model gives the same bytes.

    Raises:
        ExportError: 2 GiB or more.
    """
    message = encode(model)
    size = message.ByteSize()
    if size >= SIZE_LIMIT:
        raise ExportError("the model does not fit into one .air file", where=model.name, found=f"{size} bytes",
                          wanted=f"less than {SIZE_LIMIT}", hint="keep weights in files: file_constant")  # fmt: skip
    return bytes(message.SerializeToString(deterministic=True))


def sidecar_path(path: str | os.PathLike[str]) -> Path:
    """``x.air`` -> ``x.io.json``."""
    return Path(path).with_suffix(SIDECAR_SUFFIX)


def write(
    model: Model,
    path: str | os.PathLike[str],
    *,
    source_names: Mapping[str, str] | None = None,
    data: bytes | None = None,
) -> Path:
    """Writes ``path`` and its sidecar, each complete or not at all; returns the path.

    Args:
        source_names: graph input -> its name in the model it was made from, recorded where it differs.
        data: the model's bytes, when they are made already.

    Raises:
        ExportError: the model is too large for one file.
        KvfuseError: the folder cannot be written to.
    """
    with replacing(path) as part:
        part.write_bytes(serialise(model) if data is None else data)
    with replacing(sidecar_path(path)) as part:
        part.write_text(json.dumps(io_record(model, source_names), indent=1) + "\n", encoding="utf-8")
    return Path(path)


def read_message(path: str | os.PathLike[str]) -> Message:
    """The file as a raw ``ModelDef``.

    Raises:
        BadModel: no such file, or not a serialised ModelDef.
    """
    return parse(content(path), str(path))


def content(path: str | os.PathLike[str]) -> bytes:
    """The bytes of a file. Raises BadModel when there is none, it cannot be read, or no ``.air`` file has its size."""
    file = Path(path)
    if not file.is_file():
        raise BadModel("a folder, not a file" if file.is_dir() else "no such file", where=str(path))
    size = file.stat().st_size
    if size >= SIZE_LIMIT:
        raise BadModel("too large for an .air file", where=str(path), found=f"{size} bytes",
                       wanted=f"less than {SIZE_LIMIT}")  # fmt: skip
    try:
        return file.read_bytes()
    except OSError as error:
        raise BadModel("the file cannot be read", where=str(path), found=error.strerror or str(error)) from None


def parse(data: bytes, where: str = "") -> Message:
    """Bytes as a raw ``ModelDef``. Raises BadModel when they are not one."""
    message = ModelDef()
    try:
        message.ParseFromString(data)
    except Exception as error:
        # protobuf's DecodeError differs between its implementations
        raise BadModel("not an .air file", where=where, found=f"{len(data)} bytes that are no ModelDef",
                       hint=str(error)) from None  # fmt: skip
    if not message.graph:
        raise BadModel("not an .air file", where=where, found="a message without a graph")
    return message


def read(path: str | os.PathLike[str]) -> Model:
    """Reads an ``.air`` file, ours or one that GE saved.

    Raises:
        BadModel: the file is missing, is no ModelDef, or holds what GE's loader refuses too.
    """
    model = decode(read_message(path))
    model.folder = Path(path).resolve().parent
    model.source_names = _recorded_names(sidecar_path(path))
    return model


def _recorded_names(sidecar: Path) -> dict[str, str]:
    """Graph input -> its ONNX name, as the record beside the file says; nothing where there is no such record."""
    try:
        rows = json.loads(sidecar.read_text(encoding="utf-8"))["inputs"]
        return {str(row["name"]): str(row["source_name"]) for row in rows if "source_name" in row}
    except (OSError, ValueError, KeyError, TypeError):
        return {}


def cache_pairs(model: Model) -> dict[str, str]:
    """RefData name -> name of the graph output that is its content afterwards ("" when it is no output)."""
    written: dict[str, Edge] = {}
    origin: dict[Edge, str] = {Edge(node.name, 0): node.name for node in model.root.of_type("RefData")}
    for node in model.root.nodes:
        prototype = find(node.type)
        if prototype is None or not prototype.refs:
            continue
        for output, source in ((port, node.slot(name)) for name, port in prototype.ref_names.items()):
            if source is None or source.source not in origin:
                continue
            edge = Edge(node.name, [port.name for port in node.outputs].index(output))
            origin[edge] = origin[source.source]
            written[origin[edge]] = edge
    names = {output.source: output.name for output in outputs_of(model)}
    return {name: names.get(edge, "") for name, edge in written.items()}


def io_record(model: Model, source_names: Mapping[str, str] | None = None) -> dict[str, Any]:
    """What the sidecar holds: inputs and outputs with index, name, dtype, shape, and the cache pairing.

    An input updated in place has ``"in_place": true`` and, when the graph also returns it, ``"output"``: the name of
    the output that is the same buffer. ``"source_name"`` is the name in the original model where it had to change.
    """
    pairs = cache_pairs(model)
    inputs: list[dict[str, Any]] = []
    for entry in inputs_of(model):
        dtype = entry.type.dtype.name if entry.type.dtype else ""
        shape = None if entry.type.shape is None else list(entry.type.shape)
        row: dict[str, Any] = {"index": entry.index, "name": entry.name, "dtype": dtype, "shape": shape}
        source_name = (source_names or {}).get(entry.name, entry.name)
        if source_name != entry.name:
            row["source_name"] = source_name
        if entry.is_ref:
            row["in_place"] = True
            if pairs.get(entry.name):
                row["output"] = pairs[entry.name]
        inputs.append(row)
    outputs = [
        {
            "index": i,
            "name": entry.name,
            "dtype": entry.type.dtype.name if entry.type.dtype else "",
            "shape": None if entry.type.shape is None else list(entry.type.shape),
        }
        for i, entry in enumerate(outputs_of(model))
    ]
    return {"format": "kvfuse ge io 1", "model": model.name, "inputs": inputs, "outputs": outputs}
