"""An If that is marked as a choice between ways of equal meaning can be replaced by its else_branch."""

from __future__ import annotations

import numpy as np
import onnx
import onnx_ir as ir
import onnxruntime

from ir_ops.alternatives import alternatives, mark, settled
from ir_ops.ge import export

TEXT = """
<ir_version: 10, opset_import: ["": 18]>
agraph (float[N] x, bool fast) => (float[N] y, float[N] {direct})
{
    doubled = Add(x, x)
    z = If (fast) <
        then_branch = quick () => (float[N] a) { a = Mul(doubled, doubled) },
        else_branch = slow () => (float[N] b)
            <float two = {2.0}> { squared = Mul(x, x) wide = Mul(squared, two) b = Mul(wide, two) }
    >
    y = Neg(z)
}
"""


def model(direct: str = "z", marked: bool = True) -> ir.Model:
    found = ir.from_proto(onnx.parser.parse_model(TEXT.replace("{direct}", direct)))
    for node in found.graph:
        if node.op_type == "If" and marked:
            mark(node, "either will do")
    return found


def results(found: ir.Model) -> list[list[float]]:
    proto = ir.to_proto(found)
    onnx.checker.check_model(proto)
    session = onnxruntime.InferenceSession(proto.SerializeToString(), providers=["CPUExecutionProvider"])
    feeds = {"x": np.array([1, 3], np.float32), "fast": np.array(False)}
    taken = {item.name for item in session.get_inputs()}
    return [array.tolist() for array in session.run(None, {name: feeds[name] for name in taken})]


def test_the_other_branch_takes_the_place_of_the_node() -> None:
    found = model()
    before = results(found)
    assert len(alternatives(found.graph)) == 1
    assert settled(found.graph) == ["either will do"]
    assert "If" not in {node.op_type for node in found.graph}
    assert [value.name for value in found.graph.outputs] == ["y", "z"], "outputs keep their names"
    assert results(found) == before == [[-4.0, -36.0], [4.0, 36.0]]


def test_what_is_not_marked_stays() -> None:
    found = model(marked=False)
    assert settled(found.graph) == []
    assert "If" in {node.op_type for node in found.graph}


def test_a_mark_on_something_else_means_nothing() -> None:
    found = model()
    for node in found.graph:
        mark(node, "no choice")
    (choice,) = alternatives(found.graph)
    choice.attributes.pop("else_branch")
    assert settled(found.graph) == []


def test_ge_gets_the_branch_that_serves_every_call() -> None:
    result = export(model())
    assert "the else_branch is exported: either will do" in result.notes[0]
    types = [node.type for node in result.model.graphs[0].nodes]
    assert types.count("Mul") + types.count("Muls") == 3
