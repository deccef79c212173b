"""What the validator's rules look at, and how they report."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path

from ir_ops.dtypes import UNDEFINED_GE_PROTO, DType, by_ge_proto
from ir_ops.ge.codec import layout_of, names_of, shape_of, split_edge
from ir_ops.ge.messages import AttrDef, Message
from ir_ops.ge.model import Shape
from ir_ops.ge.prototypes import Prototype, find

ERROR, WARNING, NOTE = "error", "warning", "note"


@dataclass(frozen=True)
class Finding:
    """One thing a rule has to say.

    Attributes:
        rule: number of the rule.
        severity: "error" (GE refuses the file or computes something else), "warning" (depends on the GE version or on
            the compiler's mood) or "note" (harmless, worth knowing).
        place: graph/node and slot.
        text: what is wrong, with found and wanted values.
    """

    rule: int
    severity: str
    place: str
    text: str

    def __str__(self) -> str:
        return f"{self.severity} rule {self.rule} {self.place}: {self.text}"


Report = tuple[str, str, str]
"""severity, place, text"""


@dataclass
class Op:
    """One operator as the rules see it: the raw message beside what GE understands of it."""

    message: Message
    graph: Graph
    position: int
    prototype: Prototype | None = None
    input_names: list[str] = field(default_factory=list)
    output_names: list[str] = field(default_factory=list)
    edges: list[tuple[str, int] | None] = field(default_factory=list)
    """Data inputs by slot; None for an unconnected one."""
    controls: list[str] = field(default_factory=list)
    name: str = ""
    type: str = ""
    is_input: bool = False
    is_constant: bool = False

    def __post_init__(self) -> None:
        message = self.message
        # asked for by every rule, so not taken out of the message again and again
        self.name, self.type = str(message.name), str(message.type)
        self.is_input = self.type in ("Data", "RefData")
        self.is_constant = self.type in ("Const", "Constant", "FileConstant")
        self.prototype = find(message.type)
        self.input_names = names_of(message, "_input_name", len(message.input_desc))
        self.output_names = names_of(message, "_output_name", len(message.output_desc))
        for text in message.input:
            edge = split_edge(text)
            if edge is not None and edge[1] < 0:
                self.controls.append(edge[0])
            else:
                self.edges.append(edge)

    @property
    def place(self) -> str:
        return f"{self.graph.name}/{self.name}"

    def attr(self, name: str) -> Message:
        """An attribute, an empty one when it is not there (reading a map directly would add it)."""
        return self.message.attr[name] if name in self.message.attr else AttrDef()

    def slot(self, name: str) -> int | None:
        """The slot number of an input by name, None when it is absent or a placeholder."""
        if name not in self.input_names:
            return None
        place = self.input_names.index(name)
        return None if is_placeholder(self.message.input_desc[place]) else place

    def producer(self, name: str) -> Op | None:
        """The op that feeds an input, None when it is not connected inside the graph."""
        place = self.slot(name)
        edge = self.edges[place] if place is not None and place < len(self.edges) else None
        return None if edge is None else self.graph.by_name.get(edge[0])

    def int_attr(self, name: str) -> int | None:
        """An Int attribute, its prototype's default when it is not written."""
        if name in self.message.attr:
            return int(self.attr(name).i)
        found = self.prototype.attr(name) if self.prototype else None
        return found.default if found is not None and isinstance(found.default, int) else None

    def sources(self) -> Iterator[str]:
        """Names of all ops that run before this one by a data or control edge."""
        for edge in self.edges:
            if edge is not None:
                yield edge[0]
        yield from self.controls


@dataclass
class Graph:
    """One graph. ``by_name`` keeps the first of nodes with the same name."""

    message: Message
    is_root: bool
    ops: list[Op] = field(default_factory=list)
    by_name: dict[str, Op] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.ops = [Op(op, self, i) for i, op in enumerate(self.message.op)]
        for op in self.ops:
            self.by_name.setdefault(op.name, op)

    @property
    def name(self) -> str:
        return str(self.message.name)

    @cached_property
    def readers(self) -> dict[tuple[str, int], list[tuple[Op, int]]]:
        """Edge -> (op, slot) of everyone who reads it."""
        found: dict[tuple[str, int], list[tuple[Op, int]]] = {}
        for op in self.ops:
            for slot, edge in enumerate(op.edges):
                if edge is not None:
                    found.setdefault(edge, []).append((op, slot))
        return found

    def of_type(self, *types: str) -> Iterator[Op]:
        return (op for op in self.ops if op.type in types)


@dataclass
class Context:
    """The file under validation.

    Attributes:
        data: the file's bytes.
        folder: where weight files are looked up, None when there is no file.
        custom_ops: operator types allowed beyond the prototypes.
        coming: absolute path -> bytes of weight files that are written after the check.
    """

    message: Message
    data: bytes
    folder: Path | None
    custom_ops: frozenset[str] = frozenset()
    coming: Mapping[Path, int] = field(default_factory=dict)
    graphs: list[Graph] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.graphs = [Graph(graph, i == 0) for i, graph in enumerate(self.message.graph)]
        self._sizes: dict[Path, int | None] = {}

    @property
    def root(self) -> Graph:
        return self.graphs[0]

    def ops(self) -> Iterator[Op]:
        for graph in self.graphs:
            yield from graph.ops

    def of_type(self, *types: str) -> Iterator[Op]:
        return (op for op in self.ops() if op.type in types)

    def file_size(self, path: Path) -> int | None:
        """Bytes of a weight file, there or about to be written; None when there is none. Looked up once."""
        if path not in self._sizes:
            size = self.coming.get(Path(os.path.abspath(path)))
            if size is None and path.is_file():
                size = path.stat().st_size
            self._sizes[path] = size
        return self._sizes[path]

    @cached_property
    def has_dynamic_inputs(self) -> bool:
        """Whether any graph input has a dim that is not known before run time."""
        return any(
            dim < 0 for op in self.root.ops if op.is_input for desc in op.message.output_desc for dim in desc.shape.dim
        )


RuleFunction = Callable[[Context], Iterator[Report]]


@dataclass(frozen=True)
class Rule:
    number: int
    title: str
    check: RuleFunction


_RULES: dict[int, Rule] = {}


def rule(number: int, title: str) -> Callable[[RuleFunction], RuleFunction]:
    """Registers a rule under its number."""

    def register(check: RuleFunction) -> RuleFunction:
        assert number not in _RULES, number
        _RULES[number] = Rule(number, title, check)
        return check

    return register


def all_rules() -> Mapping[int, Rule]:
    return _RULES


def is_placeholder(desc: Message) -> bool:
    """Whether GE takes a descriptor for "no tensor here": no element type and the reserved format."""
    return bool(desc.dtype == UNDEFINED_GE_PROTO) and layout_of(desc) == ""


def dtype_of(desc: Message) -> DType | None:
    """A descriptor's element type, None when undefined or unknown."""
    try:
        return by_ge_proto(desc.dtype)
    except KeyError:
        return None


def nd_shape(desc: Message) -> Shape | None:
    """A descriptor's logical dims: ``origin_shape`` where the tensor is stored in another format."""
    if "origin_shape" in desc.attr and layout_of(desc) == "FRACTAL_NZ":
        return tuple(desc.attr["origin_shape"].list.i)
    return shape_of(desc)
