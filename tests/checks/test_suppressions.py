from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from attnshape.checks.suppressions import Selection, split_suppressed, suppressed_lines
from attnshape.model.report import Finding
from attnshape.model.trace import Source

ALL = Selection()


def finding(code: str, line: int, file: str = "model.py") -> Finding:
    return Finding(
        code=code,
        message="wrong",
        source=Source(file, line, 1, "f"),
        expression="x",
        hint="",
        shown="intervention",
        evidence="",
    )


def suppressed(source: str, code: str, line: int) -> bool:
    lines = source.splitlines(keepends=True)
    kept, removed = split_suppressed([finding(code, line)], ALL, lambda file: lines)
    assert len(kept) + len(removed) == 1
    return bool(removed)


@pytest.mark.parametrize(
    ("comment", "codes"),
    [
        ("# attnshape: ignore[AS201]", "201"),
        ("# attnshape: ignore[AS201, AS301]", "201 301"),
        ("# attnshape: ignore[as201,AS301,]", "201 301"),
        ("#attnshape:ignore[AS201]", "201"),
        ("# attnshape: ignore [AS2]", "201 203"),
        ("# type: ignore  # attnshape: ignore[AS201]", "201"),
        ("# noqa: E501 attnshape", ""),
        ("# attnshape: ignore", "201 203 301"),
        ("# attnshape: ignore, as it is meant", "201 203 301"),
        ("# ATTNSHAPE: Ignore", "201 203 301"),
        ("# attnshape: ignore[]", ""),
        ("# attnshape: ignore[AS201", ""),
        ("# attnshape: ignore [AS201", ""),
        ("# attnshape: ignored", ""),
        ("# attnshape: ignore-file", ""),
        ("# attnshape: ignore[AS999]", ""),
        ("# attnshape ignore[AS201]", ""),
        ("# notattnshape: ignore", ""),
        ("; y = '# attnshape: ignore'", ""),
    ],
)
def test_suppression_comments(comment: str, codes: str) -> None:
    source = f"a = 1\nx = a  {comment}\nb = 2\n"
    found = {code for code in ("201", "203", "301") if suppressed(source, f"AS{code}", 2)}
    assert found == set(codes.split())
    assert not suppressed(source, "AS201", 1)
    assert not suppressed(source, "AS201", 3)


STATEMENTS = """\
x = attend(
    q,
    k,  # attnshape: ignore[AS201]
)
# attnshape: ignore
y = attend(q, k)
z = \\
    attend(q, k)  # attnshape: ignore[AS3]

def f(a,  # attnshape: ignore[AS9]
      b):
    return a

if x:  # attnshape: ignore[AS4]
    w = x
s = '''
# attnshape: ignore
'''
t = 1  # attnshape: ignore[AS5]; no more
"""


@pytest.mark.parametrize(
    ("code", "lines"),
    [("AS201", {1, 2, 3, 4}), ("AS301", {7, 8}), ("AS901", {10, 11}), ("AS401", {14}), ("AS501", {19})],
)
def test_comment_applies_to_its_whole_statement(code: str, lines: set[int]) -> None:
    count = len(STATEMENTS.splitlines())
    assert {line for line in range(count + 2) if suppressed(STATEMENTS, code, line)} == lines


def test_unselected_findings_are_suppressed() -> None:
    findings = [finding("AS201", 1), finding("AS301", 1), replace(finding("AS301", 1), source=None)]
    kept, removed = split_suppressed(findings, Selection.parse(["AS3"], []), lambda file: [])
    assert kept == tuple(findings[1:])
    assert removed == (findings[0],)


def test_file_is_read_once_and_only_for_selected_findings() -> None:
    read: list[str] = []

    def lines(file: str) -> list[str]:
        read.append(file)
        return []

    findings = [finding("AS201", 1, "a.py"), finding("AS202", 2, "a.py"), finding("AS301", 1, "b.py")]
    split_suppressed(findings, Selection.parse(["AS2"], []), lines)
    assert read == ["a.py"]


def test_lines_are_read_from_the_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    file = tmp_path / "suppressed_model.py"
    file.write_text("x = 1  # attnshape: ignore[AS201]\n")
    at = finding("AS201", 1, "suppressed_model.py")
    assert split_suppressed([at], ALL) == ((), (at,))
    file.write_text("x = 1  # no longer\n")
    assert split_suppressed([at], ALL) == ((at,), ())


@pytest.mark.parametrize("content", [b"x = 1  # attnshape: ignore \xff\n", None])
def test_unreadable_file_suppresses_nothing(
    content: bytes | None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    if content is not None:
        (tmp_path / "unreadable.py").write_bytes(content)
    at = finding("AS201", 1, "unreadable.py")
    assert split_suppressed([at], ALL) == ((at,), ())
    assert split_suppressed([replace(at, source=Source("a\0b", 1, 1, ""))], ALL)[0]


@given(st.text())
def test_any_text_is_parsed(text: str) -> None:
    assert all(line >= 1 for line in suppressed_lines(text.splitlines(keepends=True)))
