"""The kernels' generated headers are what the declarations say now."""

from __future__ import annotations

from pathlib import Path

import pytest

from ir_ops import codegen
from ir_ops.ops import OPS

GENERATED = Path(codegen.__file__).parents[1] / "custom_ort" / "src" / "generated"


@pytest.mark.parametrize("name", OPS)
def test_committed_header_is_current(name: str) -> None:
    path = GENERATED / f"{codegen.snake_case(name)}.h"
    assert path.read_text() == codegen.header(OPS[name]), "run: python -m ir_ops.codegen"


def test_header_holds_the_signature() -> None:
    """Order, optionality, shared buffers, defaults and rules of one operator, read from the text."""
    text = codegen.header(OPS["KvRmsNormRopeCache"])
    assert '{"k_cache", false, 0},\n    {"ckv_cache", false, 1},\n    {"k_rope_scale", true, -1},' in text
    assert '{"k_cache", 5, 5},\n    {"ckv_cache", 6, 6},\n    {"k_rope", -1, 0},' in text
    assert '{"epsilon", AttrType::kFloat, 1e-05, "", {}},' in text
    assert '{"float8_cast", AttrType::kString, 0.0, "saturate", kFloat8CastValues},' in text
    assert text.count("// T ") == len(OPS["KvRmsNormRopeCache"].type_combinations()) == 50
    assert 'kKv08 = {"KV-08", "the rotated width must be even"}' in text
    assert "KV-09" not in text  # binds A2 and A3 only


def test_check_names_what_is_stale(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert codegen.main([str(tmp_path)]) == 0
    assert codegen.main(["--check", str(tmp_path)]) == 0
    header = tmp_path / "kv_rms_norm_rope_cache.h"
    header.write_text(header.read_text().replace("KV-08", "KV-80"))
    assert codegen.main(["--check", str(tmp_path)]) == 1
    assert "kv_rms_norm_rope_cache.h is not current" in capsys.readouterr().out
