"""The engine: one pass finds, proves and rewrites; the graph around a site keeps its order, names and types."""

from __future__ import annotations

import onnx
import onnx_ir as ir

from fusion.engine import apply, count_ops
from fusion.result import ASSUMPTIONS_KEY
from fusion.search import Options, find
from tests.fusion.zoo.spec import Spec
from tests.fusion.zoo.spellings import Preamble

OP = "KvRmsNormRopeCache"


def model_of(**choices: object) -> ir.Model:
    return ir.from_proto(Preamble(Spec(**choices)).model())  # type: ignore[arg-type]


def test_applying_puts_the_node_in_and_takes_the_rest_out() -> None:
    model = model_of(outs=True)
    before = count_ops(model)
    (site,) = apply(model, find(model, Options()))
    after = count_ops(model)
    assert after[f"ai.ascend::{OP}"] == 1
    assert after["ReduceMean"] == after["ScatterND"] == 0
    assert site.removed > 10 and sum(after.values()) < sum(before.values())
    assert model.opset_imports["ai.ascend"] == 1
    assert [item.name for item in model.graph.outputs] == ["k_cache_out_0", "ckv_cache_out_0", "k_rope_0", "c_kv_0"]


def test_nodes_stand_behind_what_they_read() -> None:
    model = model_of(layers=3, kv="bias", cos="freq", outs=True)
    apply(model, find(model, Options()))
    seen = {id(item) for item in (*model.graph.inputs, *model.graph.initializers.values())}
    for node in model.graph:
        assert all(item is None or id(item) in seen for item in node.inputs)
        seen |= {id(item) for item in node.outputs}
    onnx.checker.check_model(ir.to_proto(model), full_check=False)


def test_assumptions_travel_with_the_node() -> None:
    model = model_of()
    (site,) = apply(model, find(model, Options()))
    (node,) = (node for node in model.graph if node.op_type == OP)
    assert node.metadata_props[ASSUMPTIONS_KEY] == "; ".join(site.assumptions)
    assert node.name == site.name


def test_names_of_new_values_do_not_clash() -> None:
    model = model_of(layers=2)
    for node in model.graph:
        if node.op_type == "ReduceMean":
            node.outputs[0].name = f"{OP}_x/node"
            break
    apply(model, find(model, Options()))
    names = [item.name for node in model.graph for item in node.outputs]
    assert len(names) == len(set(names))
    assert sum(node.op_type == OP for node in model.graph) == 2


def test_operators_of_other_domains_are_counted_with_their_domain() -> None:
    counted = count_ops(model_of(norm="hf_reciprocal"))
    assert counted["ReduceMean"] == 1 and all("::" not in name for name in counted)
