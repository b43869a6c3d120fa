"""Counts the work of a run from its recording, and estimates that of a run at other sizes, without a clock.

The unit is one multiply-add of a matrix product; everything else counts as about so many as take the same time.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace

from attnshape.model.trace import Reference
from attnshape.tracing.operations import (
    CONVOLUTIONS,
    ELEMENT_WRITES,
    FUSED_ATTENTION,
    MATMULS,
    PRODUCTS,
    base_name,
)
from attnshape.tracing.raw import RawStep, RawTrace

ELEMENT = 8
"""The work of an element that a step writes."""
INITIALIZED = 64
"""The work of an element of a parameter or buffer: most are random numbers."""
STEP = 1_000_000
"""The work of a step however small its tensors are: calls from Python, and their recording."""
RUN = 20_000_000
"""The work of building a target and of calling it, however small it is."""

LEAST_BUDGET = 6 * 10**10
"""The work that extra runs may always take: about two seconds."""
_PLAIN_RUNS = 10
"""How many times the work of the user's own run the extra runs together may take."""
_OF_ALL, _OF_WHAT_IS_LEFT = 4, 3
"""The parts of the budget, and of what is left of it, that one run should take at most: one divided by these."""
_HELD_BACK = 8
"""The part of the budget that is kept for the run at the sizes held out."""
_PASSES = 20
"""How often the fit goes over all runs."""
_MOST_FITTED = 8
"""How many of the last runs are fitted."""

Shape = tuple[int, ...]


def count_work(run: RawTrace) -> int:
    """Return the work of a run: of building the target, of its steps, and of their products."""
    steps = zip(_iterations(run), _work_of_steps(run), strict=True)
    return (
        RUN
        + INITIALIZED * sum(_built(run))
        + sum(times * (STEP + ELEMENT * elements + products) for times, (elements, products) in steps)
    )


def _iterations(run: RawTrace) -> list[int]:
    """Return how often each step ran, which is more than once in a loop of which one iteration is left."""
    iterations = [1] * len(run.steps)
    for loop in run.loops:
        iterations[loop.begin : loop.end] = [loop.count] * (loop.end - loop.begin)
    return iterations


def _built(run: RawTrace) -> Iterator[int]:
    """Yield the elements of each tensor that exists before the first step."""
    yield from (math.prod(_sizes(shape)) for shape in run.parameters.values())
    yield from (tensor.elements for _, tensor in run.inputs)


def _sizes(shape: Shape) -> Shape:
    """Return a shape in which an axis without a single size counts as empty."""
    return tuple(max(size, 0) for size in shape)


def _work_of_steps(run: RawTrace) -> Iterator[tuple[int, int]]:
    """Yield how many elements each step writes, and the multiply-adds of its product."""
    inputs = {name: tensor.shape for name, tensor in run.inputs}

    def shape_of(reference: Reference) -> Shape:
        if reference.step is not None:
            step = run.steps[reference.step - 1]
            return _sizes(step.outputs[reference.output].tensor.shape) if reference.output < len(step.outputs) else ()
        return _sizes(inputs.get(reference.input or "") or run.parameters.get(reference.parameter or "") or ())

    return (_work_of_step(step, shape_of) for step in run.steps)


def _work_of_step(step: RawStep, shape_of: Callable[[Reference], Shape]) -> tuple[int, int]:
    if step.composite is not None and step.opaque is None:
        return 0, 0  # its inner steps are counted
    written = [_sizes(output.tensor.shape) for output in step.outputs if output.tensor.kind in ("new", "inplace")]
    name = base_name(step.operation)
    if name in ELEMENT_WRITES:  # the result is the whole tensor, of which a part was written
        written = [shape_of(operand) for operand in step.operands[1:2]]
    elements = sum(map(math.prod, written))
    if not step.outputs or name not in PRODUCTS | CONVOLUTIONS | FUSED_ATTENTION:
        return elements, 0
    operands = [shape_of(operand) for operand in step.operands]
    return elements, _multiply_adds(name, operands, _sizes(step.outputs[0].tensor.shape))


def _multiply_adds(name: str, operands: list[Shape], result: Shape) -> int:
    """Return the multiply-adds of a product from the shapes of its operands and of its result."""
    if name in MATMULS and operands and operands[0]:
        return math.prod(result) * operands[0][-1]
    if name in CONVOLUTIONS and len(operands) > 1:
        return math.prod(result) * math.prod(operands[1][1:])
    if name in FUSED_ATTENTION and len(operands) > 1 and len(operands[1]) > 1:
        return (math.prod(operands[0]) + math.prod(result)) * operands[1][-2]
    # every axis of a product is one of its operands'; at sizes that differ its size tells which are the same
    axes: Counter[int] = Counter()
    for shape in (*operands, result):
        axes |= Counter(shape)
    return math.prod(axes.elements())


@dataclass(frozen=True)
class Growth:
    """How a number grows with the sizes: a factor times a power of each."""

    factor: float
    powers: tuple[tuple[str, float], ...]

    def at(self, numbers: Mapping[str, int]) -> float:
        """Return the number at these sizes; a size that isn't known counts as 1."""
        return math.prod((float(numbers.get(name, 1)) ** power for name, power in self.powers), start=self.factor)


def powers_in(count: int, numbers: Mapping[str, int]) -> dict[str, int]:
    """Return how often the sizes divide a number, the largest size first.

    >>> powers_in(2 * 5 * 7 * 7, {"B": 5, "L": 7})
    {'L': 2, 'B': 1}
    """
    powers: dict[str, int] = {}
    for name, size in sorted(numbers.items(), key=lambda item: -item[1]):
        while size > 1 and count and count % size == 0:
            count //= size
            powers[name] = powers.get(name, 0) + 1
    return powers


@dataclass(frozen=True)
class WorkEstimate:
    """How the work of a run grows with the sizes."""

    parts: tuple[Growth, ...]
    """What the products, steps and parameters of one run grow with."""
    fit: Mapping[str, float] = field(default_factory=dict)
    """The powers that the other runs show beyond these."""
    written: tuple[Growth, ...] = ()
    """What the elements that the steps of one run write grow with."""

    def at(self, numbers: Mapping[str, int]) -> float:
        """Return the work of a run at these sizes."""
        beyond = Growth(1.0, tuple(self.fit.items()))
        return RUN + sum(part.at(numbers) for part in self.parts) * beyond.at(numbers)

    def elements_at(self, numbers: Mapping[str, int]) -> float:
        """Return how many elements the steps of a run write at these sizes."""
        return sum(part.at(numbers) for part in self.written)


Part = tuple[int, object]
"""What a part of the work counts for each time, and what it is: a step in the source, or a parameter."""


def parts_of(run: RawTrace) -> dict[Part, int]:
    """Return how much of each part of the work there is in a run."""
    parts: Counter[Part] = Counter()
    for step, times, (elements, products) in zip(run.steps, _iterations(run), _work_of_steps(run), strict=True):
        parts[STEP, step.key] += times
        parts[ELEMENT, step.key] += times * elements
        parts[1, step.key] += times * products
    for place, elements in enumerate(_built(run)):
        parts[INITIALIZED, place] = elements
    return {part: count for part, count in parts.items() if count}


@dataclass(frozen=True)
class Measured:
    """The parts of one run's work, at its sizes."""

    numbers: Mapping[str, int]
    parts: Mapping[Part, int]


def estimate_of(one: Measured, other: Measured | None = None) -> WorkEstimate:
    """Return the estimate that one run gives, or two; sums of sizes count as constants in it.

    A size that divides a number in one run may divide a constant; in both runs it is a factor, unless the number is
    the same.
    """
    parts: dict[tuple[tuple[str, int], ...], float] = {}
    written: dict[tuple[tuple[str, int], ...], float] = {}
    for part, count in one.parts.items():
        powers = powers_in(count, one.numbers)
        if other is not None and part in other.parts:
            common = powers_in(other.parts[part], other.numbers)
            constant = count == other.parts[part]
            powers = {name: 0 if constant else min(power, common.get(name, 0)) for name, power in powers.items()}
        factor = count / math.prod(one.numbers[name] ** power for name, power in powers.items())
        key = tuple(sorted(powers.items()))
        parts[key] = parts.get(key, 0.0) + part[0] * factor
        if part[0] == ELEMENT:
            written[key] = written.get(key, 0.0) + factor
    every, elements = (tuple(Growth(factor, powers) for powers, factor in some.items()) for some in (parts, written))
    return WorkEstimate(every, written=elements)


def fit(estimate: WorkEstimate, runs: list[tuple[Mapping[str, int], int]]) -> WorkEstimate:
    """Return the estimate with the smallest further powers with which it gives the work of all these runs.

    The first run is the one that the estimate is from. Kaczmarz's method finds the solution nearest to no correction.
    """
    (first, _), *others = runs
    equations = []
    for numbers, work in others:
        if not all((*numbers.values(), *first.values())):
            continue  # where a symbol like D//32 is 0, the work says nothing about powers
        row = {name: math.log(numbers[name] / first[name]) for name in first if numbers[name] != first[name]}
        expected = estimate.at(numbers) - RUN
        if row and work > RUN and expected > 0:
            equations.append((row, math.log((work - RUN) / expected), sum(value**2 for value in row.values())))
    powers: dict[str, float] = {}
    for row, observed, norm in equations * _PASSES:
        error = observed - sum(powers.get(name, 0.0) * value for name, value in row.items())
        for name, value in row.items():
            powers[name] = powers.get(name, 0.0) + error * value / norm
    scale = math.prod(float(first[name]) ** -power for name, power in powers.items())
    parts = tuple(replace(part, factor=part.factor * scale) for part in estimate.parts)
    return replace(estimate, parts=parts, fit=powers)


class WorkGrowth:
    """Learns from each run how the work grows with the sizes."""

    def __init__(self) -> None:
        self._steps = 0
        self._measured: list[Measured] = []
        """The run from which the estimate is, and the one before."""
        self._runs: list[tuple[Mapping[str, int], int]] = []
        self.counts: frozenset[str] = frozenset()
        """The sizes that only count something, which stay small: what they divide tells nothing."""
        self.estimate: WorkEstimate | None = None
        """The estimate from the runs so far; None before the first."""

    def learn(self, run: RawTrace, numbers: Mapping[str, int], work: int) -> None:
        """Take a run at these sizes into account, unless it took fewer different steps than others."""
        # the modules, which are part of the keys, may be as many as a size says
        steps = len({(step.operation, step.location) for step in run.steps})
        if steps < self._steps or work <= RUN:
            return
        if steps > self._steps:
            self._steps, self._measured, self._runs = steps, [], []
        # the larger the sizes are, the fewer constants they divide
        if not self._measured or self._least(numbers) > self._least(self._measured[0].numbers):
            self._measured = [Measured(numbers, parts_of(run)), *self._measured[:1]]
            self._runs.insert(0, (numbers, work))
        else:
            self._runs.append((numbers, work))
        self._runs = [self._runs[0], *self._runs[1:][-_MOST_FITTED:]]
        self.estimate = fit(estimate_of(*self._measured), self._runs)

    def _least(self, numbers: Mapping[str, int]) -> int:
        return min((size for name, size in numbers.items() if name not in self.counts), default=1)


class WorkBudget:
    """The work that the extra runs may take together, and how much of it they have taken."""

    def __init__(self) -> None:
        self.total = LEAST_BUDGET
        self.spent = 0

    def allow_for(self, actual: RawTrace) -> None:
        """Allow what is in proportion to the user's own run."""
        self.total = max(self.total, _PLAIN_RUNS * count_work(actual))

    @property
    def of_one_run(self) -> int:
        """What one run should take at most, so that there can be enough of them."""
        return min(self.total // _OF_ALL, max(self.total - self.spent, 0) // _OF_WHAT_IS_LEFT)

    def affords(self, work: float, last: bool = False) -> bool:
        """Return whether a run that takes this work is within the budget; part of it is kept for the last run."""
        return self.spent + work <= self.total - (0 if last else self.total // _HELD_BACK)
