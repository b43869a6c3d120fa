"""The work of runs is counted without a clock, estimated at other sizes, and limited."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Mapping

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional

from attnshape.dims.sizes import resolve
from attnshape.inference.plan import Plan
from attnshape.inference.sampling import sample_and_solve
from attnshape.inference.small_runs import Samples, SmallRuns
from attnshape.inference.work import ELEMENT, INITIALIZED, RUN, STEP, WorkBudget, WorkGrowth, count_work
from attnshape.options.spec import RunOptions, TargetSpec
from attnshape.pipelines.trace import trace_request
from attnshape.tracing.raw import RawTrace
from attnshape.tracing.runner import Runnable, record


def work_of(function: Callable[..., object], *inputs: Tensor) -> int:
    """Return the work of a call without that of its inputs and of the run itself."""
    built = INITIALIZED * sum(tensor.numel() for tensor in inputs)
    return count_work(record(Runnable(function, inputs), seed=0)) - RUN - built


def multiply_adds(rows: int, columns: int, inner: int) -> int:
    return sum(1 for _ in itertools.product(range(rows), range(columns), range(inner)))


@pytest.mark.parametrize(
    "product",
    [
        lambda x, y: x @ y,
        lambda x, y: torch.matmul(x, y),
        lambda x, y: torch.mm(x, y),
        lambda x, y: torch.einsum("ij,jk->ik", x, y),
        lambda x, y: functional.linear(x, y.T.contiguous().clone()),
    ],
)
def test_products_count_their_multiply_adds(product):
    work = work_of(product, torch.ones(3, 5), torch.ones(5, 7))
    steps = record(Runnable(product, (torch.ones(3, 5), torch.ones(5, 7))), seed=0).steps
    written = sum(math.prod(o.tensor.shape) for step in steps for o in step.outputs if o.tensor.kind == "new")
    assert work == STEP * len(steps) + ELEMENT * written + multiply_adds(3, 7, 5)


def test_batched_products_count_each_batch_element():
    work = work_of(lambda q, k: q @ k.mT, torch.ones(2, 3, 5, 7), torch.ones(2, 3, 11, 7))
    assert work == 2 * STEP + ELEMENT * 2 * 3 * 5 * 11 + 2 * 3 * multiply_adds(5, 11, 7)


def test_convolutions_count_their_kernel():
    work = work_of(functional.conv2d, torch.ones(2, 3, 6, 7), torch.ones(5, 3, 3, 3))
    positions = 2 * 5 * 4 * 5
    assert work == STEP + ELEMENT * positions + positions * 3 * 3 * 3


def test_fused_attention_counts_scores_and_context():
    q, k, v = torch.ones(2, 3, 5, 7), torch.ones(2, 3, 11, 7), torch.ones(2, 3, 11, 13)
    work = work_of(functional.scaled_dot_product_attention, q, k, v)
    products = 2 * 3 * (multiply_adds(5, 11, 7) + multiply_adds(5, 13, 11))
    assert work == STEP + ELEMENT * 2 * 3 * 5 * 13 + products


def test_views_take_a_step_and_no_elements():
    assert work_of(lambda x: x.mT.unsqueeze(0), torch.ones(100, 100)) == 2 * STEP


def test_elements_that_are_written_count_not_the_whole_tensor():
    def write_rows(x: Tensor, rows: Tensor) -> Tensor:
        x[:2] = rows
        return x

    assert work_of(write_rows, torch.ones(1000, 3), torch.ones(2, 3)) < 4 * STEP + ELEMENT * 1000


def test_each_iteration_of_a_loop_counts():
    def loop(x: Tensor) -> Tensor:
        for row in range(x.shape[0]):
            x = x + row
        return x

    assert work_of(loop, torch.ones(9, 2)) == 9 * (STEP + ELEMENT * 9 * 2)


def test_parameters_count_as_initialized():
    module = nn.Linear(30, 20)
    work = count_work(record(Runnable(module, (torch.ones(2, 30),)), seed=0))
    assert work - RUN >= INITIALIZED * (30 * 20 + 20 + 2 * 30)


def wide(numbers: Mapping[str, int]) -> RawTrace:
    width = numbers["H"] * numbers["Dk"] ** 3
    return RawTrace([], [], [], parameters={"weight": (width, width), "bias": (width,)})


def test_growth_is_learned_from_two_runs():
    growth = WorkGrowth()
    for sizes in ({"B": 2, "H": 3, "Dk": 5}, {"B": 3, "H": 5, "Dk": 7}):
        growth.learn(wide(sizes), sizes, count_work(wide(sizes)))
    other = {"B": 11, "H": 8, "Dk": 16}
    assert growth.estimate is not None
    assert growth.estimate.at(other) == pytest.approx(count_work(wide(other)), rel=0.01)


def test_growth_of_products_is_learned():
    def run(sizes: Mapping[str, int]) -> RawTrace:
        x = torch.ones(sizes["B"], sizes["L"], 1000 * sizes["D"])
        return record(Runnable(lambda x: x @ x.mT @ x, (x,)), seed=0)

    growth = WorkGrowth()
    for sizes in ({"B": 2, "L": 11, "D": 5}, {"B": 3, "L": 13, "D": 7}):
        growth.learn(run(sizes), sizes, count_work(run(sizes)))
    other = {"B": 4, "L": 100, "D": 9}
    assert growth.estimate is not None
    assert growth.estimate.at(other) == pytest.approx(count_work(run(other)), rel=0.1)
    assert growth.estimate.elements_at(other) == pytest.approx(4 * 100 * (100 + 9000), rel=0.3)


@pytest.mark.parametrize("smallest", [(0, 5, 7), (5, 0, 7), (0, 0, 7)])
def test_sizes_of_0_teach_nothing(smallest):
    """`C = D//32` is 0 where D is small."""
    growth = WorkGrowth()
    for place, size in enumerate(smallest):
        sizes = {"H": 3 + place, "Dk": 5 + 2 * place, "C": size}
        growth.learn(wide(sizes), sizes, count_work(wide(sizes)))
    other = {"H": 8, "Dk": 16, "C": 3}
    assert growth.estimate is not None
    assert math.isfinite(growth.estimate.at(other))


def test_constants_that_sizes_divide_do_not_grow():
    growth = WorkGrowth()
    vocabulary = RawTrace([], [], [], parameters={"embedding": (50_000, 512)})
    for sizes in ({"B": 2, "L": 5}, {"B": 5, "L": 7}):
        growth.learn(vocabulary, sizes, count_work(vocabulary))
    assert growth.estimate is not None
    assert growth.estimate.at({"B": 10, "L": 100}) == pytest.approx(count_work(vocabulary))


def test_sums_of_sizes_are_fitted():
    def run(sizes: Mapping[str, int]) -> RawTrace:
        return RawTrace([], [], [], parameters={"table": ((sizes["L"] * sizes["W"] ** 2 + 1) * 10**5,)})

    growth = WorkGrowth()
    rising = [{"L": 3 + step, "W": 5 + 2 * step % 7} for step in range(6)]
    for sizes in rising:
        growth.learn(run(sizes), sizes, count_work(run(sizes)))
    other = {"L": 12, "W": 20}
    assert growth.estimate is not None
    assert 0.4 < growth.estimate.at(other) / count_work(run(other)) < 2.5


def sampled(attempt: Callable[[Mapping[str, int]], RawTrace], *symbols: str) -> tuple[Samples, SmallRuns, list[int]]:
    work: list[int] = []

    def counted(numbers: Mapping[str, int]) -> RawTrace:
        run = attempt(numbers)
        work.append(count_work(run))
        return run

    sizes = resolve(set(symbols), {"B": 1, "H": 2, "Dk": 4})
    runs = SmallRuns(counted)
    plan = runs.with_powers(Plan(sizes))
    samples, _ = sample_and_solve(runs, plan, attempt(sizes.numbers), lambda samples: (None, False))
    return samples, runs, work


def test_runs_of_wide_modules_stay_within_the_budget():
    samples, runs, work = sampled(wide, "B", "H", "L", "Dk")
    naive = [count_work(wide(Plan(samples.plan.sizes).numbers(round_))) for round_ in range(3)]
    assert sum(naive) > 500 * count_work(wide(samples.plan.sizes.numbers))
    assert sum(naive) > runs.budget.total
    assert samples.complete
    assert sum(work) <= runs.budget.total
    assert samples.left_out
    assert len(samples.runs) >= 3


def test_runs_that_are_too_expensive_at_any_size_are_left_out():
    def huge(numbers: Mapping[str, int]) -> RawTrace:
        return RawTrace([], [], [], parameters={"weight": (10**5 * numbers["B"], 10**5)})

    samples, _, work = sampled(lambda n: huge(n) if n["B"] > 1 else wide(n), "B", "H", "L", "Dk")
    assert not samples.complete
    assert samples.left_out
    assert len(work) <= 1


def test_budget_grows_with_the_users_run():
    budget = WorkBudget()
    least = budget.total
    budget.allow_for(RawTrace([], [], [], parameters={"small": (3,)}))
    assert budget.total == least
    large = RawTrace([], [], [], parameters={"large": (10**10,)})
    budget.allow_for(large)
    assert budget.total == 10 * count_work(large)


def test_trace_says_how_many_sizes_were_left_out(tmp_path):
    path = tmp_path / "wide.py"
    path.write_text(
        "import torch\n\n\nclass Wide(torch.nn.Module):\n    def __init__(self, width):\n        super().__init__()\n"
        "        self.weight = torch.nn.Parameter(torch.empty(width, width))\n\n"
        "    def forward(self, x):\n        return x.flatten(1).chunk(3, 1)[0]\n\n\n"
        "def wide(B: int, H: int, L: int, Dk: int):\n"
        "    return Wide(H * Dk**3), (torch.ones(B, L, H * Dk),)\n"
    )
    trace = trace_request(TargetSpec(f"{path}:wide", sizes={"B": 1, "H": 2, "L": 4, "Dk": 4}), RunOptions())
    assert [note for note in trace.notes if "sets of sizes were left out" in note]
    assert trace.held_out.sizes
    assert trace.verified_at >= 4


def test_runs_to_observe_are_a_part_of_the_budget():
    def run_of(elements: int) -> RawTrace:
        return RawTrace([], [], [], parameters={"weight": (elements,)})

    runs = tuple(run_of(elements) for elements in (2 * 10**8, 10**3, 2 * 10**8, 10**4))
    samples = Samples(Plan(resolve({"B", "L"}, {})), run_of(1), runs)
    every = [numbers for numbers, _ in samples.every]
    assert samples.cheap_sizes(4) == [every[0], every[1], every[3]]
    assert samples.cheap_sizes(10**9) == every[:1]
