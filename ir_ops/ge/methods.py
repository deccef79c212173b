"""The operator methods of the graph builder, made from the prototypes."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Sequence
from typing import Any, Protocol

from ir_ops.errors import BadUsage
from ir_ops.ge.prototypes import Prototype
from ir_ops.ge.tensor import Outputs


class Adds(Protocol):
    """What a method needs of the builder."""

    def add(self, op_type: str, inputs: Any, attrs: Any, *, name: str, types: Any) -> Outputs: ...


def operator_method(prototype: Prototype) -> Callable[..., Any]:
    """The method of one operator, with the signature its prototype gives."""
    empty, keyword = inspect.Parameter.empty, inspect.Parameter.KEYWORD_ONLY
    own = [inspect.Parameter("self", inspect.Parameter.POSITIONAL_OR_KEYWORD)]
    parameters = [_input_parameter(port.name, port.kind != "optional") for port in prototype.inputs]
    attrs = [attr for attr in prototype.attrs if not attr.is_graph]
    parameters += [
        inspect.Parameter(attr.name, keyword, default=empty if attr.required else attr.default) for attr in attrs
    ]
    input_names = [port.name for port in prototype.inputs]
    attr_names = {attr.name for attr in attrs}
    single = len(prototype.outputs) == 1 and not prototype.outputs[0].is_dynamic

    def method(self: Adds, *args: Any, name: str = "", types: Any = None, **given: Any) -> Any:
        if len(args) > len(input_names):
            raise BadUsage(
                "too many inputs", where=name or prototype.name, found=str(len(args)), wanted=", ".join(input_names)
            )
        inputs = dict(zip(input_names, args, strict=False))
        attrs: dict[str, Any] = {}
        for key, value in given.items():
            if key in inputs:
                raise BadUsage("an input is given twice", where=name or prototype.name, found=key)
            (attrs if key in attr_names or key.startswith("_") else inputs)[key] = value
        out = self.add(prototype.name, inputs, attrs, name=name, types=types)
        return out[0] if single else out

    method.__name__ = method.__qualname__ = prototype.name
    method.__doc__ = describe(prototype)
    extra = [inspect.Parameter("name", keyword, default=""), inspect.Parameter("types", keyword, default=None)]
    vars(method)["__signature__"] = _Signature([*own, *parameters, *extra])
    return method


class _Signature(inspect.Signature):
    """A signature for help() and editors; required inputs may follow optional ones in GE's order."""

    def __init__(self, parameters: Sequence[inspect.Parameter] | None = None, **kwargs: Any) -> None:
        super().__init__(parameters, **{**kwargs, "__validate_parameters__": False})


def _input_parameter(name: str, required: bool) -> inspect.Parameter:
    # GE has inputs called like Python keywords (SelectV2's else), which Parameter refuses: given through **{"else": x}
    safe = f"{name}_" if name in ("else", "if", "in", "is", "lambda") else name
    default = inspect.Parameter.empty if required else None
    return inspect.Parameter(safe, inspect.Parameter.POSITIONAL_OR_KEYWORD, default=default)


def describe(prototype: Prototype) -> str:
    """The prototype on one line: ``Gather(x, ?y, *z) -> out {attr: Int = 0}``."""
    marks = {"required": "", "optional": "?", "dynamic": "*"}
    ins = ", ".join(marks[port.kind] + port.name for port in prototype.inputs)
    outs = ", ".join(marks[port.kind] + port.name for port in prototype.outputs)
    attrs = ", ".join(f"{a.name}: {a.type}" + ("" if a.required else f" = {a.default}") for a in prototype.attrs)
    refs = ", ".join(f"{name} in place" for name in prototype.ref_names)
    return f"{prototype.name}({ins}) -> {outs} {{{attrs}}}" + (f"; {refs}" if refs else "")
