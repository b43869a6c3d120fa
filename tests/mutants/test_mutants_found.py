"""Every wrong one is found under its own code at its own line, and no right one gets any finding."""

import pytest

from attnshape.checks.rules.pages import codes
from attnshape.comments.verify import CODES as WRITTEN
from tests.mutants.cases import PAIRS, UNUSUAL, Pair, Unusual, wrong_line
from tests.mutants.check_cases import check, failed_rules, is_first_of_its_code, runs


@pytest.mark.parametrize(("pair", "size", "seed"), runs(PAIRS, is_first_of_its_code))
def test_a_wrong_one_gets_its_own_code_at_its_own_line(pair: Pair, size: int, seed: int) -> None:
    report = check(pair, pair.wrong, size, seed)
    assert [finding.code for finding in report.findings] == [pair.code], report.findings
    line = wrong_line(pair)
    source = report.findings[0].source
    if line is not None:
        assert source is not None
        assert (source.file, source.line) == (pair.file, line)
    assert failed_rules(report) == []


@pytest.mark.parametrize(("pair", "size", "seed"), runs(PAIRS, lambda index: index % 30 == 0))
def test_a_right_one_gets_no_finding(pair: Pair, size: int, seed: int) -> None:
    report = check(pair, pair.right, size, seed)
    assert report.findings == ()
    assert failed_rules(report) == []
    assert report.verified


@pytest.mark.parametrize(("unusual", "size", "seed"), runs(UNUSUAL, lambda index: index % 20 == 0))
def test_unusual_code_that_is_right_gets_no_finding(unusual: Unusual, size: int, seed: int) -> None:
    report = check(unusual, unusual.case, size, seed)
    assert report.findings == ()
    assert failed_rules(report) == []


@pytest.mark.parametrize("code", [code for code in codes() if code not in WRITTEN])
def test_every_code_has_mutants_in_three_styles(code: str) -> None:
    assert sum(pair.code == code for pair in PAIRS) >= 3
