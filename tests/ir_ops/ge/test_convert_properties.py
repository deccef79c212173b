"""Random parameters: the exported graph equals ONNX's reference, with known and unknown dims, and files round-trip."""

from __future__ import annotations

import itertools
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from ir_ops.ge import GraphBuilder, Model, read, write
from ir_ops.ge.convert.matmul import batch_product
from tests.ir_ops.ge.onnx_models import Case, Fixed, assert_same, converted, expected

X = np.arange(2 * 5 * 4, dtype=np.float32).reshape(2, 5, 4)
bounds = st.integers(-7, 7) | st.sampled_from([2**63 - 1, -(2**63), 2**31])
dynamic = st.booleans()


def compare(case: Case, is_dynamic: bool) -> None:
    model = case.model(is_dynamic)
    got, _ = converted(model, case.feeds())
    assert_same(got, expected(model, case.feeds()), case.rtol)


@given(st.integers(-3, 2), bounds, bounds, st.sampled_from([1, 2, 3, -1, -2]), dynamic)
def test_slices(axis: int, start: int, end: int, step: int, is_dynamic: bool) -> None:
    # the reference slices as numpy does, which takes nothing there: a test of its own
    assume(step > 0 or start >= -X.shape[axis])
    inputs = [np.array([value], np.int64) for value in (start, end, axis, step)]
    compare(Case("Slice", [X, *(Fixed(value) for value in inputs)]), is_dynamic)


@given(
    st.lists(st.booleans(), min_size=3, max_size=3),
    st.integers(0, 2),
    st.sampled_from([(), (1,), (3,), (2, 1)]),
    dynamic,
)
def test_expands(kept: list[bool], cut: int, front: tuple[int, ...], is_dynamic: bool) -> None:
    # any dim of x may be 1 where the target is larger, and the target 1 where x is larger
    shape = tuple(dim if keep else 1 for dim, keep in zip(X.shape, kept, strict=True))
    target = [dim if not keep else 1 for dim, keep in zip(X.shape, kept, strict=True)][cut:]
    assume(not front or cut == 0)
    x = X.reshape(-1)[: int(np.prod(shape))].reshape(shape)
    compare(Case("Expand", [x, Fixed(np.array([*front, *target], np.int64))]), is_dynamic)


@given(st.permutations([0, 5, 4]), dynamic)
def test_reshapes_with_kept_dims(target: list[int], is_dynamic: bool) -> None:
    # a zero keeps x's dim of that place; what does not fit is replaced by -1
    kept = [X.shape[i] if dim == 0 else dim for i, dim in enumerate(target)]
    if int(np.prod(kept)) != X.size:
        target = [0, -1]
    compare(Case("Reshape", [X, Fixed(np.array(target, np.int64))]), is_dynamic)


@given(st.lists(st.integers(-5, 4), min_size=1, max_size=4, unique_by=lambda i: i % 5), st.booleans(), dynamic)
def test_scatters_with_negative_indices(rows: list[int], constant: bool, is_dynamic: bool) -> None:
    data = X.transpose(1, 0, 2).copy()
    indices = np.array(rows, np.int64).reshape(-1, 1)
    updates = -np.ones((len(rows), 2, 4), np.float32)
    given_indices = Fixed(indices) if constant else indices
    compare(Case("ScatterND", [data, given_indices, updates], static=True), False)
    if constant:
        compare(Case("ScatterND", [data, given_indices, updates]), is_dynamic)


@given(st.permutations("bmk"), st.permutations("bkn"), st.permutations("bmn"), dynamic)
def test_einsum_as_a_batched_product(a: list[str], b: list[str], y: list[str], is_dynamic: bool) -> None:
    sizes = {"b": 2, "m": 3, "k": 4, "n": 5}
    arrays = [
        np.random.default_rng(1).standard_normal([sizes[label] for label in term]).astype(np.float32) for term in (a, b)
    ]
    equation = f"{''.join(a)},{''.join(b)}->{''.join(y)}"
    assert batch_product(equation) is not None
    compare(Case("Einsum", arrays, {"equation": equation}, rtol=1e-4), is_dynamic)


def test_equations_that_are_no_batched_product() -> None:
    for equation in ("ij->ji", "ii,ij->j", "ij,jk,kl->il", "ijk,ijk->i", "ij,kl->ijkl", "ij,jk"):
        assert batch_product(equation) is None


byte = st.sampled_from([np.int8, np.uint8])
zero = st.integers(0, 100)


@given(byte, byte, zero, zero, st.sampled_from(["none", "scalar", "columns"]), st.booleans())
@settings(max_examples=40)
def test_integer_products(left: type, right: type, za: int, zb: int, kind: str, later: bool) -> None:
    rng = np.random.default_rng(za)
    a, b = (rng.integers(np.iinfo(t).min, np.iinfo(t).max, shape, t) for t, shape in ((left, (3, 4)), (right, (4, 5))))
    zeros = [np.array(za, left), np.full(5, zb, right) if kind == "columns" else np.array(zb, right)]
    extra = [] if kind == "none" else [value if later else Fixed(value) for value in zeros]
    compare(Case("MatMulInteger", [a, b, *extra]), False)


unary = st.sampled_from(["Neg", "Sqrt", "Cos"])
binary = st.sampled_from(["Add", "Mul", "Sub"])


@st.composite
def models(draw: st.DrawFn) -> Model:
    """Small graphs of random operators over inputs of one shape."""
    b = GraphBuilder(draw(st.sampled_from(["g", "a/b"])))
    dtype = draw(st.sampled_from(["float32", "bfloat16"]))
    values = [b.data(f"x{i}", dtype, (draw(st.sampled_from([-1, 3])), 4)) for i in range(draw(st.integers(1, 3)))]
    for _ in range(draw(st.integers(0, 6))):
        if draw(st.booleans()):
            values.append(b.add(draw(unary), {"x": draw(st.sampled_from(values))})[0])
        else:
            pair = {"x1": draw(st.sampled_from(values)), "x2": draw(st.sampled_from(values))}
            values.append(b.add(draw(binary), pair, name=draw(st.text(max_size=3)))[0])
    for value in draw(st.lists(st.sampled_from(values), min_size=1, max_size=3)):
        b.output(value, draw(st.text(min_size=1, max_size=4).filter(lambda text: text.isprintable())))
    return b.build()


@given(models())
@settings(max_examples=50)
def test_files_round_trip(model: Model) -> None:
    with TemporaryDirectory() as folder:
        assert read(write(model, Path(folder) / "m.air")) == model


def test_permutations_of_every_rank() -> None:
    for perm in itertools.permutations(range(3)):
        compare(Case("Transpose", [X], {"perm": list(perm)}), True)
