"""The factor with which queries read a state, where no softmax shows it."""

import pytest
import torch
import torch.nn.functional as F

from attnshape.checks.rules import scale
from attnshape.checks.rules.protocol import Observation, Undecided
from tests.checks.subjects import subject_of

HEADS = {"q": "B H L Dk", "k": "B H L Dk", "v": "B H L Dv"}
CLAIM = "scale=1/sqrt(Dk)"
SCALED = Observation(
    "what queries read from the sums of keys and values is scaled by 1/sqrt(Dk), as claimed", None, ("scale",)
)


def recurrent(q, k, v):
    state = q.new_zeros(*q.shape[:2], q.shape[-1], v.shape[-1])
    read = []
    for t in range(q.shape[2]):
        state = state + k[:, :, t, :, None] * v[:, :, t, None]
        read.append((q[:, :, t, None] @ state).squeeze(-2))
    return torch.stack(read, 2)


def scaled_queries(q, k, v):
    return recurrent(q * q.shape[-1] ** -0.5, k, v)


def scaled_results(q, k, v):
    q, k = F.elu(q) + 1, F.elu(k) + 1
    return torch.einsum("bhld,bhde->bhle", q, torch.einsum("bhld,bhle->bhde", k, v)) / q.shape[-1] ** 0.5


def delta_rule(q, k, v):
    state, q = torch.zeros(*q.shape[:2], q.shape[-1], v.shape[-1]), q * q.shape[-1] ** -0.5
    read = torch.zeros_like(v)
    for t in range(q.shape[2]):
        key = k[:, :, t, :, None]
        state = state + key * (v[:, :, t] - (state * key).sum(-2))[:, :, None]
        read[:, :, t] = (state * q[:, :, t, :, None]).sum(-2)
    return read


def scaled_twice(q, k, v):
    return scaled_queries(q, k * k.shape[-1] ** -0.5, v)


def gated_queries(q, k, v):
    return recurrent(q * k.sigmoid() * q.shape[-1] ** -0.5, k, v)


@pytest.mark.parametrize("function", [scaled_queries, scaled_results, delta_rule])
def test_claimed_factor_is_verified(function):
    assert list(scale.check(subject_of(function, HEADS, (CLAIM,)))) == [SCALED]


@pytest.mark.parametrize("function", [recurrent, scaled_twice, gated_queries])
def test_another_factor_is_undecided(function):
    (found,) = scale.check(subject_of(function, HEADS, (CLAIM,)))
    assert isinstance(found, Undecided)
    assert found.claims == ("scale",)
