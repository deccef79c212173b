"""Rules 10 to 15: edges and order."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator

from ir_ops.ge.codec import UNFED_ATTR, split_edge
from ir_ops.ge.messages import Message
from ir_ops.ge.model import Shape
from ir_ops.ge.prototypes import OPTIONAL, Prototype
from ir_ops.ge.validator.context import (
    ERROR,
    NOTE,
    WARNING,
    Context,
    Graph,
    Op,
    Report,
    dtype_of,
    is_placeholder,
    nd_shape,
    rule,
)


@rule(10, "Every input names an output that exists in the same graph")
def edges_exist(c: Context) -> Iterator[Report]:
    for op in c.ops():
        for text in op.message.input:
            if not text:
                continue
            edge = split_edge(text)
            if edge is None:
                yield ERROR, op.place, f"input {text!r} is not name:index"
            elif edge[0] not in op.graph.by_name:
                yield ERROR, op.place, f"input {text!r} comes from a node that is not in the graph"
            elif edge[1] >= len(op.graph.by_name[edge[0]].message.output_desc) or edge[1] < -1:
                yield ERROR, op.place, f"input {text!r} comes from an output that does not exist"


@rule(11, "As many inputs (empty ones counted) as input descriptors")
def input_count(c: Context) -> Iterator[Report]:
    for op in c.ops():
        if not op.is_input and len(op.edges) != len(op.message.input_desc):
            yield ERROR, op.place, f"{len(op.edges)} inputs and {len(op.message.input_desc)} input descriptors"


def _kinds(prototype: Prototype) -> dict[str, str]:
    return {port.name: port.kind for port in prototype.inputs}


@rule(12, "An unconnected slot is an optional input with a placeholder descriptor, and the other way round")
def placeholders(c: Context) -> Iterator[Report]:
    for op in c.ops():
        if op.is_input or op.prototype is None:
            continue
        for i, (edge, desc) in enumerate(zip(op.edges, op.message.input_desc, strict=False)):
            if edge is None:
                reason = _why_not_absent(op, i, desc)
            else:
                reason = "a connected input has a placeholder descriptor" if is_placeholder(desc) else ""
            if reason:
                yield ERROR, f"{op.place} input {i}", reason


def _why_not_absent(op: Op, index: int, desc: Message) -> str:
    """Why an unconnected slot is none that GE takes for an absent optional input; "" when it is."""
    if not is_placeholder(desc):
        found = f"element type {desc.dtype}, layout {desc.layout!r}"
        return f"an unconnected input is declared as a tensor ({found}): E11019 in GE"
    if UNFED_ATTR not in desc.attr:
        return f"an absent input lacks {UNFED_ATTR}"
    name = op.input_names[index]
    if op.prototype is None or _kinds(op.prototype).get(name) != OPTIONAL:
        return f"{name or 'an unnamed input'} is absent but not optional"
    return ""


def _order(graph: Graph) -> list[Op]:
    """The ops in a topological order; those on or behind a cycle are missing."""
    waiting = {op.name: len({name for name in op.sources() if name in graph.by_name}) for op in graph.ops}
    readers: dict[str, set[str]] = {}
    for op in graph.ops:
        for name in op.sources():
            readers.setdefault(name, set()).add(op.name)
    ready, done = deque(op for op in graph.ops if waiting[op.name] == 0), []
    while ready:
        op = ready.popleft()
        done.append(op)
        for name in readers.get(op.name, ()):
            waiting[name] -= 1
            if waiting[name] == 0:
                ready.append(graph.by_name[name])
    return done


def _live(graph: Graph) -> set[str]:
    """Names of the ops that matter: NetOutput, ops that write in place, and all in front of them."""
    roots = [op for op in graph.ops if op.type == "NetOutput" or (op.prototype is not None and op.prototype.refs)]
    seen, stack = {op.name for op in roots}, [op.name for op in roots]
    while stack:
        for name in graph.by_name[stack.pop()].sources():
            if name in graph.by_name and name not in seen:
                seen.add(name)
                stack.append(name)
    return seen


@rule(13, "The graph has no cycle, and every node leads to NetOutput or writes in place")
def acyclic_and_live(c: Context) -> Iterator[Report]:
    for graph in c.graphs:
        ordered = {op.name for op in _order(graph)}
        stuck = [op.name for op in graph.ops if op.name not in ordered]
        if stuck:
            yield ERROR, graph.name, f"a cycle through {', '.join(stuck[:5])}"
        live = _live(graph)
        for op in graph.ops:
            if op.name not in live:
                # an unused graph input is part of the interface; an unused weight is dead
                severity = NOTE if op.is_input else WARNING
                yield severity, op.place, f"{op.type} leads nowhere"


@rule(14, "The file lists nodes after the nodes they read")
def topological(c: Context) -> Iterator[Report]:
    for graph in c.graphs:
        for op in graph.ops:
            late = [
                name for name in op.sources() if name in graph.by_name and graph.by_name[name].position > op.position
            ]
            if late:
                yield WARNING, op.place, f"stands before {', '.join(late)}, which it reads"


def _differ(a: Shape | None, b: Shape | None) -> bool:
    if a is None or b is None:
        return False
    return len(a) != len(b) or any(x >= 0 and y >= 0 and x != y for x, y in zip(a, b, strict=True))


def _type_text(desc: Message) -> str:
    dtype = dtype_of(desc)
    return f"{dtype.name if dtype else desc.dtype}{list(nd_shape(desc) or ())}"


@rule(15, "An input descriptor has the type of the output it comes from")
def edge_types(c: Context) -> Iterator[Report]:
    for op in c.ops():
        if op.is_input:
            continue
        for i, (edge, desc) in enumerate(zip(op.edges, op.message.input_desc, strict=False)):
            source = op.graph.by_name.get(edge[0]) if edge is not None else None
            if edge is None or source is None or not 0 <= edge[1] < len(source.message.output_desc):
                continue
            made = source.message.output_desc[edge[1]]
            if made.dtype != desc.dtype or _differ(nd_shape(made), nd_shape(desc)):
                yield ERROR, f"{op.place} input {i}", f"declared {_type_text(desc)}, comes as {_type_text(made)}"
