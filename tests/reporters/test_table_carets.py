"""The operands of a failure, one per line, with carets under the mismatched axes."""

from __future__ import annotations

from rich.cells import cell_len

from attnshape.reporters.table import tensor_lines
from attnshape.reporters.trace_view import MarkedTensor

QUERY = MarkedTensor("query", ("B", "H", "Lq", "Dk"), ("2", "8", "30", "64"), frozenset({3}))
KEY = MarkedTensor("key", ("B", "H", "Lk", "Dk"), ("2", "8", "50", "64"), frozenset({2}))


def test_carets_are_under_the_axis_and_its_size() -> None:
    lines = tensor_lines((QUERY, KEY), 80)
    for tensor, carets, expression, size in ((lines[0], lines[1], "Dk", "64"), (lines[2], lines[3], "Lk", "50")):
        marked = [place for place, char in enumerate(carets) if char == "^"]
        assert "".join(tensor[place] for place in marked) == expression + size


def test_wide_characters_keep_the_carets_in_place() -> None:
    lines = tensor_lines((MarkedTensor("注意力", ("B", "Dk"), ("2", "64"), frozenset({1})), QUERY), 80)
    assert cell_len(lines[0][: lines[0].index("Dk")]) == lines[1].index("^^")


def test_operand_without_marks_has_no_carets() -> None:
    assert len(tensor_lines((QUERY, MarkedTensor("bias", ("Dk",), ("64",))), 80)) == 3


def test_narrow_terminal_uses_words_instead_of_carets() -> None:
    lines = tensor_lines((QUERY, KEY), 24)
    assert all(len(line) <= 24 for line in lines)
    assert " ".join(line.strip() for line in lines[: len(lines) // 2]) == "query: B H Lq Dk (2 8 30 64), here Dk (64)"


def test_scalar_operand() -> None:
    assert tensor_lines((MarkedTensor("scale", (), ()),), 80) == ["    scale    scalar"]
