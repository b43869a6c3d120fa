"""What a softmax of any scores gives where the claimed masks are made to hide every key, and sums of edges' weights."""

import contextlib
from collections.abc import Sequence
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

from tests.mutants.pairs.graphs import softmax_at_nodes


def added(x):
    return F.leaky_relu(x.sum(-1)[:, :, None] + x.mean(-1)[:, None], 0.2)


def nan(x, mask):
    return added(x).masked_fill(~mask, -math.inf).softmax(-1) @ x


def mean(x, mask):
    return added(x).masked_fill(~mask, -1e9).softmax(-1) @ x


def cleared(x, mask):
    return added(x).masked_fill(~mask, -math.inf).softmax(-1).nan_to_num(0.0) @ x


def replaced(x, mask):
    return nan(x, mask).where(mask.any(-1, keepdim=True), 0.0)


def with_itself(x, mask):
    return nan(x, mask | torch.eye(x.shape[1], dtype=torch.bool))


def chosen(x, mask):
    return added(x).masked_fill(~mask, -1e9).softmax(-1)


def of_tokens(x, padding):
    return (x.sum(-1).masked_fill(padding, -math.inf).softmax(-1)[:, None] @ x)[:, 0]


def pairs(of):
    def case(B, L, D):
        return of, (torch.randn(B, L, D), (torch.rand(B, L, L) < 0.5) | torch.eye(L, dtype=torch.bool))

    return case


def padded(B, L, D):
    return of_tokens, (torch.randn(B, L, D), torch.arange(L) > torch.arange(B)[:, None] % (L - 1))


nan_case, mean_case, cleared_case, replaced_case, itself_case, chosen_case = map(
    pairs, (nan, mean, cleared, replaced, with_itself, chosen)
)


def of_kinds(x, src, dst, kind):
    scores = F.leaky_relu(x[src, :3] + x[dst, :3], 0.2)
    weights = softmax_at_nodes(scores, 2 * dst + kind, 2 * len(x))
    return torch.zeros(len(x), 3, x.shape[1]).index_add(0, dst, weights[..., None] * x[src][:, None])


def kinds(L, D):
    edges = torch.randint(0, L, (6 * L,)), torch.arange(6 * L) % L
    return of_kinds, (torch.randn(L, D), *edges, torch.arange(6 * L) // L % 2)
"""
ZEROS = "a query without any visible key gets zeros"


def checked(folder: Path, case: str, claims: Sequence[str]) -> Report:
    (folder / "empty.py").write_text(CODE)
    sizes = {"L": 5, "D": 6} if case == "kinds" else {"B": 4, "L": 5, "D": 6}
    spec = TargetSpec(f"{folder}/empty.py:{case}", sizes=sizes)
    return check_request(spec, RunOptions(), parse_claims(claims), 300.0, contextlib.nullcontext)


@pytest.mark.parametrize(("case", "what"), [("nan_case", "NaN"), ("mean_case", "the mean of all values")])
def test_row_without_a_key_is_made(case: str, what: str, tmp_path: Path) -> None:
    report = checked(tmp_path, case, ["mask=keep", "zero-masked-rows"])
    found = [(finding.code, finding.level, finding.message) for finding in report.findings]
    assert found == [("AS406", "error", f"a query without any visible key gets {what}, expected zeros")]
    assert ZEROS not in report.verified


@pytest.mark.parametrize("case", ["cleared_case", "replaced_case"])
def test_row_of_zeros_is_verified(case: str, tmp_path: Path) -> None:
    report = checked(tmp_path, case, ["mask=keep", "zero-masked-rows"])
    assert ZEROS in report.verified
    assert "AS406" not in {finding.code for finding in report.findings}
    assert report.undecided == ()


def test_weights_that_nothing_sums_values_with_leave_the_claim_undecided(tmp_path: Path) -> None:
    report = checked(tmp_path, "chosen_case", ["mask=keep", "zero-masked-rows"])
    assert [gap.what for gap in report.undecided] == ["the claim zero-masked-rows"]
    assert report.findings == ()


def test_nan_is_a_notice_without_the_claim(tmp_path: Path) -> None:
    report = checked(tmp_path, "nan_case", ["mask=keep"])
    assert [(finding.code, finding.level) for finding in report.findings] == [("AS406", "notice")]
    assert "--claim zero-masked-rows" in report.findings[0].hint


def test_nan_of_nothing_but_padding_is_a_fact(tmp_path: Path) -> None:
    report = checked(tmp_path, "padded", ["padding=drop"])
    assert report.findings == ()
    assert "a query without any visible key gets NaN" in {fact.text for fact in report.facts}


@pytest.mark.parametrize("case", ["itself_case", "mean_case"])
def test_without_the_claim_only_nan_is_reported(case: str, tmp_path: Path) -> None:
    report = checked(tmp_path, case, ["mask=keep"])
    assert "AS406" not in {finding.code for finding in report.findings}


def test_weights_of_several_kinds_of_edges_may_sum_to_their_number(tmp_path: Path) -> None:
    report = checked(tmp_path, "kinds", [])
    assert report.findings == ()
    assert ("softmax", "the weights that are summed at one index sum to whole numbers") in {
        (gap.what, gap.why) for gap in report.not_checked
    }
