"""The state of an experiment's runs: the same for each run, without zeros that hide mistakes, kept by a second call."""

import torch
from torch import nn

from tests.checks.subjects import experiment_of

X = {"x": "B L D"}


class Unfilled(nn.Module):
    def __init__(self, D):
        super().__init__()
        self.gate = nn.Parameter(torch.zeros(D))
        self.unfilled = nn.Parameter(torch.full((D,), torch.nan))
        self.wild = nn.Parameter(torch.full((D,), -1e30))
        self.register_buffer("zeros", torch.zeros(D))
        self.register_buffer("lost", torch.full((D,), torch.nan))
        self.register_buffer("count", torch.zeros((), dtype=torch.long))

    def forward(self, x):
        return x * self.gate + self.unfilled + self.wild + self.zeros + self.lost + self.count


class Cache(nn.Module):
    def __init__(self, D):
        super().__init__()
        self.proj = nn.Linear(D, D)
        self.register_buffer("seen", torch.zeros(()))
        self.kept = None

    def forward(self, x):
        self.seen += 1
        before = self.kept if self.kept is not None and self.kept.shape == x.shape else torch.zeros_like(x)
        self.kept = self.proj(x)
        x.mul_(2)
        return self.kept + before


def test_zero_and_uninitialised_parameters_get_random_values():
    state = experiment_of(Unfilled, X, "D").base.state
    assert state["gate"].ne(0).all()
    assert state["unfilled"].std() > 0
    assert state["wild"].std() > 0
    assert torch.isfinite(state["lost"]).all()
    assert state["zeros"].eq(0).all()
    assert state["count"].eq(0).all()
    assert max(state[name].abs().max() for name in ("gate", "unfilled", "wild", "lost")) < 3


def test_other_parameters_are_unchanged():
    class Plain(nn.Module):
        def __init__(self, D):
            super().__init__()
            self.ones = nn.Parameter(torch.ones(D))
            self.one_zero = nn.Parameter(torch.cat([torch.zeros(1), torch.ones(D - 1)]))
            self.infinite = nn.Buffer(torch.ones(D, D).triu(1).masked_fill(torch.ones(D, D).triu(1) > 0, -torch.inf))

        def forward(self, x):
            return (x * self.ones + self.one_zero) @ self.infinite.exp()

    state = experiment_of(Plain, X, "D").base.state
    assert state["ones"].eq(1).all()
    assert state["one_zero"][0] == 0
    assert torch.isinf(state["infinite"]).any()


def test_state_is_drawn_once_for_every_build():
    class Drawn(nn.Module):
        made = 0

        def __init__(self, D):
            super().__init__()
            Drawn.made += 1
            self.weight = nn.Parameter(torch.full((D,), float(Drawn.made)))

        def forward(self, x):
            return x * self.weight

    experiment = experiment_of(Drawn, X, "D")
    assert all(experiment.run().state["weight"].eq(experiment.base.state["weight"]).all() for _ in range(3))
    assert Drawn.made >= 4


def test_state_before_and_after_is_separate():
    experiment = experiment_of(Cache, X, "D")
    run = experiment.base
    assert torch.equal(run.inputs_after["x"], 2 * run.inputs["x"])
    assert run.state["seen"] == 0
    assert run.state_after["seen"] == 1
    assert experiment.run().state["seen"] == 0


def test_second_call_sees_the_state_of_the_first():
    experiment = experiment_of(Cache, X, "D")
    first, second = experiment.call_twice()
    assert torch.equal(first.inputs["x"], second.inputs["x"])
    assert second.state["seen"] == 1
    assert torch.allclose(second.returned[0][1], 2 * first.returned[0][1])


def test_call_at_other_sizes_in_between():
    experiment = experiment_of(Cache, X, "D")
    other = {**experiment.numbers, "L": experiment.numbers["L"] + 2}
    first, second = experiment.call_twice(other)
    assert second.state["seen"] == 2
    assert torch.equal(second.returned[0][1], first.returned[0][1])


def test_call_twice_is_none_if_a_call_fails():
    class Once(Cache):
        def forward(self, x):
            assert self.kept is None
            return super().forward(x)

    assert experiment_of(Once, X, "D").call_twice() is None
