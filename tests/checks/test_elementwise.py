"""The elementwise maps of scores and weights are measured: factors, added terms, and positions."""

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given, settings
from hypothesis import strategies as st

from attnshape.checks.attention.cores import Core
from attnshape.checks.attention.elementwise import HIDES, axis_after, distinct
from tests.checks.subjects import normal, subject_of

HEADS = {"q": "B H Lq Dk", "k": "B H Lk Dk", "v": "B H Lk Dv"}
SIZES = {"B": 2, "H": 3, "Lq": 4, "Lk": 5, "Dk": 2, "Dv": 3}


def measured_of(on_the_way, behind=lambda w: w, inputs=None, claims=(), **sizes):
    def function(q, k, v, **others):
        return behind(on_the_way(q @ k.mT, **others).softmax(-1)) @ v

    (found,) = subject_of(function, {**HEADS, **(inputs or {})}, claims, **{**SIZES, **sizes}).measured
    return found


finite = st.floats(-20, 20).filter(lambda number: abs(number) > 1e-3)


@settings(max_examples=15, deadline=None)
@given(factor=finite, more=st.floats(-5, 5), shape=st.sampled_from([(2, 3, 4, 5), (3, 1, 1), (4, 5), (1, 5)]))
def test_factor_and_added_term_are_distinguished(factor, more, shape):
    bias = normal(*shape) * more
    way = measured_of(lambda s: (s + bias) * factor).scores_map
    assert way.elementwise
    assert way.common_factor == pytest.approx(factor)
    assert torch.allclose(way.added, (bias * factor).expand(2, 3, 4, 5))
    assert torch.equal(way.source.flatten(), torch.arange(120))
    assert bool(way.known.all())


@settings(max_examples=8, deadline=None)
@given(st.integers(0, 10**6), st.sampled_from([-torch.inf, -1e9, -1e4, torch.finfo(torch.float64).min]))
def test_masked_keys_are_hidden(seed, number):
    hidden = normal(2, 1, 4, 5, seed=seed) > 0.5
    for mask in (
        lambda s: s.masked_fill(hidden, number),
        lambda s: s.masked_fill_(hidden, number),
        lambda s: torch.where(hidden, number, s),
        lambda s: s + torch.zeros(hidden.shape, dtype=s.dtype).masked_fill(hidden, number),
    ):
        way = measured_of(lambda s, mask=mask: mask(s / 2)).scores_map
        assert torch.equal(~(way.added > HIDES), hidden.expand(2, 3, 4, 5))
        assert way.common_factor == 0.5
        assert way.elementwise


@pytest.mark.parametrize(
    "masked",
    [
        lambda scores, hidden: scores + hidden * -1e4,
        lambda scores, hidden: (scores / 4 + hidden * -1e4) * 2,
        lambda scores, hidden: scores.masked_fill(hidden, -1e4),
    ],
)
def test_masked_keys_are_hidden_beside_more_scores_than_the_mask_is_low(masked):
    hidden = torch.ones(60, 60).triu(1).bool()
    way = measured_of(lambda s: masked(s, hidden), Lq=60, Lk=60).scores_map
    assert way.source.numel() > 1e4
    assert torch.equal(~(way.added > HIDES), hidden.expand(2, 3, 60, 60))
    assert way.always_hidden is None
    assert way.elementwise


def test_scores_decide_which_keys_are_hidden():
    way = measured_of(lambda s: s.masked_fill(s < s.topk(3).values[..., -1:], -torch.inf)).scores_map
    assert way.always_hidden is not None
    assert not bool(way.always_hidden.any())


def test_small_fill_value_hides_nothing():
    hidden = normal(4, 5) > 0
    way = measured_of(lambda s: s.masked_fill(hidden, -100.0)).scores_map
    assert HIDES < -100
    assert bool((way.added > HIDES).all())
    assert way.added[..., hidden].eq(-100).all()
    assert torch.equal(way.known, ~hidden.expand(2, 3, 4, 5))
    assert way.common_factor == 1


def test_several_factors_give_no_common_factor():
    per_head = torch.tensor([1.0, 2.0, 3.0]).reshape(3, 1, 1)
    way = measured_of(lambda s: s * per_head).scores_map
    assert way.common_factor is None
    assert way.elementwise
    assert distinct(way.factor) == [1.0, 2.0, 3.0]


@pytest.mark.parametrize(
    "on_the_way",
    [
        lambda s: 30 * torch.tanh(s / 30),
        lambda s: s.clamp(-1, 0.5),
        lambda s: s**2,
        lambda s: s.exp() * 0.1,
        lambda s: s + s.roll(1, -1),
        lambda s: s - s.mean(-1, keepdim=True) + s.sum(),
        lambda s: torch.einsum("bhij,hg->bgij", s, normal(3, 3)),
        lambda s: s.cumsum(-1),
    ],
    ids=("tanh", "clamp", "square", "exponential", "two of them", "mean", "heads that talk", "sum so far"),
)
def test_not_elementwise(on_the_way):
    assert not measured_of(on_the_way).scores_map.elementwise


def test_mean_of_two_is_not_elementwise():
    assert not measured_of(lambda s: (s + s.flip(-1)) / 2).scores_map.elementwise


@pytest.mark.parametrize(
    ("on_the_way", "order"),
    [
        (lambda s: s.flatten(0, 1), None),
        (lambda s: s.clone().contiguous().float().double(), (0, 1, 2, 3)),
        (lambda s: s.view(2, 3, 4, 5) * 1, (0, 1, 2, 3)),
    ],
)
def test_layout_operations_keep_the_values(on_the_way, order):
    way = measured_of(lambda s: on_the_way(s).reshape(2, 3, 4, 5)).scores_map
    assert way.elementwise
    assert way.common_factor == 1
    for axis in order or (2, 3):
        assert axis_after(way, (2, 3, 4, 5), axis) == axis


def test_each_element_has_its_source():
    def function(q, k, v):
        scores = (q @ k.mT).permute(1, 0, 3, 2) * 2
        return scores.softmax(2).permute(1, 0, 3, 2) @ v

    (measured,) = subject_of(function, HEADS, **SIZES).measured
    way = measured.scores_map
    flat = torch.arange(120).reshape(2, 3, 4, 5).permute(1, 0, 3, 2)
    assert torch.equal(way.source, flat)
    assert [axis_after(way, (2, 3, 4, 5), axis) for axis in range(4)] == [1, 0, 3, 2]
    assert [measured.axis_of_scores(axis) for axis in range(4)] == [0, 1, 2, 3]
    assert torch.equal(measured.weights_map.source, torch.arange(120).reshape(3, 2, 5, 4).permute(1, 0, 3, 2))


def test_shifted_axis_is_not_kept():
    way = measured_of(lambda s: s.roll(1, -1)).scores_map
    assert way.elementwise
    assert torch.equal(way.source[0, 0, 0], torch.tensor([4, 0, 1, 2, 3]))
    assert axis_after(way, (2, 3, 4, 5), 3) is None
    assert axis_after(way, (2, 3, 4, 5), 2) == 2


def test_zeroed_weights():
    dropped = normal(2, 1, 4, 5) > 0
    behind = measured_of(lambda s: s, lambda w: w.masked_fill(dropped, 0.0)).weights_map
    assert torch.equal(behind.factor == 0, dropped.expand(2, 3, 4, 5))
    assert torch.equal(behind.source < 0, dropped.expand(2, 3, 4, 5))
    assert behind.elementwise
    assert behind.common_factor == 1


def test_renormalised_weights_are_not_elementwise():
    assert not measured_of(lambda s: s, lambda w: w / (w.sum(-1, keepdim=True) + 1e-9)).weights_map.elementwise


@pytest.mark.parametrize("beta", [1.0, 0.5, 0.0])
def test_baddbmm_input_is_an_added_term(beta):
    bias = normal(6, 4, 5)

    def function(q, k, v):
        q, k, v = (t.flatten(0, 1) for t in (q, k, v))
        scores = torch.baddbmm(bias, q, k.mT, beta=beta, alpha=0.25)
        return (scores * 2).softmax(-1) @ v

    (measured,) = subject_of(function, HEADS, **SIZES).measured
    assert isinstance(measured.core, Core)
    assert torch.allclose(measured.scores_map.added, 2 * beta * bias)
    assert measured.scores_map.common_factor == pytest.approx(2)
    assert measured.scores_map.elementwise


def test_stacked_attentions_are_measured_in_the_same_runs():
    def stacked(q, k, v):
        first = (q @ k.mT * 2).softmax(-1) @ v
        second = (first @ v.mT * 3).softmax(-1) @ v
        return F.dropout((second @ v.mT * 5).softmax(-1), 0.0) @ v

    subject = subject_of(stacked, {**HEADS}, **SIZES)
    before = subject.experiment.budget.runs
    assert [attention.scores_map.common_factor for attention in subject.measured] == [2, 3, 5]
    assert subject.experiment.budget.runs == before + 4


def test_softmax_within_the_section_of_another_is_measured_in_further_runs():
    subject = subject_of(lambda q, k, v: (q @ k.mT).softmax(-1).softmax(-1) @ v, {**HEADS}, **SIZES)
    before = subject.experiment.budget.runs
    first, second = subject.measured
    assert subject.experiment.budget.runs > before + 4
    assert first.scores_map.common_factor == second.weights_map.common_factor == 1
    assert not second.scores_map.known.any()


def test_bias_of_the_layers_input_is_told_apart_from_the_scores():
    def stacked(q, k, v):
        first = (q @ k.mT).softmax(-1) @ v
        return (first @ v.mT * 3 + first.mean(-1, keepdim=True)).softmax(-1) @ v

    second = subject_of(stacked, {**HEADS}, **SIZES).measured[1]
    assert second.scores_map.elementwise
    assert second.scores_map.common_factor == pytest.approx(3)


def test_data_dependent_branch_is_not_measured():
    def guarded(s):
        return s - s.max() if s.max() > 50 else s

    assert measured_of(guarded).scores_map is None


def test_float32_maps_are_measured():
    way = measured_of(lambda s: s.float() * 0.125 + 0.5).scores_map
    assert way.common_factor == 0.125
    assert way.added.eq(0.5).all()
    assert way.elementwise


def test_distinct_numbers_are_sorted():
    assert distinct(torch.tensor([[2.0, 1.0], [1.0, 3.0]])) == [1.0, 2.0, 3.0]
