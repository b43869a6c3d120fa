"""Weights that are dropped twice, and parts of projections that nothing uses, are found in eval mode."""

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from attnshape.checks.rules import attention_weights, parameters, projections
from attnshape.checks.rules.protocol import Verification, Violation
from tests.checks.subjects import subject_of

X = {"x": "B L D"}


class Attention(nn.Module):
    def __init__(self, D, H, rate=0.1):
        super().__init__()
        self.heads, self.rate = H, rate
        self.q, self.k, self.v = nn.Linear(D, D), nn.Linear(D, D), nn.Linear(D, D)
        self.dropout = nn.Dropout(rate)

    def split(self, t):
        return t.view(*t.shape[:2], self.heads, -1).transpose(1, 2)

    def forward(self, x):
        q, k, v = map(self.split, (self.q(x), self.k(x), self.v(x)))
        return self.attend(q, k, v).transpose(1, 2).reshape(x.shape)

    def weights(self, q, k):
        return (q @ k.mT * q.shape[-1] ** -0.5).softmax(-1)

    def attend(self, q, k, v):
        return self.dropout(self.weights(q, k)) @ v


class DropsTwice(Attention):
    def attend(self, q, k, v):
        return F.dropout(self.dropout(self.weights(q, k)), self.rate, self.training) @ v


class DropsContextToo(Attention):
    def attend(self, q, k, v):
        return self.dropout(self.dropout(self.weights(q, k)) @ v)


class RenormalizesBetween(Attention):
    def attend(self, q, k, v):
        weights = self.dropout(self.weights(q, k))
        return F.dropout(weights / weights.sum(-1, keepdim=True), self.rate, self.training) @ v


class FirstKeyHead(Attention):
    def attend(self, q, k, v):
        return self.weights(q, k[:, :1]) @ v


class LastHeadsAreZero(Attention):
    def attend(self, q, k, v):
        context = self.weights(q, k) @ v
        context[:, self.heads // 2 :] = 0
        return context


class FirstFeatures(Attention):
    def attend(self, q, k, v):
        return self.weights(q, k) @ v * torch.tensor([1.0, *[0.0] * (v.shape[-1] - 1)], dtype=v.dtype)


class QueriesAreKeys(Attention):
    def attend(self, q, k, v):
        return self.weights(q, q) @ v


class KeysAreValues(Attention):
    def attend(self, q, k, v):
        return self.weights(q, k) @ k


def outcomes(rule, cls, args="D, H"):
    return list(rule.check(subject_of(cls, X, init=args)))


def found(rule, cls, args="D, H"):
    return [(one.code, one.message) for one in outcomes(rule, cls, args) if isinstance(one, Violation)]


def test_weights_are_dropped_twice():
    assert found(attention_weights, DropsTwice) == [("AS307", "the weights go through dropout twice")]


@pytest.mark.parametrize("cls", [Attention, DropsContextToo, RenormalizesBetween])
def test_one_dropout_of_the_weights_is_right(cls):
    assert found(attention_weights, cls) == []


def test_dropout_that_drops_nothing_does_not_count():
    assert found(attention_weights, DropsTwice, "D, H, 0.0") == []


@pytest.mark.parametrize(
    ("cls", "message"),
    [
        (FirstKeyHead, "of the features that k.weight computes has no effect on the result: nothing selects them"),
        (
            LastHeadsAreZero,
            "q.weight, k.weight and v.weight compute have no effect on the result: setitem replaces them",
        ),
    ],
)
def test_heads_that_are_not_used(cls, message):
    [(code, text)] = found(parameters, cls)
    assert code == "AS807"
    assert text.endswith(message)


@pytest.mark.parametrize(
    ("cls", "message"),
    [
        (QueriesAreKeys, "q.weight projects query and key alike, and k.weight is never used"),
        (KeysAreValues, "k.weight projects key and value alike, and v.weight is never used"),
    ],
)
def test_one_projection_in_two_roles(cls, message):
    assert found(projections, cls) == [("AS805", message)]


def test_right_attention_uses_each_projection():
    assert any(isinstance(one, Verification) for one in outcomes(projections, Attention))
    assert found(parameters, Attention) == []
