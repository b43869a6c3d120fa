"""What is said about mechanisms whose parts look like mistakes of plain attention."""

from __future__ import annotations

import contextlib
from pathlib import Path

import pytest

from attnshape.model.report import Report
from attnshape.options.claims import parse_claims
from attnshape.options.spec import RunOptions, TargetSpec
from attnshape.pipelines.check import check_request

UNUSUAL = Path(__file__).parents[1] / "mutants" / "unusual" / "combined.py"
CODE = """
import torch
import torch.nn.functional as F


def attend(q, k, v):
    return F.scaled_dot_product_attention(q, k, v, is_causal=True)


def twice(q, k, v):
    first = attend(q, k, v).tanh()
    second = attend(k, q, v).tanh()
    return first + second


def mixed_with_a_bias(q, k, v):
    places = torch.arange(q.shape[-2], dtype=q.dtype)
    bias = -(places[:, None] - places).abs()
    return ((q @ k.mT / q.shape[-1] ** 0.5).softmax(-1) * 0.5 + bias) @ v


def two_of_each_row(q, k, v):
    weights = (q @ k.mT / q.shape[-1] ** 0.5).softmax(-1)
    best, index = weights.topk(2, dim=-1)
    return torch.zeros_like(weights).scatter_(-1, index, best) @ v
"""
QKV = {"q": "B H L Dk", "k": "B H L Dk", "v": "B H L Dk"}


def checked(folder: Path, name: str, *claims: str) -> Report:
    (folder / "code.py").write_text(CODE)
    spec = TargetSpec(f"{folder}/code.py:{name}", inputs=QKV)
    return check_request(spec, RunOptions(), parse_claims(claims), 300.0, contextlib.nullcontext)


def checked_case(name: str) -> Report:
    spec = TargetSpec(f"{UNUSUAL}:case_{name}", sizes={"B": 2, "H": 4, "L": 6, "Dk": 4})
    return check_request(spec, RunOptions(), parse_claims(()), 300.0, contextlib.nullcontext)


@pytest.mark.parametrize(("name", "by"), [("chosen_keys", "topk"), ("keys_above_zero", "gt")])
def test_a_choice_without_a_gradient_is_a_notice(name: str, by: str) -> None:
    (finding,) = [finding for finding in checked_case(name).findings if finding.code == "AS808"]
    assert finding.level == "notice"
    assert f"only through what {by} chooses" in finding.message


def test_order_of_heads_is_verified_only_where_it_was_compared() -> None:
    report = checked_case("averaged_heads")
    assert not any("heads are merged" in text for text in report.verified)
    assert any(gap.what == "merging of heads" for gap in report.not_checked)


def test_scale_of_normalised_scores_is_not_judged() -> None:
    report = checked_case("batch_norm_of_scores")
    assert report.findings == ()
    assert any(gap.why == "the scores are normalised before the softmax" for gap in report.not_checked)


def test_one_weight_of_each_row_may_be_a_gate(tmp_path: Path) -> None:
    assert checked_case("gated_top_one").counting == ()
    assert [finding.code for finding in checked(tmp_path, "two_of_each_row").counting] == ["AS302"]


def test_equal_findings_in_several_places_are_one(tmp_path: Path) -> None:
    assert [finding.code for finding in checked(tmp_path, "twice").findings] == ["AS408"]


def test_claimed_bias_is_an_error_where_the_weights_have_a_coefficient(tmp_path: Path) -> None:
    assert [finding.code for finding in checked(tmp_path, "mixed_with_a_bias", "alibi").counting] == ["AS304"]
    assert checked(tmp_path, "mixed_with_a_bias").counting == ()
