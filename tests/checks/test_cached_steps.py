"""A token after a cache, and the same token together with those before it: when they are compared, and when not."""

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from attnshape.checks.rules import rotations
from attnshape.checks.rules.caches.steps import step_by_step
from attnshape.checks.rules.protocol import Outcome, Verification, Violation
from tests.checks.subjects import subject_of
from tests.mutants.pairs.as908 import RightRotary, turn

INPUTS = {"x": "B L H*Dk", "past_k": "B H Lp Dk", "past_v": "B H Lp Dk"}
SIZES = {"B": 5, "H": 7, "L": 11, "Lp": 13, "Dk": 6}


class Decoder(RightRotary):
    def place(self, past: int, n: int) -> torch.Tensor:
        return torch.arange(past, past + n) if n > 1 else torch.zeros(1)


class WithOffset(Decoder):
    """The caller says where the tokens begin."""

    def forward(self, x, past_k, past_v, start=0):  # type: ignore[no-untyped-def]
        return super().forward(x, past_k, past_v)


class WithPositions(Decoder):
    """The caller may give the positions."""

    def forward(self, x, past_k, past_v, positions=None):  # type: ignore[no-untyped-def]
        return super().forward(x, past_k, past_v)


class Bidirectional(Decoder):
    """New tokens see each other, so that results change with those that come later."""

    def keep(self, q: torch.Tensor, k: torch.Tensor) -> torch.Tensor:
        return torch.ones(q.shape[2], k.shape[2], dtype=torch.bool)


class LastTokens(nn.Module):
    """Only the last tokens stay in the cache."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.inner = Decoder(width, heads)

    def forward(self, x, past_k, past_v):  # type: ignore[no-untyped-def]
        out, k, v = self.inner(x, past_k, past_v)
        return out, k[:, :, -past_k.shape[2] :], v[:, :, -past_v.shape[2] :]


def outcomes(module: nn.Module) -> list[Outcome]:
    return list(step_by_step(subject_of(module, INPUTS, **SIZES)))


def test_step_that_differs_is_found_and_one_that_agrees_verified() -> None:
    assert [type(one) for one in outcomes(Decoder(42, 7))] == [Violation]
    assert [type(one) for one in outcomes(RightRotary(42, 7))] == [Verification]


@pytest.mark.parametrize("kind", [WithOffset, WithPositions, Bidirectional, LastTokens])
def test_nothing_is_said_where_the_call_may_mean_something_else(kind: type[nn.Module]) -> None:
    assert outcomes(kind(42, 7)) == []


def test_one_new_token_says_nothing_of_rotations() -> None:
    class OneToken(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.qkv = nn.Linear(42, 126)

        def forward(self, x: torch.Tensor, past_k: torch.Tensor, past_v: torch.Tensor) -> torch.Tensor:
            q, k, v = (t.unflatten(-1, (7, -1)).transpose(1, 2) for t in self.qkv(x).chunk(3, -1))
            place = torch.tensor([past_k.shape[2]])
            k, v = torch.cat((past_k, turn(k, place)), 2), torch.cat((past_v, v), 2)
            return F.scaled_dot_product_attention(turn(q, place), k, v)

    sizes = {"B": 5, "H": 7, "Lp": 13, "Dk": 6}
    subject = subject_of(OneToken(), {**INPUTS, "x": "B 1 H*Dk"}, ("rope=half",), **sizes)
    assert [one for one in rotations.check(subject) if isinstance(one, Violation)] == []
