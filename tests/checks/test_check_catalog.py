"""`check` reports no findings for the catalog's mechanisms, and verifies their claims."""

import contextlib

import pytest
from msgspec import UNSET

from attnshape.checks.rules.batch import verifies_independence
from attnshape.checks.rules.protocol import Verification
from attnshape.model.report import Report
from attnshape.options.claims import parse_claims
from attnshape.options.spec import RunOptions, TargetSpec
from attnshape.pipelines.check import check_request
from attnshape.targets.builtin.registry import CATALOG, load
from tests.sampling import sampled

CASES = [f"{name}:{case}" for name in CATALOG for case in load(name)]

WITHOUT_BATCH = {
    *(target for target in CASES if target.endswith(":unbatched")),
    "packed:self_attention",
    "shifted-window:shifted",  # checked at its own sizes, at which the batch is no axis of its own
}


def checked(target: str, *claims: str, **options: object) -> Report:
    request = TargetSpec(target, options=options)
    return check_request(request, RunOptions(), parse_claims(claims), 300.0, contextlib.nullcontext)


def outcomes(report: Report) -> dict[str, str]:
    return dict(report.claim_outcomes) if report.claim_outcomes is not UNSET else {}


@pytest.mark.parametrize(
    "target",
    sampled(
        CASES,
        [
            "multi-head:cross_attention",
            "scaled-dot-product:unbatched",
            "additive:cross_attention",
            "latent:self_attention",
        ],
    ),
)
def test_mechanism_has_no_findings(target: str) -> None:
    report = checked(target)
    assert report.counting == ()
    assert set(outcomes(report).values()) <= {"verified"}
    assert report.undecided == ()
    assert verifies_independence(map(Verification, report.verified)) != (target in WITHOUT_BATCH)
    tokens = {
        "tokens keep their positions up to the scores",
        "no layout operation scrambles tokens",
        "tokens come out of attention in the order in which they went in",
        "a key and its value come from the same token",
    }
    assert not tokens.isdisjoint(report.verified)
    assert not [entry for entry in report.not_checked if "failed" in entry.why]


def test_claims_of_a_causal_mechanism_are_verified() -> None:
    report = checked("multi-head", "causal", "scale=1/sqrt(Dk)", causal=True)
    assert report.counting == ()
    assert {"attends causally", "scores are scaled by 1/sqrt(Dk), as claimed"} <= set(report.verified)


def test_wrong_claim_is_a_finding() -> None:
    assert [finding.code for finding in checked("multi-head", "causal").findings] == ["AS501"]
    assert [finding.code for finding in checked("multi-head", "scale=1/Dk").findings] == ["AS207"]
    assert [finding.code for finding in checked("dot-product", "scale=1/sqrt(Dk)").findings] == ["AS204"]


def test_small_mask_value_is_found() -> None:
    report = checked("multi-head", causal=True, mask_value=-2.0)
    assert [finding.code for finding in report.findings] == ["AS405"]
    assert "masked scores become -2" in report.findings[0].message


def test_causal_pattern_is_a_triangle() -> None:
    report = checked("multi-head", causal=True)
    (pattern,) = report.patterns
    size = len(pattern.rows)
    assert pattern.rows == tuple("#" * (row + 1) + "." * (size - row - 1) for row in range(size))
