"""The factor of the scores, from parameters, inputs and projections to the softmax."""

import math
from dataclasses import replace

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from attnshape.checks.rules import scale
from attnshape.checks.rules.protocol import Observation, Undecided, Verification, Violation
from tests.checks.subjects import subject_of

X = {"x": "B L D"}
NORMALISED = "queries or keys are not simply multiplied by one factor before their product"


def check_scale(subject):
    """Return the rule's outcomes, without the attention that an observation is about."""
    return [replace(one, attention=None) if isinstance(one, Observation) else one for one in scale.check(subject)]


class Pooling(nn.Module):
    """Learned queries attend to the tokens."""

    def __init__(self, D, scaled, projected, normalised):
        super().__init__()
        self.query = nn.Parameter(torch.randn(3, D))
        self.project = nn.Linear(D, D) if projected else nn.Identity()
        self.kv = nn.Linear(D, 2 * D)
        self.scaled, self.normalised = scaled, normalised

    def forward(self, x):
        k, v = self.kv(x).chunk(2, -1)
        query = self.project(self.query)
        query = F.normalize(query, dim=-1) if self.normalised else query
        query = query * x.shape[-1] ** -0.5 if self.scaled else query
        return (query @ k.mT).softmax(-1) @ v


@pytest.mark.parametrize("projected", [False, True])
def test_scaled_parameters_are_measured(projected):
    def outcome(*claims, **options):
        init = ", ".join(["D", *(f"{name}={value}" for name, value in options.items())])
        (found,) = check_scale(subject_of(Pooling, X, claims, init=init, D=7))
        return found

    options = {"scaled": True, "projected": projected, "normalised": False}
    assert outcome(**options) == Observation("scores are scaled by 1/sqrt(Dk)")
    assert outcome("scale=1/sqrt(Dk)", **options) == Verification(
        "scores are scaled by 1/sqrt(Dk), as claimed", ("scale",)
    )
    unscaled = outcome("scale=1/sqrt(Dk)", **options | {"scaled": False})
    assert isinstance(unscaled, Violation)
    assert unscaled.code == "AS204"
    assert outcome(**options | {"normalised": True}) == Undecided(scale.TOPIC, NORMALISED)


class LowRank(nn.Module):
    """Each projection is a frozen one and an update of low rank, with a gain of its own."""

    def __init__(self, D, halved=False):
        super().__init__()
        self.base = nn.ModuleList(nn.Linear(D, D) for _ in range(3))
        self.down = nn.ModuleList(nn.Linear(D, 2) for _ in range(3))
        self.up = nn.ModuleList(nn.Linear(2, D) for _ in range(3))
        self.factor = 0.5 if halved else 1.0

    def forward(self, x):
        parts = zip(self.base, self.down, self.up, strict=True)
        q, k, v = (base(x) + 4 * up(down(x)) for base, down, up in parts)
        return (self.factor * q @ k.mT * x.shape[-1] ** -0.5).softmax(-1) @ v


@pytest.mark.parametrize(("halved", "expected"), [(False, 7**-0.5), (True, 0.5 * 7**-0.5)])
def test_scale_of_added_projections_starts_at_their_sum(halved, expected):
    (found,) = check_scale(subject_of(LowRank, X, (f"scale={expected}",), init=f"D, halved={halved}", D=7))
    assert isinstance(found, Verification)


class Channels(nn.Module):
    """Channels attend to channels."""

    def __init__(self, D, factor):
        super().__init__()
        self.qkv, self.factor = nn.Linear(D, 3 * D), factor

    def forward(self, x):
        q, k, v = (t.mT for t in self.qkv(x).chunk(3, -1))
        return ((q * self.factor @ k.mT).softmax(-1) @ v).mT


def test_factor_is_measured_where_scores_sum_over_the_tokens():
    (found,) = check_scale(subject_of(Channels, X, init=f"D, factor={11**-0.5}", D=7))
    assert found == Observation("scores are scaled by 1/sqrt(L)")
    (found,) = check_scale(subject_of(Channels, X, ("scale=1/4",), init="D, factor=0.25", D=7))
    assert isinstance(found, Verification)


@pytest.mark.parametrize(("factor", "shown"), [(math.sqrt(7), ["1/sqrt(Dk)"]), (4, ["0.25"]), (1, [])])
def test_factor_after_the_product_is_observed_where_inputs_are_normalised(factor, shown):
    def attend(q, k, v):
        return (F.normalize(q, dim=-1) @ k.mT / factor).softmax(-1) @ v

    subject = subject_of(attend, {"q": "B L D", "k": "B L D", "v": "B L D"}, D=7)
    observed = [Observation(f"scores are scaled by {by} after the product of queries and keys") for by in shown]
    assert list(check_scale(subject)) == [*observed, Undecided(scale.TOPIC, NORMALISED)]


def relative(q, k, v, positions):
    return ((q @ k.mT + q @ positions) / math.sqrt(2 * k.shape[-1])).softmax(-1) @ v


def distant(q, k, v, positions):
    distances = (q[:, :, None] - k[:, None]).square().sum(-1)
    return ((q @ k.mT - distances) / math.sqrt(2 * k.shape[-1])).softmax(-1) @ v


@pytest.mark.parametrize("function", [relative, distant])
def test_scale_may_count_positions_and_distances(function):
    inputs = {"q": "B L D", "k": "B L D", "v": "B L D", "positions": "D L"}
    assert list(check_scale(subject_of(function, inputs, D=7))) == [Observation("scores are scaled by 1/sqrt(2*Dk)")]
