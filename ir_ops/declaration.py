"""The one form in which an operator is declared; every other face of it is derived from this.

An operator file in ``ir_ops/ops`` fills an :class:`Operator`: inputs, outputs, attributes, numbered constraints, the
shape rule and the computation. Schema, shape inference, function body, reference op, GE prototype, kernel signature
and docs page read it from here.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from ir_ops.dtypes import Array, by_name, by_numpy
from ir_ops.errors import BadInput, BadUsage
from ir_ops.numeric import NUMPY, Numeric

Shape = tuple["int | None", ...]
_INTEGERS = (int, np.integer)
_REALS = (int, float, np.integer, np.floating)
AttrValue = bool | int | float | str | list[int] | list[float]
Attrs = Mapping[str, AttrValue]

PRODUCTS = ("generic", "950", "A3", "A2", "kirin")
"""``generic`` is everything that is mathematically defined; the others are the documented limits of a product."""

MOST_DIMS = 8
"""Dims of a tensor, for every operator."""


@dataclass(frozen=True)
class TensorSpec:
    """Element type and shape of a tensor; a dim that is not known is None, an unknown rank is shape None."""

    dtype: str
    shape: Shape | None

    def __str__(self) -> str:
        if self.shape is None:
            return f"{self.dtype}[...]"
        return f"{self.dtype}[{', '.join('?' if dim is None else str(dim) for dim in self.shape)}]"


def shape_text(shape: Shape) -> str:
    """A shape as messages print it, unknown dims as ``?``."""
    return "[" + ", ".join("?" if dim is None else str(dim) for dim in shape) + "]"


def shape_differs(shape: Shape, wanted: Shape) -> bool:
    """Whether a shape contradicts another; unknown dims agree with everything."""
    return len(shape) != len(wanted) or any(
        a is not None and b is not None and a != b for a, b in zip(shape, wanted, strict=True)
    )


@dataclass(frozen=True)
class Input:
    """An input in GE's order.

    Attributes:
        type: names a row of :attr:`Operator.types`.
        ref: the output written in place.
        host: GE plans the operator by the input's value: a graph input or a constant, not a computed tensor.
        supplied: GE requires this buffer and ONNX may leave it out: export supplies it, with the first dim of the
            input named here and the other dims of the output.
        constant: attributes -> what GE requires here and ONNX may leave out, None where nothing is missing: export
            supplies it. One array, stored once for all nodes of the operator.
        nz: the device keeps this weight in FRACTAL_NZ; in ONNX it is a plain matrix.
    """

    name: str
    type: str
    shape: str
    doc: str = ""
    optional: bool = False
    ref: str | None = None
    supplied: str = ""
    constant: Callable[[Attrs], Array | None] | None = None
    nz: bool = False
    host: bool = False


@dataclass(frozen=True)
class Output:
    """An output in GE's order. A ref output has the name of its input and shares its buffer."""

    name: str
    type: str
    shape: str
    doc: str = ""
    ref: bool = False

    @property
    def onnx_name(self) -> str:
        """Name in ONNX schemas and functions, where an output may not be called like an input."""
        return f"{self.name}_out" if self.ref else self.name


@dataclass(frozen=True)
class Attr:
    """An attribute. ``type`` is GE's word (Float, Int, Bool, String, ListInt); ``onnx_only`` ones GE does not know."""

    name: str
    type: str
    default: AttrValue | None
    doc: str = ""
    allowed: tuple[str, ...] = ()
    onnx_only: bool = False

    def accepts(self, value: object) -> bool:
        """Whether ``value`` has the attribute's type (ONNX spells Bool as an int)."""
        if self.type == "Float":
            return isinstance(value, _REALS) and not isinstance(value, bool)
        if self.type == "Bool":
            return isinstance(value, (bool, *_INTEGERS)) and value in (0, 1)
        if self.type == "Int":
            return isinstance(value, _INTEGERS) and not isinstance(value, bool)
        if self.type == "ListInt":
            if isinstance(value, (str, bytes)) or not isinstance(value, (Sequence, np.ndarray)):
                return False
            return all(isinstance(item, _INTEGERS) for item in value)
        return isinstance(value, str)

    def plain(self, value: Any) -> AttrValue:
        """An accepted value as a Python object: bytes decoded, Bool as bool, numpy numbers as Python ones.

        Any other value stays as it is, where that can be.
        """
        if isinstance(value, bytes):
            return value.decode()
        if isinstance(value, np.generic):
            value = value.item()
        if self.type == "Bool" and value in (0, 1):
            return bool(value)
        return [int(item) for item in value] if self.type == "ListInt" and self.accepts(value) else value


@dataclass(frozen=True)
class Note:
    """A section of the operator's page that the other fields do not give: a table (header first) or a list."""

    title: str
    table: tuple[tuple[str, ...], ...] = ()
    items: tuple[str, ...] = ()


@dataclass(frozen=True)
class Violation:
    """A constraint that does not hold.

    Attributes:
        severity: "error", or "warning" for what is accepted but suspicious.
        changes_result: the product accepts the call and computes something else (it ignores an input, say).
    """

    id: str
    text: str
    found: str
    wanted: str
    severity: str = "error"
    changes_result: bool = False

    def __str__(self) -> str:
        return f"{self.id}: {self.text}; found {self.found}, wanted {self.wanted}"


class Undecided(Exception):
    """A constraint needs a dim or value that is not known: it is not violated."""


class Case:
    """What a constraint looks at: specs, values where known, attributes with defaults, the product."""

    def __init__(
        self, specs: Mapping[str, TensorSpec], values: Mapping[str, Array], attrs: Attrs, product: str
    ) -> None:
        self.specs, self.values, self.attrs, self.product = specs, values, attrs, product

    def has(self, name: str) -> bool:
        return name in self.specs

    def dtype(self, name: str) -> str:
        return self.specs[name].dtype

    def shape(self, name: str) -> Shape:
        """The shape of a given input; unknown rank or an absent input is undecided."""
        spec = self.specs.get(name)
        if spec is None or spec.shape is None:
            raise Undecided(name)
        return spec.shape

    def dim(self, name: str, axis: int) -> int:
        """One dim; undecided where it is not known or the rank is too small (another constraint's business)."""
        shape = self.shape(name)
        if not -len(shape) <= axis < len(shape):
            raise Undecided(name)
        size = shape[axis]
        if size is None:
            raise Undecided(name)
        return size

    def value(self, name: str) -> Array:
        if name not in self.values:
            raise Undecided(name)
        return self.values[name]


def dim(name: str, axis: int) -> Callable[[Case], int]:
    """The size of one dim of an input, as rules take sizes."""
    return lambda case: case.dim(name, axis)


Finding = tuple[str, str]
Rule = Callable[[Case], Iterable[Finding]]


@dataclass(frozen=True)
class Constraint:
    """A numbered rule of the contract.

    Attributes:
        id: the contract's number, ``KV-13``. Several entries may share one (a part for every product, a stricter one).
        text: one sentence without values; the kernel refuses with the same words.
        rule: yields (found, wanted) for each breach.
        products: whom it binds.
    """

    id: str
    text: str
    rule: Rule
    products: tuple[str, ...] = PRODUCTS
    severity: str = "error"
    changes_result: bool = False

    def violations(self, case: Case) -> Iterator[Violation]:
        if case.product not in self.products:
            return
        try:
            for found, wanted in self.rule(case):
                yield Violation(self.id, self.text, found, wanted, self.severity, self.changes_result)
        except Undecided:
            return


Compute = Callable[[Numeric, Mapping[str, Any], Attrs], dict[str, Any]]
GeAttrs = Callable[[Mapping[str, TensorSpec], Attrs], dict[str, AttrValue]]


@dataclass(frozen=True)
class Operator:
    """One operator, declared.

    Attributes:
        name: GE's name and the ONNX op type in domain ``ai.ascend``.
        types: type variable -> allowed element types, in GE's order; those without an ONNX number exist for GE only.
        combines: which choices of type variables have a meaning together.
        shapes: the shape rule: input specs and attributes -> output specs.
        compute: the computation over :class:`ir_ops.numeric.Numeric`: run with numpy it is the reference, run with
            the ONNX backend it writes the function body.
        notes: what a user should know beyond the constraints: layouts, and choices where the contract leaves room.
        body_types: whether the function body exists for a choice of type variables (ONNX has no arithmetic on fp8).
        body_attrs: why attributes leave no function body, "" where they do not.
        needs_rank: inputs whose number of axes the computation asks for.
        ge_attrs: the attributes as GE wants them, with the sizes that ONNX may leave to the inputs; raises
            :class:`Undecided` where the input specs do not tell them.
    """

    name: str
    doc: str
    types: Mapping[str, tuple[str, ...]]
    inputs: tuple[Input, ...]
    outputs: tuple[Output, ...]
    attrs: tuple[Attr, ...]
    constraints: tuple[Constraint, ...]
    shapes: Callable[[Mapping[str, TensorSpec], Attrs], dict[str, TensorSpec]]
    compute: Compute
    combines: Callable[[Mapping[str, str]], bool] = field(default=lambda choice: True)
    body_types: Callable[[Mapping[str, str]], bool] = field(default=lambda choice: True)
    body_attrs: Callable[[Attrs], str] = field(default=lambda attrs: "")
    needs_rank: tuple[str, ...] = ()
    ge_attrs: GeAttrs = field(default=lambda specs, attrs: dict(attrs))
    notes: tuple[Note, ...] = ()
    since: int = 1

    def input(self, name: str) -> Input:
        return next(entry for entry in self.inputs if entry.name == name)

    def onnx_types(self, variable: str) -> tuple[str, ...]:
        """The element types of a type variable that ONNX can express."""
        return tuple(name for name in self.types[variable] if by_name(name).onnx is not None)

    def type_combinations(self) -> tuple[dict[str, str], ...]:
        """Every choice of ONNX element types that the operator takes together."""
        variables = list(self.types)
        choices = itertools.product(*(self.onnx_types(variable) for variable in variables))
        named = (dict(zip(variables, choice, strict=True)) for choice in choices)
        return tuple(choice for choice in named if self.combines(choice))

    def with_defaults(self, attrs: Mapping[str, Any]) -> dict[str, AttrValue]:
        """All attributes, missing ones at their default, bytes decoded and Bool as bool."""
        full: dict[str, AttrValue] = {}
        for attr in self.attrs:
            value = attrs.get(attr.name, attr.default)
            if value is not None:
                full[attr.name] = attr.plain(value)
        return full

    def check(
        self, inputs: Mapping[str, Array | TensorSpec], attrs: Mapping[str, Any], product: str = "generic"
    ) -> list[Violation]:
        """Checks a call against the contract.

        Args:
            inputs: GE input name -> array, or its :class:`TensorSpec` where values are not known. Absent optional
                inputs are left out.
            attrs: attributes by GE name; missing ones take their default.
            product: one of :data:`PRODUCTS`.

        Returns:
            The violations in the order of the contract; value-dependent rules are silent where only specs are given.

        Raises:
            BadUsage: an unknown product.
        """
        if product not in PRODUCTS:
            raise BadUsage("unknown product", found=product, wanted=" | ".join(PRODUCTS))
        specs = {name: _spec(value) for name, value in inputs.items()}
        general = list(self._general(specs, attrs))
        if general:
            return general
        values = {name: value for name, value in inputs.items() if not isinstance(value, TensorSpec)}
        case = Case(specs, values, self.with_defaults(attrs), product)
        return [violation for constraint in self.constraints for violation in constraint.violations(case)]

    def _general(self, specs: Mapping[str, TensorSpec], attrs: Mapping[str, Any]) -> Iterator[Violation]:
        known = {entry.name for entry in self.inputs}
        for name in specs:
            if name not in known:
                yield Violation("IN-01", "the operator has no such input", name, ", ".join(sorted(known)))
        for entry in self.inputs:
            if entry.name not in specs:
                if not entry.optional:
                    yield Violation("IN-02", "a required input is missing", "no " + entry.name, entry.name)
            elif specs[entry.name].dtype not in self.types[entry.type]:
                wanted = " | ".join(self.types[entry.type])
                yield Violation("IN-03", "an input has an element type the operator does not take",
                                f"{entry.name} {specs[entry.name].dtype}", wanted)  # fmt: skip
            elif len(shape := specs[entry.name].shape or ()) > MOST_DIMS:
                found = f"{entry.name} {shape_text(shape)}"
                yield Violation("IN-04", "an input has too many dims", found, f"at most {MOST_DIMS}")
        declared = {attr.name: attr for attr in self.attrs}
        for name, value in attrs.items():
            plain = value.decode() if isinstance(value, bytes) else value
            if name not in declared:
                yield Violation("AT-01", "the operator has no such attribute", name, ", ".join(declared))
            elif declared[name].onnx_only and plain not in declared[name].allowed:
                yield Violation("AT-04", "an attribute has an unknown value", f"{name}={plain!r}",
                                " | ".join(declared[name].allowed))  # fmt: skip
            elif not declared[name].accepts(plain):
                yield Violation("AT-02", "an attribute has another type", f"{name}={plain!r}", declared[name].type)
        for attr in self.attrs:
            if attr.default is None and attr.name not in attrs:
                yield Violation("AT-03", "a required attribute is missing", "no " + attr.name, attr.type)

    def infer(self, specs: Mapping[str, TensorSpec], attrs: Mapping[str, Any]) -> dict[str, TensorSpec]:
        """Output name -> spec, as far as the input specs tell.

        Raises:
            BadInput: a required input that the shapes follow from is missing.
        """
        try:
            return self.shapes(specs, self.with_defaults(attrs))
        except KeyError:
            missing = [entry.name for entry in self.inputs if not entry.optional and entry.name not in specs]
            if not missing:
                raise
            raise BadInput("a required input is missing", where=self.name, found=f"no {missing[0]}") from None

    def reference(self, inputs: Mapping[str, Array], attrs: Mapping[str, Any]) -> dict[str, Array]:
        """Computes the outputs in numpy, by GE output name (a ref output under its input's name).

        Inputs are never written. Element types as declared; bf16 and fp8 are ml_dtypes arrays.

        Raises:
            BadInput: the call breaks the contract under ``generic``; the text is the violation's.
        """
        errors = [found for found in self.check(inputs, attrs) if found.severity == "error"]
        if errors:
            raise BadInput(str(errors[0]), where=self.name)
        with np.errstate(all="ignore"):
            return self.compute(NUMPY, inputs, self.with_defaults(attrs))


def _spec(value: Array | TensorSpec) -> TensorSpec:
    if isinstance(value, TensorSpec):
        return value
    try:
        return TensorSpec(by_numpy(value.dtype).name, tuple(value.shape))
    except KeyError:
        return TensorSpec(str(value.dtype), tuple(value.shape))
