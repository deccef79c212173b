"""The export script asks for torch only when something is exported; what it would export is known without."""

from __future__ import annotations

import importlib.util
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from ir_ops.errors import BadUsage, ExportError
from models import export_from_transformers as script
from models import greedy
from models.complex_rotation import check_same, exportable


def test_importing_it_imports_no_torch() -> None:
    program = "import sys, models.export_from_transformers; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", program], check=False).returncode == 0


def test_names_and_dynamic_dims_of_both_forms() -> None:
    assert script._output_names("static", 1) == ["logits", "key_cache_out.0", "value_cache_out.0"]
    assert script._output_names("growth", 1) == ["logits", "present.0.key", "present.0.value"]
    assert script._dynamic("growth", "past_key_values.3.key") == {0: "batch", 2: "past"}
    assert script._dynamic("static", "key_cache.0") == {}


def test_unknown_words_are_refused(tmp_path: Path) -> None:
    with pytest.raises(BadUsage, match="unknown family; found llama"):
        script.decoder("llama")
    with pytest.raises(BadUsage, match="unknown exporter or form of cache; found ring"):
        script.export("qwen3", tmp_path / "m.onnx", cache="ring")


@pytest.mark.skipif(importlib.util.find_spec("torch") is not None, reason="torch is installed")
def test_without_torch_it_says_what_to_install(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert script.main(["qwen3", str(tmp_path / "m.onnx")]) == 1
    assert "pip install 'kvfuse[export]'" in capsys.readouterr().err


@pytest.mark.parametrize("exporter", script.EXPORTERS)
def test_rotations_that_can_be_exported_are_those_of_the_model(exporter: str) -> None:
    torch = pytest.importorskip("torch")
    model = script.decoder("deepseek-v2", layers=1, small=True)
    ids = torch.arange(14).reshape(2, 7)
    with torch.no_grad():
        plain = model(input_ids=ids).logits
        with exportable(model, exporter):
            check_same([plain], [model(input_ids=ids).logits])
            with pytest.raises(ExportError, match="output 0: the rotation in real numbers is not the model's"):
                check_same([plain], [model(input_ids=ids + 1).logits])
        assert torch.equal(plain, model(input_ids=ids).logits)


def test_recorded_generations_are_greedy() -> None:
    pytest.importorskip("torch")
    found = greedy.record(script.decoder("deepseek-v2-lite", layers=1, small=True))
    assert len(found) == 3 * 4
    for place in ("one/0", "three/0", "three/1", "three/2"):
        length, ids = int(found[f"{place}/prompt"]), found[f"{place}/ids"]
        assert np.array_equal(ids[length:], found[f"{place}/logits"].argmax(-1))


@pytest.mark.parametrize("exporter", script.EXPORTERS)
def test_complex_rotations_are_exported(exporter: str, tmp_path: Path) -> None:
    pytest.importorskip("torch")
    onnxruntime = pytest.importorskip("onnxruntime")
    path = tmp_path / "m.onnx"
    record = script.export("deepseek-v2", path, exporter=exporter, cache="growth", layers=1, small=True)
    session = onnxruntime.InferenceSession(str(path))
    feeds = {name.removeprefix("case0/in/"): array for name, array in record.items() if "/in/" in name}
    names = [item.name for item in session.get_outputs()]
    for name, result in zip(names, session.run(names, feeds), strict=True):
        assert np.abs(result - record[f"case0/out/{name}"]).max() < 1e-5
