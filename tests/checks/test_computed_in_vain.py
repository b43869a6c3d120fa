"""What the rules on parameters and unused results report beyond their mutants, and what they leave alone."""

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from attnshape.checks.rules import parameters, unused_inputs, unused_results
from attnshape.checks.rules.protocol import Undecided, Verification, Violation
from tests.checks.subjects import subject_of

X = {"x": "B L D"}
VERIFIED = "every parameter that is read gets a gradient, and changes the result"


class Layer(nn.Module):
    """A module in which subclasses use the parameters."""

    def __init__(self, D):
        super().__init__()
        self.used, self.other = nn.Linear(D, D, bias=False), nn.Linear(D, D)
        self.norm_q, self.norm_k = nn.LayerNorm(D), nn.LayerNorm(D)
        self.scale = nn.Parameter(torch.ones(()))

    def forward(self, x):
        return self.norm_k(self.norm_q(self.other(self.used(x)))) * self.scale


class OnlyUsed(Layer):
    def forward(self, x):
        return self.used(x)


class OneNormTwice(Layer):
    def forward(self, x):
        q = self.norm_q(self.other(self.used(x)))
        k = self.norm_q(x)
        return (q + k) * self.scale


class ReadAsNumber(Layer):
    def forward(self, x):
        return super().forward(x) * self.scale.item()


class Frozen(Layer):
    def __init__(self, D):
        super().__init__(D)
        self.other.requires_grad_(False)

    def forward(self, x):
        return super().forward(x).detach() + self.used(x) * self.scale + self.norm_k(self.norm_q(x))


class LastStateDropped(Layer):
    def forward(self, x):
        out = x
        for layer in (self.used, self.other):
            out = out + x
            x = layer(x)
        return out * self.scale + self.norm_k(self.norm_q(out))


def outcomes(rule, module):
    return list(rule.check(subject_of(module, X, init="D")))


def violations(rule, module):
    found = [outcome for outcome in outcomes(rule, module) if isinstance(outcome, Violation)]
    return [(violation.level, violation.message) for violation in found]


def test_what_nothing_reads_is_one_notice():
    message = "scale, other (2 parameters) and 2 others have no effect on the result"
    assert violations(parameters, OnlyUsed) == [("notice", f"{message}: nothing reads them")]


def test_sibling_that_is_used_twice_makes_it_an_error():
    found = violations(parameters, OneNormTwice)
    assert found[0] == ("error", "norm_q.weight is used twice, and norm_k.weight never")


def test_last_state_of_a_loop_is_a_notice():
    found = violations(parameters, LastStateDropped)
    assert found == [("notice", "other (2 parameters) has no effect on the result")]
    assert violations(unused_results, LastStateDropped) == []


@pytest.mark.parametrize("module", [Layer, ReadAsNumber])
def test_parameters_in_use_are_verified(module):
    assert outcomes(parameters, module) == [Verification(VERIFIED)]


def test_frozen_parameters_need_no_gradient():
    assert violations(parameters, Frozen) == []


def test_a_failure_with_autograd_is_undecided():
    class Fails(Layer):
        def forward(self, x):
            hidden = self.used(x).exp()
            result = super().forward(hidden)
            hidden.add_(1)
            return result + hidden.sum()

    (undecided,) = [outcome for outcome in outcomes(parameters, Fails) if isinstance(outcome, Undecided)]
    assert "modified by an inplace operation" in undecided.reason


def drops_dropout(x):
    F.dropout(x, 0.5, training=False)
    return x.tanh()


class Prompted(Layer):
    """Reads a prompt for its keys and values alone, then attends to them with a mean."""

    def __init__(self, D):
        super().__init__(D)
        self.cache = []

    def attend(self, x):
        self.cache.append((self.used(x), self.norm_k(self.other(x))))
        k, v = (torch.cat(parts, 1) for parts in zip(*self.cache, strict=True))
        return (self.norm_q(x) * self.scale @ k.mT).softmax(-1) @ v

    def forward(self, x):
        self.cache = []
        self.attend(x)
        return self.attend(x.mean(1, keepdim=True))


class NothingOfThePrompt(Prompted):
    def forward(self, x):
        self.cache = []
        self.attend(x)
        self.cache = []
        return self.attend(x.mean(1, keepdim=True))


def keeps_nothing_of_a_name(x):
    _mean = x.mean(-1)
    return x.tanh()


def logs(x):
    print(f"{x.mean():.2f}")
    (x + 1).tolist()
    return x.tanh()


def writes(x):
    out = x.tanh()
    out.add_(1)
    torch.add(x, 1, out=out)
    return out


@pytest.mark.parametrize(
    ("function", "expected"),
    [
        (drops_dropout, [("error", "the result of F.dropout(x, 0.5, training=False) is discarded")]),
        (keeps_nothing_of_a_name, [("notice", "_mean is computed and has no effect on the result")]),
        (logs, []),
        (writes, []),
    ],
)
def test_statements_that_discard(function, expected):
    found = [outcome for outcome in unused_results.check(subject_of(function, X)) if isinstance(outcome, Violation)]
    assert [(one.level, one.message.partition(":")[0].partition(", and")[0]) for one in found] == expected


@pytest.mark.parametrize(("module", "found"), [(Prompted, []), (NothingOfThePrompt, ["AS809"])])
def test_a_call_that_fills_a_cache_is_not_in_vain(module, found):
    subject = subject_of(module, X, init="D")
    assert [one.code for one in unused_results.check(subject) if isinstance(one, Violation)] == found
    assert not [one for one in unused_inputs.check(subject) if isinstance(one, Violation)]
