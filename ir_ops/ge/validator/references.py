"""Rules 23 to 25: in-place updates."""

from __future__ import annotations

from collections.abc import Iterator

from ir_ops.ge.validator.context import ERROR, Context, Graph, Op, Report, dtype_of, nd_shape, rule


def ref_inputs(c: Context) -> Iterator[tuple[Op, str, str, tuple[str, int]]]:
    """(op, input name, output name, source edge) of every connected input that is written in place."""
    for op in c.ops():
        for name, output in op.prototype.ref_names.items() if op.prototype is not None else ():
            place = op.slot(name)
            edge = op.edges[place] if place is not None and place < len(op.edges) else None
            if edge is not None and edge[0] in op.graph.by_name:
                yield op, name, output, edge


def _is_ref_output(op: Op, index: int) -> bool:
    if op.prototype is None or index >= len(op.output_names):
        return False
    return op.output_names[index] in op.prototype.ref_names.values()


@rule(23, "What is written in place comes from RefData, Data, TensorMove or another in-place result")
def ref_producers(c: Context) -> Iterator[Report]:
    for op, name, _, edge in ref_inputs(c):
        source = op.graph.by_name[edge[0]]
        if source.type not in ("RefData", "Data", "TensorMove") and not _is_ref_output(source, edge[1]):
            yield ERROR, f"{op.place} input {name}", f"is written in place but comes from {source.name} ({source.type})"


def _ancestors(graph: Graph, op: Op) -> set[str]:
    seen: set[str] = set()
    stack = list(op.sources())
    while stack:
        name = stack.pop()
        if name in graph.by_name and name not in seen:
            seen.add(name)
            stack.extend(graph.by_name[name].sources())
    return seen


@rule(24, "A buffer has one writer, and readers of the old content run before it")
def one_writer(c: Context) -> Iterator[Report]:
    writers: dict[tuple[str, str, int], list[Op]] = {}
    for op, _, _, edge in ref_inputs(c):
        writers.setdefault((op.graph.name, *edge), []).append(op)
    for (_, node, index), ops in writers.items():
        if len(ops) > 1:
            yield ERROR, ops[0].graph.name + "/" + node, f"is written by {', '.join(op.name for op in ops)}"
            continue
        writer = ops[0]
        others = [op for op, _ in writer.graph.readers[node, index] if op is not writer]
        before = _ancestors(writer.graph, writer) if others else set()
        for op in others:
            if op.name not in before:
                yield ERROR, op.place, f"reads {node} which {writer.name} overwrites, without an order between them"


@rule(25, "An in-place output has the type of its input")
def ref_types(c: Context) -> Iterator[Report]:
    for op, name, output, _ in ref_inputs(c):
        place = op.slot(name)
        if place is None or output not in op.output_names:
            continue
        before, after = op.message.input_desc[place], op.message.output_desc[op.output_names.index(output)]
        if before.dtype != after.dtype or nd_shape(before) != nd_shape(after):
            found = [f"{getattr(dtype_of(desc), 'name', '?')}{list(nd_shape(desc) or ())}" for desc in (before, after)]
            yield ERROR, f"{op.place} output {output}", f"is {found[1]}, its input is {found[0]}"
