"""Every form of softmax is recognized, with its scores and the axis of its sum."""

import math

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given, settings
from hypothesis import strategies as st

from attnshape.checks.attention.cores import softmaxes
from attnshape.checks.interventions.replay import OutputRef
from tests.checks.subjects import flow_of, normal

KEEP = torch.ones(4, 6, dtype=torch.bool).tril(2)


def spelled(s):
    powers = s.exp()
    return powers / powers.sum(-1, keepdim=True)


def less_maximum(s):
    powers = torch.exp(s - s.max(dim=-1, keepdim=True).values)
    return powers / powers.sum(dim=-1, keepdim=True)


def less_amax(s):
    powers = (s - s.amax(-1, keepdim=True)).exp()
    return powers.div(powers.sum(-1, keepdim=True).clamp(min=1e-12))


def by_logsumexp(s):
    return torch.exp(s - torch.logsumexp(s, -1, keepdim=True))


def by_log_softmax(s):
    return F.log_softmax(s, dim=-1).exp()


def masked(s):
    powers = (s - s.amax(-1, keepdim=True)).exp().masked_fill(~KEEP, 0.0)
    return powers / (powers.sum(-1, keepdim=True) + 1e-20)


def multiplied(s):
    powers = s.exp() * KEEP
    return powers / powers.sum(-1, keepdim=True)


def in_place(s):
    powers = (s - s.amax(-1, keepdim=True)).exp_()
    powers /= powers.sum(-1, keepdim=True)
    return powers


def powers_of_two(s):
    powers = torch.exp2(s - s.amax(-1, keepdim=True))
    return powers / powers.sum(-1, keepdim=True)


ONE_CALL = [
    lambda s: s.softmax(-1),
    lambda s: torch.softmax(s, dim=-1),
    lambda s: F.softmax(s, -1),
    torch.nn.Softmax(dim=-1),
]
SPELLED = [spelled, less_maximum, less_amax, by_logsumexp, by_log_softmax, masked, multiplied, in_place, powers_of_two]


def found_in(function, *parameters, **tensors):
    return softmaxes(flow_of(function, *parameters, **tensors))


def scores():
    return normal(3, 4, 6)


@pytest.mark.parametrize("function", ONE_CALL)
def test_softmax_as_one_call(function):
    (found,) = found_in(lambda s: function(s * 2), s=scores())
    assert found.event is found.owner
    assert found.axes == {2}
    assert not found.deferred
    assert found.base == 1
    assert torch.equal(found.scores, 2 * scores())
    assert found.sources == (OutputRef(1),)


@pytest.mark.parametrize("function", SPELLED, ids=lambda one: one.__name__)
def test_explicit_softmax_is_found_with_its_scores(function):
    (found,) = found_in(lambda s: function(s * 2), s=scores())
    assert torch.equal(found.scores, 2 * scores())
    assert found.axes == {2}
    assert not found.deferred
    assert found.event.values[0].shape == scores().shape
    assert found.sources[-1] == OutputRef(1)


@pytest.mark.parametrize(
    "function",
    [
        lambda s: (p := (s - s.amax(-1, keepdim=True).detach()).exp()) / p.sum(-1, keepdim=True),
        lambda s: (p := (s - s.amax(-1).unsqueeze(-1)).exp()) / p.sum(-1, keepdim=True),
        pytest.param(
            lambda s: (p := (s - s.max(-1)[0][..., None]).exp()) / p.sum(-1, keepdim=True),
        ),
        pytest.param(
            lambda s: (p := (s - s.amax(-1, keepdim=True)).exp()) / p.sum(-1)[..., None],
        ),
        pytest.param(
            lambda s: (p := (s - s.amax(-1, keepdim=True)).exp()) * p.sum(-1, keepdim=True).reciprocal(),
        ),
    ],
    ids=("detached", "unsqueezed", "indexed", "sum without keepdim", "reciprocal"),
)
def test_explicit_softmax_in_more_calls(function):
    (found,) = found_in(lambda s: function(s * 2), s=scores())
    assert torch.equal(found.scores, 2 * scores())
    assert found.axes == {2}


def test_base_of_the_exponential():
    (two,) = found_in(powers_of_two, s=scores())
    (e,) = found_in(less_amax, s=scores())
    assert two.base == pytest.approx(math.log(2))
    assert e.base == 1


def test_scores_as_input_have_no_call():
    (found,) = found_in(spelled, s=scores())
    assert found.sources == ("s",)


@pytest.mark.parametrize("function", [spelled, less_amax])
def test_softmax_normalised_after_the_values(function):
    def late(s, v):
        powers = (s * 1 - (s * 1).amax(-1, keepdim=True)).exp() if function is less_amax else (s * 1).exp()
        return (powers @ v) / powers.sum(-1, keepdim=True)

    (found,) = found_in(late, s=scores(), v=normal(3, 6, 5, seed=1))
    assert found.deferred
    assert found.axes == frozenset()
    assert found.event.name == "exp"
    assert torch.equal(found.scores, scores())


@pytest.mark.parametrize(
    "function",
    [
        lambda s: s.sigmoid(),
        lambda s: 1 / (1 + (-s).exp()),
        lambda s: s.exp() / (1 + s.exp()),
        lambda s: s.relu() / s.relu().sum(-1, keepdim=True),
        lambda s: s / s.sum(-1, keepdim=True),
        lambda s: s.tanh() * s.exp(),
        lambda s: s.exp().mean(),
        lambda s: s.logsumexp(-1),
    ],
)
def test_not_a_softmax(function):
    assert found_in(function, s=scores()) == []


def test_sum_of_other_values_does_not_normalise():
    def function(s):
        powers = s.exp()
        return powers / (powers * 2).sum(-1, keepdim=True)

    assert found_in(function, s=scores()) == []


@settings(max_examples=40, deadline=None)
@given(shape=st.lists(st.integers(2, 5), min_size=2, max_size=4), data=st.data())
def test_axis_is_the_summed_axis(shape, data):
    axis = data.draw(st.integers(0, len(shape) - 1))

    def by_hand(s):
        powers = (s - s.amax(axis, keepdim=True)).exp()
        return powers / powers.sum(axis, keepdim=True)

    for function in (by_hand, lambda s: s.softmax(axis)):
        (found,) = found_in(function, s=normal(*shape))
        assert found.axes == {axis}


def test_softmax_over_two_axes():
    (found,) = found_in(lambda s: s.flatten(-2).softmax(-1).view_as(s), s=scores())
    assert found.axes == {1}
    (found,) = found_in(lambda s: (p := s.exp()) / p.sum((-2, -1), keepdim=True), s=scores())
    assert found.axes == frozenset()


def test_rows_without_keys_are_ignored():
    hidden = torch.zeros(4, 6, dtype=torch.float64)
    hidden[1] = -torch.inf

    (found,) = found_in(lambda s: (s + hidden).softmax(-1), s=scores())
    assert found.axes == {2}
    assert torch.isnan(found.event.values[0][:, 1]).all()


def test_softmaxes_are_found_in_order():
    def function(s):
        return (less_maximum(s.softmax(-1) * 3) + 1).softmax(1)

    found = found_in(function, s=scores())
    assert [sorted(softmax.axes) for softmax in found] == [[2], [2], [1]]
    assert [softmax.event.order for softmax in found] == sorted(softmax.event.order for softmax in found)


def test_log_softmax_without_exp_is_a_softmax():
    (found,) = found_in(lambda s: s.log_softmax(-1), s=scores())
    assert found.event.name == "log_softmax"
    assert found.axes == {2}
