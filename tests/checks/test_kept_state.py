"""State that a module keeps between calls: by mistake, or until a method of its own begins a new sequence."""

import pytest
from torch import Tensor, nn

from attnshape.checks.rules import state
from attnshape.checks.rules.protocol import Violation
from tests.checks.subjects import subject_of


class Remembering(nn.Module):
    """The keys of a memory are projected in the first call."""

    def __init__(self) -> None:
        super().__init__()
        self.to_q, self.to_k = nn.Linear(14, 14), nn.Linear(14, 14)
        self.keys: Tensor | None = None

    def reset_parameters(self) -> None:
        self.to_q.reset_parameters()

    def forward(self, query: Tensor, memory: Tensor) -> Tensor:
        if self.keys is None:
            self.keys = self.to_k(memory)
        weights = (self.to_q(query) @ self.keys.mT / 14**0.5).softmax(dim=-1)
        return weights @ memory


class WithReset(Remembering):
    def reset(self) -> None:
        self.keys = None


class Decoder(nn.Module):
    def __init__(self, attention: Remembering) -> None:
        super().__init__()
        self.attention = attention

    def forward(self, query: Tensor, memory: Tensor) -> Tensor:
        result: Tensor = self.attention(query, memory)
        return result


@pytest.mark.parametrize(
    "module, level",
    [
        (Remembering(), "error"),
        (WithReset(), "notice"),
        (Decoder(Remembering()), "error"),
        (Decoder(WithReset()), "notice"),
    ],
)
def test_state_that_a_method_resets_is_a_notice(module: nn.Module, level: str) -> None:
    subject = subject_of(module, {"query": "B Lq D", "memory": "B Lk D"}, B=5, Lq=7, Lk=11, D=14)
    (found,) = (one for one in state.check(subject) if isinstance(one, Violation))
    assert (found.code, found.level) == ("AS902", level)
    assert ("WithReset.reset() is called" in found.hint) == (level == "notice")
