"""Arguments with one number for each batch element: what they choose, and where that can't be told."""

import contextlib
from pathlib import Path

import pytest

from attnshape.model.report import Report
from attnshape.options.claims import parse_claims
from attnshape.options.spec import RunOptions, TargetSpec
from attnshape.pipelines.check import check_request

CODE = """
import torch
import torch.nn.functional as F


def attend(x, hidden=None):
    scores = x @ x.mT / x.shape[-1] / 4
    scores = scores if hidden is None else scores.masked_fill(hidden[:, None], -torch.inf)
    return scores.softmax(-1) @ x


def after(x, lengths):
    return torch.arange(x.shape[1]) >= lengths[:, None]


def of(function):
    return lambda B, L, D: (function, (torch.randn(B, L, D), 1 + torch.arange(B) % (L - 1)))


def smoothed(x):
    kernel = torch.full((x.shape[-1], 1, 3), 0.3, dtype=x.dtype)
    return F.conv1d(x.mT, kernel, padding=1, groups=x.shape[-1]).mT


padded = of(lambda x, n: attend(x, after(x, n)))
one_more = of(lambda x, n: attend(x, after(x, n + 1)))
smoothed_before = of(lambda x, n: attend(smoothed(x), after(x, n)))
half_as_many = of(lambda x, n: attend(x, after(x, (n + 1) // 2)))
scaled = of(lambda x, n: attend(x * n[:, None, None]))
ignored = of(lambda x, n: attend(x))
"""


@pytest.fixture(autouse=True)
def code(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "code.py").write_text(CODE, encoding="utf-8")
    monkeypatch.chdir(tmp_path)


def check(target: str, claim: str = "") -> Report:
    request = TargetSpec(f"code.py:{target}", sizes={"B": 4, "L": 7, "D": 6})
    claims = parse_claims([claim] if claim else [])
    return check_request(request, RunOptions(), claims, 60.0, contextlib.nullcontext)


def facts(report: Report) -> list[str]:
    return [fact.text for fact in report.facts if "each batch element uses" in fact.text]


@pytest.mark.parametrize(("target", "claim"), [("padded", ""), ("padded", "n=length"), ("one_more", "n=last-token")])
def test_tokens_that_are_used_are_observed(target: str, claim: str) -> None:
    report = check(target, claim)
    assert facts(report) == [f"each batch element uses its first n{' + 1' if claim == 'n=last-token' else ''} tokens"]
    assert "AS411" not in {finding.code for finding in report.findings}
    assert report.claim_outcomes == {claim: "verified"} if claim else not report.claims


@pytest.mark.parametrize(
    ("target", "claim", "level"),
    [("one_more", "", "notice"), ("one_more", "n=length", "error"), ("padded", "n=last-token", "error")],
)
def test_other_tokens_are_a_finding(target: str, claim: str, level: str) -> None:
    report = check(target, claim)
    assert [(one.code, one.level) for one in report.findings if one.code == "AS411"] == [("AS411", level)]
    assert facts(report) == []


@pytest.mark.parametrize("target", ["smoothed_before", "half_as_many", "scaled", "ignored"])
def test_what_no_constant_explains_is_left_out(target: str) -> None:
    report = check(target)
    assert "AS411" not in {finding.code for finding in report.findings}
    assert facts(report) == []


def test_a_claim_that_cannot_be_judged_is_undecided() -> None:
    report = check("smoothed_before", "n=length")
    assert [one.why for one in report.undecided] == ["a convolution or a pooling mixes neighbouring tokens"]
    assert report.claim_outcomes == {"n=length": "undecided"}


@pytest.mark.parametrize("target", ["half_as_many", "scaled", "ignored"])
def test_a_claim_is_contradicted_where_other_tokens_are_used(target: str) -> None:
    report = check(target, "n=length")
    assert [(one.code, one.level) for one in report.findings if one.code == "AS411"] == [("AS411", "error")]
    assert report.claim_outcomes == {"n=length": "contradicted"}
