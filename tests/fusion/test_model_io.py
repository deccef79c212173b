"""Reading models: what is refused and in which words. Nothing of it reads a weight byte."""

from __future__ import annotations

import tracemalloc
from collections.abc import Callable
from pathlib import Path

import numpy as np
import onnx
import onnx_ir as ir
import pytest
from onnx import TensorProto, helper

import models
from fusion import model_io
from fusion.engine import count_ops
from ir_ops.errors import BadModel, KvfuseError


def tiny(change: Callable[[onnx.ModelProto], None] | None = None) -> onnx.ModelProto:
    """y = x + w, z = neg(y), with w inside the model; ``change`` breaks something."""
    value = helper.make_tensor_value_info
    graph = helper.make_graph(
        [helper.make_node("Add", ["x", "w"], ["y"], name="add"), helper.make_node("Neg", ["y"], ["z"], name="neg")],
        "tiny",
        [value("x", TensorProto.FLOAT, ["N", 4])],
        [value("z", TensorProto.FLOAT, ["N", 4])],
        [onnx.numpy_helper.from_array(np.arange(4, dtype=np.float32), "w")],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=10)
    if change is not None:
        change(model)
    return model


def add_node(*args: object, **attrs: object) -> Callable[[onnx.ModelProto], None]:
    return lambda model: model.graph.node.append(helper.make_node(*args, **attrs))  # type: ignore[arg-type]


def set_opset(version: int) -> Callable[[onnx.ModelProto], None]:
    def change(model: onnx.ModelProto) -> None:
        model.opset_import[0].version = version

    return change


def cycle(model: onnx.ModelProto) -> None:
    model.graph.node[0].input[0] = "z"


def empty(model: onnx.ModelProto) -> None:
    del model.graph.node[:]


def no_outputs(model: onnx.ModelProto) -> None:
    del model.graph.output[:]


def no_imports(model: onnx.ModelProto) -> None:
    del model.opset_import[:]


def two_imports(model: onnx.ModelProto) -> None:
    model.opset_import.append(helper.make_opsetid("ai.onnx", 17))


def no_ir_version(model: onnx.ModelProto) -> None:
    model.ClearField("ir_version")


def same_initializer(model: onnx.ModelProto) -> None:
    model.graph.initializer.append(model.graph.initializer[0])


def same_input(model: onnx.ModelProto) -> None:
    model.graph.input.append(model.graph.input[0])


def unnamed_initializer(model: onnx.ModelProto) -> None:
    model.graph.initializer.append(onnx.numpy_helper.from_array(np.zeros(2, np.float32), ""))


def short_weight(model: onnx.ModelProto) -> None:
    model.graph.initializer[0].raw_data = b"\0" * 12


def short_typed_weight(model: onnx.ModelProto) -> None:
    model.graph.initializer[0].ClearField("raw_data")
    model.graph.initializer[0].float_data.extend([1.0, 2.0])


def negative_size(model: onnx.ModelProto) -> None:
    model.graph.initializer[0].dims[0] = -4


def unknown_type(model: onnx.ModelProto) -> None:
    model.graph.initializer[0].data_type = 99


def sparse(model: onnx.ModelProto) -> None:
    values = onnx.numpy_helper.from_array(np.ones(1, np.float32), "s")
    model.graph.sparse_initializer.append(
        helper.make_sparse_tensor(values, onnx.numpy_helper.from_array(np.zeros(1, np.int64)), [4])
    )


def untyped_input(model: onnx.ModelProto) -> None:
    model.graph.input[0].ClearField("type")


def unknown_output(model: onnx.ModelProto) -> None:
    model.graph.output[0].name = "nowhere"


def wrong_attribute(model: onnx.ModelProto) -> None:
    model.graph.node.append(helper.make_node("Softmax", ["z"], ["s"], name="soft", axis=1.5))


def untyped_attribute(model: onnx.ModelProto) -> None:
    model.graph.node.append(helper.make_node("Softmax", ["z"], ["s"], name="soft", axis=1))
    model.graph.node[-1].attribute[0].ClearField("type")


def double_attribute(model: onnx.ModelProto) -> None:
    model.graph.node.append(helper.make_node("Softmax", ["z"], ["s"], name="soft", axis=1))
    model.graph.node[-1].attribute.append(model.graph.node[-1].attribute[0])


def no_graph(model: onnx.ModelProto) -> None:
    model.ClearField("graph")


def recursion(model: onnx.ModelProto) -> None:
    body = [helper.make_node("F", ["a"], ["b"], domain="my")]
    model.functions.append(helper.make_function("my", "F", ["a"], ["b"], body, [helper.make_opsetid("my", 1)]))
    model.opset_import.append(helper.make_opsetid("my", 1))


def broken_branch(model: onnx.ModelProto) -> None:
    """An If whose branch reads a value that no scope has."""
    out = helper.make_tensor_value_info("b", TensorProto.FLOAT, None)
    branch = helper.make_graph([helper.make_node("Neg", ["ghost"], ["b"], name="inner")], "branch", [], [out])
    model.graph.initializer.append(onnx.numpy_helper.from_array(np.asarray(True), "c"))
    model.graph.node.append(helper.make_node("If", ["c"], ["i"], then_branch=branch, else_branch=branch))


FAULTS = [
    (no_graph, "not an ONNX model: no graph in it"),
    (no_ir_version, "not an ONNX model: no IR version in it"),
    (empty, "the graph is empty; found no nodes"),
    (no_outputs, "the graph has no outputs"),
    (no_imports, "no opset of 'ai.onnx' is imported; found used by Add node 'add'"),
    (set_opset(0), "unknown opset version of ai.onnx; found 0"),
    (set_opset(999), "unknown opset version of ai.onnx; found 999"),
    (two_imports, "two versions of opset 'ai.onnx' are imported; found 18 and 17"),
    (
        add_node("Foo", ["z"], ["f"], name="foo", domain="corp"),
        "no opset of 'corp' is imported; found used by Foo node 'foo'",
    ),
    (
        add_node("Neg", ["x"], ["y"], name="again"),
        "two nodes write one value; found 'y' from Add node 'add' and Neg node 'again'",
    ),
    (
        add_node("Neg", ["z"], ["x"], name="back"),
        "a node writes a graph input or initializer; found 'x' from Neg node 'back'",
    ),
    (
        add_node("Neg", ["ghost"], ["g"]),
        "a node reads a value that nothing produces; found 'ghost' in Neg node number 2",
    ),
    (cycle, "the graph has a cycle; found Add node 'add' <- Neg node 'neg' <- Add node 'add'"),
    (unknown_output, "a graph output is produced by nothing; found 'nowhere'"),
    (same_initializer, "initializer: one name is given twice; found 'w'"),
    (same_input, "graph input: one name is given twice; found 'x'"),
    (unnamed_initializer, "an initializer has no name"),
    (untyped_input, "a graph input has no type; found 'x'"),
    (short_weight, "initializer 'w' has data of a wrong size; found 12 bytes, wanted 16 bytes"),
    (short_typed_weight, "initializer 'w' has data of a wrong size; found 2 values, wanted 4"),
    (negative_size, "initializer 'w' has a negative size; found [-4]"),
    (unknown_type, "initializer 'w' has an unknown element type; found 99"),
    (sparse, "sparse initializers are not supported; found 's'"),
    (add_node("Add", ["z"], ["f"], name="one"), "Add node 'one' has a wrong number of inputs; found 1, wanted 2"),
    (
        add_node("Add", ["z", ""], ["f"], name="one"),
        "Add node 'one' lacks a required input; found an empty name, wanted B",
    ),
    (
        add_node("Split", ["z"], ["f", "g"], name="one", num_outputs=1),
        "Split node 'one' has a wrong number of outputs; found 2, wanted 1, its num_outputs",
    ),
    (wrong_attribute, "Softmax node 'soft', attribute 'axis' has a wrong type; found FLOAT, wanted INT"),
    (untyped_attribute, "Softmax node 'soft', attribute 'axis' has no type"),
    (double_attribute, "attribute of Softmax node 'soft': one name is given twice; found 'axis'"),
    (recursion, "a function calls itself; found my::F"),
    (broken_branch, "a node reads a value that nothing produces; found 'ghost' in Neg node 'inner'"),
]


@pytest.mark.parametrize(("change", "words"), FAULTS, ids=lambda value: value if isinstance(value, str) else "")
@pytest.mark.parametrize("from_file", [True, False], ids=["file", "memory"])
def test_a_broken_graph_is_refused_in_one_line(
    tmp_path: Path, change: Callable[[onnx.ModelProto], None], words: str, from_file: bool
) -> None:
    model = tiny(change)
    path = tmp_path / "broken.onnx"
    path.write_bytes(model.SerializeToString())
    with pytest.raises(BadModel) as refused:
        model_io.load(path if from_file else model)
    line = str(refused.value)
    assert words in line
    assert "\n" not in line
    assert not from_file or line.startswith(f"{path}: ")


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (b"", "the file is empty"),
        (b"not a model at all", "not an ONNX model"),
        (b"PK\x03\x04" + bytes(100), "not an ONNX model"),
        (bytes(range(256)) * 8, "not an ONNX model"),
        (b"\x08\x0a", "no graph in it"),
    ],
    ids=["empty", "text", "zip", "bytes", "no-graph"],
)
def test_a_file_that_is_no_model_is_refused(tmp_path: Path, content: bytes, words: str) -> None:
    path = tmp_path / "odd.onnx"
    path.write_bytes(content)
    with pytest.raises(BadModel, match=words):
        model_io.load(path)


@pytest.mark.parametrize("share", [0.01, 0.3, 0.5, 0.9, 0.999])
def test_a_file_that_was_cut_off_is_told_from_one_that_never_was_a_model(tmp_path: Path, share: float) -> None:
    whole = models.demo_graph().read_bytes()
    path = tmp_path / "cut.onnx"
    kept = int(len(whole) * share)
    path.write_bytes(whole[:kept])
    with pytest.raises(BadModel, match="the file is cut off, [0-9]+ bytes are missing"):
        model_io.load(path)


def test_missing_file_and_folder(tmp_path: Path) -> None:
    with pytest.raises(BadModel, match="no such file"):
        model_io.load(tmp_path / "absent.onnx")
    with pytest.raises(BadModel, match="a folder, not a file"):
        model_io.load(tmp_path)


def test_a_file_beyond_protobufs_limit_is_not_even_opened(tmp_path: Path) -> None:
    path = tmp_path / "huge.onnx"
    with path.open("wb") as file:
        file.truncate(2**31)
    with pytest.raises(BadModel, match="larger than protobuf can read; found 2147483648 bytes"):
        model_io.load(path)


def external(
    folder: Path, *, location: str = "w.bin", facts: dict[str, str] | None = None, dims: tuple[int, ...] = (4,)
) -> Path:
    """The tiny model with w outside; the weight file is not written."""
    model = tiny()
    tensor = model.graph.initializer[0]
    tensor.ClearField("raw_data")
    tensor.dims[:] = dims
    tensor.data_location = TensorProto.EXTERNAL
    for key, value in {"location": location, **(facts or {})}.items():
        entry = tensor.external_data.add()
        entry.key, entry.value = key, value
    path = folder / "outside.onnx"
    path.write_bytes(model.SerializeToString())
    return path


@pytest.mark.parametrize(
    ("facts", "size", "words"),
    [
        ({}, None, "external weights are missing; found no file .*w.bin, wanted the data of 1 tensor.* 'w'"),
        ({}, 15, "lies beyond the end of its weight file; found .*w.bin of 15 bytes, wanted at least 16 bytes"),
        ({"offset": "8"}, 16, "lies beyond the end of its weight file; .*at least 24 bytes"),
        ({"offset": "-8"}, 16, "external data of a wrong size; found offset -8"),
        ({"length": "8"}, 16, "external data of a wrong size; found offset 0, length 8, wanted 16 bytes"),
        ({"offset": "many"}, 16, "an external offset or length that is no number"),
        ({"location": ""}, 16, "is external without a location"),
    ],
    ids=["missing", "short", "offset", "negative", "length", "word", "nowhere"],
)
def test_external_weights_are_checked_without_reading_them(
    tmp_path: Path, facts: dict[str, str], size: int | None, words: str
) -> None:
    path = external(tmp_path, facts=facts)
    if size is not None:
        (tmp_path / "w.bin").write_bytes(bytes(size))
    with pytest.raises(BadModel, match=words):
        model_io.load(path)


def test_a_folder_is_no_weight_file(tmp_path: Path) -> None:
    (tmp_path / "w.bin").mkdir()
    with pytest.raises(BadModel, match="external weights are missing"):
        model_io.load(external(tmp_path))


def test_a_terabyte_of_weights_is_loaded_and_saved_without_reading_it(tmp_path: Path) -> None:
    count = 2**38
    path = external(tmp_path, dims=(count,))
    with (tmp_path / "w.bin").open("wb") as file:
        file.truncate(4 * count)
    tracemalloc.start()
    loaded = model_io.load(path)
    saved = model_io.save(loaded.model, tmp_path / "again.onnx")
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 2**24
    again = model_io.load(saved.path).model.graph.initializers["w"].const_value
    assert isinstance(again, ir.ExternalTensor)
    assert (again.path, again.nbytes) == (str(tmp_path / "w.bin"), 4 * count)


def test_an_unsorted_graph_is_sorted_and_said_so() -> None:
    def swap(model: onnx.ModelProto) -> None:
        nodes = list(model.graph.node)
        del model.graph.node[:]
        model.graph.node.extend(reversed(nodes))

    loaded = model_io.load(tiny(swap))
    assert [node.name for node in loaded.model.graph] == ["add", "neg"]
    assert loaded.notes == ["the graph was not in topological order; it has been sorted"]


def test_unknown_operators_and_domains_are_left_alone() -> None:
    def change(model: onnx.ModelProto) -> None:
        model.opset_import.append(helper.make_opsetid("corp", 3))
        model.graph.node.append(helper.make_node("Own", ["z"], ["o"], domain="corp", size=3))
        model.graph.node.append(helper.make_node("NotYetInvented", ["z"], ["n"]))

    loaded = model_io.load(tiny(change))
    assert loaded.notes == ["NotYetInvented (1x) is not an operator of this onnx version; left as it is"]
    assert count_ops(loaded.model) == {"Add": 1, "Neg": 1, "corp::Own": 1, "NotYetInvented": 1}


def test_operators_in_branches_are_counted() -> None:
    def change(model: onnx.ModelProto) -> None:
        out = helper.make_tensor_value_info("b", TensorProto.FLOAT, None)
        branch = helper.make_graph([helper.make_node("Abs", ["z"], ["b"])], "branch", [], [out])
        model.graph.initializer.append(onnx.numpy_helper.from_array(np.asarray(True), "c"))
        model.graph.node.append(helper.make_node("If", ["c"], ["i"], then_branch=branch, else_branch=branch))

    assert count_ops(model_io.load(tiny(change)).model) == {"Add": 1, "Neg": 1, "If": 1, "Abs": 2}


def test_string_and_packed_initializers_are_read() -> None:
    def change(model: onnx.ModelProto) -> None:
        model.graph.initializer.append(helper.make_tensor("words", TensorProto.STRING, [2], [b"a", b"b"]))
        model.graph.initializer.append(helper.make_tensor("nibbles", TensorProto.INT4, [3], [1, -2, 3]))
        model.graph.initializer.append(helper.make_tensor("z0", TensorProto.COMPLEX64, [1], [1 + 2j]))

    initializers = model_io.load(tiny(change)).model.graph.initializers
    assert initializers["words"].const_value.numpy().tolist() == [b"a", b"b"]  # type: ignore[union-attr]
    assert initializers["nibbles"].const_value.numpy().tolist() == [1, -2, 3]  # type: ignore[union-attr]


def test_what_was_given_in_memory_does_not_change() -> None:
    proto = tiny()
    before = proto.SerializeToString()
    loaded = model_io.load(proto)
    loaded.model.graph.initializers["w"].name = "renamed"
    assert proto.SerializeToString() == before
    given = ir.serde.deserialize_model(tiny())
    copy = model_io.load(given).model
    copy.graph.outputs.clear()
    copy.graph.remove(copy.graph.node("neg"), safe=True)
    assert [node.name for node in given.graph] == ["add", "neg"]
    assert [value.name for value in given.graph.outputs] == ["z"]


def test_an_ir_model_is_checked_too() -> None:
    given = ir.serde.deserialize_model(tiny())
    given.graph.outputs[0] = ir.Value(name="nowhere")
    with pytest.raises(BadModel, match="a graph output is produced by nothing; found 'nowhere'"):
        model_io.load(given)
    empty_model = ir.Model(ir.Graph([], [], nodes=[], name="void"), ir_version=10)
    with pytest.raises(BadModel, match="void: the graph is empty"):
        model_io.load(empty_model)


def test_a_result_has_the_kind_of_what_was_given(tmp_path: Path) -> None:
    path = tmp_path / "tiny.onnx"
    path.write_bytes(tiny().SerializeToString())
    assert isinstance(model_io.load(path).as_given(), onnx.ModelProto)
    assert isinstance(model_io.load(tiny()).as_given(), onnx.ModelProto)
    assert isinstance(model_io.load(ir.serde.deserialize_model(tiny())).as_given(), ir.Model)


@pytest.mark.parametrize("target", ["absent/out.onnx", "."])
def test_an_output_that_cannot_be_written_is_refused_beforehand(tmp_path: Path, target: str) -> None:
    with pytest.raises(KvfuseError, match=r"no such folder to write to|a folder stands where the file should go"):
        model_io.check_target(tmp_path / target)
