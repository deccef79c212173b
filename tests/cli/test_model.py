"""``kvfuse model``."""

from __future__ import annotations

from pathlib import Path

import onnx
import pytest

from fusion.cli import main


def test_a_toy_is_written_and_explained(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "toy.onnx"
    assert main(["model", "deepseek-v3", str(path), "--tiny", "--cache", "paged", "--layers", "1"]) == 0
    assert "random numbers" in capsys.readouterr().out
    assert main(["explain", str(path)]) == 0
    assert "KvRmsNormRopeCache" in capsys.readouterr().out


def test_sizes_can_be_changed(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "m.onnx"
    said = ["--layers", "3", "--hidden", "512", "--heads", "8", "--kv-heads", "4", "--vocab", "1000", "--experts", "16"]
    assert main(["model", "qwen3-moe", str(path), *said, "--length", "64", "--weights", "sparse"]) == 0
    assert "of holes" in capsys.readouterr().out
    model = onnx.load_model(path, load_external_data=False)
    dims = {item.name: [dim.dim_value for dim in item.type.tensor_type.shape.dim] for item in model.graph.input}
    assert dims["key_cache.2"] == [1, 4, 64, 128] and "key_cache.3" not in dims
    assert sorted(item.name for item in tmp_path.iterdir()) == ["m.onnx", "m.onnx.data"]


@pytest.mark.parametrize(
    ("words", "line"),
    [
        (["deepseek"], "kvfuse: unknown decoder; found deepseek, wanted deepseek-v2 |"),
        (["qwen2", "--experts", "4"], "kvfuse: this decoder has no experts; found --experts 4"),
        (["deepseek-v3", "--kv-heads", "4"], "kvfuse: latent attention has no key heads"),
        (["deepseek-v3", "--weights", "random"], "kvfuse: random weights do not fit into one file"),
    ],
)
def test_wrong_requests_get_one_line(
    words: list[str], line: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    name, *rest = words
    assert main(["model", name, str(tmp_path / "m.onnx"), *rest]) == 1
    said = capsys.readouterr().err
    assert said.startswith(line) and said.count("\n") == 1
    assert not list(tmp_path.iterdir())
