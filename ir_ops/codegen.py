"""Writes the C++ kernels' view of the operator declarations: ``python -m ir_ops.codegen [--check] [FOLDER]``.

One header an operator: input and output names with their order and optionality, element type combinations, attributes
with defaults, and ids and texts of the constraints that bind ``generic``. The headers are committed, so that building
the library needs no Python; a test compares them with the declarations.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Iterable, Sequence
from pathlib import Path

from ir_ops.declaration import Attr, Operator
from ir_ops.dtypes import by_name
from ir_ops.errors import BadUsage, KvfuseError
from ir_ops.files import replacing
from ir_ops.ops import OPS

_NOT_IN_RUNTIMES = {"float8_e8m0"}
"""Element types that ONNX has and ONNX Runtime does not hand to custom operators."""
_ATTR_TYPES = {"Float": "kFloat", "Int": "kInt", "Bool": "kBool", "String": "kString", "ListInt": "kInts"}


def snake_case(name: str) -> str:
    """``KvRmsNormRopeCache`` -> ``kv_rms_norm_rope_cache``, the operator's file name in all three places."""
    return re.sub(r"(?<=[a-z0-9])(?=[A-Z])", "_", name).lower()


def header(operator: Operator) -> str:
    """The text of the operator's generated header.

    Raises:
        BadUsage: an attribute type that kernels cannot read yet.
    """
    ns = snake_case(operator.name)
    lines = [
        f"// Made by `python -m ir_ops.codegen` from ir_ops/ops/{ns}.py; change that file instead.",
        "// clang-format off",
        "#pragma once",
        "",
        '#include "declaration.h"',
        '#include "element.h"',
        "",
        f"namespace kvfuse::{ns} {{",
        "",
        _enum("Input", (f"kIn{_camel(entry.name)}" for entry in operator.inputs)),
        _enum("Output", (f"kOut{_camel(entry.name)}" for entry in operator.outputs)),
        _enum("Attribute", (f"kAttr{_camel(attr.name)}" for attr in operator.attrs)),
        "",
        *_ports(operator),
        *_attrs(operator.attrs),
        *_types(operator),
        *_constraints(operator),
        "inline constexpr Declaration kDeclaration = {",
        f'    "{operator.name}", kInputs, kOutputs, kAttrs, kTypes[0], sizeof kTypes / sizeof kTypes[0]}};',
        "",
        f"}}  // namespace kvfuse::{ns}",
    ]
    return "\n".join(lines) + "\n"


def _camel(name: str) -> str:
    return "".join(part[:1].upper() + part[1:] for part in name.split("_"))


def _enum(name: str, values: Iterable[str]) -> str:
    return f"enum {name} : size_t {{ {', '.join(values)} }};"


def _text(value: str) -> str:
    return '"' + value.replace("\\", "\\\\").replace('"', '\\"') + '"'


def _ports(operator: Operator) -> list[str]:
    inputs = [entry.name for entry in operator.inputs]
    outputs = [entry.name for entry in operator.outputs]
    lines = ["inline constexpr InputDecl kInputs[] = {"]
    for entry in operator.inputs:
        ref = -1 if entry.ref is None else outputs.index(entry.ref)
        lines.append(f"    {{{_text(entry.name)}, {str(entry.optional).lower()}, {ref}}},")
    lines += ["};", "inline constexpr OutputDecl kOutputs[] = {"]
    refs = {entry.ref: inputs.index(entry.name) for entry in operator.inputs if entry.ref is not None}
    types = [entry.type for entry in operator.inputs]  # where an output's element type is to be seen
    for output in operator.outputs:
        like = types.index(output.type) if output.type in types else -1
        kinds = operator.onnx_types(output.type)
        only = f", {by_name(kinds[0]).onnx}" if like < 0 and len(kinds) == 1 else ""
        lines.append(f"    {{{_text(output.name)}, {refs.get(output.name, -1)}, {like}{only}}},")
    return [*lines, "};", ""]


def _attrs(attrs: Sequence[Attr]) -> list[str]:
    lines = []
    for attr in attrs:
        if attr.type not in _ATTR_TYPES:
            raise BadUsage("kernels have no reader for this attribute type", where=attr.name, found=attr.type)
        if attr.allowed:
            name = _camel(attr.name)
            lines.append(f"enum {name} : int {{ {', '.join(_value(name, value) for value in attr.allowed)} }};")
            lines.append(f"inline constexpr const char* k{name}Values[] = {{{', '.join(map(_text, attr.allowed))}}};")
    if not attrs:
        return ["inline constexpr View<AttrDecl> kAttrs;", ""]
    lines.append("inline constexpr AttrDecl kAttrs[] = {")
    for attr in attrs:
        number = repr(float(attr.default)) if isinstance(attr.default, (bool, int, float)) else "0.0"
        text = _text(attr.default if isinstance(attr.default, str) else "")
        allowed = f"k{_camel(attr.name)}Values" if attr.allowed else "{}"
        lines.append(f"    {{{_text(attr.name)}, AttrType::{_ATTR_TYPES[attr.type]}, {number}, {text}, {allowed}}},")
    return [*lines, "};", ""]


def _value(name: str, value: str) -> str:
    """The enumerator of an attribute's word, in which C++ takes no dots."""
    return f"k{name}_{re.sub(r'[^0-9A-Za-z]', '_', value)}"


def _types(operator: Operator) -> list[str]:
    ports = [entry.type for entry in operator.inputs] + [entry.type for entry in operator.outputs]
    lines = [f"inline constexpr int8_t kTypes[][{len(ports)}] = {{"]
    for choice in operator.type_combinations():
        if _NOT_IN_RUNTIMES.intersection(choice.values()):
            continue
        row = ", ".join(str(by_name(choice[variable]).onnx) for variable in ports)
        lines.append(f"    {{{row}}},  // {', '.join(f'{key} {value}' for key, value in choice.items())}")
    return [*lines, "};", ""]


def _constraints(operator: Operator) -> list[str]:
    lines: list[str] = []
    seen: dict[str, int] = {}
    for constraint in operator.constraints:
        if "generic" not in constraint.products or constraint.severity != "error":
            continue
        count = seen[constraint.id] = seen.get(constraint.id, 0) + 1
        name = "k" + _camel(constraint.id.lower().replace("-", "_")) + ("" if count == 1 else chr(ord("A") + count - 1))
        lines.append(f"inline constexpr Constraint {name} = {{{_text(constraint.id)}, {_text(constraint.text)}}};")
    return [*lines, ""]


def main(argv: Sequence[str]) -> int:
    """Writes the headers, or with ``--check`` names those that are not current. Returns the exit code."""
    folder = Path(__file__).parents[1] / "custom_ort" / "src" / "generated"
    positional = [argument for argument in argv if not argument.startswith("-")]
    folder = Path(positional[0]) if positional else folder
    stale = []
    for operator in OPS.values():
        path, text = folder / f"{snake_case(operator.name)}.h", header(operator)
        if "--check" in argv:
            stale += [] if path.is_file() and path.read_text() == text else [path]
        else:
            with replacing(path) as part:
                part.write_text(text)
    for path in stale:
        print(f"{path} is not current: run python -m ir_ops.codegen")
    return 1 if stale else 0


if __name__ == "__main__":
    try:
        sys.exit(main(sys.argv[1:]))
    except KvfuseError as error:
        sys.exit(str(error))
