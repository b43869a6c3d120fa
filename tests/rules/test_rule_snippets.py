"""The wrong snippet of every page has only a finding of its code, in the snippet; the right one has none."""

import contextlib
from pathlib import Path

import pytest

from attnshape.checks.rules.pages import codes, page
from attnshape.model.report import Report
from attnshape.options.claims import Claims
from attnshape.options.spec import RunOptions, TargetSpec
from attnshape.pipelines.check import check_request
from tests.rules.snippet_contexts import CONTEXTS
from tests.sampling import sampled

CODES = list(CONTEXTS)


def test_every_page_has_a_context() -> None:
    assert list(CONTEXTS) == list(codes())


@pytest.mark.parametrize("code", sampled(CODES, CODES[::16]))
def test_wrong_snippet_gets_its_code(code: str, tmp_path: Path) -> None:
    report, snippet = checked(code, "Wrong", tmp_path)
    findings = [finding for finding in report.findings if finding.level == "error" or finding.code == code]
    assert {finding.code for finding in findings} == {code}, report
    assert all(finding.source is None or finding.source.line in snippet for finding in findings), (report, snippet)


@pytest.mark.parametrize("code", sampled(CODES, CODES[2::16]))
def test_right_snippet_has_no_findings(code: str, tmp_path: Path) -> None:
    report, _ = checked(code, "Right", tmp_path)
    assert report.counting == ()
    assert code not in {finding.code for finding in report.findings}
    assert report.verified


def checked(code: str, section: str, folder: Path) -> tuple[Report, range]:
    text, snippet = CONTEXTS[code].source(page(code), section)
    file = folder / f"{code}_{section}.py".lower()
    file.write_text(text)
    return check_request(TargetSpec(f"{file}:case"), RunOptions(), Claims(), 300.0, contextlib.nullcontext), snippet
