"""Gradients of inputs through attention, gradients that aren't finite, and right code that detaches on purpose."""

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from attnshape.checks.rules import numbers, parameters
from attnshape.checks.rules.protocol import Verification, Violation
from tests.checks.subjects import subject_of

X = {"x": "B L D"}
MEMORY = {"x": "B Lq D", "memory": "B Lk D"}


class Attention(nn.Module):
    def __init__(self, D):
        super().__init__()
        self.q, self.k, self.v, self.out = (nn.Linear(D, D) for _ in range(4))

    def attend(self, x, memory):
        q, k, v = self.q(x), self.k(memory), self.v(memory)
        return self.out((q @ k.mT * q.shape[-1] ** -0.5).softmax(-1) @ v)

    def forward(self, x):
        return x + self.attend(x, x)


class Detached(Attention):
    def forward(self, x):
        return x + self.attend(x.detach(), x.detach())


class ImplicitSlots(Attention):
    """The last of several steps alone is differentiated, as if the slots had converged."""

    def forward(self, x, memory):
        slots = x + self.attend(x, memory)
        slots = slots.detach()
        return slots + self.attend(slots, memory)


class AuxiliaryHead(Attention):
    """The auxiliary result trains its own parameters only."""

    def forward(self, x):
        return x + self.v(x), self.attend(x.detach(), x.detach())


class Proposals(Attention):
    """The queries are tokens of an earlier stage, which their own loss trains."""

    def forward(self, x, memory):
        found = (memory[:, : x.shape[1] - 2] @ self.out.weight).detach()
        found = found + self.attend(found, found)
        return found + self.attend(found, memory), memory.mean(1) + x.mean(1)


class Straight(Attention):
    """Rounds queries, with the gradient of what was rounded."""

    def forward(self, x):
        rounded = x + (x.round() - x).detach()
        return x + self.attend(rounded, rounded)


class Momentum(Attention):
    """The keys and values are those of a teacher, which no gradient reaches."""

    def forward(self, x):
        q = self.q(x)
        with torch.no_grad():
            k, v = self.k(x), self.v(x)
        return x + F.scaled_dot_product_attention(q, k, v)


def cut(kind, inputs):
    outcomes = parameters.check(subject_of(kind, inputs, init="D", D=6))
    found = [outcome for outcome in outcomes if isinstance(outcome, Violation) and outcome.code == "AS808"]
    return [violation.message for violation in found if "attention" in violation.message]


def test_attention_without_gradient_beside_a_residual_with_one() -> None:
    assert cut(Detached, X) == ["no gradient passes through this attention to x: detach stops it"]


@pytest.mark.parametrize(
    ("kind", "inputs"),
    [
        (Attention, X),
        (ImplicitSlots, MEMORY),
        (AuxiliaryHead, X),
        (Proposals, MEMORY),
        (Straight, X),
        (Momentum, X),
    ],
)
def test_detached_on_purpose(kind, inputs) -> None:
    assert cut(kind, inputs) == []


class Masked(nn.Module):
    def forward(self, q, k, v, keep):
        scores = q @ k.mT * q.shape[-1] ** -0.5 + torch.where(keep, 0.0, -torch.inf)
        return scores.softmax(-1).nan_to_num(0.0) @ v


class Distances(nn.Module):
    """The distance of a token from itself is 0, where the square root has an infinite slope."""

    def __init__(self, D):
        super().__init__()
        self.to_qk = nn.Linear(D, 2 * D)

    def forward(self, x):
        q, k = self.to_qk(x).chunk(2, dim=-1)
        squares = (x[:, :, None] - x[:, None]).square().sum(-1)
        return ((q @ k.mT * q.shape[-1] ** -0.5) - squares.sqrt()).softmax(-1) @ x


def found_in(subject):
    return [outcome for outcome in numbers.check(subject) if isinstance(outcome, Violation | Verification)]


QKV = {"q": "B L Dk", "k": "B L Dk", "v": "B L Dk"}
KEEP = {"keep": torch.ones(5, 1, 11, dtype=torch.bool)}


@pytest.mark.parametrize(
    ("claims", "level"), [(("keep=keep", "zero-masked-rows"), "error"), (("keep=keep",), "notice")]
)
def test_masks_that_hide_every_key(claims, level) -> None:
    outcomes = found_in(subject_of(Masked(), QKV, values=KEEP, claims=claims))
    found = [outcome for outcome in outcomes if isinstance(outcome, Violation)]
    assert [(violation.code, violation.level) for violation in found] == [("AS309", level)]
    assert "where no query has a visible key: softmax gives numbers that aren't finite" in found[0].message


def test_without_a_claimed_mask_no_keys_are_hidden() -> None:
    outcomes = found_in(subject_of(Masked(), QKV, values=KEEP))
    assert "every gradient is finite" in [outcome.text for outcome in outcomes if isinstance(outcome, Verification)]
    assert not [outcome for outcome in outcomes if isinstance(outcome, Violation)]


def test_infinite_slope() -> None:
    found = [outcome for outcome in found_in(subject_of(Distances, X, init="D", D=6)) if isinstance(outcome, Violation)]
    assert [violation.message for violation in found] == [
        "the gradient of x isn't finite, although every result is: sqrt makes them"
    ]
