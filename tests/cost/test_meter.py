"""The meter records every block that a run allocates, without disturbing the run."""

import gc

import torch

from attnshape.cost.meter import Meter
from attnshape.tracing.raw import RawStep


def steps(count: int) -> list[RawStep]:
    return [RawStep("torch.add", None, [], [], None, order=order) for order in range(1, count + 1)]


def test_blocks_are_counted_between_the_steps_that_take_and_give_them_back():
    with Meter() as meter:
        held = torch.empty(100)
        meter.built([held, held[:50]], [])
        first = torch.empty(10, dtype=torch.float64)
        meter.stepped()
        del first
        second = torch.empty(3, dtype=torch.int8)
        meter.stepped()
        del held
    log = meter.log(steps(2))
    assert log is not None
    assert log.building == (400,)
    assert log.running == ((80,), (-80, 3), (-400,))
    assert log.inputs == (400,)
    assert second.numel() == 3


def test_what_a_step_took_that_is_no_longer_there_counts_to_the_next():
    with Meter() as meter:
        meter.built([], [])
        kept = []
        for count in (5, 10, 15):
            kept.append(torch.empty(count))
            meter.stepped()
    first, _, third = steps(3)
    composite = RawStep("torch.nn.functional.normalize", None, [], [], None)
    log = meter.log([first, composite, third])
    assert log is not None
    assert log.steps == (first, third)
    assert log.running == ((20,), (40, 60), ())


def test_hidden_copies_inside_a_kernel_are_seen():
    rows, others = torch.randn(2, 3, 50, 7).transpose(1, 2), torch.randn(2, 50, 7, 3)
    with Meter() as meter:
        meter.built([], [])
        rows @ others
    log = meter.log(steps(0))
    assert log is not None
    # matmul makes the transposed operand contiguous before it multiplies
    assert 2 * 3 * 50 * 7 * 4 in log.running[0]


def test_other_numbers_of_steps_than_marks_give_no_log():
    with Meter() as meter:
        meter.built([], [])
        meter.stepped()
    assert meter.log(steps(1)) is not None
    assert meter.log(steps(2)) is None


def test_a_target_that_was_never_built_gives_no_log():
    with Meter() as meter:
        torch.empty(3)
    assert meter.log(steps(0)) is None


def test_blocks_from_before_leave_nothing_on_standard_error(capfd):
    for _ in range(3):
        older = [torch.empty(5) for _ in range(4)]
        with Meter():
            older.clear()
    assert capfd.readouterr() == ("", "")


def test_where_a_profile_is_being_taken_nothing_is_measured():
    with Meter() as outer:
        with Meter() as inner:
            torch.empty(3)
            inner.built([], [])
        outer.built([], [])
    assert inner.log(steps(0)) is None
    assert outer.log(steps(0)) is not None


def test_garbage_is_collected_again_afterwards():
    assert gc.isenabled()
    with Meter():
        assert not gc.isenabled()
    assert gc.isenabled()
