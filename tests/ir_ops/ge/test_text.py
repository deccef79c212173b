"""Readable dumps, and the generated documentation."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from ir_ops.errors import BadUsage
from ir_ops.ge import GraphBuilder, export, show
from ir_ops.ge.docs import BEGIN, main, renewed
from tests.ir_ops.ge.onnx_models import Case

PAGE = Path(__file__).parents[3] / "docs" / "ge.md"


def small() -> GraphBuilder:
    b = GraphBuilder("small")
    x, cache = b.data("x", "float16", (-1, 8)), b.ref_data("cache", "float16", (16, 8))
    y, rstd = b.RmsNorm(x, np.ones(8, np.float16), epsilon=1e-6, name="/norm")
    old = b.Neg(cache, name="old")
    new = b.ScatterNdUpdate(cache, np.array([[3]]), y, name="new")
    b.after(new, old)
    b.output(new, "cache_out")
    b.output(rstd, "rstd")
    b.output(old, "old")
    return b


def test_one_line_a_node() -> None:
    assert show(small().build()) == (
        "model small version 1\n"
        "\n"
        "graph small (8 nodes)\n"
        "  %x = Data() {index=0} -> float16[?,8]\n"
        "  %cache = RefData() {index=1} -> float16[16,8]\n"
        "  %/norm_gamma = Const() {value=(1.0, 1.0, 1.0, 1.0, 1.0, 1.0, 1.0, 1.0)} -> float16[8]\n"
        "  %/norm = RmsNorm(x=%x, gamma=%/norm_gamma) {epsilon=1e-06} -> y float16[?,8], rstd float32[?,1]\n"
        "  %old = Neg(x=%cache) -> float16[16,8]\n"
        "  %new_indices = Const() {value=(3)} -> int64[1,1]\n"
        "  %new = ScatterNdUpdate(var=%cache, indices=%new_indices, updates=%/norm.y) after %old -> float16[16,8]\n"
        "  output 0 cache_out = %new -> float16[16,8]\n"
        "  output 1 rstd = %/norm.rstd -> float32[?,1]\n"
        "  output 2 old = %old -> float16[16,8]\n"
    )


def test_protobuf_text_without_weights() -> None:
    text = show(small().build(), "pbtxt")
    assert 'type: "RmsNorm"' in text
    assert "dtype: DT_FLOAT16" in text
    assert "data:" not in text


def test_unknown_forms() -> None:
    with pytest.raises(BadUsage, match="unknown text form; found xml, wanted text | pbtxt"):
        show(small().build(), "xml")


def test_export_writes_the_text_when_asked(tmp_path: Path) -> None:
    case = Case("Neg", [np.zeros((2, 3), np.float32)])
    result = export(case.model(), tmp_path / "m.air", text=True)
    assert result.text == tmp_path / "m.txt"
    assert result.text.read_text() == show(result.model)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["m.air", "m.io.json", "m.txt"]


def test_the_documentation_is_up_to_date() -> None:
    text = PAGE.read_text(encoding="utf-8")
    assert renewed(text) == text, "run: python -m ir_ops.ge.docs docs/ge.md"


def test_a_page_without_tables_gets_them(tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    page.write_text("# Title\n", encoding="utf-8")
    assert main([str(page)]) == 0
    text = page.read_text(encoding="utf-8")
    assert text.startswith(f"# Title\n\n{BEGIN}\n")
    assert renewed(text) == text


def test_the_example_in_the_documentation_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    example = PAGE.read_text(encoding="utf-8").split("```python\n")[1].split("```")[0]
    exec(compile(example, "docs/ge.md", "exec"), {})
    assert (tmp_path / "preamble.air").is_file()
