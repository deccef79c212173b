"""RmsNorm and AddRmsNorm anywhere in a model: every spelling of a norm, with and without a residual in front of it."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import onnx
import pytest

import fusion
from tests.fusion.rules.block_models import check, codes, counts, model_of, random
from tests.fusion.zoo.graph import NUMPY, Array, Graph
from tests.fusion.zoo.norms import NORM_SINCE, NORMS

WIDTH = 16
GAMMA = np.linspace(0.5, 1.5, WIDTH).astype(np.float32)
BSH = ["B", "S", WIDTH]
BRACKET = {"own_type", "in_double"}


def gamma_of(dtype: str) -> Array:
    return GAMMA.astype(np.float16).astype(NUMPY[dtype])


def norm_model(norm: str, dtype: str, style: str = "dynamo", rank: int = 3, residual: bool = False) -> onnx.ModelProto:
    def build(g: Graph) -> dict[str, str]:
        if not residual:
            return {"y": NORMS[norm](g, "x", gamma_of(dtype), 1e-5, rank)}
        total = g.op("Add", "x", "h")
        y = NORMS[norm](g, total, gamma_of(dtype), 1e-5, rank)
        return {"y": y, "total": g.op("Mul", total, g.scalar(2.0, dtype))}

    shape = BSH if rank == 3 else ["B", "N", "S", WIDTH] if rank == 4 else ["T", WIDTH]
    inputs = {"x": shape, "h": shape} if residual else {"x": shape}
    return model_of(build, inputs, opset=NORM_SINCE.get(norm, 18), dtype=dtype, style=style)


def feeds(dtype: str, *shape: int) -> dict[str, Array]:
    return {"x": random(shape, dtype), "h": random(shape, dtype, 1)}


@pytest.mark.parametrize("dtype", ["float32", "float16"])
@pytest.mark.parametrize("norm", NORMS)
def test_every_spelling_is_one_node(norm: str, dtype: str) -> None:
    check(norm_model(norm, dtype), feeds(dtype, 2, 3, WIDTH), {"RmsNorm": 1}, dtype)


@pytest.mark.parametrize("norm", [norm for norm in NORMS if norm != "in_double"])
def test_residual_and_norm_are_one_node(norm: str) -> None:
    result = check(norm_model(norm, "float32", residual=True), feeds("float32", 2, 3, WIDTH), {"AddRmsNorm": 1})
    assert result.ops_after["Add"] == (norm == "one_plus_constant"), "the operator delivers the sum"


@pytest.mark.parametrize("norm", ["hf_reciprocal", "hf_div_one", "own_type"])
def test_half_precision_residual_of_transformers(norm: str) -> None:
    check(norm_model(norm, "float16", "ts", residual=True), feeds("float16", 2, 3, WIDTH), {"AddRmsNorm": 1}, "float16")


def test_bfloat16() -> None:
    model = norm_model("hf_reciprocal", "bfloat16", residual=True)
    check(model, feeds("bfloat16", 2, 3, WIDTH), {"AddRmsNorm": 1}, "bfloat16")


@pytest.mark.parametrize("rank", [2, 4])
def test_any_rank(rank: int) -> None:
    shape = (5, WIDTH) if rank == 2 else (2, 3, 4, WIDTH)
    check(norm_model("hf_reciprocal", "float32", rank=rank), feeds("float32", *shape), {"RmsNorm": 1})


def test_ranks_share_a_function_body() -> None:
    def build(g: Graph) -> dict[str, str]:
        y = NORMS["hf_reciprocal"](g, "x", GAMMA, 1e-5, 3)
        heads = g.reshape(g.op("MatMul", y, g.const(random((WIDTH, 2 * WIDTH)))), 0, 0, 2, WIDTH)
        return {"q": NORMS["div_root_gamma32"](g, heads, GAMMA, 1e-6, 4)}

    result = check(model_of(build, {"x": BSH}), feeds("float32", 2, 3, WIDTH), {"RmsNorm": 2})
    assert len(result.model.functions) == 1, "two bodies would need overloads, which older runtimes refuse"
    assert sorted(site.attrs["epsilon"] for site in result.sites) == [pytest.approx(1e-6), pytest.approx(1e-5)]


@pytest.mark.parametrize("norm", ["sum_square_times", "count_in_parts", "folded_n"])
def test_a_count_that_has_no_exact_reciprocal(norm: str) -> None:
    def build(g: Graph) -> dict[str, str]:
        return {"y": NORMS[norm](g, "x", np.linspace(0.5, 1.5, 20).astype(np.float32), 1e-5, 3)}

    check(model_of(build, {"x": ["B", "S", 20]}), feeds("float32", 2, 3, 20), {"RmsNorm": 1})


def test_a_norm_without_gamma_gets_ones() -> None:
    def build(g: Graph) -> dict[str, str]:
        mean = g.reduce("ReduceMean", g.op("Mul", "x", "x"))
        return {"y": g.op("Div", "x", g.op("Sqrt", g.op("Add", mean, g.scalar(1e-5))))}

    check(model_of(build, {"x": BSH}), feeds("float32", 2, 3, WIDTH), {"RmsNorm": 1})


def test_float32_gamma_stays_float32_beside_half_precision_rows() -> None:
    def build(g: Graph) -> dict[str, str]:
        xf = g.up("x")
        mean = g.reduce("ReduceMean", g.op("Mul", xf, xf))
        y = g.op("Div", xf, g.op("Sqrt", g.op("Add", mean, g.scalar(1e-5))))
        return {"y": g.down(g.op("Mul", y, g.const(GAMMA * np.float32(1.0001))))}

    model = model_of(build, {"x": BSH}, dtype="float16")
    result = check(model, feeds("float16", 2, 3, WIDTH), {"RmsNorm": 1}, "float16")
    assert not result.ops_after["Cast"]
    assert codes(fusion.fuse(model, product="kirin"), "RmsNorm") == {"RN-2"}


def test_a_result_that_is_not_rounded_stays_wide() -> None:
    def build(g: Graph) -> dict[str, str]:
        xf = g.up("x")
        mean = g.reduce("ReduceMean", g.op("Mul", xf, xf))
        y = g.op("Mul", g.op("Div", xf, g.op("Sqrt", g.op("Add", mean, g.scalar(1e-5)))), g.const(GAMMA))
        return {"y": g.op("Add", y, g.scalar(1.0))}

    model = model_of(build, {"x": BSH}, dtype="float16", kinds={"y": "float32"})
    check(model, feeds("float16", 2, 3, WIDTH), {"RmsNorm": 1}, "float16")


@pytest.mark.parametrize("shape", [[WIDTH], ["S", WIDTH], [1, 1, WIDTH]])
def test_an_addition_that_broadcasts_is_no_residual(shape: list[int | str | None]) -> None:
    def build(g: Graph) -> dict[str, str]:
        return {"y": NORMS["hf_reciprocal"](g, g.op("Add", "x", "h"), GAMMA, 1e-5, 3)}

    sizes = [3 if dim == "S" else int(dim or 0) for dim in shape]
    check(model_of(build, {"x": BSH, "h": shape}), {"x": random((2, 3, WIDTH)), "h": random(sizes)}, {"RmsNorm": 1})


def test_the_sum_may_be_a_graph_output_and_keeps_its_name() -> None:
    g = Graph(18)
    for name in "xh":
        g.input(name, "float32", list(BSH))
    total = g.op("Add", "x", "h")
    y = NORMS["hf_reciprocal"](g, total, GAMMA, 1e-5, 3)
    g.output(total, "total", "float32", list(BSH))
    g.output(y, "y", "float32", list(BSH))
    result = check(g.model("sum"), feeds("float32", 2, 3, WIDTH), {"AddRmsNorm": 1})
    assert [entry.name for entry in result.model.graph.output] == ["total", "y"]
    assert result.sites[0].outputs[2] == "total" and result.sites[0].outputs[0] == "y"


@pytest.mark.parametrize("reads_sum", [True, False])
def test_the_runtime_operator_for_residual_and_norm(reads_sum: bool) -> None:
    def build(g: Graph) -> dict[str, str]:
        y, _, _, total = g.many(
            "SkipSimplifiedLayerNormalization", "x", "h", g.const(GAMMA), count=4, domain="com.microsoft", epsilon=1e-5
        )
        return {"y": y, "total": g.op("Neg", total)} if reads_sum else {"y": y}

    check(model_of(build, {"x": BSH, "h": BSH}), feeds("float32", 2, 3, WIDTH), {"AddRmsNorm": 1})


def test_a_chain_of_layers_shares_one_proof() -> None:
    def build(g: Graph) -> dict[str, str]:
        hidden = "x"
        for _ in range(6):
            y = NORMS["hf_reciprocal"](g, hidden, GAMMA, 1e-5, 3)
            hidden = g.op("Add", hidden, g.op("MatMul", y, g.const(random((WIDTH, WIDTH)))))
        return {"hidden": NORMS["hf_reciprocal"](g, hidden, GAMMA, 1e-5, 3)}

    result = check(model_of(build, {"x": BSH}), feeds("float32", 2, 3, WIDTH), {"AddRmsNorm": 6, "RmsNorm": 1})
    assert sum(site.proof is not None and site.proof.shared_with is None for site in result.sites) == 3


def test_operators_are_chosen_by_name_and_product() -> None:
    model = norm_model("hf_reciprocal", "float32", residual=True)
    assert counts(fusion.fuse(model, only=["RmsNorm"])) == {"RmsNorm": 1}
    assert counts(fusion.fuse(model, only=["AddRmsNorm"])) == {"AddRmsNorm": 1}
    assert counts(fusion.fuse(model, product="A3")) == {"AddRmsNorm": 1}


# --- near misses -----------------------------------------------------------------------------------------------------


def spelled(
    mean: Callable[[Graph, str], str] | None = None, **parts: Callable[..., str]
) -> Callable[[Graph], dict[str, str]]:
    """``x / root(mean(x)) * gamma`` with one part done differently."""

    def build(g: Graph) -> dict[str, str]:
        square = mean(g, "x") if mean else g.reduce("ReduceMean", g.op("Mul", "x", "x"))
        root = parts["root"](g, square) if "root" in parts else g.op("Sqrt", g.op("Add", square, g.scalar(1e-2)))
        y = parts["divide"](g, root) if "divide" in parts else g.op("Div", "x", root)
        gamma = parts["gamma"](g) if "gamma" in parts else g.const(GAMMA)
        return {"y": g.op("Mul", y, gamma)}

    return build


TRAPS: dict[str, tuple[Callable[[Graph], dict[str, str]], str]] = {
    "epsilon beside the root": (
        spelled(root=lambda g, m: g.op("Add", g.op("Sqrt", m), g.scalar(1e-2))), "norm-epsilon"),
    "no epsilon": (spelled(root=lambda g, m: g.op("Sqrt", m)), "norm-epsilon"),
    "no root": (spelled(root=lambda g, m: g.op("Add", m, g.scalar(1e-2))), "norm-form"),
    "another axis": (spelled(lambda g, x: g.reduce("ReduceMean", g.op("Mul", x, x), 1)), "norm-axis"),
    "two axes": (
        spelled(lambda g, x: g.op("ReduceMean", g.op("Mul", x, x), g.ints(-1, -2), keepdims=1)), "norm-axis"),
    "n - 1": (
        spelled(lambda g, x: g.op("Div", g.reduce("ReduceSum", g.op("Mul", x, x)), g.scalar(WIDTH - 1.0))),
        "norm-count"),
    "another row divided": (spelled(divide=lambda g, r: g.op("Div", "h", r)), "norm-form"),
    "centred": (
        spelled(
            lambda g, x: g.reduce("ReduceMean", g.op("Pow", g.op("Sub", x, g.reduce("ReduceMean", x)), g.scalar(2.0))),
        ), "norm-form"),
    "factor 2": (
        spelled(lambda g, x: g.op("Mul", g.reduce("ReduceMean", g.op("Mul", x, x)), g.scalar(2.0))), "norm-form"),
    "1 + w of an input": (spelled(gamma=lambda g: g.op("Add", g.scalar(1.0), "w")), "norm-gamma"),
    "gamma by token": (spelled(gamma=lambda g: g.op("Add", g.scalar(1.0), "h")), "norm-gamma"),
}  # fmt: skip


@pytest.mark.parametrize("name", TRAPS)
def test_near_miss_is_left_alone_with_the_reason(name: str) -> None:
    build, code = TRAPS[name]
    model = model_of(build, {"x": BSH, "h": BSH, "w": [WIDTH]})
    result = check(model, {**feeds("float32", 2, 3, WIDTH), "w": random((WIDTH,))}, {})
    assert codes(result, "RmsNorm") == {code}
    assert all(refusal.found and refusal.wanted and refusal.place for refusal in result.refusals)


def test_layer_norm_is_no_rms_norm() -> None:
    def build(g: Graph) -> dict[str, str]:
        centred = g.op("Sub", "x", g.reduce("ReduceMean", "x"))
        mean = g.reduce("ReduceMean", g.op("Mul", centred, centred))
        y = g.op("Div", centred, g.op("Sqrt", g.op("Add", mean, g.scalar(1e-5))))
        return {"y": g.op("Add", g.op("Mul", y, g.const(GAMMA)), g.const(GAMMA))}

    result = check(model_of(build, {"x": BSH}), feeds("float32", 2, 3, WIDTH), {})
    assert codes(result, "RmsNorm") == {"norm-centred"}


@pytest.mark.parametrize("inner", ["mean", "inverse"])
def test_what_others_read_inside_keeps_the_norm_alive(inner: str) -> None:
    """Fusing would compute the mean square twice."""

    def build(g: Graph) -> dict[str, str]:
        mean = g.reduce("ReduceMean", g.op("Mul", "x", "x"))
        inverse = g.op("Reciprocal", g.op("Sqrt", g.op("Add", mean, g.scalar(1e-5))))
        y = g.op("Mul", g.op("Mul", "x", inverse), g.const(GAMMA))
        return {"y": y, "inner": mean if inner == "mean" else inverse}

    result = check(model_of(build, {"x": BSH}), feeds("float32", 2, 3, WIDTH), {})
    assert codes(result, "RmsNorm") == {"inner-value-read"}


def test_a_cast_in_front_stays_for_its_other_reader() -> None:
    """TorchScript's residual reads the float32 cast that belongs to the norm."""

    def build(g: Graph) -> dict[str, str]:
        xf = g.cast("x", "float32")
        mean = g.reduce("ReduceMean", g.op("Mul", xf, xf))
        y = g.op("Div", xf, g.op("Sqrt", g.op("Add", mean, g.scalar(1e-5))))
        return {"y": g.op("Mul", y, g.const(GAMMA)), "wide": g.op("Add", xf, g.scalar(1.0))}

    check(model_of(build, {"x": BSH}), feeds("float32", 2, 3, WIDTH), {"RmsNorm": 1})


@pytest.mark.parametrize("op", ["ReduceMean", "ReduceSum", "ReduceL2"])
def test_the_mean_of_what_no_node_is_computed_from_is_no_norm(op: str) -> None:
    """A Constant and a RandomNormal have no operand."""

    def build(g: Graph) -> dict[str, str]:
        drawn = g.op("RandomNormal", shape=[2, WIDTH])
        root = g.op("Sqrt", g.op("Add", g.op(op, drawn, g.ints(-1), keepdims=1), g.scalar(1e-6)))
        return {"y": g.op("Div", drawn, root)}

    assert counts(fusion.fuse(model_of(build, {"x": BSH}))) == {}


def test_a_constant_without_elements_is_read() -> None:
    """As small constants are that may be a mask; this one holds no number."""

    def build(g: Graph) -> dict[str, str]:
        empty = g.const(np.zeros((0, WIDTH), np.float32))
        y = NORMS["own_type"](g, "x", GAMMA, 1e-5, 2)
        return {"y": g.op("Concat", y, g.op("Neg", empty), axis=0)}

    assert counts(fusion.fuse(model_of(build, {"x": ["T", WIDTH]}))) == {"RmsNorm": 1}


@pytest.mark.parametrize("outside", [True, False])
def test_what_a_branch_makes_of_a_norm_is_no_norm(outside: bool) -> None:
    """The same row times the same root is the norm outside the branch, and in it something that is not always done."""

    def build(g: Graph) -> dict[str, str]:
        mean = g.reduce("ReduceMean", g.op("Mul", "x", "x"))
        inverse = g.op("Reciprocal", g.op("Sqrt", g.op("Add", mean, g.scalar(1e-5))))
        branch = onnx.helper.make_graph(
            [onnx.helper.make_node("Mul", ["x", inverse], ["inside"])], "branch", [],
            [onnx.helper.make_tensor_value_info("inside", onnx.TensorProto.FLOAT, None)],
        )  # fmt: skip
        chosen = g.op("If", g.const(np.array(True)), then_branch=branch, else_branch=branch)
        return {"y": g.op("Mul", "x", inverse), "chosen": chosen} if outside else {"chosen": chosen}

    result = check(model_of(build, {"x": BSH}), feeds("float32", 2, 3, WIDTH), {})
    assert codes(result, "RmsNorm") == ({"inner-value-read"} if outside else set())
