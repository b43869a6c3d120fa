"""Claims about blocks of queries and keys, whose positions aren't known, are judged by the results."""

import contextlib
from pathlib import Path

import pytest

from attnshape.model.report import Report
from attnshape.options.claims import parse_claims
from attnshape.options.spec import RunOptions, TargetSpec
from attnshape.pipelines.check import check_request

CODE = """
import math

import torch
import torch.nn.functional as F


def buckets(x, size, reach):
    b, length, width = x.shape
    t = F.pad(x, (0, 0, 0, -length % size)).unflatten(1, (-1, size))
    keys = torch.cat([t.roll(1, dims=1), t], dim=2)
    i = torch.arange(t.shape[1] * size).view(-1, size)
    j = torch.cat([i - size, i], dim=1)
    hidden = (j[:, None, :] > i[:, :, None]) | (j[:, None, :] <= i[:, :, None] - reach) | (j[:, None, :] < 0)
    scores = (t @ keys.mT / math.sqrt(width)).masked_fill(hidden, -torch.inf)
    return (scores.softmax(-1) @ keys).flatten(1, 2)[:, :length]


def once(B, L, D):
    return lambda x: buckets(x, 4, 3), (torch.randn(B, L, D),)


def twice(B, L, D):
    return lambda x: buckets(buckets(x, 4, 3), 4, 3), (torch.randn(B, L, D),)


def shifted(B, L, D):
    return lambda x: buckets(x, 4, 3) + x.roll(1, dims=1), (torch.randn(B, L, D),)


def convolved(B, L, D):
    weight = torch.randn(D, D, 1)
    return lambda x: F.conv1d(buckets(x, 4, 3).mT, weight).mT, (torch.randn(B, L, D),)


def gathered(B, L, D):
    def attend(x):
        near = (torch.arange(L)[:, None] + torch.arange(-1, 2)).clamp(0, L - 1)
        keys = x[:, near]
        scores = torch.einsum("bld,blnd->bln", x, keys) / math.sqrt(D)
        return torch.einsum("bln,blnd->bld", scores.softmax(-1), keys)

    return attend, (torch.randn(B, L, D),)


def summed(B, L, D):
    return lambda x: buckets(x, 4, 3).sum(1), (torch.randn(B, L, D),)
"""
WITHIN = "no position of the results depends on a token outside of its window of 3 keys"
EARLIER = "no position of the results depends on a later token"


def checked(folder: Path, name: str, *claims: str) -> Report:
    (folder / "code.py").write_text(CODE)
    spec = TargetSpec(f"{folder}/code.py:{name}", sizes={"B": 4, "L": 12, "D": 8})
    return check_request(spec, RunOptions(), parse_claims(claims), 300.0, contextlib.nullcontext)


def test_window_of_blocks_is_verified_by_the_results(tmp_path: Path) -> None:
    report = checked(tmp_path, "once", "causal", "window=3")
    assert report.counting == ()
    assert {WITHIN, EARLIER} <= set(report.verified)
    assert report.undecided == ()


def test_result_that_depends_on_a_token_outside_the_window_contradicts_it(tmp_path: Path) -> None:
    report = checked(tmp_path, "once", "causal", "window=2")
    assert [finding.code for finding in report.findings] == ["AS505"]
    assert "position 2 of the results depends on token 0" in report.findings[0].message
    assert EARLIER in report.verified


@pytest.mark.parametrize(
    ("name", "why"),
    [("twice", "an attention reads"), ("shifted", "tokens affect each other"), ("convolved", "a convolution")],
)
def test_window_that_other_calls_widen_is_undecided(name: str, why: str, tmp_path: Path) -> None:
    report = checked(tmp_path, name, "causal", "window=2")
    assert "AS505" not in {finding.code for finding in report.findings}
    assert [one.why.startswith(why) for one in report.undecided if "window" in one.what] == [True]


def test_results_without_tokens_leave_the_claims_undecided(tmp_path: Path) -> None:
    report = checked(tmp_path, "summed", "causal", "window=3")
    assert report.findings == ()
    assert {one.why for one in report.undecided} == {"no axis of the results holds the tokens of the inputs"}


def test_keys_that_each_token_gathers_are_judged_by_the_results(tmp_path: Path) -> None:
    report = checked(tmp_path, "gathered", "window=2")
    assert report.counting == ()
    assert WITHIN.replace("3", "2") in report.verified
