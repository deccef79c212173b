"""Against a definition that nobody here wrote: the messages and prototypes inside a torch-npu wheel.

``KVFUSE_TORCH_NPU`` names the wheel (``make compat`` fetches it); nothing of it is installed or executed.
"""

from __future__ import annotations

import ast
import os
import re
import zipfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from google.protobuf import descriptor_pb2, descriptor_pool, message_factory, unknown_fields
from google.protobuf.message import Message

import fusion
from ir_ops.ge import export, messages, read, validate, write
from ir_ops.ge.prototypes import Prototype, find, prototypes
from tests.ir_ops.ge.damage import good_model

WHEEL = os.environ.get("KVFUSE_TORCH_NPU", "")
FOLDER = "torch_npu/dynamo/torchair/_ge_concrete_graph"

pytestmark = pytest.mark.skipif(not WHEEL, reason="KVFUSE_TORCH_NPU names no torch-npu wheel")


def content(name: str) -> str:
    with zipfile.ZipFile(WHEEL) as wheel:
        return wheel.read(f"{FOLDER}/{name}").decode()


@pytest.fixture(scope="module")
def definition() -> Any:
    """The file descriptor, taken out of the generated module's text."""
    tree = ast.parse(content("ge_ir_by_protoc_3_19_pb2.py"))
    literals = [
        node.value for node in ast.walk(tree) if isinstance(node, ast.Constant) and isinstance(node.value, bytes)
    ]
    file = descriptor_pb2.FileDescriptorProto.FromString(max(literals, key=len))
    pool = descriptor_pool.DescriptorPool()
    pool.Add(file)
    return pool


@pytest.fixture(scope="module")
def model_def(definition: Any) -> Any:
    return message_factory.GetMessageClass(definition.FindMessageTypeByName("ge.proto.ModelDef"))


def unknown(message: Any, path: str = "") -> Iterator[str]:
    """Paths of fields that a definition does not know, at any depth."""
    yield from (f"{path}#{field.field_number}" for field in unknown_fields.UnknownFieldSet(message))
    for field, value in message.ListFields():
        if field.message_type is None:
            continue
        if field.message_type.GetOptions().map_entry:
            entries = value.values() if field.message_type.fields_by_name["value"].message_type else ()
        else:
            entries = [value] if isinstance(value, Message) else list(value)
        for entry in entries:
            yield from unknown(entry, f"{path}/{field.name}")


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory, graphs: Path, data: Path) -> list[Path]:
    """Files with everything we write: all kinds of constants, placeholders, NZ, refs, subgraphs, real models."""
    folder = tmp_path_factory.mktemp("air")
    made = [write(good_model(folder), folder / "good.air")]
    for name in ("hand_kvrrc_pa_quant_dynamo20_fp16", "qwen3_dynamo23_bf16_dyncache", "qwen2_ts17_ortdynint8_dyncache"):
        made.append(export(graphs / f"{name}.onnx", folder / f"{name}.air").path or folder)
    fusion.fuse(graphs / "dsv3_il_dynamo18_fp16_staticcache.onnx", folder / "fused.onnx")
    made.append(export(folder / "fused.onnx", folder / "fused.air", weights="file-per-tensor").path or folder)
    return [*made, *sorted((data / "ge").glob("*.air"))]


def test_files_parse_without_a_rest_and_serialise_to_the_same_content(files: list[Path], model_def: Any) -> None:
    assert len(files) >= 6
    for path in files:
        theirs = model_def.FromString(path.read_bytes())
        assert list(unknown(theirs)) == [], path.name
        ours = messages.ModelDef.FromString(theirs.SerializeToString(deterministic=True))
        assert ours == messages.ModelDef.FromString(path.read_bytes())
        if path.parent.name != "ge":  # samples by other writers, who order fields otherwise
            assert theirs.SerializeToString(deterministic=True) == path.read_bytes()


def test_our_messages_are_a_part_of_theirs(definition: Any) -> None:
    for name, fields in messages._MESSAGES.items():
        theirs = definition.FindMessageTypeByName(f"ge.proto.{name}")
        for field_name, (number, spelled) in fields.items():
            field = theirs.fields_by_name[field_name]
            assert field.number == number
            assert field.is_repeated == spelled.startswith(("*", "{}"))
    for name, numbers in messages.COMPILED_FIELDS.items():
        theirs = definition.FindMessageTypeByName(f"ge.proto.{name}").fields_by_number
        assert {number: theirs[number].name for number in numbers if number in theirs} == {
            number: text for number, text in numbers.items() if number in theirs
        }


def test_our_enumerations_are_theirs(definition: Any) -> None:
    theirs = {value.name: value.number for value in definition.FindEnumTypeByName("ge.proto.DataType").values}
    ours = {name: number for name, number in messages._DATA_TYPES.items() if name in theirs}
    assert len(ours) >= 25
    assert ours.items() <= theirs.items()
    lists = definition.FindEnumTypeByName("ge.proto.AttrDef.ListValue.ListValueType").values
    assert {value.name.rpartition("LIST_")[2]: value.number for value in lists} == messages.LIST_TYPES


# ---------------------------------------------------------------------------------------------------- prototypes

_PARTS = re.compile(
    r"\.(DYNAMIC_INPUT|OPTIONAL_INPUT|INPUT|DYNAMIC_OUTPUT|OUTPUT|REQUIRED_ATTR|ATTR)\((\w+)(?:, (\w+))?"
)
_KINDS = {"INPUT": "required", "OPTIONAL_INPUT": "optional", "DYNAMIC_INPUT": "dynamic", "OUTPUT": "required",
          "DYNAMIC_OUTPUT": "dynamic"}  # fmt: skip


def signatures() -> dict[str, tuple[list[tuple[str, str]], list[tuple[str, str]], list[tuple[str, str, bool]]]]:
    """Operator -> inputs, outputs and attributes, from the texts of the generated module."""
    found = {}
    for block in re.findall(r"\"\"\"REG_OP\((\w+)\)(.*?)\"\"\"", content("auto_generated_ge_raw_ops.py"), re.DOTALL):
        parts = _PARTS.findall(block[1])
        found[block[0]] = (
            [(name, _KINDS[word]) for word, name, _ in parts if word.endswith("INPUT")],
            [(name, _KINDS[word]) for word, name, _ in parts if word.endswith("OUTPUT")],
            [
                (name, kind[:1].upper() + kind[1:], word == "REQUIRED_ATTR")
                for word, name, kind in parts
                if word.endswith("ATTR")
            ],
        )
    return found


OTHER_VERSION = frozenset(
    {"AddRmsNormDynamicQuant", "DequantRopeQuantKvcache", "MoeFinalizeRoutingV2", "MoeGatingTopK"}
)
"""Operators whose prototype differs between the wheel and the operator repositories (an attribute or output more)."""


def test_prototypes_are_those_of_the_wheel() -> None:
    theirs, different = signatures(), []
    assert len(theirs) > 1500
    common = [name for name in prototypes() if name in theirs]
    assert len(common) > 190
    for name in common:
        prototype = find(name)
        assert prototype is not None
        if _signature(prototype) != theirs[name]:
            different.append(name)
    assert set(different) <= OTHER_VERSION


def _signature(prototype: Prototype) -> tuple[Any, Any, Any]:
    return (
        [(port.name, port.kind) for port in prototype.inputs],
        [(port.name, "dynamic" if port.is_dynamic else "required") for port in prototype.outputs],
        [(attr.name, attr.type, attr.required) for attr in prototype.attrs],
    )


_BITS = ("8", "16", "32", "64")
_NUMBERS = ["FLOAT", "FLOAT16", "BF16", "DOUBLE", "COMPLEX64", "COMPLEX128"]
_NUMBERS += [kind + bits for kind in ("INT", "UINT") for bits in _BITS]
_GROUPS = {"BasicType": _NUMBERS, "NumberType": _NUMBERS, "IndexNumberType": ["INT32", "INT64"]}
_SPELLINGS = {"FLOAT32": "FLOAT", "BFLOAT16": "BF16"}
_WORDS = {"float32": "FLOAT", "bfloat16": "BF16", "float64": "DOUBLE"}


def listed_types() -> dict[str, dict[str, set[str]]]:
    """Operator -> input -> the element types its prototype lists; inputs whose list is not spelled out are left out."""
    found: dict[str, dict[str, set[str]]] = {}
    for name, block in re.findall(
        r"\"\"\"REG_OP\((\w+)\)(.*?)\"\"\"", content("auto_generated_ge_raw_ops.py"), re.DOTALL
    ):
        texts = dict(re.findall(r"\.DATATYPE\((\w+), ([^\n]*)\)\\n", block))
        for port, text in re.findall(r"_?INPUT\((\w+), ([^\n]*)\)\\n", block):
            text = texts.get(text, text)
            groups = [word for word in re.findall(r"(\w+)\(\)", text) if word != "TensorType"]
            if all(word in _GROUPS for word in groups):
                words = (_SPELLINGS.get(word, word) for word in re.findall(r"DT_(\w+)", text))
                types = set(words).union(*(_GROUPS[word] for word in groups))
                found.setdefault(name, {})[port] = types
    return found


def test_element_types_are_those_of_the_prototypes(files: list[Path]) -> None:
    """What a prototype of the wheel does not list is at least a warning of rule 21."""
    listed, checked = listed_types(), 0
    for path in files:
        said = {finding.place for finding in validate(path) if finding.rule == 21}
        for node in read(path).root.nodes:
            for slot in node.inputs:
                ports = listed.get(node.type, {})
                allowed = ports.get(slot.name) or ports.get(slot.name.rstrip("0123456789"))
                # the list of this mask is older than its documented contract
                if not allowed or slot.name == "atten_mask" or slot.type.dtype is None:
                    continue
                checked += 1
                word = _WORDS.get(slot.type.dtype.name, slot.type.dtype.name.upper())
                place = f"/{node.name} input {slot.name}"
                assert word in allowed or any(entry.endswith(place) for entry in said), (path.name, place, word)
    assert checked > 900
