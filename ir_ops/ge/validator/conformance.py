"""Rules 16 to 22: ops against their prototypes."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from ir_ops.dtypes import by_ge_attr
from ir_ops.ge.attrs import KIND_FIELDS
from ir_ops.ge.codec import NAME_ATTRS
from ir_ops.ge.prototypes import COUNT_ATTRS, DTYPE_ATTRS, ProtoPort, attr_type
from ir_ops.ge.validator.context import ERROR, NOTE, WARNING, Context, Op, Report, dtype_of, rule
from ir_ops.ge.validator.limits import CONST_OPERANDS, MUST_BE_CONST, refused_dtype


def _misfit(names: Sequence[str], ports: Sequence[ProtoPort], optional_tail: bool) -> str:
    """Why ``names`` are not the flattened ``ports``; "" when they are."""
    at = 0
    for port in ports:
        if port.is_dynamic:
            count = 0
            while at < len(names) and names[at] == f"{port.name}{count}":
                at, count = at + 1, count + 1
        elif at < len(names) and names[at] == port.name:
            at += 1
        elif at < len(names):
            return f"{names[at]!r} where {port.name!r} belongs"
        elif not (optional_tail and port.is_optional):
            return f"{port.name!r} is missing"
    return "" if at == len(names) else f"{names[at]!r} too much"


@rule(16, "Inputs are the prototype's, in order; only trailing optional ones are left out")
def input_names(c: Context) -> Iterator[Report]:
    for op in c.ops():
        if op.prototype is not None:
            reason = _misfit(op.input_names, op.prototype.inputs, optional_tail=True)
            if reason:
                yield ERROR, op.place, f"inputs ({', '.join(op.input_names)}): {reason}"


@rule(17, "Outputs are the prototype's, all of them, as many dynamic ones as the attribute says")
def output_names(c: Context) -> Iterator[Report]:
    for op in c.ops():
        if op.prototype is None or op.type == "NetOutput":
            continue
        reason = _misfit(op.output_names, op.prototype.outputs, optional_tail=False)
        if reason:
            yield ERROR, op.place, f"outputs ({', '.join(op.output_names)}): {reason}"
        yield from _counts(op)


def _counts(op: Op) -> Iterator[Report]:
    counted = COUNT_ATTRS.get(op.type)
    if counted is not None and op.int_attr(counted) != len(op.output_names):
        yield ERROR, op.place, f"{counted}={op.int_attr(counted)}, but {len(op.output_names)} outputs"
    dynamic = op.prototype.dynamic_inputs if op.prototype is not None else ()
    if len(dynamic) == 1 and op.prototype is not None and op.prototype.attr("N") is not None:
        count = sum(name.startswith(dynamic[0]) and name[len(dynamic[0]) :].isdigit() for name in op.input_names)
        if op.int_attr("N") != count:
            yield ERROR, op.place, f"N={op.int_attr('N')}, but {count} inputs {dynamic[0]}"


@rule(18, "Input and output names are given by key and value lists that fit the descriptors")
def name_lists(c: Context) -> Iterator[Report]:
    for op in c.ops():
        yield from _names(op, "_input_name", op.message.input_desc, op.input_names)
        yield from _names(op, "_output_name", op.message.output_desc, op.output_names)


def _names(op: Op, prefix: str, descs: Sequence[object], names: Sequence[str]) -> Iterator[Report]:
    keys, values = op.attr(f"{prefix}_key").list.s, op.attr(f"{prefix}_value").list.i
    if len(keys) != len(values):
        yield ERROR, op.place, f"{len(keys)} names and {len(values)} numbers in {prefix}_*: GE sees no names at all"
    elif sorted(values) != list(range(len(descs))):
        yield ERROR, op.place, f"{prefix}_value {list(values)}, wanted 0..{len(descs) - 1} once each"
    elif len(set(names)) != len(names):
        yield ERROR, op.place, f"{prefix}_key repeats a name: {', '.join(names)}"
    for i, desc in enumerate(descs):
        given = getattr(desc, "name", "")
        if given and names[i] and given != names[i]:
            yield ERROR, f"{op.place} slot {i}", f"the descriptor is called {given!r}, GE calls it {names[i]!r}"


@rule(19, "Attributes are the prototype's, with its types; required ones are there; no recovered prototypes")
def attributes(c: Context) -> Iterator[Report]:
    for op in c.ops():
        for name in sorted(op.message.attr):
            if name.startswith("_ir_"):
                yield from _recovered(op, name)
            elif name not in NAME_ATTRS and op.prototype is not None:
                yield from _attribute(op, name)
        for attr in op.prototype.attrs if op.prototype is not None else ():
            if attr.required and not attr.is_graph and attr.name not in op.message.attr:
                yield ERROR, op.place, f"required attribute {attr.name} is missing"


def _recovered(op: Op, name: str) -> Iterator[Report]:
    own = [attr.name for attr in op.prototype.attrs] if op.prototype is not None else []
    listed = [item.decode(errors="replace") for item in op.attr(name).list.s] if name == "_ir_attr_names" else []
    common = min(len(own), len(listed))
    if listed[:common] != own[:common]:
        yield ERROR, op.place, f"_ir_attr_names {listed} is not in the prototype's order {own}: recovery fails"
    else:
        yield NOTE, op.place, f"{name} is left from a file that GE saved; it binds the file to that GE version"


def _attribute(op: Op, name: str) -> Iterator[Report]:
    message, wanted = op.attr(name), attr_type(op.type, name)
    field = message.WhichOneof("value")
    if field == "list" and message.list.val_type == 0:
        yield ERROR, op.place, f"list attribute {name} has no val_type: GE drops it"
    elif wanted is None:
        if not name.startswith("_"):
            yield ERROR, op.place, f"the operator has no attribute {name}"
    elif wanted in KIND_FIELDS:
        kind, val_type = KIND_FIELDS[wanted]
        if field != kind or (kind == "list" and message.list.val_type != val_type):
            yield ERROR, op.place, f"attribute {name} is stored as {field or 'nothing'}, wanted {wanted}"


@rule(20, "Attributes that name an element type use GE's C++ enum and agree with the output")
def dtype_attributes(c: Context) -> Iterator[Report]:
    for op in c.ops():
        for name, output in DTYPE_ATTRS.get(op.type, {}).items():
            number = _dtype_number(op, name)
            try:
                declared = None if number is None else by_ge_attr(number)
            except KeyError:
                yield ERROR, op.place, f"{name}={number} is no element type of GE's C++ enum"
                continue
            if declared is None or output not in op.output_names:
                continue
            made = dtype_of(op.message.output_desc[op.output_names.index(output)])
            if made is not None and made != declared:
                yield ERROR, op.place, f"{name}={number} ({declared.name}), but output {output} is {made.name}"


def _dtype_number(op: Op, name: str) -> int | None:
    if name in op.message.attr:
        message = op.attr(name)
        return int(message.dt if message.WhichOneof("value") == "dt" else message.i)
    found = op.prototype.attr(name) if op.prototype is not None else None
    default = found.default if found is not None else None
    return getattr(default, "ge_attr", default)


@rule(21, "Input element types are among those the operator takes")
def input_dtypes(c: Context) -> Iterator[Report]:
    for op in c.ops():
        for name, desc in zip(op.input_names, op.message.input_desc, strict=True):
            dtype = dtype_of(desc)
            found = refused_dtype(op.type, name, dtype.name) if dtype is not None else None
            if found is not None:
                yield found[0], f"{op.place} input {name}", f"{desc_text(dtype)}: {found[1]}"


def desc_text(dtype: object) -> str:
    return str(getattr(dtype, "name", dtype))


@rule(22, "Operands that shape inference reads are constants")
def constant_operands(c: Context) -> Iterator[Report]:
    for op in c.ops():
        for name in CONST_OPERANDS.get(op.type, ()):
            source = op.producer(name)
            if source is None or source.is_constant:
                continue
            if name in MUST_BE_CONST:
                yield ERROR, f"{op.place} input {name}", f"is computed by {source.name} ({source.type}), wanted a Const"
            else:
                severity = NOTE if c.has_dynamic_inputs else WARNING
                yield severity, f"{op.place} input {name}", f"is computed by {source.name}: the shape is dynamic"
