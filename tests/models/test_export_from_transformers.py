"""The export script asks for torch only when something is exported; what it would export is known without."""

from __future__ import annotations

import importlib.util
import subprocess
import sys
from pathlib import Path

import pytest

from ir_ops.errors import BadUsage
from models import export_from_transformers as script


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
