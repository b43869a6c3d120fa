"""What `check` says about positions without a claim: what is verified, and what no mutant shows."""

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from attnshape.checks.attention.operands import by_attention
from attnshape.checks.attention.uniform import UniformRun, depends_on_distance, uniform_run
from attnshape.checks.rules import biases, rotations
from attnshape.checks.rules.protocol import Verification, Violation
from tests.checks.subjects import subject_of
from tests.mutants.cases import PAIRS
from tests.mutants.check_cases import check

ALIKE = "queries and keys at the same position are rotated alike"
DISTANCE = "where all queries and keys are equal, their scores depend on their distance alone"
FALLS = "the bias falls with the distance from the query's own position"
SIDES = "the bias tells the distances of the keys on both sides of the query apart"
ALIBI = "the bias falls with distance, as in ALiBi"
OWN = "the scores that a query gets for positions are its own"
OFFSETS = "each offset on the grid has its own row in the table of biases"
QKV = dict.fromkeys(("q", "k", "v"), "B H L Dk")


@pytest.mark.parametrize(
    ("name", "sentence"),
    [
        ("AS701-along_the_batch", ALIKE),
        ("AS703-one_later", ALIKE),
        ("AS703-query_alone", ALIKE),
        ("AS704-rejoined_halves", DISTANCE),
        ("AS710-viewed_table", "each head gets its own part of table"),
        ("AS711-off_by_one", FALLS),
        ("AS712-causal_buckets", SIDES),
        ("AS713-divided_sum", ALIBI),
        ("AS714-last_row_dropped", OWN),
        ("AS715-height_as_stride", OFFSETS),
    ],
)
def test_mutant_removes_what_is_verified(name: str, sentence: str) -> None:
    pair = next(pair for pair in PAIRS if str(pair) == name)
    assert sentence in check(pair, pair.right, 0, 0).verified
    assert sentence not in check(pair, pair.wrong, 0, 0).verified


def angles(length: int, width: int) -> torch.Tensor:
    return torch.arange(length)[:, None] * 10000.0 ** (-torch.arange(0, width, 2) / width)


def turn(x: torch.Tensor) -> torch.Tensor:
    table = angles(x.shape[-2], x.shape[-1])
    a, b = x.chunk(2, -1)
    return torch.cat((a * table.cos() - b * table.sin(), b * table.cos() + a * table.sin()), -1)


def same_of(function: object, **sizes: int) -> UniformRun:
    subject = subject_of(function, QKV, **sizes)  # type: ignore[arg-type]
    same = uniform_run(subject, by_attention(subject)[0])
    assert same is not None
    return same


def test_rules_share_a_uniform_run_and_the_inputs_that_it_varies() -> None:
    subject = subject_of(
        F.scaled_dot_product_attention, dict(zip(("query", "key", "value"), QKV.values(), strict=True))
    )
    (own,) = by_attention(subject)
    first = uniform_run(subject, own)
    runs, subject.experiment.varies_inputs = subject.experiment.budget.runs, False
    assert first is not None
    assert uniform_run(subject, own) is first
    assert subject.experiment.budget.runs == runs
    assert subject.experiment.varies_inputs


def test_map_of_a_rotation() -> None:
    same = same_of(lambda q, k, v: F.scaled_dot_product_attention(turn(q), turn(k), v), Dk=6)
    assert set(same.maps) == {"query", "key"}
    mapping = same.maps["query"]
    assert mapping.mixes
    assert mapping.keeps_angles
    assert mapping.pairs == {frozenset({i, i + 3}) for i in range(3)}
    assert depends_on_distance(same)


def test_map_that_depends_on_other_tokens_is_no_rotation() -> None:
    def smoothed(x: torch.Tensor) -> torch.Tensor:
        return x + F.pad(x, (0, 0, 1, 0))[..., :-1, :].flip(-1)

    same = same_of(lambda q, k, v: F.scaled_dot_product_attention(smoothed(q), smoothed(k), v), Dk=6)
    assert not same.maps["query"].linear
    assert not same.mixes(same.own[0])


def test_added_positions_are_no_rotation() -> None:
    def added(x: torch.Tensor) -> torch.Tensor:
        return x + torch.linspace(-1, 1, x.shape[-2] * x.shape[-1], dtype=x.dtype).view(x.shape[-2:])

    same = same_of(lambda q, k, v: F.scaled_dot_product_attention(added(q), added(k), v), Dk=6)
    assert not same.mixes(same.own[0])
    assert not depends_on_distance(same)


def test_rotation_after_a_norm_is_judged() -> None:
    def normed(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
        q, k = (F.rms_norm(x, x.shape[-1:]) for x in (q, k))
        half = torch.cat((-k[..., 1::2], k[..., ::2]), -1)
        table = angles(k.shape[-2], k.shape[-1]).repeat_interleave(2, -1)
        return F.scaled_dot_product_attention(turn(q), k * table.cos() + half * table.sin(), v)

    found = [outcome for outcome in rotations.check(subject_of(normed, QKV, Dk=6)) if isinstance(outcome, Violation)]
    assert [(violation.code, violation.level) for violation in found] == [("AS704", "error")]


def test_new_tokens_from_position_zero_are_a_notice_and_an_error_if_claimed() -> None:
    class Decoder(nn.Module):
        def __init__(self, width: int, heads: int) -> None:
            super().__init__()
            self.heads = heads
            self.qkv = nn.Linear(width, 3 * width)

        def forward(self, x: torch.Tensor, past_k: torch.Tensor, past_v: torch.Tensor) -> torch.Tensor:
            q, k, v = (t.unflatten(-1, (self.heads, -1)).transpose(1, 2) for t in self.qkv(x).chunk(3, -1))
            k, v = torch.cat((past_k, turn(k)), 2), torch.cat((past_v, v), 2)
            return F.scaled_dot_product_attention(turn(q), k, v)

    inputs = {"x": "B L H*Dk", "past_k": "B H Lp Dk", "past_v": "B H Lp Dk"}
    sizes = {"B": 5, "H": 7, "L": 11, "Lp": 13, "Dk": 6}
    decoder = Decoder(42, 7)
    for claims, level in (((), "notice"), (("rope=half",), "error")):
        found = list(rotations.check(subject_of(decoder, inputs, claims, **sizes)))
        assert [one.level for one in found if isinstance(one, Violation) and one.code == "AS703"] == [level]


def test_rising_bias_without_causality_is_not_judged() -> None:
    def rising(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
        distance = (torch.arange(q.shape[-2])[:, None] - torch.arange(k.shape[-2])).abs()
        return F.scaled_dot_product_attention(q, k, v, attn_mask=0.5 * distance)

    outcomes = list(biases.check(subject_of(rising, QKV)))
    assert not [outcome for outcome in outcomes if isinstance(outcome, Violation)]
    assert FALLS not in [outcome.text for outcome in outcomes if isinstance(outcome, Verification)]
