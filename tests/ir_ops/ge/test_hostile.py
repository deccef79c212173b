"""Damaged files and odd models: one clear line, or a right result; never a traceback, never half a file."""

from __future__ import annotations

import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper

from ir_ops.errors import BadModel, BadUsage, ExportError, KvfuseError
from ir_ops.ge import air, export, read, run, show, validate
from ir_ops.ge.messages import Message, ModelDef
from tests.ir_ops.ge.onnx_models import Case, Fixed, expected, make_model, tensor

rng = np.random.default_rng(8)
W = rng.standard_normal((20, 20)).astype(np.float32)
X = rng.standard_normal((2, 20)).astype(np.float32)
FLOAT = TensorProto.FLOAT

# ------------------------------------------------------------------------------------------------------ files

CASES = [
    Case("MatMul", [X, Fixed(W)]),
    Case("TopK", [X, Fixed(np.array([2]))], outputs=2),
    Case("ScatterND", [X, Fixed(np.array([[1]])), X[:1]]),
    Case("Slice", [X, Fixed(np.array([1])), Fixed(np.array([4])), Fixed(np.array([1]))]),
]


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> list[tuple[bytes, dict[str, Any]]]:
    """Small good files with inputs for them."""
    folder = tmp_path_factory.mktemp("good")
    made = []
    for number, case in enumerate(CASES):
        path = export(case.model(), folder / f"{number}.air").path
        assert path is not None
        made.append((path.read_bytes(), case.feeds()))
    return made


def _cut(data: bytearray, dice: random.Random) -> bytes:
    return bytes(data[: dice.randrange(len(data))])


def _flipped(data: bytearray, dice: random.Random) -> bytes:
    for _ in range(dice.choice([1, 2, 5])):
        data[dice.randrange(len(data))] = dice.choice([0, 0x7F, 0x80, 0xFF, dice.randrange(256)])
    return bytes(data)


def _lengthened(data: bytearray, dice: random.Random) -> bytes:
    """A length field of 2 GiB somewhere."""
    place = dice.randrange(len(data))
    return bytes(data[:place] + b"\xff\xff\xff\xff\x07" + data[place:])


def _reworded(data: bytearray, dice: random.Random) -> bytes:
    """A message that parses and says something else."""
    message = ModelDef()
    message.ParseFromString(bytes(data))
    op = dice.choice(list(message.graph[0].op))
    dice.choice(_EDITS)(op, dice)
    return bytes(message.SerializeToString())


def _other_dim(op: Message, dice: random.Random) -> None:
    for desc in (*op.input_desc, *op.output_desc):
        if desc.shape.dim:
            desc.shape.dim[0] = dice.choice([0, -1, -3, 2**62, 7])


def _other_attr(op: Message, dice: random.Random) -> None:
    if op.attr:
        name = dice.choice(sorted(op.attr))
        dice.choice([lambda attr: setattr(attr, "i", 2**62), lambda attr: setattr(attr, "s", b"\xff\xfe"),
                     lambda attr: attr.list.i.append(-1)])(op.attr[name])  # fmt: skip


def _other_edge(op: Message, dice: random.Random) -> None:
    if op.input:
        op.input[0] = dice.choice(["", "none:0", "in0:9", ":", f"{op.name}:0", "x:99999999999999999999"])


def _other_type(op: Message, dice: random.Random) -> None:
    op.type = dice.choice(["Add", "None", "Const", "Data", "NetOutput", "FileConstant", "TopKV2"])


def _other_dtype(op: Message, dice: random.Random) -> None:
    for desc in op.output_desc:
        desc.dtype = dice.randrange(60)


_EDITS = [_other_dim, _other_attr, _other_edge, _other_type, _other_dtype]


@pytest.mark.parametrize("damage", [_cut, _flipped, _lengthened, _reworded])
@pytest.mark.parametrize("seed", range(40))
def test_damaged_files(
    damage: Callable[[bytearray, random.Random], bytes], seed: int, files: list[tuple[bytes, dict[str, Any]]],
    tmp_path: Path,
) -> None:  # fmt: skip
    dice = random.Random(seed)
    data, feeds = files[seed % len(files)]
    path = tmp_path / "m.air"
    path.write_bytes(damage(bytearray(data), dice))
    uses: list[Callable[[], object]] = [
        lambda: show(read(path)), lambda: show(read(path), "pbtxt"), lambda: [str(found) for found in validate(path)],
        lambda: run(path, feeds),
    ]  # fmt: skip
    said: list[str] = []
    for use in uses:
        try:
            use()
        except KvfuseError as error:
            said.append(str(error))
    assert not any("\n" in text for text in said)


def test_a_file_beyond_the_size_is_not_read(tmp_path: Path) -> None:
    path = tmp_path / "m.air"
    with path.open("wb") as file:
        file.truncate(2**31)
    for use in (read, validate):
        with pytest.raises(BadModel, match="too large for an .air file; found 2147483648 bytes"):
            use(path)


class TestGraphsFromElsewhere:
    """GE takes nodes in any order, and graphs that a run cannot make sense of are told so."""

    @staticmethod
    def message() -> Message:
        return air.parse(air.serialise(export(CASES[3].model()).model))

    @staticmethod
    def written(message: Message, tmp_path: Path) -> Path:
        (tmp_path / "m.air").write_bytes(message.SerializeToString())
        return tmp_path / "m.air"

    def test_any_order(self, tmp_path: Path) -> None:
        message = self.message()
        ops = [type(op).FromString(op.SerializeToString()) for op in reversed(message.graph[0].op)]
        del message.graph[0].op[:]
        message.graph[0].op.extend(ops)
        got = run(self.written(message, tmp_path), CASES[3].feeds())
        np.testing.assert_array_equal(got["out0"], X[:, 1:4])

    def test_cycles_and_equal_names(self, tmp_path: Path) -> None:
        message = self.message()
        (op,) = (op for op in message.graph[0].op if op.type == "StridedSliceV2")
        op.input[0] = f"{op.name}:0"
        with pytest.raises(BadModel, match="the graph has a cycle; found the/Slice <- the/Slice"):
            run(self.written(message, tmp_path), CASES[3].feeds())
        op.input[0] = "in0:0"
        message.graph[0].op.add().CopyFrom(op)
        with pytest.raises(BadModel, match="two nodes have one name"):
            run(self.written(message, tmp_path), CASES[3].feeds())

    def test_an_input_without_an_index(self, tmp_path: Path) -> None:
        message = self.message()
        (op,) = (op for op in message.graph[0].op if op.type == "Data")
        op.attr["index"].s = b"first"
        with pytest.raises(BadModel, match="in0: a graph input without an index or an output"):
            run(self.written(message, tmp_path), CASES[3].feeds())

    def test_names_that_are_no_text(self, tmp_path: Path) -> None:
        message = self.message()
        (op,) = (op for op in message.graph[0].op if op.type == "NetOutput")
        op.input_desc[0].attr["_origin_output_tensor_name"].s = b"\xff"
        assert list(run(self.written(message, tmp_path), CASES[3].feeds())) == ["\ufffd"]


# ------------------------------------------------------------------------------------------------------ models


def one(op: str, *inputs: Any, domain: str = "", **attrs: Any) -> onnx.ModelProto:
    return Case(op, list(inputs), attrs, domain=domain).model()


@pytest.mark.parametrize(
    ("model", "text"),
    [
        (one("Concat", X, X), "Concat of opset 18 without the attribute axis"),
        (one("Cast", X), "Cast of opset 18 without the attribute to"),
        (one("Cast", X, to="float"), "attribute to of type STRING, nearest: type INT"),
        (one("Neg", X, speed=1), "Neg of opset 18 has no attribute speed, nearest: attributes: none"),
        (one("Unsqueeze", X, axes=[0]), "Unsqueeze of opset 18 with 1 inputs, nearest: 2 to 2 inputs"),
        (one("Add", X, X, X), "Add of opset 18 with 3 inputs"),
        (one("Softmax", X, axis=7), "an axis is out of range (found 7)"),
        (one("Reshape", X, Fixed(np.array([-1, -1]))), "a target shape that is none (found [-1, -1])"),
        (one("Reshape", X, Fixed(np.array([-2, 20]))), "a target shape that is none"),
        (one("Gather", X, Fixed(np.array([2, 99]))), "indices 2 to 99 into a dim of 2, nearest: -2 to 1"),
        (one("Conv", X, X), "1 x Conv: Conv that mixes channels"),
        (one("GlobalMaxPool", X), "1 x GlobalMaxPool: no conversion"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_nodes_that_are_none_of_their_operators(model: onnx.ModelProto, text: str) -> None:
    with pytest.raises(ExportError) as raised:
        export(model)
    assert text in str(raised.value)
    assert "\n" not in str(raised.value)


def test_a_range_without_steps_is_no_warning(recwarn: pytest.WarningsRecorder) -> None:
    export(one("Range", *(Fixed(np.array(value)) for value in (0, 5, 0))))
    assert not list(recwarn)


def test_a_constant_may_be_an_output() -> None:
    values: dict[str, Any] = {"value_floats": [1.0, 2.0], "value_int": 7, "value": tensor("t", W)}
    for name, value in values.items():
        graph = helper.make_graph(
            [helper.make_node("Constant", [], ["y"], **{name: value})], "g", [],
            [helper.make_empty_tensor_value_info("y")],
        )  # fmt: skip
        model = make_model(graph)
        np.testing.assert_array_equal(run(export(model).model, {})["y"], expected(model, {})["y"])


class TestNames:
    NAMES = ("a b", "a:b", "a_b", "ä/b")

    def model(self) -> onnx.ModelProto:
        """``a b - a:b * a_b + ä/b``, with names that become one name."""
        infos = [helper.make_tensor_value_info(name, FLOAT, [2]) for name in self.NAMES]
        nodes = [
            helper.make_node("Mul", ["a:b", "a_b"], ["y z"], name="x"),
            helper.make_node("Sub", ["a b", "y z"], ["y:z"], name="x"),
            helper.make_node("Add", ["y:z", "ä/b"], ["y_z"], name="x"),
        ]
        results = [helper.make_empty_tensor_value_info(name) for name in ("y_z", "y z")]
        return make_model(helper.make_graph(nodes, "g", infos, results))

    def test_every_input_keeps_its_value(self, tmp_path: Path) -> None:
        feeds = {name: np.full(2, float(i + 1), np.float32) for i, name in enumerate(self.NAMES)}
        result = export(self.model(), tmp_path / "m n.air")
        assert [node.name for node in result.model.root.of_type("Data")] == ["a_b_1", "a_b_2", "a_b", "_/b"]
        for source in (result.model, tmp_path / "m n.air"):
            got = run(source, feeds)
            assert {name: array.tolist() for name, array in got.items()} == {"y_z": [-1.0, -1.0], "y z": [6.0, 6.0]}

    def test_a_record_that_is_none_is_left_alone(self, tmp_path: Path) -> None:
        export(self.model(), tmp_path / "m.air")
        for text in ("", "[]", '{"inputs": [7]}', '{"inputs": [{"source_name": "x"}]}'):
            (tmp_path / "m.io.json").write_text(text)
            assert read(tmp_path / "m.air").source_names == {}


# ------------------------------------------------------------------------------------------------------ weights


def external(dims: tuple[int, ...] = (20, 20), **entries: object) -> onnx.ModelProto:
    """``x @ w`` with the weight in external data as the entries say."""
    weight = onnx.TensorProto(name="w", data_type=FLOAT, dims=dims, data_location=TensorProto.EXTERNAL)
    for key, value in {"location": "w.bin", "offset": 16, "length": W.nbytes, **entries}.items():
        weight.external_data.add(key=key, value=str(value))
    graph = helper.make_graph(
        [helper.make_node("MatMul", ["x", "w"], ["y"])], "g", [helper.make_tensor_value_info("x", FLOAT, [2, 20])],
        [helper.make_empty_tensor_value_info("y")], [weight],
    )  # fmt: skip
    return make_model(graph)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "w.bin").write_bytes(bytes(16) + W.tobytes())
    (tmp_path / "out").mkdir()
    return tmp_path


MODES = ("auto", "external", "file-per-tensor")


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize(
    ("model", "text"),
    [
        (external(location="none.bin"), "none.bin"),
        (external(offset=100), "w: "),
        (external(offset=-4), "not an ONNX model"),
        (external(offset="far"), "not an ONNX model"),
        (external(length=100), "the length of a weight's external data is not its size; found 100 bytes, wanted 1600"),
        (external(length=10**12), "the length of a weight's external data is not its size"),
        (external(location="a\0b"), "a weight's file has no valid name"),
        (external(location="out"), "out"),
        (external((-20, 20)), "a weight has a negative dim; found [-20, 20]"),
        (external((2**40, 2**40)), "the length of a weight's external data is not its size"),
    ],
    ids=lambda value: "" if isinstance(value, onnx.ModelProto) else value[:30],
)
def test_external_data_that_is_none(model: onnx.ModelProto, text: str, mode: str, folder: Path) -> None:
    (folder / "m.onnx").write_bytes(model.SerializeToString())
    with pytest.raises(KvfuseError) as raised:
        export(folder / "m.onnx", folder / "out" / "m.air", weights=mode)
    assert text in str(raised.value)
    assert "\n" not in str(raised.value)
    assert list((folder / "out").iterdir()) == []


@pytest.mark.parametrize("mode", MODES)
def test_what_cannot_be_written_is_said_first(mode: str, folder: Path) -> None:
    out = folder / "out"
    (folder / "m.onnx").write_bytes(external().SerializeToString())
    for name in ("m.io.json", "m.txt"):
        (out / name).mkdir()
        with pytest.raises(KvfuseError, match=f"{name}: a folder stands where the file should go"):
            export(folder / "m.onnx", out / "m.air", weights=mode, text=True)
        assert [path.name for path in out.iterdir()] == [name]
        (out / name).rmdir()
    with pytest.raises(KvfuseError, match="no such folder to write to"):
        export(folder / "m.onnx", folder / "none" / "m.air", weights=mode)


def test_a_file_is_no_folder_of_weights(folder: Path) -> None:
    (folder / "m.onnx").write_bytes(external().SerializeToString())
    (folder / "out" / "m_weights").write_text("mine")
    with pytest.raises(BadUsage, match="a file stands where the folder of weights should go"):
        export(folder / "m.onnx", folder / "out" / "m.air", weights="file-per-tensor")
    assert [path.name for path in (folder / "out").iterdir()] == ["m_weights"]
    assert (folder / "out" / "m_weights").read_text() == "mine"


def test_dims_beyond_what_a_file_holds() -> None:
    with pytest.raises(BadUsage, match="input_shapes in0: a dim is too large"):
        export(one("Neg", X), input_shapes={"in0": (2**63, 20)})
