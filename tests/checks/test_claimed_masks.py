"""Claimed masks are judged by weights and results where visible keys don't tell, and by the attention they act on."""

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


def padding(B, L):
    return torch.arange(L) < L - torch.arange(B)[:, None] % (L - 1)


def over_two_axes(q, x, hidden):
    keys = torch.stack((x, x.roll(1, dims=-1)), dim=2)
    scores = torch.einsum("bid,bjmd->bijm", q, keys) / math.sqrt(x.shape[-1])
    scores = scores.masked_fill(hidden[..., None], -torch.inf)
    weights = scores.flatten(2).softmax(-1).view_as(scores)
    return torch.einsum("bijm,bjmd->bid", weights, keys)


def pairs(of):
    def case(B, L, D):
        mask = (torch.rand(B, L, L) < 0.4) | torch.eye(L, dtype=torch.bool)
        return of, (torch.randn(B, L, D), mask), {}, ["mask=keep"]

    return case


def padded(of):
    def case(B, Lq, Lk, D):
        return of, (torch.randn(B, Lq, D), torch.randn(B, Lk, D), padding(B, Lk)), {}, ["mask=keep"]

    return case


def alone(of):
    def case(B, L, D):
        return of, (torch.randn(B, L, D), padding(B, L)), {}, ["mask=keep"]

    return case


right_pairs = pairs(lambda x, mask: over_two_axes(x, x, ~mask))
transposed_pairs = pairs(lambda x, mask: over_two_axes(x, x, ~mask.mT))
right_padding = padded(lambda q, x, mask: over_two_axes(q, x, ~mask[:, None]))
shifted_padding = padded(lambda q, x, mask: over_two_axes(q, x, ~mask[:, None].roll(1, 2)))
mixed_before = alone(lambda x, mask: over_two_axes(x, x + x.flip(1), ~mask[:, None]))
pooled_query = alone(lambda x, mask: over_two_axes(x + x.mean(1, keepdim=True), x, ~mask[:, None]))
of_sigmoids = padded(lambda q, x, mask: ((q @ x.mT).sigmoid() * mask[:, None]) @ x)
unmasked_sigmoids = padded(lambda q, x, mask: (q @ x.mT).sigmoid() @ x * (1 + 0 * mask.sum()))


@alone
def chosen(x, mask):
    return F.log_softmax(x.sum(-1).masked_fill(~mask, -10.0), dim=-1)[:, 0]


@alone
def taken_away(x, mask):
    return (x.sum(-1).softmax(-1) * mask)[..., None] * x


def of_slots(rows_are_zero):
    def attend(q, x, counts):
        unused = (torch.arange(x.shape[1]) >= counts[:, None])[:, None]
        weights = (q @ x.mT / math.sqrt(x.shape[-1])).masked_fill(unused, torch.finfo(q.dtype).min).softmax(-1)
        return (weights.masked_fill(unused, 0.0) if rows_are_zero else weights) @ x

    def case(B, Lq, Lk, D):
        counts = torch.arange(B) % Lk + 1
        return attend, (torch.randn(B, Lq, D), torch.randn(B, Lk, D), counts), {}, ["zero-masked-rows"]

    return case


zero_slots, mean_of_slots = of_slots(True), of_slots(False)


def layers(*masked):
    def attend(x, mask):
        for number in range(2):
            scores = x @ x.mT / math.sqrt(x.shape[-1])
            hidden = ~mask[:, None] if masked[number] else torch.zeros_like(scores, dtype=torch.bool)
            x = x + scores.masked_fill(hidden, -torch.inf).softmax(-1) @ x
        return x

    return alone(attend)


both_layers, second_layer = layers(True, True), layers(False, True)
"""
HIDDEN = "no position of the results depends on a token that mask hides from it"


def checked(folder: Path, name: str) -> Report:
    (folder / "code.py").write_text(CODE)
    return check_request(
        TargetSpec(f"{folder}/code.py:{name}"), RunOptions(), parse_claims(()), 300.0, contextlib.nullcontext
    )


@pytest.mark.parametrize(("name", "varied"), [("right_pairs", "x"), ("right_padding", "x"), ("of_sigmoids", "x")])
def test_mask_without_visible_keys_is_verified_by_the_results(name: str, varied: str, tmp_path: Path) -> None:
    report = checked(tmp_path, name)
    assert f"{HIDDEN} (varied: {varied})" in report.verified
    assert not report.undecided
    assert not report.counting


@pytest.mark.parametrize("name", ["transposed_pairs", "shifted_padding"])
def test_result_that_depends_on_a_hidden_token_contradicts_the_mask(name: str, tmp_path: Path) -> None:
    report = checked(tmp_path, name)
    assert [finding.code for finding in report.counting] == ["AS407"]
    assert not any("mask" in text and "hides" in text for text in report.verified)


def test_weights_that_a_mask_takes_away_after_the_softmax_contradict_it(tmp_path: Path) -> None:
    """What the mask hides has a part in the sum by which the softmax divides."""
    report = checked(tmp_path, "taken_away")
    assert [finding.code for finding in report.counting] == ["AS303"]
    assert not any("hides" in text for text in report.verified)


@pytest.mark.parametrize("name", ["mixed_before", "pooled_query", "chosen"])
def test_dependence_that_may_not_come_from_attention_is_undecided(name: str, tmp_path: Path) -> None:
    report = checked(tmp_path, name)
    assert not [finding for finding in report.findings if finding.code.startswith("AS4")]
    assert not any("hides" in text for text in report.verified)
    assert [gap.what for gap in report.undecided] == ["the claim mask=keep"]


def test_sum_without_a_softmax_that_takes_in_hidden_tokens_is_an_error(tmp_path: Path) -> None:
    report = checked(tmp_path, "unmasked_sigmoids")
    assert [finding.code for finding in report.counting] == ["AS407"]
    assert report.undecided == ()


def test_rows_are_emptied_by_an_integer_argument(tmp_path: Path) -> None:
    assert "a query without any visible key gets zeros" in checked(tmp_path, "zero_slots").verified
    report = checked(tmp_path, "mean_of_slots")
    assert [finding.code for finding in report.counting] == ["AS406"]


def test_layer_of_a_loop_that_ignores_the_mask_is_an_error(tmp_path: Path) -> None:
    assert "mask hides exactly the keys that it should" in checked(tmp_path, "both_layers").verified
    report = checked(tmp_path, "second_layer")
    assert [finding.code for finding in report.counting] == ["AS404"]
    assert not any("hides exactly the keys that it should" in text and "in " not in text for text in report.verified)
