"""Small runs stay small: the largest tensor bounds their sizes, and the number of steps bounds their number."""

import math
import time
from collections.abc import Mapping
from types import SimpleNamespace

import pytest

from attnshape.dims.sizes import resolve
from attnshape.inference import small_runs
from attnshape.inference.plan import Multiple, Plan, large_sizes, mixed_sizes, reversed_sizes
from attnshape.inference.sampling import Sampler
from attnshape.inference.small_runs import SmallRuns
from attnshape.tracing.raw import RawFailure, RawStep, RawTrace

GROUPED = ("B", "H", "Hkv", "G", "Lp", "L", "D", "Dk")


def plan(letters=GROUPED, **given):
    return Plan(resolve(set(letters), given))


def test_square_weight_is_taken_into_account():
    chosen = plan()
    numbers = dict.fromkeys(chosen.unknowns, 2) | {"Dk": 3}
    width = chosen.at(numbers)["D"]
    assert width == 12
    assert chosen.elements(numbers) == width**2


def test_largest_tensor_is_taken_into_account():
    chosen = Plan(plan(("B", "L")).sizes, powers={"B": 1, "L": 3})
    assert chosen.elements({"B": 2, "L": 5}) == 2 * 5**3


@pytest.mark.parametrize("letters", [GROUPED, ("B", "H", "L", "D", "Dk", "W"), ("B", "L"), ("B", "L", "W", "Lp", "Lq")])
@pytest.mark.parametrize("choose", [reversed_sizes, large_sizes, mixed_sizes])
def test_validation_sizes_exist_and_are_within_bounds(letters, choose):
    chosen = plan(letters)
    numbers = list(choose(chosen))
    assert numbers
    assert all(chosen.elements(first_symbol) <= 10**6 for first_symbol in numbers)


def test_validation_sizes_stay_small_without_measured_powers():
    """For example a module of width 2*H*Dk that fails at its first call."""
    chosen = plan(("B", "H", "L", "Dk"))
    assert max(size for sizes in large_sizes(chosen) for size in sizes.values()) < 30
    known = Plan(chosen.sizes, powers={"B": 1, "L": 1, "H": 0, "Dk": 0})
    assert max(size for sizes in large_sizes(known) for size in sizes.values()) > 100


def test_multiples_of_multiples_find_smaller_validation_sizes():
    chosen = Plan(plan().sizes, (Multiple("L", 2, "Lp"),), powers={"B": 1, "L": 2})
    assert len(list(mixed_sizes(chosen))) >= 4


def test_tensor_that_is_largest_only_at_validation_sizes():
    def shapes(numbers: Mapping[str, int]) -> list[tuple[int, ...]]:
        """Return the shapes of an image with many channels, and of attention between all its pixels."""
        pixels = numbers["Lq"] * numbers["Lk"]
        return [(numbers["B"], 8 * numbers["D"], pixels), (numbers["B"], pixels, pixels)]

    def attempt(numbers: Mapping[str, int]) -> RawTrace:
        outputs = [
            SimpleNamespace(tensor=SimpleNamespace(shape=shape, elements=math.prod(shape), kind="new"))
            for shape in shapes(numbers)
        ]
        return RawTrace([], [RawStep("f", None, [], outputs, None)], [])  # type: ignore[arg-type]

    weighed = SmallRuns(attempt).with_measured_powers(plan(("B", "D", "Lq", "Lk")))
    found = [weighed.at(chosen) for choose in (reversed_sizes, large_sizes, mixed_sizes) for chosen in choose(weighed)]
    assert len(found) >= 6
    assert max(math.prod(shape) for numbers in found for shape in shapes(numbers)) <= 8 * 10**6


def run_of(count):
    """Return a run of this many distinct steps."""
    return RawTrace([], [RawStep(str(place), None, [], [], None) for place in range(count)], [])


def test_number_of_steps_bounds_the_attempts(monkeypatch):
    monkeypatch.setattr(small_runs, "_MOST_STEPS", 5000)
    runs: list[Mapping[str, int]] = []

    def attempt(numbers: Mapping[str, int]) -> RawTrace:
        runs.append(numbers)
        return run_of(900 + len(runs))  # another number of steps each time

    found = Sampler(SmallRuns(attempt)).sample(plan(("B", "L", "H", "D")), run_of(800))
    assert not found.complete
    assert 5 <= len(runs) <= 12


@pytest.mark.parametrize(("slow_runs", "cut_short"), [(1, False), (2, True)])
def test_a_failure_that_took_long_is_repeated(slow_runs: int, cut_short: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(small_runs, "_LONG", 0.05)
    started = []

    def attempt(numbers: Mapping[str, int]) -> RawTrace:
        started.append(numbers)
        if len(started) <= slow_runs:
            time.sleep(0.1)
        return RawTrace([], [], [], RawFailure(ValueError("odd")))

    runs = SmallRuns(attempt)
    assert runs.fails({"L": 3}) != cut_short
    assert runs.cut_short == cut_short
    assert len(started) == 2
