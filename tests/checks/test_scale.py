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


class Rows(nn.Module):
    """Rows of a map attend to rows: the channels and the columns together are the features."""

    def __init__(self, D, Dk):
        super().__init__()
        self.query, self.key, self.value = nn.Conv2d(D, Dk, 1), nn.Conv2d(D, Dk, 1), nn.Conv2d(D, D, 1)

    def forward(self, x):
        q, k, v = (conv(x).transpose(1, 2).flatten(2) for conv in (self.query, self.key, self.value))
        rows = (q @ k.mT).softmax(-1) @ v
        return rows.unflatten(-1, (x.shape[1], x.shape[3])).transpose(1, 2)


def test_factor_is_measured_where_scores_sum_over_channels_and_columns():
    subject = subject_of(Rows, {"x": "B D Y X"}, ("scale=1",), init="D, Dk", D=7, Dk=5, Y=4, X=3)
    assert [str(outcome) for outcome in check_scale(subject)] == [
        str(Verification("scores are scaled by 1, as claimed", ("scale",)))
    ]


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


def capped(q, k, v):
    return (5 * torch.tanh(q @ k.mT / 5) * q.shape[-1] ** -0.5).softmax(-1) @ v


def test_scale_after_a_cap_is_a_notice_without_a_claim():
    (found,) = check_scale(subject_of(capped, {"q": "B L D", "k": "B L D", "v": "B L D"}, D=7))
    assert isinstance(found, Violation)
    assert (found.code, found.level) == ("AS207", "notice")
    assert found.message.startswith("the scores are capped before they are scaled: the cap of 5 applies")


def test_scale_of_one_may_follow_a_cap():
    def attend(q, k, v):
        return (5 * torch.tanh(q @ k.mT / 5) / 3).softmax(-1) @ v

    found = check_scale(subject_of(attend, {"q": "B L D", "k": "B L D", "v": "B L D"}, D=7))
    assert not any(isinstance(one, Violation) and one.code == "AS207" for one in found)


class SpelledNorm(nn.Module):
    """A norm of queries and keys that is written by hand, with learned gains."""

    def __init__(self, D, power):
        super().__init__()
        self.qkv, self.gains = nn.Linear(D, 3 * D), nn.Parameter(torch.rand(2, D) + 0.5)
        self.power = power

    def normalised(self, x, gain):
        return x * torch.rsqrt(x.square().mean(-1, keepdim=True) + 1e-6) * gain

    def forward(self, x):
        q, k, v = self.qkv(x).chunk(3, -1)
        q, k = self.normalised(q, self.gains[0]), self.normalised(k, 1 + self.gains[1])
        return (q @ k.mT * q.shape[-1] ** self.power).softmax(-1) @ v


def test_claimed_scale_is_measured_behind_a_norm_that_is_spelled_out():
    def outcomes(power, *claims):
        return check_scale(subject_of(SpelledNorm, X, claims, init=f"D, {power}", D=7))

    verified = Verification("scores are scaled by 1/sqrt(Dk), as claimed", ("scale",))
    assert outcomes(-0.5, "scale=1/sqrt(Dk)") == [verified]
    (wrong,) = outcomes(-1.0, "scale=1/sqrt(Dk)")
    assert isinstance(wrong, Violation)
    assert wrong.code == "AS203"
    assert Undecided(scale.TOPIC, NORMALISED) in outcomes(-0.5)


class Sentences(nn.Module):
    """Questions and sentences are sums over the entries of their words; values have a table of their own."""

    def __init__(self, D, power, scaled_table=False):
        super().__init__()
        self.asked, self.read = nn.Embedding(13, D), nn.Embedding(13, D)
        self.power, self.scaled_table = power, scaled_table

    def forward(self, question, story):
        weights = torch.linspace(1, 0.5, story.shape[-1])[:, None]
        query, keys = self.asked(question).sum(-2), (self.asked(story) * weights).sum(-2)
        if self.scaled_table:
            query, keys = (self.asked(words[..., 0]) * self.read.embedding_dim**0.5 for words in (question, story))
        scores = keys @ query[..., None] * query.shape[-1] ** self.power
        return scores.softmax(-2).mT @ self.read(story).mean(-2)


def test_scale_is_measured_from_the_sum_over_words():
    def outcomes(*claims, **options):
        init = ", ".join(["D", *(f"{name}={value}" for name, value in options.items())])
        inputs = {"question": "int[13] B Lq", "story": "int[13] B Lk W"}
        return check_scale(subject_of(Sentences, inputs, claims, init=init, D=7))

    claimed = Verification("scores are scaled by 1, as claimed", ("scale",))
    assert outcomes("scale=1", power=0) == [claimed]
    assert outcomes(power=-0.5) == [Observation("scores are scaled by 1/sqrt(Dk)")]
    (wrong,) = outcomes("scale=1", power=-1)
    assert isinstance(wrong, Violation)
    assert wrong.code == "AS203"
    # the factor may be the table's scale
    assert all(not isinstance(one, Violation) for one in outcomes(power=-0.5, scaled_table=True))


class Terms(nn.Module):
    """Scores of content and of positions, both scaled by one learned temperature."""

    def __init__(self, D, again):
        super().__init__()
        self.tau, self.again = nn.Parameter(torch.tensor(1.3)), again

    def forward(self, q, k, v, positions):
        content, places = self.tau * (q @ k.mT), self.tau * (q @ positions.mT)
        scores = (content + places) * self.tau if self.again else content + places
        return scores.softmax(-1) @ v


@pytest.mark.parametrize("again", [False, True])
def test_a_temperature_scales_each_term_of_the_scores_once(again):
    inputs = dict.fromkeys(("q", "k", "v", "positions"), "B L D")
    found = check_scale(subject_of(Terms, inputs, init=f"D, again={again}", D=7))
    assert any(isinstance(one, Violation) and one.code == "AS203" for one in found) == again


class Faded(nn.Module):
    """A second attention gives less to the keys that the first one attended to, by a learned share."""

    def __init__(self, D):
        super().__init__()
        self.share = nn.Parameter(torch.tensor(0.7))

    def forward(self, q, k, v, before):
        weights = (q @ k.mT - self.share * (before @ k.mT)).softmax(-1)
        return torch.cat([weights @ v, (before @ k.mT - self.share * weights).softmax(-1) @ v], dim=-1)


def test_a_temperature_of_earlier_weights_does_not_scale_the_scores_again():
    inputs = dict.fromkeys(("q", "k", "v", "before"), "B L D")
    found = check_scale(subject_of(Faded, inputs, init="D", D=7))
    assert not any(isinstance(one, Violation) and one.code == "AS203" for one in found)


def parted(x, query, key):
    """Scores over Dk + R features, of which R are shared by all heads."""
    scores = torch.einsum("bqhd,bkd->bhqk", query, key) / query.shape[-1] ** 0.5
    return torch.einsum("bhqk,bkd->bqhd", scores.softmax(-1), x)


@pytest.mark.parametrize("power", [0.5, 1])
def test_a_width_that_the_target_names_is_no_width_of_the_product(power):
    inputs = {"x": "B L D", "query": "B L H Dk+R", "key": "B L Dk+R"}
    found = check_scale(subject_of(parted, inputs, (f"scale=1/(Dk+R)**{power}",), R=6, Dk=8, D=40, H=5))
    assert [type(one) for one in found] == [Verification if power == 0.5 else Violation]


def timed(q, k, v, at_q, at_k):
    """Scores of content in each head, and of times that all heads share."""
    scores = (q @ k.mT + (at_q @ at_k.mT).unsqueeze(1)) / (q.shape[-1] + at_q.shape[-1]) ** 0.5
    return scores.softmax(-1) @ v


def test_a_claimed_scale_is_undecided_where_that_of_one_product_can_not_be_told():
    inputs = {**dict.fromkeys("qkv", "B H L Dk"), **dict.fromkeys(("at_q", "at_k"), "B L R")}
    claims = ("scale=1/sqrt(Dk+R)",)
    found = check_scale(subject_of(timed, inputs, claims, R=3))
    assert [type(one) for one in found] == [Undecided]
    assert "one of the products" in found[0].reason
