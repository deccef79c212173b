"""Rules 1 to 3: the file and its messages."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator

from google.protobuf.unknown_fields import UnknownFieldSet

from ir_ops.ge.air import SIZE_LIMIT
from ir_ops.ge.messages import COMPILED_FIELDS, Message, ModelDef, message_name
from ir_ops.ge.validator.context import ERROR, NOTE, Context, Report, rule


def _children(message: Message) -> Iterator[Message]:
    for field, value in message.ListFields():
        if field.message_type is None:
            continue
        if field.message_type.GetOptions().map_entry:
            yield from value.values()
        elif hasattr(value, "DESCRIPTOR"):
            yield value
        else:
            yield from value


def _unknown_fields(message: Message, place: str) -> Iterator[tuple[str, str, int]]:
    """(place, message type, field number) of every unknown field at any depth."""
    place = f"{place}/{message.name}" if getattr(message, "name", "") else place
    unknown = UnknownFieldSet(message)
    for i in range(len(unknown)):
        yield place, message_name(message), unknown[i].field_number
    for child in _children(message):
        yield from _unknown_fields(child, place)


def _found_unknown(c: Context) -> Iterator[tuple[str, str, int]]:
    known_only = ModelDef()
    known_only.CopyFrom(c.message)
    known_only.DiscardUnknownFields()
    # walking every message costs seconds on large files; the sizes tell whether there is anything to find
    if known_only.ByteSize() != c.message.ByteSize():
        yield from _unknown_fields(c.message, "")


@rule(1, "The file is a ModelDef of less than 2 GiB without unknown fields, and serialises to the same content")
def file_is_model_def(c: Context) -> Iterator[Report]:
    if len(c.data) >= SIZE_LIMIT:
        yield ERROR, "file", f"{len(c.data)} bytes, GE reads less than {SIZE_LIMIT}"
    for place, message, number in _found_unknown(c):
        if number not in COMPILED_FIELDS.get(message, {}):
            yield ERROR, place, f"{message} has an unknown field {number}"
    again = c.message.SerializeToString(deterministic=True)
    if again != c.data:
        yield NOTE, "file", "fields or map entries stand in another order than kvfuse writes them"


@rule(2, "There is a graph; graph names are set and unique; every subgraph is used exactly once")
def graph_names(c: Context) -> Iterator[Report]:
    counts = Counter(graph.name for graph in c.graphs)
    for name, count in counts.items():
        if not name:
            yield ERROR, "model", "a graph has no name"
        elif count > 1:
            yield ERROR, name, f"{count} graphs have this name"
    used = Counter(name for op in c.ops() for name in op.message.subgraph_name)
    for graph in c.graphs[1:]:
        if used[graph.name] != 1:
            yield ERROR, graph.name, f"a subgraph is used {used[graph.name]} times, wanted once"
    for name in used:
        if name not in counts:
            yield ERROR, name, "an op names a subgraph that does not exist"


@rule(3, "No field is set that only a compiled model has")
def no_compiled_fields(c: Context) -> Iterator[Report]:
    for place, message, number in _found_unknown(c):
        name = COMPILED_FIELDS.get(message, {}).get(number)
        if name is not None:
            yield ERROR, place, f"{message}.{name} is set; the loader copies it blindly"
    if c.message.attr:
        yield NOTE, "model", f"attributes of a compiled model are ignored: {', '.join(sorted(c.message.attr))}"
    for graph in c.graphs:
        if graph.message.input:
            yield NOTE, graph.name, "GraphDef.input is set (GE writes it when saving; Data ops say the same)"
