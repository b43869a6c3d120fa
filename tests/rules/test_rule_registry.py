"""Every rule follows the protocol, has the pages in its folder, and may fail without ending the check."""

from __future__ import annotations

import contextlib
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from attnshape.checks import rules
from attnshape.checks.attention.subject import Subject
from attnshape.checks.rules.pages import codes, page
from attnshape.checks.rules.protocol import Outcome, Rule
from attnshape.checks.rules.registry import RULES
from attnshape.comments import verify
from attnshape.model.report import Report
from attnshape.options.claims import Claims
from attnshape.options.spec import RunOptions, TargetSpec
from attnshape.pipelines.check import check_request

FOLDER = Path(rules.__file__).parent
SHAPE_COMMENTS = "shape_comments"
"""The folder with the pages of the codes for shape comments: it has no rule."""


def folder_of(rule: Rule) -> str:
    return rule.__name__.rpartition(".")[2]


def pages_in(folder: str) -> set[str]:
    return {path.stem for path in (FOLDER / folder).glob("*.md")}


def test_every_code_has_a_page_and_a_reporter() -> None:
    reported = {code for rule in RULES for code in rule.CODES} | set(verify.CODES)
    assert reported == set(codes())
    assert all(page(code).title for code in reported)


def test_every_rule_folder_is_registered() -> None:
    folders = {path.parent.name for path in FOLDER.glob("*/*.py")}
    assert folders == {folder_of(rule) for rule in RULES}


@pytest.mark.parametrize("rule", RULES, ids=folder_of)
def test_rule_declares_its_codes_and_topic(rule: Rule) -> None:
    source = "".join(path.read_text() for path in (FOLDER / folder_of(rule)).glob("*.py"))
    assert set(re.findall(r'"(AS\d{3})"', source)) <= set(rule.CODES)
    assert rule.TOPIC
    assert rule.TOPIC.strip(" .") == rule.TOPIC


@pytest.mark.parametrize("folder", sorted(path.name for path in FOLDER.iterdir() if path.is_dir()))
def test_pages_in_a_folder_match_its_rule(folder: str) -> None:
    rule = next((rule for rule in RULES if folder_of(rule) == folder), None)
    if rule is not None:
        assert pages_in(folder) <= set(rule.CODES)
    elif folder == SHAPE_COMMENTS:
        assert pages_in(folder) == set(verify.CODES)
    else:
        assert not pages_in(folder)  # such as __pycache__


def test_failing_rule_is_reported_and_the_others_run(monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(subject: Subject) -> Iterator[Outcome]:
        yield from ()
        raise ValueError("no [red]such[/red] axis\n| there")

    whole = _checked()
    monkeypatch.setattr(RULES[0], "check", broken)
    report = _checked()
    failed = [entry for entry in report.not_checked if entry.what == RULES[0].TOPIC]
    assert [entry.why for entry in failed] == ["the check failed: ValueError: no [red]such[/red] axis | there"]
    assert list(report.verified) == [text for text in whole.verified if not text.startswith("batch elements")]
    assert report.findings == ()


def _checked() -> Report:
    return check_request(TargetSpec(""), RunOptions(), Claims(), 300.0, contextlib.nullcontext)
