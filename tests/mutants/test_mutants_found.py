"""Every mutant has exactly one error, or the notice of its code, at its line; right code has none."""

import pytest

from attnshape.checks.rules.pages import codes
from attnshape.comments.verify import CODES as WRITTEN
from tests.mutants.cases import PAIRS, UNFOUND, UNUSUAL, Pair, Unusual, wrong_line
from tests.mutants.check_cases import check, failed_rules, is_first_of_its_code, is_first_of_its_rule, runs
from tests.mutants.sentences import contains, is_listed, sentences_removed_by

UNDECIDED = {
    "powers_of_two": {"the claim scale=1/sqrt(Dk)"},  # its softmax is one of powers of two
    "query_beside_rotated_memory": {"the claim rope=half"},  # of a single query nothing tells whether it is rotated
    "keys_in_a_ring": {"the claim rope=half"},  # each step has a single query, and its key is in any slot
    "without_padding": {"the claim mask=keep"},  # its mask chooses the tokens that get to attention
}
"""The claims about unusual code that can't be decided."""


@pytest.mark.parametrize(("pair", "size", "seed"), runs(PAIRS, is_first_of_its_rule, is_first_of_its_code))
def test_mutant_is_found_at_its_line(pair: Pair, size: int, seed: int) -> None:
    report = check(pair, pair.wrong, size, seed)
    findings = [finding for finding in report.findings if finding.level == "error" or finding.code == pair.code]
    assert [finding.code for finding in findings] == [pair.code], report.findings
    line = wrong_line(pair)
    source = findings[0].source
    if line is not None:
        assert source is not None
        assert (source.file, source.line) == (pair.file, line)
    assert [one for one in sentences_removed_by(str(pair)) if contains(report.verified, one)] == []
    assert failed_rules(report) == []


@pytest.mark.parametrize(("pair", "size", "seed"), runs(UNFOUND, lambda index: index % 10 == 0))
def test_what_an_unfound_mutant_contradicts_is_not_verified(pair: Pair, size: int, seed: int) -> None:
    report = check(pair, pair.wrong, size, seed)
    assert report.counting == (), "move it to the pairs"
    assert [one for one in sentences_removed_by(str(pair)) if contains(report.verified, one)] == []
    assert sentences_removed_by(str(pair))
    assert failed_rules(report) == []


@pytest.mark.parametrize(("pair", "size", "seed"), runs((*PAIRS, *UNFOUND), lambda index: index % 30 == 0))
def test_right_version_has_no_findings(pair: Pair, size: int, seed: int) -> None:
    report = check(pair, pair.right, size, seed)
    assert report.counting == ()
    assert pair.code not in {finding.code for finding in report.findings}
    assert failed_rules(report) == []
    assert report.undecided == ()
    assert [one for one in sentences_removed_by(str(pair)) if not contains(report.verified, one)] == []
    assert report.verified
    assert [text for text in report.verified if not is_listed(text)] == []


@pytest.mark.parametrize(("unusual", "size", "seed"), runs(UNUSUAL, lambda index: index % 20 == 0))
def test_unusual_code_has_no_findings(unusual: Unusual, size: int, seed: int) -> None:
    report = check(unusual, unusual.case, size, seed)
    assert report.counting == ()
    assert failed_rules(report) == []
    assert {one.what for one in report.undecided} <= UNDECIDED.get(unusual.name, set())
    assert [text for text in report.verified if not is_listed(text)] == []


@pytest.mark.parametrize("code", [code for code in codes() if code not in WRITTEN])
def test_every_code_has_three_mutants(code: str) -> None:
    assert sum(pair.code == code for pair in PAIRS) >= 3
