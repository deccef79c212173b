"""Rotations anywhere in a model: every spelling and every source of the tables, and near misses."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import onnx
import pytest

import fusion
from tests.fusion.rules.block_models import check, codes, counts, model_of, random
from tests.fusion.zoo.graph import END, Array, Graph
from tests.fusion.zoo.norms import NORMS
from tests.fusion.zoo.ropes import ROPES, pair, products, rotate_half

WIDTH, POSITIONS = 16, 32
HEADS = {"q": 4, "k": 2}
Build = Callable[[Graph], dict[str, str]]
KINDS = {"half": "RotaryPositionEmbedding", "deinterleave": "InterleaveRope"}


def tables(batch: int, tokens: int, width: int = WIDTH, dtype: str = "float32") -> dict[str, Array]:
    angles = random((batch, 1, tokens, width // 2), seed=7).astype(np.float64)
    full = np.concatenate([angles, angles], -1)[..., :width]
    return {"cos": np.cos(full).astype(dtype), "sin": np.sin(full).astype(dtype)}


def one(build: Callable[[Graph, str, str, str, int], str]) -> Build:
    return lambda g: {"y": build(g, "x", "cos", "sin", WIDTH)}


def rotary_model(build: Build, width: int = WIDTH, batch: str | int = "B", **how: str | int) -> onnx.ModelProto:
    table = [batch, 1, "S", width]
    return model_of(build, {"x": ["B", 2, "S", WIDTH], "cos": table, "sin": table}, **how)  # type: ignore[arg-type]


def feeds(width: int = WIDTH, batch: int = 3, dtype: str = "float32") -> dict[str, Array]:
    return {"x": random((3, 2, 5, WIDTH), dtype), **tables(batch, 5, width, dtype)}


@pytest.mark.parametrize("batch", ["B", 1])
@pytest.mark.parametrize("rope", ROPES)
def test_every_spelling_is_one_node(rope: str, batch: str | int) -> None:
    how = ROPES[rope]
    if batch == 1 and how.since == 23:
        pytest.skip("the standard operator has rows for every batch entry")
    width = WIDTH // 2 if how.width == "half" else WIDTH
    model = rotary_model(one(how.build), width, batch, opset=max(18, how.since))
    late = rope in ("deint_stack_back", "deint_standard_op")  # pairs are turned in place first, and put apart then
    kind = "RotaryPositionEmbedding" if late else KINDS[how.kind]
    check(model, feeds(width, 3 if batch == "B" else 1), {kind: 1})


@pytest.mark.parametrize("rope", ["half_slices", "deint_view", "deint_in_float32", "half_chunk"])
def test_half_precision(rope: str) -> None:
    how = ROPES[rope]
    width = WIDTH // 2 if how.width == "half" else WIDTH
    model = rotary_model(one(how.build), width, dtype="float16")
    check(model, feeds(width, dtype="float16"), {KINDS[how.kind]: 1}, "float16")


# --- interleaved in and out ------------------------------------------------------------------------------------------


def stacked(g: Graph, x: str, cos: str, sin: str, d: int) -> str:
    parts = pair(g, g.slice(x, 0, END, 3, 2), g.slice(x, 1, END, 3, 2), (cos, cos), (sin, sin))
    whole = g.op("Concat", *(g.unsqueeze(part, 4) for part in parts), axis=-1)
    return g.reshape(whole, (x, 0), (x, 1), (x, 2), d)


def complex_numbers(g: Graph, x: str, cos: str, sin: str, d: int) -> str:
    """DeepSeek-V2's ``view_as_real(view_as_complex(x) * freqs)`` as exporters write it."""
    view = g.reshape(x, (x, 0), (x, 1), (x, 2), d // 2, 2)
    real, imaginary = g.slice(view, 0, 1, -1), g.slice(view, 1, 2, -1)
    c, s = g.unsqueeze(cos, 4), g.unsqueeze(sin, 4)
    low = g.op("Sub", g.op("Mul", real, c), g.op("Mul", imaginary, s))
    high = g.op("Add", g.op("Mul", real, s), g.op("Mul", imaginary, c))
    return g.reshape(g.op("Concat", low, high, axis=-1), (x, 0), (x, 1), (x, 2), d)


def every_two(g: Graph, x: str, cos: str, sin: str, d: int) -> str:
    """GPT-J: ``x * repeat(cos) + stack(-odd, even) * repeat(sin)``."""
    odd = g.op("Neg", g.slice(x, 1, END, 3, 2))
    turned = g.op("Concat", g.unsqueeze(odd, -1), g.unsqueeze(g.slice(x, 0, END, 3, 2), -1), axis=-1)
    repeated = [g.op("Gather", table, g.ints(*(at // 2 for at in range(d))), axis=-1) for table in (cos, sin)]
    return products(g, x, g.reshape(turned, (x, 0), (x, 1), (x, 2), d), *repeated)


@pytest.mark.parametrize("build", [stacked, complex_numbers, every_two])
def test_neighbours_that_stay_neighbours_are_mode_1(build: Callable[[Graph, str, str, str, int], str]) -> None:
    result = check(rotary_model(one(build), WIDTH // 2), feeds(WIDTH // 2), {"RotaryPositionEmbedding": 1})
    assert result.sites[0].attrs["mode"] == 1


def test_a_rotated_row_that_is_normalised_is_a_rotation_and_a_norm() -> None:
    """HunYuan: the sum that ends a rotation is no residual."""

    def build(g: Graph) -> dict[str, str]:
        turned = products(g, "x", rotate_half(g, "x", WIDTH), "cos", "sin")
        return {"y": NORMS["hf_reciprocal"](g, turned, random((WIDTH,)), 1e-5, 4)}

    check(rotary_model(build), feeds(), {"RotaryPositionEmbedding": 1, "RmsNorm": 1})


# --- where the tables come from --------------------------------------------------------------------------------------


def half(g: Graph, cos: str, sin: str, x: str = "x") -> dict[str, str]:
    return {"y": products(g, x, rotate_half(g, x, WIDTH), cos, sin)}


def computed(scale: float) -> Build:
    """cos and sin of positions times frequencies, doubled, perhaps scaled (YaRN)."""

    def build(g: Graph) -> dict[str, str]:
        angles = g.op(
            "Mul",
            g.cast(g.unsqueeze("positions", 2), "float32"),
            g.const(np.linspace(1, 0.1, WIDTH // 2, dtype=np.float32)),
        )
        both = g.op("Concat", angles, angles, axis=-1)
        made = [g.op(kind, both) for kind in ("Cos", "Sin")]
        if scale != 1:
            made = [g.op("Mul", table, g.scalar(scale)) for table in made]
        return half(g, *(g.unsqueeze(table, 1) for table in made))

    return build


def gathered(g: Graph) -> dict[str, str]:
    table = random((POSITIONS, WIDTH))
    return half(g, *(g.unsqueeze(g.op("Gather", g.const(table), "positions", axis=0), 1) for _ in range(2)))


def joint_table(g: Graph) -> dict[str, str]:
    """One row holds cos and sin, each for half of the columns."""
    row = g.op("Gather", g.const(random((POSITIONS, WIDTH))), "positions", axis=0)
    cos, sin = (g.unsqueeze(part, 1) for part in g.halves(row))
    low, high = g.halves("x")
    return {"y": g.op("Concat", *pair(g, low, high, (cos, cos), (sin, sin)), axis=-1)}


@pytest.mark.parametrize(
    "build", [computed(1.0), computed(1.0531), gathered, joint_table], ids=["computed", "yarn", "gathered", "joint"]
)
def test_tables_from_positions(build: Build) -> None:
    model = model_of(build, {"x": ["B", 2, "S", WIDTH], "positions": ["B", "S"]}, kinds={"positions": "int64"})
    given = {"x": random((3, 2, 5, WIDTH)), "positions": np.arange(15).reshape(3, 5)}
    check(model, given, {"RotaryPositionEmbedding": 1})


def test_float32_tables_beside_half_precision_rows_are_not_rounded() -> None:
    def build(g: Graph) -> dict[str, str]:
        x = g.up("x")
        return {"y": g.down(products(g, x, rotate_half(g, x, WIDTH), "cos", "sin"))}

    table = ["B", 1, "S", WIDTH]
    model = model_of(
        build, {"x": ["B", 2, "S", WIDTH], "cos": table, "sin": table}, dtype="float16",
        kinds={"cos": "float32", "sin": "float32"},
    )  # fmt: skip
    given = {"x": random((3, 2, 5, WIDTH), "float16"), **tables(3, 5)}
    result = check(model, given, {"RotaryPositionEmbedding": 1}, "float16")
    assert "float32" in result.sites[0].notes[0]


@pytest.mark.parametrize("rank", [2, 3])
def test_rows_of_tokens(rank: int) -> None:
    def build(g: Graph) -> dict[str, str]:
        axis = rank - 1
        cos, sin = ("cos", "sin") if rank == 2 else (g.unsqueeze("cos", 1), g.unsqueeze("sin", 1))
        return {"y": products(g, "x", rotate_half(g, "x", WIDTH, axis), cos, sin)}

    shape: list[int | str | None] = ["T", WIDTH] if rank == 2 else ["T", 3, WIDTH]
    model = model_of(build, {"x": shape, "cos": ["T", WIDTH], "sin": ["T", WIDTH]})
    rows = {name: table[0, 0] for name, table in tables(1, 5).items()}
    check(model, {"x": random((5, WIDTH) if rank == 2 else (5, 3, WIDTH)), **rows}, {"RotaryPositionEmbedding": 1})


# --- operators that are a rotation -----------------------------------------------------------------------------------


@pytest.mark.parametrize("woven", [0, 1])
@pytest.mark.parametrize("rank", [3, 4])
@pytest.mark.parametrize("domain", ["", "com.microsoft"])
def test_rotary_embedding(domain: str, rank: int, woven: int) -> None:
    heads = 2

    def build(g: Graph) -> dict[str, str]:
        caches = [g.const(random((POSITIONS, WIDTH // 2), seed=seed)) for seed in (1, 2)]
        operands = ["positions", *caches] if domain else [*caches, "positions"]
        return {"y": g.op("RotaryEmbedding", "x", *operands, domain=domain, interleaved=woven, num_heads=heads)}

    shape = ["B", "S", heads * WIDTH] if rank == 3 else ["B", heads, "S", WIDTH]
    sizes = (3, 5, heads * WIDTH) if rank == 3 else (3, heads, 5, WIDTH)
    model = model_of(build, {"x": shape, "positions": ["B", "S"]}, opset=23, kinds={"positions": "int64"})  # type: ignore[dict-item]
    given = {"x": random(sizes), "positions": np.arange(15).reshape(3, 5)[:, ::-1].copy()}
    result = check(model, given, {"RotaryPositionEmbedding": 1})
    assert result.sites[0].attrs["mode"] == woven


@pytest.mark.parametrize("number", [-1, 2, 99])
def test_an_attribute_that_the_standard_does_not_know_is_refused(number: int) -> None:
    """Runtimes take such an ``interleaved`` for one or the other."""

    def build(g: Graph) -> dict[str, str]:
        cos, sin = (g.squeeze(table, 1) for table in ("cos", "sin"))
        return {"y": g.op("RotaryEmbedding", "x", cos, sin, interleaved=number)}

    result = fusion.fuse(rotary_model(build, WIDTH // 2, opset=23))
    assert not result.sites
    assert f"interleaved={number}" in result.refusals[0].found


# --- partial ---------------------------------------------------------------------------------------------------------


def test_a_part_of_the_row() -> None:
    def build(g: Graph) -> dict[str, str]:
        front, rest = g.split("x", [WIDTH // 2, WIDTH // 2])
        turned = products(g, front, rotate_half(g, front, WIDTH // 2), "cos", "sin")
        return {"y": g.op("Concat", turned, rest, axis=-1)}

    check(rotary_model(build, WIDTH // 2), feeds(WIDTH // 2), {"RotaryPositionEmbedding": 1})


def test_a_part_that_is_put_together_with_the_rest_at_once() -> None:
    """TorchScript merges the two Concats: columns that pass, low half, high half."""

    def build(g: Graph) -> dict[str, str]:
        rest, front = g.split("x", [WIDTH // 2, WIDTH // 2])
        low, high = g.halves(front)
        c, s = g.slice("cos", 0, WIDTH // 4, 3), g.slice("sin", 0, WIDTH // 4, 3)
        return {"y": g.op("Concat", rest, *pair(g, low, high, (c, c), (s, s)), axis=-1)}

    check(rotary_model(build, WIDTH // 2), feeds(WIDTH // 2), {"RotaryPositionEmbedding": 1})


# --- query and key together ------------------------------------------------------------------------------------------


def layers(
    count: int, order: str = "BNSD", reader: bool = False, mode: Callable[..., str] | None = None
) -> onnx.ModelProto:
    """Layers whose queries and keys are projected and rotated; each next one depends on the one before."""

    def build(g: Graph) -> dict[str, str]:
        hidden, made = "x", {}
        for layer in range(count):
            rotated = []
            for name, heads in HEADS.items():
                rows = g.op("MatMul", hidden, g.const(random((8, heads * WIDTH), seed=layer)))
                rows = g.reshape(rows, 0, 0, heads, WIDTH)
                if order == "BNSD":
                    rows = g.transpose(rows, 0, 2, 1, 3)
                cos, sin = ("cos", "sin") if order == "BNSD" else ("cos_s", "sin_s")
                rotated.append(products(g, rows, rotate_half(g, rows, WIDTH), cos, sin))
                if reader:
                    made[f"old_{name}{layer}"] = g.op("Neg", rows)
            scores = g.reduce("ReduceMean", rotated[0], 1 if order == "BNSD" else 2, keepdims=0)
            hidden = g.op("Add", hidden, g.op("MatMul", scores, g.const(random((WIDTH, 8)))))
            made |= {f"q{layer}": rotated[0], f"k{layer}": rotated[1]}
        return made

    table = ["B", 1, "S", WIDTH] if order == "BNSD" else ["B", "S", 1, WIDTH]
    suffix = "" if order == "BNSD" else "_s"
    return model_of(build, {"x": ["B", "S", 8], f"cos{suffix}": table, f"sin{suffix}": table})  # type: ignore[dict-item]


def layer_feeds(order: str = "BNSD") -> dict[str, Array]:
    made = tables(3, 5)
    if order == "BSND":
        made = {f"{name}_s": np.ascontiguousarray(table.transpose(0, 2, 1, 3)) for name, table in made.items()}
    return {"x": random((3, 5, 8)), **made}


@pytest.mark.parametrize(("order", "layout"), [("BNSD", 3), ("BSND", 1)])
def test_query_and_key_of_a_layer_are_one_node(order: str, layout: int) -> None:
    result = check(layers(3, order), layer_feeds(order), {"ApplyRotaryPosEmb": 3})
    assert {site.attrs["layout"] for site in result.sites} == {layout}
    assert sum(site.proof is not None and site.proof.shared_with is None for site in result.sites) == 1


def test_an_old_query_that_others_read_is_not_overwritten() -> None:
    result = check(layers(1, reader=True), layer_feeds(), {"RotaryPositionEmbedding": 2})
    assert not result.refusals


def test_a_product_without_the_layout_rotates_one_by_one() -> None:
    model = layers(2)
    result = fusion.fuse(model, product="A3")
    assert counts(result) == {"RotaryPositionEmbedding": 4}
    assert not [refusal for refusal in result.refusals if refusal.rule == "ApplyRotaryPosEmb"]


# --- near misses -----------------------------------------------------------------------------------------------------


def wrong_sign(g: Graph) -> dict[str, str]:
    low, high = g.halves("x")
    turned = g.op("Concat", high, g.op("Neg", low), axis=-1)
    return {"y": products(g, "x", turned, "cos", "sin")}


def no_sign(g: Graph) -> dict[str, str]:
    return {"y": products(g, "x", g.op("Concat", *g.halves("x")[::-1], axis=-1), "cos", "sin")}


def other_pairs(g: Graph) -> dict[str, str]:
    """Halves in, neighbours out."""
    low, high = g.halves("x")
    c, s = g.slice("cos", 0, WIDTH // 2, 3), g.slice("sin", 0, WIDTH // 2, 3)
    parts = pair(g, low, high, (c, c), (s, s))
    whole = g.op("Concat", *(g.unsqueeze(part, 4) for part in parts), axis=-1)
    return {"y": g.reshape(whole, ("x", 0), ("x", 1), ("x", 2), WIDTH)}


def quarters_mixed(g: Graph) -> dict[str, str]:
    turned = g.op("Gather", "x", g.ints(*np.roll(np.arange(WIDTH), 3).tolist()), axis=3)
    low, high = g.halves(turned)
    return {"y": products(g, "x", g.op("Concat", g.op("Neg", high), low, axis=-1), "cos", "sin")}


def heads_swapped(g: Graph) -> dict[str, str]:
    swapped = g.op("Gather", "x", g.ints(1, 0), axis=1)
    return {"y": products(g, "x", rotate_half(g, swapped, WIDTH), "cos", "sin")}


TRAPS: dict[str, tuple[Build, set[str]]] = {
    "inverse rotation": (wrong_sign, {"rope-sign"}),
    "no sign": (no_sign, {"rope-sign"}),
    "halves in, neighbours out": (other_pairs, {"rope-pairs"}),
    "columns shifted by three": (quarters_mixed, {"rope-pairs"}),
    "heads swapped in one product": (heads_swapped, {"rope-pairs"}),
}


@pytest.mark.parametrize("name", TRAPS)
def test_near_miss_is_left_alone_with_the_reason(name: str) -> None:
    build, wanted = TRAPS[name]
    result = check(rotary_model(build), feeds(), {})
    assert codes(result, "RotaryPositionEmbedding") == wanted


def test_a_table_of_as_many_columns_as_an_input_says_is_left_alone() -> None:
    """With a large step one column stands for all, with a step of 1 (-99 here) it does not."""

    def build(g: Graph) -> dict[str, str]:
        step = g.op("Add", "step", g.ints(100))
        sin = g.op("Slice", "sin", g.ints(0), g.ints(1 << 40), g.ints(3), step)
        return {"y": products(g, "x", rotate_half(g, "x", WIDTH), "cos", sin)}

    table: list[str | int] = ["B", 1, "S", WIDTH]
    inputs = {"x": ["B", 2, "S", WIDTH], "cos": table, "sin": table, "step": [1]}
    result = fusion.fuse(model_of(build, inputs, kinds={"step": "int64"}))  # type: ignore[arg-type]
    assert not result.sites
    (refusal,) = result.refusals
    assert refusal.code == "rope-tables" and refusal.found.endswith("as many as data say")


def test_products_that_others_read_stay() -> None:
    def build(g: Graph) -> dict[str, str]:
        turned = products(g, "x", rotate_half(g, "x", WIDTH), "cos", "sin")
        return {"y": turned, "z": g.op("Mul", turned, "cos")}

    check(rotary_model(build), feeds(), {"RotaryPositionEmbedding": 1})


def test_a_lerp_is_no_rotation() -> None:
    def build(g: Graph) -> dict[str, str]:
        return {"y": g.op("Add", g.op("Mul", "x", "cos"), g.op("Mul", "h", "sin"))}

    table = ["B", 1, "S", WIDTH]
    rows = ["B", 2, "S", WIDTH]
    model = model_of(build, {"x": rows, "h": rows, "cos": table, "sin": table})  # type: ignore[dict-item]
    result = check(model, {**feeds(), "h": random((3, 2, 5, WIDTH), seed=2)}, {})
    assert not result.refusals
