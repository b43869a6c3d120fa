"""A bench's runs are alike but for what is changed in them, and what hides everything behind it is given numbers."""

import time

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from attnshape.replaying.bench import Budget, Change, OutOfTimeError
from attnshape.replaying.replay import Address
from tests.checks.subjects import bench_of, named

X = {"x": "B L D"}


def zeros(value):
    return torch.zeros_like(value)


def same(run, other):
    values, others = ([value for event in one.events for value in event.values] for one in (run, other))
    return run.follows(other) and all(map(torch.equal, values, others))


class Layer(nn.Module):
    def __init__(self, D, dropout=0.0):
        super().__init__()
        self.proj = nn.Linear(D, D)
        self.gate = nn.Parameter(torch.ones(D))
        self.register_buffer("zeros", torch.zeros(D))
        self.dropout = nn.Dropout(dropout)

    def forward(self, x):
        return self.dropout(self.proj(x)) * self.gate + self.zeros + 1


def test_runs_are_the_same_again():
    bench = bench_of(Layer, X, "D, 0.5", train=True)
    first, second = bench.run(), bench.run()
    assert same(first, second)
    assert same(first, bench.base)
    assert first.inputs.keys() == {"x"}
    assert torch.equal(first.inputs["x"], bench.base.inputs["x"])
    assert bench.training


def test_another_seed_is_that_of_the_call_only():
    bench = bench_of(Layer, X, "D, 0.5", train=True)
    other = bench.run(Change(seed=1))
    assert other.follows(bench.base)
    assert not same(other, bench.base)
    assert torch.equal(other.inputs["x"], bench.base.inputs["x"])
    assert all(torch.equal(other.state[name], value) for name, value in bench.base.state.items())


def test_an_input_is_changed():
    bench = bench_of(Layer, X, "D")
    run = bench.run(Change(inputs={"x": zeros}))
    assert run.inputs["x"].eq(0).all()
    assert named(run, "linear").given[0].eq(0).all()
    assert bench.base.inputs["x"].ne(0).all()
    assert same(bench.run(), bench.base)


def test_an_input_given_as_a_tensor_is_not_changed_itself():
    given = torch.randn(2, 3, dtype=torch.float64)
    kept = given.clone()

    def function(x):
        return x.mul_(2)

    bench = bench_of(function, values={"x": given})
    run = bench.run(Change(inputs={"x": zeros}))
    assert run.returned[0][1].eq(0).all()
    assert torch.equal(bench.run().returned[0][1], 2 * kept)
    assert torch.equal(given, kept)


def test_a_parameter_and_a_buffer_are_changed():
    bench = bench_of(Layer, X, "D")
    run = bench.run(Change(parameters={"proj.weight": zeros, "zeros": lambda t: t + 1}))
    weight, bias = (run.state[f"proj.{name}"] for name in ("weight", "bias"))
    assert weight.eq(0).all()
    assert run.state["zeros"].eq(1).all()
    assert torch.equal(named(run, "linear").values[0], bias.expand_as(run.inputs["x"]))
    assert same(bench.run(), bench.base)


def test_a_result_is_changed():
    bench = bench_of(Layer, X, "D")
    run = bench.run(Change(results={Address(named(bench.base, "linear").order): zeros}))
    assert named(run, "mul").values[0].eq(0).all()
    assert run.follows(bench.base)
    assert not run.returned[0][1].eq(0).any()


def test_names_that_inputs_have_go_before_those_of_buffers():
    class Twice(nn.Module):
        def __init__(self, D):
            super().__init__()
            self.register_buffer("x", torch.ones(D))

        def forward(self, x):
            return x * self.x

    bench = bench_of(Twice, X, "D")
    assert bench.base.inputs.keys() == {"x"}
    assert bench.base.state.keys() == {"self.x"}
    run = bench.run(Change(parameters={"self.x": zeros}))
    assert run.returned[0][1].eq(0).all()


def test_what_takes_float32_only_is_run_in_it():
    def function(x):
        return x + torch.zeros(3, 3).mm(torch.zeros(3, 3, dtype=torch.float32)).sum()

    def strict(x):
        assert x.dtype == torch.float32
        return x * 2

    assert bench_of(function, X).dtype == torch.float64
    bench = bench_of(strict, X)
    assert bench.base.error is None
    assert bench.dtype == torch.float32
    assert bench.tolerance > 1e-6


def test_numbers_in_float32_have_its_tolerance():
    def casting(x):
        return x.float().softmax(-1).to(x.dtype) * x

    assert bench_of(casting, X).tolerance > bench_of(lambda x: x.softmax(-1), X).tolerance


def test_a_failure_is_part_of_the_run():
    def failing(x):
        doubled = x * 2
        if doubled.sum() == 0:
            raise ValueError("zeros")
        return doubled

    bench = bench_of(failing, X)
    assert bench.base.error is None
    run = bench.run(Change(inputs={"x": zeros}))
    assert isinstance(run.error, ValueError)
    assert [event.name for event in run.events] == ["mul", "sum", "__eq__"]
    assert not run.follows(bench.base)
    assert not run.returned


def test_a_constructor_that_fails_is_a_run_without_calls():
    class Unbuilt(nn.Module):
        def __init__(self, D):
            raise RuntimeError("not today")

    run = bench_of(Unbuilt, X, "D").base
    assert "not today" in str(run.error)
    assert not run.events


def test_a_run_that_takes_other_steps_does_not_follow():
    def branching(x):
        return x.relu() if x.sum() != 0 else x.tanh()

    bench = bench_of(branching, X)
    assert not bench.run(Change(inputs={"x": zeros})).follows(bench.base)
    assert bench.run().follows(bench.base)


def test_what_the_target_returned_goes_by_its_path():
    def function(x):
        return {"out": x * 2, "rest": [x + 1, None, (x.sum(),)]}

    paths = [path for path, _ in bench_of(function, X).base.returned]
    assert len(paths) == len(set(paths)) == 3
    assert all(path.startswith("output") for path in paths)


def test_the_budget_counts_runs_and_ends_them():
    budget = Budget(60.0)
    bench = bench_of(lambda x: F.relu(x), X, budget=budget)
    made = budget.runs
    bench.run()
    bench.calls()
    assert budget.runs == made + 2
    assert bench.steps
    assert budget.runs == made + 3
    budget.started = time.monotonic() - 61
    for more in (bench.run, bench.calls):
        with pytest.raises(OutOfTimeError):
            more()
    assert budget.runs == made + 3


def test_no_state_of_the_process_is_left():
    torch.manual_seed(5)
    state = torch.get_rng_state()

    def function(x):
        torch.set_default_dtype(torch.float16)
        return x * torch.rand(())

    bench = bench_of(function, X)
    bench.run()
    assert torch.get_default_dtype() == torch.float32
    assert torch.equal(torch.get_rng_state(), state)
