"""Sizes that only count something, such as layers, are recognized and stay small, since each iteration takes time."""

import pytest

from attnshape.checks.interventions.small_sizes import small_sizes
from attnshape.inference.plan import Plan, held_out_sizes, large_sizes, mixed_sizes, reversed_sizes
from attnshape.inference.sampling import sample_and_solve
from attnshape.inference.small_runs import SmallRuns
from attnshape.inference.work import Growth, WorkEstimate
from attnshape.pipelines.target_runs import small_run
from attnshape.runtime.time_limit import TimeLimit
from attnshape.tracing.runner import build_and_record
from tests.checks.subjects import run_options, target_and_sizes

MODEL = """
import torch
from torch import nn


class Model(nn.Module):
    def __init__(self, width, layers, blocks=1):
        super().__init__()
        self.layers = nn.ModuleList([nn.Linear(width, width) for _ in range(layers)])
        self.blocks = blocks

    def forward(self, x):
        for layer in self.layers:
            x = x + layer(x)
        for _ in range(self.blocks):
            x = x.relu()
        return x


class Growing(Model):
    def __init__(self, width, layers):
        super().__init__(width, layers)
        self.table = nn.Parameter(torch.zeros(layers, width))


class Wide(nn.Module):
    def __init__(self, width, parts):
        super().__init__()
        self.parts = nn.ModuleList([nn.Linear(width, parts) for _ in range(parts)])

    def forward(self, x):
        return sum(part(x).sum() for part in self.parts)


class Even(Model):
    def __init__(self, width, layers):
        super().__init__(width, layers)
        if width % 2:
            raise ValueError("an odd width")
"""


@pytest.fixture
def samples_of(tmp_path):
    """Return a function that returns the samples of a class of MODEL, and the sizes of every run."""
    (tmp_path / "model.py").write_text(MODEL)

    def samples_of(name, init, **own):
        texts = tuple(f"{symbol}={size}" for symbol, size in own.items())
        target, sizes = target_and_sizes(f"{tmp_path}/model.py:{name}", {"x": "B D"}, init, given={"D": 16}, own=texts)
        limit, options, every = TimeLimit(), run_options("float32"), []

        def attempt(numbers):
            every.append(dict(numbers))
            return small_run(target, numbers, options, limit)

        runs = SmallRuns(attempt)
        actual = build_and_record(lambda: target.build(sizes.numbers, options), 0)
        samples, _ = sample_and_solve(runs, runs.with_powers(Plan(sizes)), actual, lambda samples: (None, False))
        return samples, every

    return samples_of


def test_number_of_layers_stays_small(samples_of):
    samples, every = samples_of("Model", "D, N", N=12)
    assert samples.complete
    assert samples.plan.counts == {"N"}
    assert max(numbers["N"] for numbers in every) <= 7
    assert {numbers["N"] for numbers, _ in samples.every} >= {2, 3, 5}


def test_two_counts_vary_independently(samples_of):
    samples, _ = samples_of("Model", "D, N, blocks=M", N=12, M=6)
    assert samples.plan.counts == {"N", "M"}
    pairs = {(numbers["N"], numbers["M"]) for numbers, _ in samples.every}
    assert len(pairs) >= 3
    assert all(n != m for n, m in pairs)


@pytest.mark.parametrize("name", ["Growing", "Wide"])
def test_size_of_an_axis_is_no_count(samples_of, name):
    samples, _ = samples_of(name, "D, N", N=12)
    assert samples.plan.counts == set()
    assert max(numbers["N"] for numbers, _ in samples.every) > 5


def test_count_is_found_where_the_first_look_fails(samples_of):
    samples, _ = samples_of("Even", "D, N", N=12)
    assert samples.plan.counts == {"N"}
    assert [str(constraint) for constraint in samples.plan.constraints] == ["D even"]


def test_every_choice_of_sizes_keeps_counts_small(samples_of):
    plan = samples_of("Model", "D, N", N=12)[0].plan
    for chosen in (*reversed_sizes(plan), *large_sizes(plan), *mixed_sizes(plan)):
        assert chosen["N"] in (2, 3, 4)
        assert chosen.keys() == set(plan.unknowns)
    used = [plan.numbers(round_) for round_ in range(4)]
    for numbers in held_out_sizes(plan, used):
        assert numbers["N"] == 4


def test_check_keeps_the_users_layers_unless_they_take_much_work(samples_of):
    plan = samples_of("Model", "D, N", N=12)[0].plan
    first, second, *_ = small_sizes(plan)
    assert first["N"] == second["N"] == 12
    assert first["D"] != second["D"]
    much = WorkEstimate((Growth(1e9, (("N", 1.0),)),))
    assert [numbers["N"] for numbers in small_sizes(plan, much)[:2]] == [2, 2]
