"""Sequences that are packed on one axis: what an argument says about them, and what follows for claims."""

import contextlib
from pathlib import Path

import pytest
import torch

from attnshape.checks.attention.packing import Packing, packing_of
from attnshape.model.report import Report
from attnshape.options.claims import parse_claims
from attnshape.options.spec import RunOptions, TargetSpec
from attnshape.pipelines.check import check_request

CODE = """
import torch
import torch.nn.functional as F


def attend(x, keep):
    scores = (x @ x.mT / x.shape[-1] ** 0.5).masked_fill(~keep, -torch.inf)
    return scores.softmax(-1) @ x


def owners(x, bounds):
    return torch.bucketize(torch.arange(len(x)), bounds, right=True)


def of(keep, claims=("causal",)):
    def case(N, L, D):
        bounds = F.pad(torch.tensor([L + 2 * (index % 2) for index in range(N)]).cumsum(0), (1, 0))
        function = lambda x, bounds: attend(x, keep(owners(x, bounds)))
        return function, (torch.randn(int(bounds[-1]), D), bounds), {}, list(claims)

    return case


apart = of(lambda owner: (owner[:, None] == owner) & torch.ones(len(owner), len(owner)).tril().bool())
blocks = of(lambda owner: owner[:, None] >= owner, [])
without_effect = of(lambda owner: torch.ones(len(owner), len(owner)).tril().bool())
"""


@pytest.fixture(autouse=True)
def code(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "code.py").write_text(CODE, encoding="utf-8")
    monkeypatch.chdir(tmp_path)


def check(target: str) -> Report:
    request = TargetSpec(f"code.py:{target}", sizes={"N": 3, "L": 7, "D": 5})
    return check_request(request, RunOptions(), parse_claims([]), 60.0, contextlib.nullcontext)


def test_causality_is_decided_within_packed_sequences() -> None:
    report = check("apart")
    assert report.claim_outcomes == {"causal": "verified"}
    assert "packed sequences don't affect each other (varied: x)" in report.verified


def test_blocks_that_see_earlier_ones_are_a_fact() -> None:
    report = check("blocks")
    assert report.counting == ()
    assert any("of another one, by bounds" in fact.text for fact in report.facts)
    assert not any("packed sequences" in text for text in report.verified)


def test_boundaries_without_effect_are_an_error() -> None:
    report = check("without_effect")
    assert [(one.code, one.level) for one in report.findings] == [("AS413", "error")]
    assert report.findings[0].message.endswith("bounds has no effect")


def test_numbers_that_do_not_add_up_are_no_boundaries() -> None:
    x = torch.randn(7, 2)
    assert packing_of({"x": x, "index": torch.tensor([0, 3, 6])}) is None
    assert packing_of({"x": x, "index": torch.tensor([0, 5, 3, 7])}) is None
    assert packing_of({"x": x, "index": torch.tensor([[0, 3, 7]])}) is None


def test_the_numbers_of_an_argument_follow_from_the_boundaries() -> None:
    assert Packing("bounds", (0, 3, 7)).shifted(1).numbers == [0, 4, 7]
    assert Packing("lengths", (0, 3, 7), by_lengths=True).shifted(-1).numbers == [2, 5]
