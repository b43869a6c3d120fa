"""docs/comments.md: the output of its example, and its tables of codes, notations and faults."""

import re
from collections import Counter

import pytest

from attnshape.checks.rules.pages import page
from attnshape.comments.grammar import parse_comment
from attnshape.comments.verify import CODES
from tests.comments.planted_faults import FAULTS, NAMES, NOTATIONS
from tests.docs.pages import DOCS, assert_example_output, assert_page_part, calls

PAGE = DOCS / "comments.md"


def test_example_output_matches_the_page(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "100")
    assert_example_output(PAGE)
    assert "check" in calls(PAGE)
    assert "Traceback" not in PAGE.read_text()


def test_codes_match_the_rules() -> None:
    lines = ["| code | what is wrong |", "| --- | --- |"]
    lines += [f"| {code} | {page(code).title} |" for code in CODES]
    assert_page_part(PAGE, "codes", "\n".join(lines) + "\n")


def test_notations_match_the_tests() -> None:
    lines = ["| notation | for example | faults |", "| --- | --- | --: |"]
    for notation in NOTATIONS:
        matching = [fault for fault in FAULTS if fault.notation == notation]
        shortest = sorted(
            dict.fromkeys(fault.right for fault in matching if "|" not in fault.right), key=lambda one: (len(one), one)
        )
        example = shortest[len(shortest) // 2]
        quoted = f"`` {example} ``" if "`" in example else f"`{example}`"
        lines.append(f"| {notation} | {quoted} | {len(matching)} |")
    assert_page_part(PAGE, "notations", "\n".join(lines) + "\n")


def test_counts_match_the_tests() -> None:
    found = Counter(fault.code for fault in FAULTS)
    lines = len({(fault.file, fault.line) for fault in FAULTS})
    counts = ", ".join(f"{found[code]} by {code}" for code in CODES)
    text = (
        f"{len(NAMES)} files in which all comments, docstrings and annotations are true: attnshape reports nothing.\n"
        f"In {lines} of their lines, the tests plant {len(FAULTS)} faults, one at a time: axes that are exchanged,\n"
        f"left out, or stale after a change. attnshape finds {len(FAULTS) - found[None]} of them at their line, and\n"
        f"nothing else: {counts}.\n"
        f"The other {found[None]} could describe another tensor nearby; the tests list them with the reasons.\n"
    )
    assert_page_part(PAGE, "counts", text)


@pytest.mark.parametrize(
    "text", re.findall(r"`([^`]+)`", PAGE.read_text().partition("## What is ignored")[2].partition("- Pairs")[0])
)
def test_ignored_text_documents_no_shape(text: str) -> None:
    assert parse_comment(text) == []
