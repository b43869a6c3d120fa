"""What becomes of results: which are kept, through which gradients flow, and where the others end."""

import pytest
import torch
from torch import nn

from attnshape.checks.attention.dead_ends import dead_ends, live_results
from attnshape.checks.interventions.replay import OutputRef
from attnshape.checks.interventions.uses import gradients, kept_results
from tests.checks.subjects import experiment_of, subject_of

X = {"x": "B L D"}


class Uses(nn.Module):
    """Returns one result, holds one in an attribute, reads one as a number, and drops one."""

    def forward(self, x):
        self.held = x + 1
        number = x.mean().item()
        dropped = x * 2
        return dropped.size(0) + x - number


def test_results_are_kept_that_something_holds_or_reads():
    experiment = experiment_of(Uses, X, "")
    names = {event.order: event.name for event in experiment.base.events}
    kept = [names[ref.order] for ref in sorted(kept_results(experiment))]
    assert kept == ["add", "mean", "sub"]


class Layer(nn.Module):
    def __init__(self, D):
        super().__init__()
        self.used, self.cut, self.frozen = (nn.Linear(D, D, bias=False) for _ in range(3))
        self.frozen.requires_grad_(False)

    def forward(self, x):
        return self.frozen(self.used(x)) + self.cut(x).detach()


def test_gradients_are_those_of_trainable_parameters():
    found = gradients(experiment_of(Layer, X, "D"), ())
    assert list(found.by_name) == ["used.weight", "cut.weight"]
    assert found.by_name["cut.weight"] is None
    assert found.by_name["used.weight"] is not None
    assert OutputRef(1) in found.differentiable


class WithoutAutograd(Layer):
    @torch.no_grad()
    def forward(self, x):
        return super().forward(x)


class FailsWithAutograd(Layer):
    def forward(self, x):
        self.used.weight.add_(0)
        return super().forward(x)


def test_there_may_be_no_gradients():
    without = gradients(experiment_of(WithoutAutograd, X, "D"), ())
    assert not without.by_name
    assert not without.failure
    failing = gradients(experiment_of(FailsWithAutograd, X, "D"), ())
    assert "in-place" in failing.failure


def discarded(x):
    x.tanh()
    return x + 1


def overwritten(x):
    y = x.tanh()
    y = x + 1
    return y.exp()


def unread(x):
    _y = inner(x)
    return x + 1


def inner(x):
    y = x
    for _ in range(2):
        y = y.tanh()
    return y


def unpacked(x):
    y, z = outer(x)
    y, z = x, x + 1
    return y + z


def outer(x):
    return x.tanh(), x.sin()


def generated(x):
    y, z = (t.tanh() for t in (x, x + 1))
    z = x + 2
    return y + z


@pytest.mark.parametrize(
    ("function", "fate", "line", "variable"),
    [
        (discarded, "discarded", 1, ""),
        (overwritten, "overwritten", 1, "y"),
        (unread, "unread", 1, "_y"),
        (unpacked, "overwritten", 1, "y"),
        (generated, "overwritten", 1, "z"),
    ],
)
def test_dead_end_is_the_statement_that_drops_a_result(function, fate, line, variable):
    end = dead_ends(subject_of(function, X))[0]
    assert (end.fate, end.variable, end.is_leftover) == (fate, variable, False)
    assert end.place is not None
    assert end.place.line == function.__code__.co_firstlineno + line


def last_state(x):
    out = state = x
    for _ in range(3):
        out = out + state
        state = state.tanh()
    return out


def one_of_two(x):
    y, _ = outer(x)
    return y


@pytest.mark.parametrize("function", [last_state, one_of_two])
def test_leftovers_come_along_with_what_is_used(function):
    (end,) = dead_ends(subject_of(function, X))
    assert end.is_leftover


def checked_and_written(x):
    y = x * 2
    if bool((x + 1).isfinite().all()):
        y[:, 0] = x[:, 0].tanh()
    return y


def test_what_is_written_or_read_as_a_number_is_live():
    subject = subject_of(checked_and_written, X)
    assert dead_ends(subject) == []
    assert {event.refs[0] for event in subject.base.events if event.name == "tanh"} <= live_results(subject)
