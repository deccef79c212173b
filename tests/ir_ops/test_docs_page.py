"""The operator pages: current, complete, readable as text."""

from __future__ import annotations

from pathlib import Path

import pytest

from ir_ops.declaration import PRODUCTS, Operator
from ir_ops.docs_page import FOLDER, contract_markdown, contract_text, write_pages
from ir_ops.ops import OPS

every_operator = pytest.mark.parametrize("op", OPS.values(), ids=lambda op: op.name)


@every_operator
def test_committed_page_is_current(op: Operator) -> None:
    path = FOLDER / f"{op.name}.md"
    assert path.read_text(encoding="utf-8") == contract_markdown(op), "run: python -m ir_ops.docs_page"


def test_no_page_of_a_former_operator_is_left() -> None:
    assert {path.stem for path in FOLDER.iterdir()} == set(OPS)


@every_operator
@pytest.mark.parametrize("page", [lambda op: contract_text(op, 1000), contract_markdown], ids=["text", "markdown"])
def test_page_names_everything(op: Operator, page: object) -> None:
    assert callable(page)
    text = page(op)
    for entry in (*op.inputs, *op.outputs):
        assert entry.name in text
        assert entry.doc in text
    for attr in op.attrs:
        assert attr.name in text
        assert all(word in text for word in attr.allowed)
    for constraint in op.constraints:
        assert constraint.id in text
        assert constraint.text in text
        assert all(product in text for product in (() if constraint.products == PRODUCTS else constraint.products))
    for note in op.notes:
        assert note.title in text


def test_tables_have_equal_columns() -> None:
    """A bar inside a cell is escaped."""
    for op in OPS.values():
        width = 0
        for line in contract_markdown(op).splitlines():
            cells = line.replace("\\|", "").count("|")
            width = cells if cells and not width else width if cells else 0
            assert cells == width, line


def test_text_is_plain() -> None:
    text = contract_text(OPS["KvRmsNormRopeCache"], 200)
    assert text.startswith("KvRmsNormRopeCache\n------------------\nRMSNorm, rotary embedding")
    assert "`" not in text
    assert "KV-13  a cache has another shape" in text
    assert "float8_e4m3fn" in text
    assert "hifloat8 (GE only)" in text
    assert "50 combinations in ONNX." in text


@every_operator
def test_text_fits_the_screen(op: Operator) -> None:
    assert max(map(len, contract_text(op).splitlines())) <= 100
    assert sorted(contract_text(op).split()) == sorted(contract_text(op, 1000).split())


def test_pages_are_written_to_a_folder(tmp_path: Path) -> None:
    paths = write_pages(tmp_path / "ops")
    assert [path.name for path in paths] == [f"{name}.md" for name in OPS]
    assert all(path.read_text(encoding="utf-8").startswith("<!--") for path in paths)
