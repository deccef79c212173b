"""Rules 4 to 9: nodes, graph inputs, outputs and constants."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from functools import lru_cache
from pathlib import Path

from ir_ops.dtypes import DType, by_ge_attr
from ir_ops.ge.codec import layout_of, shape_of
from ir_ops.ge.messages import Message
from ir_ops.ge.naming import is_clean
from ir_ops.ge.validator.context import ERROR, NOTE, WARNING, Context, Op, Report, dtype_of, nd_shape, rule


@rule(4, "Node names are set, unique and made of letters, digits and _ . / -")
def node_names(c: Context) -> Iterator[Report]:
    for graph in c.graphs:
        for name, count in Counter(op.name for op in graph.ops).items():
            if not name:
                yield ERROR, graph.name, "a node has no name"
            elif count > 1:
                yield ERROR, f"{graph.name}/{name}", f"{count} nodes have this name; edges go to the last one silently"
            elif ":" in name:
                yield ERROR, f"{graph.name}/{name}", "a colon in a node name is taken for an output index"
            elif not is_clean(name):
                yield WARNING, f"{graph.name}/{name}", "characters outside [A-Za-z0-9_./-]"
    across = Counter(name for graph in c.graphs for name in graph.by_name)
    for name, count in across.items():
        if count > 1 and name not in ("", "NetOutput"):
            yield WARNING, name, f"nodes of {count} graphs have this name"


@rule(5, "Every operator type has a prototype")
def known_types(c: Context) -> Iterator[Report]:
    for op in c.ops():
        if op.prototype is None and op.type not in c.custom_ops:
            yield ERROR, op.place, f"GE has no operator {op.type!r}"


@rule(6, "The root graph has exactly one NetOutput, with inputs and without outputs; GraphDef.output is empty")
def net_output(c: Context) -> Iterator[Report]:
    found = list(c.root.of_type("NetOutput"))
    if len(found) != 1:
        yield ERROR, c.root.name, f"{len(found)} NetOutput nodes, wanted 1"
    for op in found:
        if not op.message.input_desc:
            yield ERROR, op.place, "NetOutput has no input"
        if op.message.output_desc:
            yield ERROR, op.place, "NetOutput has an output descriptor"
    for graph in c.graphs:
        if graph.message.output:
            yield ERROR, graph.name, f"GraphDef.output is set: {', '.join(graph.message.output)}"


def _same_desc(a: Message, b: Message) -> bool:
    return bool(a.dtype == b.dtype) and shape_of(a) == shape_of(b) and layout_of(a) == layout_of(b)


@rule(7, "Data and RefData: equal x and y, no input, indices 0..n-1 with all Data before all RefData")
def graph_inputs(c: Context) -> Iterator[Report]:
    for op in c.of_type("Data", "RefData"):
        if len(op.message.input_desc) != 1 or len(op.message.output_desc) != 1:
            yield ERROR, op.place, "wanted one input and one output descriptor"
        elif not _same_desc(op.message.input_desc[0], op.message.output_desc[0]):
            yield ERROR, op.place, "input and output descriptor differ"
        if any(text for text in op.message.input):
            yield ERROR, op.place, f"a graph input has an input: {', '.join(op.message.input)}"
        if not op.graph.is_root and "_parent_node_index" not in op.message.attr:
            yield ERROR, op.place, "an input of a subgraph lacks _parent_node_index"
    yield from _input_indices(c)


def _input_indices(c: Context) -> Iterator[Report]:
    missing = [op for op in c.root.ops if op.is_input and op.attr("index").WhichOneof("value") != "i"]
    for op in missing:
        yield ERROR, op.place, "no attribute index; GE renumbers all inputs in file order"
    entries = [(op.attr("index").i, op.type) for op in c.root.ops if op.is_input and op not in missing]
    numbers = sorted(number for number, _ in entries)
    if not missing and numbers != list(range(len(numbers))):
        yield ERROR, c.root.name, f"input indices {numbers}, wanted 0..{len(numbers) - 1} once each"
    kinds = [kind for _, kind in sorted(entries)]
    if kinds != sorted(kinds):
        yield ERROR, c.root.name, "a RefData has a smaller index than a Data"


def _nbytes(desc: Message) -> int | None:
    dtype, shape = dtype_of(desc), shape_of(desc)
    if dtype is None or shape is None or any(dim < 0 for dim in shape):
        return None
    count = 1
    for dim in shape:
        count *= dim
    return dtype.nbytes(count)


@rule(8, "A Const has no input, and a value whose type is that of its output and whose bytes fit")
def constants(c: Context) -> Iterator[Report]:
    for op in c.of_type("Const", "Constant"):
        if len(op.message.input):
            yield ERROR, op.place, "a constant has an input"
        if "value" not in op.message.attr or op.attr("value").WhichOneof("value") != "t":
            yield ERROR, op.place, "no attribute value with a tensor"
            continue
        if len(op.message.output_desc) != 1:
            yield ERROR, op.place, f"{len(op.message.output_desc)} outputs, wanted 1"
            continue
        value, desc = op.attr("value").t, op.message.output_desc[0]
        if value.desc.dtype != desc.dtype or shape_of(value.desc) != shape_of(desc):
            yield ERROR, op.place, "value and output descriptor have different types"
        wanted = _nbytes(value.desc)
        if "location" in op.message.attr:
            yield from _weight_file(c, op, wanted)
        elif wanted is None:
            yield ERROR, op.place, "the value has no fixed type and shape"
        elif len(value.data) != wanted:
            yield ERROR, op.place, f"{len(value.data)} bytes of data, wanted {wanted}"


def _weight_file(c: Context, op: Op, wanted: int | None) -> Iterator[Report]:
    location, length = op.attr("location").s.decode(errors="replace"), op.attr("length").i
    if op.attr("value").t.data:
        yield ERROR, op.place, "both data and a location"
    if length != wanted:
        yield ERROR, op.place, f"length {length}, wanted {wanted} bytes"
    size = c.file_size((c.folder or Path()) / location)
    if size is None:
        yield ERROR, op.place, f"no weight file {location} beside the .air"
    elif size != length:
        yield ERROR, op.place, f"weight file {location} has {size} bytes, wanted exactly {length}"


@lru_cache(maxsize=64)
def _path(text: bytes) -> Path:
    """Weights by the thousand stand in the same few files."""
    return Path(text.decode(errors="replace"))


def file_constant_path(op: Op) -> Path | None:
    """The file a FileConstant points at, None when it names none."""
    for name in ("location", "file_path"):
        if op.attr(name).s:
            return _path(op.attr(name).s)
    return None


def _attr_dtype(op: Op) -> DType | None:
    try:
        return by_ge_attr(op.attr("dtype").dt)
    except KeyError:
        return None


@rule(9, "A FileConstant has shape, dtype and a file that holds its bytes")
def file_constants(c: Context) -> Iterator[Report]:
    for op in c.of_type("FileConstant"):
        attrs = op.message.attr
        if "shape" not in attrs or "dtype" not in attrs or len(op.message.output_desc) != 1:
            yield ERROR, op.place, "wanted attributes shape and dtype, and one output"
            continue
        desc = op.message.output_desc[0]
        if tuple(op.attr("shape").list.i) != (nd_shape(desc) or ()):
            yield ERROR, op.place, f"attribute shape {list(op.attr('shape').list.i)}, output {list(desc.shape.dim)}"
        if _attr_dtype(op) != dtype_of(desc) or dtype_of(desc) is None:
            yield ERROR, op.place, f"attribute dtype {op.attr('dtype').dt} (GE enum) is not the output's element type"
        file = file_constant_path(op)
        if file is None:
            if "file_id" not in attrs:
                yield ERROR, op.place, "neither location nor file_path"
            continue
        if not file.is_absolute():
            yield NOTE, op.place, f"{file} is looked up in the folder that atc runs in"
        yield from _file_range(c, op, file if file.is_absolute() else (c.folder or Path()) / file, _nbytes(desc))


def _file_range(c: Context, op: Op, file: Path, wanted: int | None) -> Iterator[Report]:
    offset, length = op.attr("offset").i, op.attr("length").i
    if length and length != wanted:
        yield ERROR, op.place, f"length {length}, wanted {wanted} bytes"
    size = c.file_size(file)
    if size is None:
        yield ERROR, op.place, f"no weight file {file}"
    elif offset + (wanted or 0) > size:
        yield ERROR, op.place, f"bytes {offset}..{offset + (wanted or 0)} of a file of {size}"
