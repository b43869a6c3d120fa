"""docs/comments.md: its example prints what it says, and its tables are those of the rules and of the test-bed."""

import re
from collections import Counter

import pytest

from attnshape.checks.rules.pages import page
from attnshape.comments.grammar import parse_comment
from attnshape.comments.verify import CODES
from tests.comments.planted_faults import FAULTS, NAMES, NOTATIONS
from tests.docs.pages import DOCS, calls, examples_print_what_the_page_says, part_is

PAGE = DOCS / "comments.md"


def test_the_example_prints_what_the_page_says(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "100")
    examples_print_what_the_page_says(PAGE)
    assert "check" in calls(PAGE)
    assert "Traceback" not in PAGE.read_text()


def test_the_codes_are_those_of_the_rules() -> None:
    lines = ["| code | what is wrong |", "| --- | --- |"]
    lines += [f"| {code} | {page(code).title} |" for code in CODES]
    part_is(PAGE, "codes", "\n".join(lines) + "\n")


def test_the_notations_are_those_of_the_test_bed() -> None:
    lines = ["| notation | for example | faults |", "| --- | --- | --: |"]
    for notation in NOTATIONS:
        there = [fault for fault in FAULTS if fault.notation == notation]
        shortest = sorted(
            dict.fromkeys(fault.right for fault in there if "|" not in fault.right), key=lambda one: (len(one), one)
        )
        example = shortest[len(shortest) // 2]
        quoted = f"`` {example} ``" if "`" in example else f"`{example}`"
        lines.append(f"| {notation} | {quoted} | {len(there)} |")
    part_is(PAGE, "notations", "\n".join(lines) + "\n")


def test_the_counts_are_those_of_the_test_bed() -> None:
    found = Counter(fault.code for fault in FAULTS)
    lines = len({(fault.file, fault.line) for fault in FAULTS})
    of_each = ", ".join(f"{found[code]} by {code}" for code in CODES)
    text = (
        f"{len(NAMES)} files in which all comments, docstrings and annotations are true: attnshape reports nothing.\n"
        f"In {lines} of their lines, the tests plant {len(FAULTS)} faults, one at a time: axes that are exchanged,\n"
        f"left out, or stale after a change. attnshape finds {len(FAULTS) - found[None]} of them at their line, and\n"
        f"nothing else: {of_each}.\n"
        f"The other {found[None]} could describe another tensor nearby; the tests list them with the reasons.\n"
    )
    part_is(PAGE, "counts", text)


@pytest.mark.parametrize(
    "text", re.findall(r"`([^`]+)`", PAGE.read_text().partition("## What is ignored")[2].partition("- Pairs")[0])
)
def test_text_that_is_no_shape_documents_none(text: str) -> None:
    assert parse_comment(text) == []
