"""The wire format: field numbers, a pool of its own, nothing loaded before it is needed."""

from __future__ import annotations

import subprocess
import sys

import pytest
from google.protobuf import descriptor_pb2, descriptor_pool

from ir_ops.ge import messages


def test_a_hand_encoded_model_parses() -> None:
    # field 1 "m"; field 7: a graph with field 1 "g" and field 6: an op with field 1 "n", field 2 "Data"
    op = b"\x0a\x01n\x12\x04Data"
    graph = b"\x0a\x01g" + b"\x32" + bytes([len(op)]) + op
    model = messages.ModelDef.FromString(b"\x0a\x01m" + b"\x3a" + bytes([len(graph)]) + graph)
    assert (model.name, model.graph[0].name, model.graph[0].op[0].type) == ("m", "g", "Data")


@pytest.mark.parametrize(
    ("message", "field", "number"),
    [
        ("OpDef", "input_desc", 33),
        ("OpDef", "output_desc", 34),
        ("TensorDescriptor", "device_type", 14),
        ("AttrDef", "dt", 15),
        ("AttrDef", "t", 12),
        ("AttrDef", "list_list_int", 14),
    ],
)
def test_field_numbers(message: str, field: str, number: int) -> None:
    assert getattr(messages, message).DESCRIPTOR.fields_by_name[field].number == number


def test_list_value_type_has_number_20() -> None:
    message = messages.AttrDef()
    message.list.val_type = messages.LIST_TYPES["INT"]
    assert message.list.DESCRIPTOR.fields_by_name["val_type"].number == 20
    assert message.SerializeToString() == b"\x0a\x03\xa0\x01\x02"


def test_members_of_an_attribute_exclude_each_other() -> None:
    message = messages.AttrDef()
    message.i = 3
    message.f = 0.5
    assert message.WhichOneof("value") == "f"


def test_shapes_are_packed() -> None:
    desc = messages.TensorDescriptor()
    desc.shape.dim.extend([2, -1])
    assert desc.SerializeToString() == b"\x1a\x0d\x0a\x0b\x02" + b"\xff" * 9 + b"\x01"


def test_the_definition_does_not_clash_with_ges_own() -> None:
    # what another package does in the same process: GE's file under GE's name in the default pool
    theirs = descriptor_pb2.FileDescriptorProto(name="ge_ir.proto", package="ge.proto", syntax="proto3")
    theirs.message_type.add(name="ModelDef")
    descriptor_pool.Default().AddSerializedFile(theirs.SerializeToString())
    assert messages.ModelDef.DESCRIPTOR.full_name == "kvfuse.ge_ir.ModelDef"
    assert messages.ModelDef(name="m").SerializeToString() == b"\x0a\x01m"


def test_fields_of_a_compiled_model_are_unknown_but_named() -> None:
    known = {field.number for field in messages.OpDef.DESCRIPTOR.fields}
    assert known.isdisjoint(messages.COMPILED_FIELDS["OpDef"])
    assert messages.COMPILED_FIELDS["OpDef"][30] == "workspace"


def test_importing_the_package_loads_no_protobuf() -> None:
    code = "import sys, ir_ops.ge; sys.exit('google.protobuf' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
