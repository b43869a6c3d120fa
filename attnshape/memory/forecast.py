"""Foretells the peak of a run's memory from small runs, before anything is allocated at the user's sizes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from msgspec import UNSET, UnsetType

from attnshape.inference.assemble import ENOUGH_ROUNDS
from attnshape.inference.constraint import Constraint, Fixed
from attnshape.inference.plan import Plan
from attnshape.inference.small_runs import Attempt, SmallRuns
from attnshape.inference.solve import Solver
from attnshape.inference.variation import Variation
from attnshape.inference.vary import Explorer
from attnshape.memory.guess import guessed
from attnshape.memory.meter import MemoryLog
from attnshape.memory.runs import MeteredRuns
from attnshape.memory.standin import stand_ins
from attnshape.memory.timeline import Timeline, common_steps, timeline
from attnshape.model import Peak
from attnshape.sizes import Sizes
from attnshape.tracing.raw import RawFailure, RawStep, RawTrace

_CUDA_UNIT = 512
"""The bytes to which torch rounds each block on CUDA."""
_LARGEST_SMALL_RUN = 2**27
"""The most bytes that a small run may take."""
_MOST_TURNS = 64
"""The largest size that a small run keeps."""
_LONGEST = 6
"""The most terms that the peak's formula is shown with."""


@dataclass(frozen=True)
class Forecast:
    """The formulas of a run's memory, and how they are known."""

    timeline: Timeline
    steps: tuple[RawStep, ...]
    """The steps that the timeline's segments from 1 on belong to, as they were recorded."""
    run: RawTrace
    """The small run that stands in for the user's."""
    sure: bool
    """Whether all runs took the same steps, and every block that outlives its step has a formula."""
    sizes: Sizes
    constraints: tuple[Constraint, ...] = ()
    """Those under which the small runs took the same steps."""
    fixed: tuple[str, ...] = ()
    """The sizes that could not vary, and whose number in the small runs isn't the user's."""
    cuda: bool = False

    @property
    def proved(self) -> bool:
        """Whether the peak is certain, if the run takes the steps of the small ones."""
        return self.sure and self.timeline.solved

    def on_cuda(self, grad: bool) -> Forecast:
        """Return the forecast for CUDA, from runs on the CPU: results have the same size there, scratch may not."""
        made = self.timeline.without_working_memory()
        scratch = made.in_scratch(made.peak(self.sizes.numbers, _CUDA_UNIT, building=False))
        return replace(self, timeline=made, sure=self.sure and not grad and not scratch, cuda=True)

    def bytes_at(self, numbers: Mapping[str, int]) -> int:
        """Return the peak at these sizes, in bytes on the device."""
        return self.timeline.peak(numbers, self._unit, building=not self.cuda).bytes

    @property
    def on_host(self) -> int:
        """The bytes that are held on the host at one time while the target is built there, to be moved to CUDA."""
        building = replace(self.timeline, segments=self.timeline.segments[:1])
        return building.peak(self.sizes.numbers).bytes

    @property
    def step(self) -> RawStep | None:
        """The step at which the peak is; None while the target is built, or where it is behind the last step."""
        return self._step_of(self._segment)

    def peak_of(self, actual: RawTrace, shown: RawTrace) -> Peak | UnsetType:
        """Return the peak of a run that took place; nothing where it went on from where the small runs failed.

        `shown` is the run as its steps are numbered, with one turn of each loop.
        """
        further = self.run.failure is not None and len(actual.steps) > len(self.run.steps)
        return UNSET if further else self.peak(actual, shown)

    def peak(self, actual: RawTrace | None = None, shown: RawTrace | None = None) -> Peak:
        """Return the peak as the trace saves it: proved only where the run, once it is there, took the same steps."""
        numbers = self.sizes.numbers
        moment = self.timeline.peak(numbers, self._unit, building=not self.cuda)
        same = actual is None or [step.key for step in actual.steps] == [step.key for step in self.run.steps]
        proved = self.proved and same and (actual is None or actual.failure is None)
        formula = self.timeline.formula(moment)
        inputs = sum(block.at(numbers, self._unit) for block in self.timeline.inputs)
        held = min(self.timeline.held(numbers, self._unit), moment.bytes)
        return Peak(
            bytes=moment.bytes,
            known="proved" if proved else "estimate",
            expression=formula if proved and formula and formula.count("+") < _LONGEST else None,
            step=self._index(shown or actual or self.run),
            parameters=max(held - inputs, 0),
            inputs=min(inputs, held),
        )

    @property
    def _unit(self) -> int:
        return _CUDA_UNIT if self.cuda else 1

    @property
    def _segment(self) -> int:
        return self.timeline.peak(self.sizes.numbers, self._unit, building=not self.cuda).segment

    def _step_of(self, segment: int) -> RawStep | None:
        return self.steps[segment - 1] if 0 < segment <= len(self.steps) else None

    def _index(self, run: RawTrace) -> int | None:
        """Return the index in a run of the step at which the peak is: the same turn of the same place."""
        step = self.step
        if step is None:
            return None
        turn = sum(other.key == step.key for other in self.steps[: self._segment])
        same = [index for index, other in enumerate(run.steps, 1) if other.key == step.key]
        return same[min(turn, len(same)) - 1] if same else None


def foretell(runs: MeteredRuns, sizes: Sizes, cuda: bool, grad: bool) -> Forecast | None:
    """Return the forecast of a run at these sizes; None where no small run could be measured.

    The small runs are those that the signatures are inferred from afterwards, and one at sizes that stand in for the
    user's: what they have in common is what a run at the user's sizes is taken to do.
    """
    best: Forecast | None = None
    for small in stand_ins(sizes):
        if best is not None and best.bytes_at(small.numbers) > _LARGEST_SMALL_RUN:
            break
        run = runs(small.numbers)
        if best is None or run.failure is None:
            # a size of 1 decides whether a kernel has to copy: two axes merge without a copy where one of them is 1
            ones = tuple(Fixed(letter) for letter in small.independent if small.records[letter].size == 1)
            made = _from_stand_in(runs, run, small, sizes, ones)
            best = made if made is not None else best
        if run.failure is None:
            break
    # a loop over heads takes as many steps as there are of them: only their own number shows these
    fixed = best.fixed if best is not None else ()
    few = [letter for letter in fixed if sizes.records[letter].size <= _MOST_TURNS]
    nearer = next(stand_ins(sizes, few), None) if few else None
    if best is not None and nearer is not None and best.bytes_at(nearer.numbers) <= _LARGEST_SMALL_RUN:
        best = _from_stand_in(runs, runs(nearer.numbers), nearer, sizes, best.constraints) or best
    return best.on_cuda(grad) if best is not None and cuda else best


def _from_stand_in(
    runs: MeteredRuns, run: RawTrace, small: Sizes, sizes: Sizes, constraints: tuple[Constraint, ...]
) -> Forecast | None:
    own = runs.log(small.numbers)
    if own is None:
        return None
    plan = Plan(small, constraints)
    # each turn of a loop takes and gives back its own
    explorer = Explorer(SmallRuns(_bounded(runs, plan, own), find_loops=lambda _: None))
    variation = explorer.vary(plan, run)
    logs, solver = _aligned(variation, runs, own)
    made = timeline(logs, solver)
    if not made.kept_solved and variation.complete:
        variation = explorer.extend(variation, ENOUGH_ROUNDS)
        logs, solver = _aligned(variation, runs, own)
        made = timeline(logs, solver)
    fixed = tuple(one for one in variation.plan.fixed if small.records[one].size != sizes.records[one].size)
    whole = variation.complete and common_steps(logs) == len(own.steps) and not fixed
    sure = whole and made.kept_solved and run.failure is None and run.broken is None
    if not sure:
        # formulas from runs in which a size stood still don't have it in them
        made = guessed(made if not fixed else Timeline((), ()), own, small.numbers)
    return Forecast(made, own.steps, run, sure, sizes, variation.plan.constraints, fixed)


def _bounded(runs: MeteredRuns, plan: Plan, own: MemoryLog) -> Attempt:
    """Return what runs the target, but not at sizes at which the first runs show that it would take much memory."""
    rounds = [plan.numbers(round_) for round_ in range(2)]
    for numbers in rounds:
        runs(numbers)
    logs = [log for numbers in rounds if (log := runs.log(numbers)) is not None]
    if len(logs) < len(rounds):
        return runs
    first = timeline([*logs, own], Solver(plan, len(rounds)))

    def attempt(numbers: Mapping[str, int]) -> RawTrace:
        if first.peak(numbers).bytes > _LARGEST_SMALL_RUN:
            return RawTrace([], [], [], RawFailure(MemoryError("too large for a small run")))
        return runs(numbers)

    return attempt


def _aligned(variation: Variation, runs: MeteredRuns, own: MemoryLog) -> tuple[Sequence[MemoryLog], Solver]:
    """Return the logs of the small runs that were measured, the stand-in's last, and the solver for their numbers."""
    rounds = [runs.log(variation.plan.numbers(round_)) for round_ in range(len(variation.runs))]
    measured = [log for log in rounds if log is not None]
    if len(measured) < len(rounds):
        measured = []
    witnesses = [(numbers, log) for numbers, _ in variation.witnesses if (log := runs.log(numbers)) is not None]
    solver = Solver(variation.plan, len(measured), [numbers for numbers, _ in witnesses] if measured else [])
    return [*measured, *(log for _, log in witnesses if measured), own], solver
