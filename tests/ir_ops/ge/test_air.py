"""Files: round trips, determinism, the two sample files, the sidecar, bad files."""

from __future__ import annotations

import json
from pathlib import Path

import ml_dtypes
import numpy as np
import pytest

from ir_ops.errors import BadModel, ExportError, KvfuseError
from ir_ops.ge import GraphBuilder, Model, air, read, validate, write
from ir_ops.ge.model import FRACTAL_NZ, inputs_of

SAMPLES = ("kv_rms_norm_rope_cache.air", "kv_rms_norm_rope_cache.resaved.air")


def everything() -> Model:
    """A graph with placeholders, in-place updates, dynamic dims, controls, NZ, and constants of several types."""
    b = GraphBuilder("everything")
    x = b.data("x", "bfloat16", (-1, 8))
    free = b.data("free", "float32", None)
    nz = b.data("nz", "float16", (32, 64), layout=FRACTAL_NZ)
    cache, at = b.ref_data("cache", "bfloat16", (16, 8)), b.data("at", "int64", (-1, 1))
    y, rstd = b.RmsNorm(x, np.ones(8, ml_dtypes.bfloat16), epsilon=1e-5)
    old = b.Neg(cache, name="old")
    new = b.ScatterNdUpdate(cache, at, y)
    b.after(new, old)
    scaled = b.DynamicQuant(y, group_index=np.array([4], np.int32))
    packed = b.const(np.array([1, -2, 3], ml_dtypes.int4), name="packed")
    for tensor in (new, old, rstd, scaled.y, packed, b.Sqrt(free), b.Neg(nz)):
        b.output(tensor)
    return b.build()


def test_what_is_written_is_what_is_read(tmp_path: Path) -> None:
    model = everything()
    assert read(write(model, tmp_path / "m.air")) == model


def test_the_same_graph_gives_the_same_bytes() -> None:
    assert air.serialise(everything()) == air.serialise(everything())


def test_reading_and_writing_again_changes_nothing(tmp_path: Path) -> None:
    path = write(everything(), tmp_path / "m.air")
    assert air.serialise(read(path)) == path.read_bytes()


def test_an_absent_input_in_the_middle_keeps_its_place(tmp_path: Path) -> None:
    message = air.read_message(write(everything(), tmp_path / "m.air"))
    (op,) = (op for op in message.graph[0].op if op.type == "DynamicQuant")
    assert list(op.input)[1] == ""
    assert (op.input_desc[1].dtype, op.input_desc[1].layout) == (0, "")
    assert op.input_desc[1].attr["_is_unfed_optional"].i == 1
    assert list(op.attr["_input_name_key"].list.s) == [b"x", b"smooth_scales", b"group_index"]


def test_unknown_ranks_and_dims(tmp_path: Path) -> None:
    message = air.read_message(write(everything(), tmp_path / "m.air"))
    descs = {op.name: op.output_desc[0] for op in message.graph[0].op if op.type == "Data"}
    assert list(descs["x"].shape.dim) == [-1, 8]
    assert list(descs["free"].shape.dim) == [-2]


def test_nz_inputs_carry_their_origin(tmp_path: Path) -> None:
    path = write(everything(), tmp_path / "m.air")
    (op,) = (op for op in air.read_message(path).graph[0].op if op.name == "nz")
    desc = op.output_desc[0]
    assert list(desc.shape.dim) == []
    assert (desc.attr["format_for_int"].i, desc.attr["origin_format_for_int"].i) == (29, 2)
    assert list(desc.attr["origin_shape"].list.i) == [32, 64]
    assert op.attr["_enable_storage_format_spread"].WhichOneof("value") == "b"
    assert {entry.name: entry.type.layout for entry in inputs_of(read(path))}["nz"] == FRACTAL_NZ


class TestSamples:
    def test_both_files_are_the_same_graph(self, data: Path) -> None:
        first, second = (read(data / "ge" / name) for name in SAMPLES)
        assert first == second
        assert [node.type for node in first.root.nodes][-2:] == ["KvRmsNormRopeCache", "NetOutput"]

    @pytest.mark.parametrize("name", SAMPLES)
    def test_the_validator_passes_them(self, data: Path, name: str) -> None:
        findings = validate(data / "ge" / name)
        assert {finding.severity for finding in findings} == {"note"}
        assert {finding.rule for finding in findings} <= {1, 3}

    @pytest.mark.parametrize("name", SAMPLES)
    def test_our_spelling_of_them_has_nothing_to_remark(self, data: Path, name: str) -> None:
        assert validate(read(data / "ge" / name)) == []

    def test_names_sorted_by_the_other_writer_find_their_slots(self, data: Path) -> None:
        node = read(data / "ge" / SAMPLES[1]).root.node("preamble")
        assert [slot.name for slot in node.inputs] == [
            "kv", "gamma", "cos", "sin", "index", "k_cache", "ckv_cache",
        ]  # fmt: skip
        assert [port.name for port in node.outputs] == ["k_cache", "ckv_cache", "k_rope", "c_kv"]


class TestSidecar:
    def test_inputs_outputs_and_cache_pairs(self, tmp_path: Path) -> None:
        b = GraphBuilder("g")
        cache, other = b.ref_data("cache", "float32", (4, 2)), b.ref_data("quiet", "float32", (4, 2))
        x = b.data("x", "float32", (-1, 2))
        at = np.zeros((1, 1), np.int64)
        b.output(b.ScatterNdUpdate(cache, at, x), "cache_out")
        b.ScatterNdUpdate(other, at, x)
        path = write(b.build(), tmp_path / "g.air", source_names={"x": "x:0"})
        record = json.loads((tmp_path / "g.io.json").read_text())
        assert path == tmp_path / "g.air"
        assert record["inputs"] == [
            {"index": 0, "name": "x", "dtype": "float32", "shape": [-1, 2], "source_name": "x:0"},
            {"index": 1, "name": "cache", "dtype": "float32", "shape": [4, 2], "in_place": True, "output": "cache_out"},
            {"index": 2, "name": "quiet", "dtype": "float32", "shape": [4, 2], "in_place": True},
        ]
        assert record["outputs"] == [{"index": 0, "name": "cache_out", "dtype": "float32", "shape": [4, 2]}]

    def test_a_chain_of_updates_is_one_buffer(self) -> None:
        b = GraphBuilder()
        cache, x = b.ref_data("cache", "float32", (4, 2)), b.data("x", "float32", (1, 2))
        once = b.ScatterNdUpdate(cache, np.zeros((1, 1), np.int64), x)
        b.output(b.ScatterNdUpdate(once, np.ones((1, 1), np.int64), x), "twice")
        assert air.cache_pairs(b.build()) == {"cache": "twice"}


class TestBadFiles:
    def test_missing(self, tmp_path: Path) -> None:
        with pytest.raises(BadModel, match=r"none.air: no such file"):
            read(tmp_path / "none.air")

    @pytest.mark.parametrize("content", [b"", b"hello, world", b"\x0a\x05ab"])
    def test_not_an_air_file(self, tmp_path: Path, content: bytes) -> None:
        (tmp_path / "x.air").write_bytes(content)
        with pytest.raises(BadModel, match="not an .air file") as raised:
            read(tmp_path / "x.air")
        assert "\n" not in str(raised.value)

    def test_truncated(self, tmp_path: Path) -> None:
        path = write(everything(), tmp_path / "m.air")
        path.write_bytes(path.read_bytes()[:-7])
        with pytest.raises(BadModel, match="not an .air file"):
            read(path)

    def test_dangling_edges_are_refused_as_ge_does(self, tmp_path: Path) -> None:
        message = air.parse(air.serialise(everything()))
        message.graph[0].op[-1].input[0] = "nowhere:0"
        (tmp_path / "x.air").write_bytes(message.SerializeToString())
        with pytest.raises(BadModel, match="an input comes from nowhere; found nowhere:0"):
            read(tmp_path / "x.air")

    def test_unknown_element_types(self, tmp_path: Path) -> None:
        message = air.parse(air.serialise(everything()))
        message.graph[0].op[0].output_desc[0].dtype = 99
        (tmp_path / "x.air").write_bytes(message.SerializeToString())
        with pytest.raises(BadModel, match="unknown element type; found number 99"):
            read(tmp_path / "x.air")

    def test_lists_without_a_type_are_dropped_as_ge_does(self) -> None:
        message = air.parse(air.serialise(everything()))
        op = message.graph[0].op[-2]
        op.attr["dropped"].list.i.extend([1, 2])
        kept = air.decode(message).root.nodes[-2]
        assert "dropped" not in kept.attrs


def test_too_large_for_one_file(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(air, "SIZE_LIMIT", 1000)
    with pytest.raises(ExportError, match="does not fit into one .air file"):
        air.serialise(everything())


def test_nothing_is_left_behind_where_writing_fails(tmp_path: Path) -> None:
    with pytest.raises(KvfuseError, match="no such folder"):
        write(everything(), tmp_path / "missing" / "m.air")
    assert list(tmp_path.iterdir()) == []
