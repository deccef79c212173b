"""The ``ai.ascend`` operators, one to one, from their declarations."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from typing import Any

import numpy as np

from ir_ops.declaration import Input, Operator, TensorSpec, Undecided, Violation
from ir_ops.dtypes import Array, by_name, by_numpy
from ir_ops.ge.convert.call import NodeCall
from ir_ops.ge.convert.registry import Convert, Result, converts
from ir_ops.ge.convert.unsupported import Unsupported
from ir_ops.ge.infer.fused import to_spec
from ir_ops.ge.prototypes import find
from ir_ops.ops import DOMAIN, OPS


def _attrs(operator: Operator, n: NodeCall, specs: Mapping[str, TensorSpec]) -> dict[str, Any]:
    """The node's attributes in GE's types; what only ONNX knows must have its default."""
    values = operator.with_defaults(n.attrs)
    try:
        values = operator.ge_attrs(specs, values)
    except Undecided as unknown:
        found = f"sizes in {unknown} that are not known before the run"
        raise Unsupported(found, "give the input shapes (input_shapes)") from None
    for attr in operator.attrs:
        if attr.onnx_only and values.get(attr.name) != attr.default:
            raise Unsupported(f"{attr.name}={values[attr.name]}, which GE does not have", f"{attr.name}={attr.default}")
    given = {name: values[name] for name in n.attrs if name in values}
    return {attr.name: given[attr.name] for attr in operator.attrs if attr.name in given and not attr.onnx_only}


def _ref_input(n: NodeCall, index: int, part: str) -> Any:
    """A cache: the RefData (or the earlier result) as it is, anything else through a copy of its own."""
    if index in n.in_place:
        return n.x(index)
    return n.emit("TensorMove", {"x": n.x(index)}, part=part)


def _weight(n: NodeCall, index: int) -> Any:
    """A weight that the device keeps in FRACTAL_NZ: packed here if it is constant, otherwise by GE."""
    made = n.arg(index).nz_tensor()
    if made.type.layout == "ND":
        n.note_once(f"{n.op_type}: weights that stay ND are brought into FRACTAL_NZ by GE when it compiles")
    return made


def _supplied(n: NodeCall, entry: Input, like: int, spec: TensorSpec) -> Any:
    """A buffer that GE requires and the node left out: its first dim is that of input ``like``."""
    sizes = [-1 if size is None else size for size in spec.shape or ()]
    dtype = by_name(spec.dtype)
    if -1 not in sizes:
        dims: Any = n.vector(sizes)
    else:
        dims = n.dims([(n.x(like), 0), *sizes[1:]], f"{entry.name}_dims")
    return n.emit("Fill", {"dims": dims, "value": np.zeros((), dtype.np)}, part=f"{entry.name}_buffer")


def _constants(operator: Operator, present: Collection[str], attrs: Mapping[str, Any]) -> dict[str, Array]:
    """What GE requires in these modes and the node left out."""
    full = operator.with_defaults(attrs)
    missing = [entry for entry in operator.inputs if entry.constant is not None and entry.name not in present]
    made = {entry.name: entry.constant(full) for entry in missing if entry.constant is not None}
    return {name: array for name, array in made.items() if array is not None}


def _refuse(violations: Iterable[Violation], nearest: str) -> None:
    for violation in violations:
        if violation.severity == "error":
            raise Unsupported(str(violation), nearest)


def _lists(operator: Operator) -> tuple[str, ...]:
    """Inputs that are lists in GE: one tensor each in the declarations."""
    prototype = find(operator.name)
    return prototype.dynamic_inputs if prototype is not None else ()


def _converter(operator: Operator) -> Convert:
    def convert(n: NodeCall) -> Result:
        present = {entry.name: i for i, entry in enumerate(operator.inputs) if n.has(i)}
        specs = {name: to_spec(n.arg(i).type) for name, i in present.items()}
        _refuse(operator.check(specs, n.attrs), "")
        attrs = _attrs(operator, n, specs)
        constants = _constants(operator, present, attrs)
        specs |= {name: TensorSpec(by_numpy(array.dtype).name, array.shape) for name, array in constants.items()}
        _refuse(operator.check(specs, attrs, n.product), f"product generic instead of {n.product}")
        refs = {entry.name for entry in operator.inputs if entry.ref is not None}
        blocked = {entry.name for entry in operator.inputs if entry.nz}
        inputs = {
            name: _ref_input(n, i, f"{name}_copy") if name in refs else _weight(n, i) if name in blocked else n.x(i)
            for name, i in present.items()
        }
        for name, array in constants.items():
            inputs[name] = n.builder.shared_const(f"{operator.name}/{name}", array)
        for entry in operator.inputs:
            if entry.supplied and entry.name not in inputs:
                buffer = _supplied(n, entry, present[entry.supplied], operator.infer(specs, attrs)[entry.name])
                inputs[entry.name] = n.emit("TensorMove", {"x": buffer}, part=entry.name)
        for entry in operator.inputs:
            if entry.host and entry.name in inputs and n.builder.is_computed(inputs[entry.name]):
                n.note_once(f"{n.op_type}: {entry.name} is computed; GE wants a graph input or a constant")
        lists = _lists(operator)
        return n.emit_all(operator.name, {key: [x] if key in lists else x for key, x in inputs.items()}, attrs)

    return convert


def _dtypes(operator: Operator) -> str:
    first = operator.types[operator.inputs[0].type]
    return ", ".join(first)


def _note(operator: Operator) -> str:
    refs = [entry.name for entry in operator.inputs if entry.ref is not None]
    blocked = [entry.name for entry in operator.inputs if entry.nz]
    private = [f"{attr.name} must be {attr.default}" for attr in operator.attrs if attr.onnx_only]
    parts = [f"in place: {', '.join(refs)}"] if refs else []
    parts += [f"constants in FRACTAL_NZ: {', '.join(blocked)}"] if blocked else []
    return "; ".join(parts + private)


for _operator in OPS.values():
    if find(_operator.name) is not None:
        converts(_operator.name, domain=DOMAIN, dtypes=_dtypes(_operator), ge=_operator.name, note=_note(_operator))(
            _converter(_operator)
        )
