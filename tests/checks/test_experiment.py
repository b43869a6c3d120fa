"""The runs of an experiment are identical except for the intervention."""

import gc
import time
import weakref

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from attnshape.checks.interventions.experiment import Budget, Intervention, OutOfTimeError
from attnshape.checks.interventions.replay import OutputRef
from tests.checks.subjects import experiment_of, named

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


def test_runs_are_reproducible():
    experiment = experiment_of(Layer, X, "D, 0.5", train=True)
    first, second = experiment.run(), experiment.run()
    assert same(first, second)
    assert same(first, experiment.base)
    assert first.inputs.keys() == {"x"}
    assert torch.equal(first.inputs["x"], experiment.base.inputs["x"])
    assert experiment.training


def test_seed_affects_only_the_call():
    experiment = experiment_of(Layer, X, "D, 0.5", train=True)
    other = experiment.run(Intervention(seed=1))
    assert other.follows(experiment.base)
    assert not same(other, experiment.base)
    assert torch.equal(other.inputs["x"], experiment.base.inputs["x"])
    assert all(torch.equal(other.state[name], value) for name, value in experiment.base.state.items())


def test_intervention_on_an_input():
    experiment = experiment_of(Layer, X, "D")
    run = experiment.run(Intervention(inputs={"x": zeros}))
    assert run.inputs["x"].eq(0).all()
    assert named(run, "linear").operand_values[0].eq(0).all()
    assert experiment.base.inputs["x"].ne(0).all()
    assert same(experiment.run(), experiment.base)


def test_tensor_passed_as_input_is_not_modified():
    tensor = torch.randn(2, 3, dtype=torch.float64)
    original = tensor.clone()

    def function(x):
        return x.mul_(2)

    experiment = experiment_of(function, values={"x": tensor})
    run = experiment.run(Intervention(inputs={"x": zeros}))
    assert run.returned[0][1].eq(0).all()
    assert torch.equal(experiment.run().returned[0][1], 2 * original)
    assert torch.equal(tensor, original)


def test_intervention_on_a_parameter_and_a_buffer():
    experiment = experiment_of(Layer, X, "D")
    run = experiment.run(Intervention(parameters={"proj.weight": zeros, "zeros": lambda t: t + 1}))
    weight, bias = (run.state[f"proj.{name}"] for name in ("weight", "bias"))
    assert weight.eq(0).all()
    assert run.state["zeros"].eq(1).all()
    assert torch.equal(named(run, "linear").values[0], bias.expand_as(run.inputs["x"]))
    assert same(experiment.run(), experiment.base)


def test_intervention_on_a_result():
    experiment = experiment_of(Layer, X, "D")
    run = experiment.run(Intervention(results={OutputRef(named(experiment.base, "linear").order): zeros}))
    assert named(run, "mul").values[0].eq(0).all()
    assert run.follows(experiment.base)
    assert not run.returned[0][1].eq(0).any()


def test_buffer_named_like_an_input_is_qualified():
    class Twice(nn.Module):
        def __init__(self, D):
            super().__init__()
            self.register_buffer("x", torch.ones(D))

        def forward(self, x):
            return x * self.x

    experiment = experiment_of(Twice, X, "D")
    assert experiment.base.inputs.keys() == {"x"}
    assert experiment.base.state.keys() == {"self.x"}
    run = experiment.run(Intervention(parameters={"self.x": zeros}))
    assert run.returned[0][1].eq(0).all()


def test_float32_only_target_runs_in_float32():
    def function(x):
        return x + torch.zeros(3, 3).mm(torch.zeros(3, 3, dtype=torch.float32)).sum()

    def strict(x):
        assert x.dtype == torch.float32
        return x * 2

    assert experiment_of(function, X).dtype == torch.float64
    experiment = experiment_of(strict, X)
    assert experiment.base.error is None
    assert experiment.dtype == torch.float32
    assert experiment.tolerance > 1e-6


def test_target_that_is_nan_in_float64_only_runs_in_float32():
    def overflowing(x, mask):
        return x + (1 - mask.float()) * torch.finfo(x.dtype).min

    def never(x):
        return x / 0 * 0

    experiment = experiment_of(overflowing, X, values={"mask": torch.ones(3, dtype=torch.bool)})
    assert (experiment.dtype, experiment.base.has_nan) == (torch.float32, False)
    experiment = experiment_of(never, X)
    assert (experiment.dtype, experiment.base.has_nan) == (torch.float64, True)


def test_first_run_that_fills_a_table_is_repeated():
    table = {}

    def remembered(x):
        if x.shape not in table:
            table[x.shape] = torch.arange(x.shape[-1]) * 2
        return x * table[x.shape]

    experiment = experiment_of(remembered, X)
    assert len(experiment.base.events) == 3
    experiment.repeat_if_remembered()
    assert len(experiment.base.events) == 1
    assert experiment.run().follows(experiment.base)
    before = experiment.budget.runs
    experiment.repeat_if_remembered()
    assert experiment.budget.runs == before


def test_float32_results_have_a_larger_tolerance():
    def casting(x):
        return x.float().softmax(-1).to(x.dtype) * x

    assert experiment_of(casting, X).tolerance > experiment_of(lambda x: x.softmax(-1), X).tolerance


def test_failure_is_part_of_the_run():
    def failing(x):
        doubled = x * 2
        if doubled.sum() == 0:
            raise ValueError("zeros")
        return doubled

    experiment = experiment_of(failing, X)
    assert experiment.base.error is None
    run = experiment.run(Intervention(inputs={"x": zeros}))
    assert isinstance(run.error, ValueError)
    assert [event.name for event in run.events] == ["mul", "sum", "eq"]
    assert not run.follows(experiment.base)
    assert not run.returned


def test_failing_constructor_gives_a_run_without_calls():
    class Unbuilt(nn.Module):
        def __init__(self, D):
            raise RuntimeError("not today")

    run = experiment_of(Unbuilt, X, "D").base
    assert "not today" in str(run.error)
    assert not run.events


def test_run_with_other_steps_does_not_follow():
    def branching(x):
        return x.relu() if x.sum() != 0 else x.tanh()

    experiment = experiment_of(branching, X)
    assert not experiment.run(Intervention(inputs={"x": zeros})).follows(experiment.base)
    assert experiment.run().follows(experiment.base)


def test_returned_tensors_are_named_by_path():
    def function(x):
        return {"out": x * 2, "rest": [x + 1, None, (x.sum(),)]}

    paths = [path for path, _ in experiment_of(function, X).base.returned]
    assert len(paths) == len(set(paths)) == 3
    assert all(path.startswith("output") for path in paths)


def test_budget_counts_and_ends_runs():
    budget = Budget(60.0)
    experiment = experiment_of(lambda x: F.relu(x), X, budget=budget)
    runs_before = budget.runs
    experiment.run()
    experiment.call_twice()
    assert budget.runs == runs_before + 2
    assert experiment.steps
    assert budget.runs == runs_before + 3
    budget.started = time.monotonic() - 61
    for method in (experiment.run, experiment.call_twice):
        with pytest.raises(OutOfTimeError):
            method()
    assert budget.runs == runs_before + 3


def test_process_state_is_restored():
    torch.manual_seed(5)
    state = torch.get_rng_state()

    def function(x):
        torch.set_default_dtype(torch.float16)
        return x * torch.rand(())

    experiment = experiment_of(function, X)
    experiment.run()
    assert torch.get_default_dtype() == torch.float32
    assert torch.equal(torch.get_rng_state(), state)


def from_used_memory(x):
    used = [torch.full((64,), 7.0) for _ in range(8)]
    del used
    return x.sum() + x.new_empty(64)


def test_unwritten_memory_is_the_same_in_every_run():
    experiment = experiment_of(from_used_memory, X)
    allocated = [event for event in experiment.base.events if event.name == "new_empty"]
    assert [event.values[0].eq(0).all() for event in allocated] == [True]
    assert same(experiment.run(), experiment.base)


def test_runs_take_no_memory_once_nothing_needs_them():
    experiment = experiment_of(Layer, X, "D")
    gc.collect()
    gc.disable()
    try:
        for change in (Intervention(), Intervention(inputs={"x": zeros})):
            run = weakref.ref(experiment.run(change))
            assert run() is None
    finally:
        gc.enable()
