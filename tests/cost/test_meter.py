"""The meter records every block that a run allocates, without disturbing the run."""

import gc

import torch

from attnshape.cost.meter import Meter
from attnshape.tracing.raw import RawStep


def steps(count: int) -> list[RawStep]:
    return [RawStep("torch.add", None, [], [], None, order=order) for order in range(1, count + 1)]


def test_blocks_are_counted_between_allocating_and_freeing_steps():
    with Meter() as meter:
        weight = torch.empty(100)
        meter.mark_built([weight, weight[:50]], [])
        first = torch.empty(10, dtype=torch.float64)
        meter.mark_step()
        del first
        second = torch.empty(3, dtype=torch.int8)
        meter.mark_step()
        del weight
    log = meter.log(steps(2))
    assert log is not None
    assert log.building == (400,)
    assert log.running == ((80,), (-80, 3), (-400,))
    assert log.inputs == (400,)
    assert second.numel() == 3


def test_allocations_of_a_missing_step_count_towards_the_next():
    with Meter() as meter:
        meter.mark_built([], [])
        blocks = []
        for count in (5, 10, 15):
            blocks.append(torch.empty(count))
            meter.mark_step()
    first, _, third = steps(3)
    composite = RawStep("torch.nn.functional.normalize", None, [], [], None)
    log = meter.log([first, composite, third])
    assert log is not None
    assert log.steps == (first, third)
    assert log.running == ((20,), (40, 60), ())


def test_copies_inside_a_kernel_are_counted():
    rows, others = torch.randn(2, 3, 50, 7).transpose(1, 2), torch.randn(2, 50, 7, 3)
    with Meter() as meter:
        meter.mark_built([], [])
        rows @ others
    log = meter.log(steps(0))
    assert log is not None
    # matmul makes the transposed operand contiguous before it multiplies
    assert 2 * 3 * 50 * 7 * 4 in log.running[0]


def test_mismatched_step_count_gives_no_log():
    with Meter() as meter:
        meter.mark_built([], [])
        meter.mark_step()
    assert meter.log(steps(1)) is not None
    assert meter.log(steps(2)) is None


def test_target_that_was_never_built_gives_no_log():
    with Meter() as meter:
        torch.empty(3)
    assert meter.log(steps(0)) is None


def test_earlier_blocks_print_nothing_to_stderr(capfd):
    for _ in range(3):
        older = [torch.empty(5) for _ in range(4)]
        with Meter():
            older.clear()
    assert capfd.readouterr() == ("", "")


def test_nested_meter_measures_nothing():
    with Meter() as outer:
        with Meter() as inner:
            torch.empty(3)
            inner.mark_built([], [])
        outer.mark_built([], [])
    assert inner.log(steps(0)) is None
    assert outer.log(steps(0)) is not None


def test_garbage_collection_is_enabled_again():
    assert gc.isenabled()
    with Meter():
        assert not gc.isenabled()
    assert gc.isenabled()
