"""Edits insert text and keep every other byte, whatever the file's layout."""

from __future__ import annotations

import ast
import codecs
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from attnshape.annotate.source import decode_source
from attnshape.errors import AttnshapeError
from tests.annotate.form_strings import forms_of, only_insert, overlap, rewritten, source

NEWLINES = st.sampled_from(["\n", "\r\n"])
SPACE = st.sampled_from(["", " ", "  ", "\t", " \t "])
NAMES = st.sampled_from(["x", "größe", "变量", "y1"])
VALUES = st.sampled_from(
    ["g('é😀')", "(1,\n   2)", "'''a\nb'''", "lambda: 0", "x  if x else\\\n  x", "{'a': [1]}", "*x, x"]
)
COMMENTS = st.sampled_from(["", "# ", "#é ü", "# (B, L)", "# noqa", "#\t"])


@st.composite
def files(draw: st.DrawFn) -> str:
    """Return a file with a function `f` of some statements, in an unusual layout."""
    lines = [draw(st.sampled_from(["", "# -*- coding: utf-8 -*-", "import torch", '"""Doc."""', "\x0c"]))]
    if draw(st.booleans()):
        lines.append("from torch import Tensor" + draw(SPACE) + draw(COMMENTS))
    default = draw(st.sampled_from(["", "=None", " = None", "\t=  1"]))
    lines.append(f"def f({draw(SPACE)}x{draw(SPACE)},{draw(SPACE)}k{default}{draw(SPACE)}){draw(SPACE)}:{draw(SPACE)}")
    indent = draw(st.sampled_from(["  ", "\t", "        "]))
    for _ in range(draw(st.integers(1, 5))):
        name, value = draw(NAMES), draw(VALUES)
        statement = f"{name}{draw(SPACE)}={draw(SPACE)}{value}"
        if draw(st.booleans()):
            statement += f"{draw(SPACE)};{draw(SPACE)}{draw(NAMES)} = 1"
        lines.append(f"{indent}{statement}{draw(SPACE)}{draw(COMMENTS)}")
        if draw(st.booleans()):
            lines.append(draw(SPACE) + draw(COMMENTS))
    lines.append(f"{indent}return x{draw(SPACE)}{draw(COMMENTS)}")
    ends = [draw(NEWLINES) for _ in lines[:-1]] + [draw(st.sampled_from(["", "\n", "\r\n"]))]
    return "".join(line.replace("\n", end or "\n") + end for line, end in zip(lines, ends, strict=True))


FORMS = {
    "arguments": {"x": "B L", "k": "B"},
    "stores": {"x": "B L", "größe": "B", "变量": "L L", "y1": "3 B"},
    "result": "B L",
}


@settings(max_examples=150, deadline=None)
@given(files(), st.sampled_from(["jaxtyping", "comment"]), st.booleans())
def test_edits_only_insert_text(text: str, style: str, mark: bool) -> None:
    data = (codecs.BOM_UTF8 if mark else b"") + text.encode()
    ast.parse(data)
    rewrite = rewritten(data, forms_of(text.encode(), "f", **FORMS), style=style)  # type: ignore[arg-type]
    for edited, edits in rewrite.files:
        new = edited.apply(edits)
        assert only_insert(edits)
        assert not overlap(edits)
        expected, position = b"", 0
        for edit in sorted(edits, key=lambda each: each.start):
            expected += edited.utf8[position : edit.start] + edit.text.encode()
            position = edit.start
        assert new.removeprefix(codecs.BOM_UTF8) == expected + edited.utf8[position:]
        assert new.startswith(codecs.BOM_UTF8) is mark
        code = ast.parse(new)
        if style == "comment":
            assert ast.dump(code) == ast.dump(ast.parse(data))
        assert not rewritten(new, forms_of(new.removeprefix(codecs.BOM_UTF8), "f", **FORMS), style=style).files  # type: ignore[arg-type]


@pytest.mark.parametrize("encoding", ["latin-1", "cp1252", "utf-8", "shift_jis"])
def test_encoding_is_kept(encoding: str) -> None:
    text = f"# -*- coding: {encoding} -*-\n# äö\n".replace("äö", "アイ" if encoding == "shift_jis" else "äö")
    data = (text + "def f(x):\n    y = 'é'; z = x\n".replace("é", "ア" if encoding == "shift_jis" else "é")).encode(
        encoding
    )
    rewrite = rewritten(data, forms_of(data, "f", stores={"z": "B L"}), style="comment")
    new = rewrite.files[0][0].apply(rewrite.files[0][1])
    assert new == data.replace(b"z = x\n", b"z = x  # z: (B, L)\n")


def test_character_outside_the_encoding_is_an_error() -> None:
    data = b"# coding: latin-1\ndef f(x):\n    y = x\n"
    rewrite = rewritten(data, forms_of(data, "f", stores={"y": "λ"}), style="comment")
    with pytest.raises(AttnshapeError, match=r"iso-8859-1, which lacks 'λ'"):
        rewrite.files[0][0].apply(rewrite.files[0][1])


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (b"# coding: nonsense\n", "can't be read as text"),
        (b"x = '\xff'\n", "can't be read as text"),
        (codecs.BOM_UTF16 + "x = 1\n".encode("utf-16-le"), "can't be read as text"),
        (b"# coding: utf-7\nx = '+AGE-'\n", "byte for byte"),
    ],
)
def test_undecodable_source_is_an_error(data: bytes, message: str) -> None:
    with pytest.raises(AttnshapeError, match=message):
        decode_source(Path("m.py"), data)


def test_lines_and_offsets_of_a_source() -> None:
    parsed = source("é\r\nab\n\nc".encode())
    assert [parsed.offset(1, 2), parsed.offset(2, 1), parsed.offset(4, 0), parsed.offset(9, 0)] == [2, 5, 8, -1]
    assert [parsed.line(offset) for offset in (0, 3, 4, 6, 7, 8)] == [1, 1, 2, 2, 3, 4]
    assert parsed.newline == "\n"
