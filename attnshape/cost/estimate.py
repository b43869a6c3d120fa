"""Estimate the peak memory of a run from small runs, before anything is allocated at the user's sizes."""

from __future__ import annotations

import itertools
import math
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache

from msgspec import UNSET, UnsetType

from attnshape.cost.meter import MemoryLog, MeteredRuns
from attnshape.dims.expressions import AxisExpression, parse_expression
from attnshape.dims.sizes import Sizes, proxy_sizes
from attnshape.inference.loops import place_in_layer
from attnshape.inference.plan import Constraint, Fixed, Plan, holds
from attnshape.inference.sampling import sample_and_solve
from attnshape.inference.small_runs import Attempt, Samples, SmallRuns
from attnshape.inference.solver import Solver
from attnshape.inference.verification import run_held_out
from attnshape.inference.work import WorkBudget
from attnshape.model.trace import Peak
from attnshape.tracing.raw import RawFailure, RawStep, RawTrace

_ENOUGH = 3
"""The fewest runs from which a number that never varies is assumed to be a constant."""
_CUDA_UNIT = 512
"""The bytes to which torch rounds each block on CUDA."""


@dataclass(frozen=True)
class Block:
    """The bytes of one block: a formula; else what the run at proxy sizes had, at other sizes the most of all runs."""

    formula: AxisExpression | None
    most: int
    measured: int
    """What the run at proxy sizes had."""


@dataclass(frozen=True)
class MemoryChange:
    """A block that is allocated or freed."""

    block: Block
    sign: int
    """1 if it is allocated, -1 if it is freed."""
    scratch: bool = False
    """Whether one step both allocates and frees it: a copy that a kernel makes, or its working memory."""

    @property
    def solved(self) -> bool:
        """Whether the block has a formula."""
        return self.block.formula is not None

    def gives(self, size: int, numbers: Mapping[str, int]) -> bool:
        """Return whether the block has a formula that gives so many bytes at these sizes."""
        return self.block.formula is not None and self.block.formula.evaluate(numbers) == size


@dataclass(frozen=True)
class Moment:
    """The most that is held at one time: how much, during which segment, and after how many of its changes."""

    bytes: int
    segment: int
    changes: int


@dataclass(frozen=True)
class Timeline:
    """The changes while the target is built, segment 0, during each step, and after the last."""

    segments: tuple[tuple[MemoryChange, ...], ...]
    inputs: tuple[Block, ...]
    measured_at: Mapping[str, int] | None = None
    """The proxy sizes: at these a block without a formula has as many bytes as were measured."""
    cuda: bool = False
    """Whether the target runs on CUDA: it is built on the host all the same."""

    @property
    def kept_solved(self) -> bool:
        """Whether every block that outlives its step has a formula."""
        return all(change.solved or change.scratch for segment in self.segments for change in segment)

    @property
    def solved(self) -> bool:
        """Whether every block has a formula."""
        return all(change.solved for segment in self.segments for change in segment)

    def on_cuda(self) -> Timeline:
        """Return the timeline without scratch of no formula, which the CPU's kernels size by their processor alone."""
        segments = (
            tuple(change for change in segment if change.solved or not change.scratch) for segment in self.segments
        )
        return replace(self, segments=tuple(segments), cuda=True)

    def is_in_scratch(self, moment: Moment) -> bool:
        """Return whether some scratch is held at a moment."""
        return sum(change.sign for change in self._changes_of_segment(moment) if change.scratch) > 0

    def _changes_of_segment(self, moment: Moment) -> tuple[MemoryChange, ...]:
        return self.segments[moment.segment][: moment.changes]

    def bytes_of(self, block: Block, numbers: Mapping[str, int]) -> int:
        """Return the bytes of a block at these sizes, as the allocator of the device rounds them."""
        if block.formula is not None:
            size = block.formula.evaluate(numbers)
        else:
            size = block.measured if numbers == self.measured_at else block.most
        return -(-size // _CUDA_UNIT) * _CUDA_UNIT if self.cuda else size

    def peak(self, numbers: Mapping[str, int]) -> Moment:
        """Return the peak at these sizes; on CUDA that of what is held from the first step on."""
        held = 0
        best = Moment(0, 0, 0)
        bytes_of = cache(lambda block: self.bytes_of(block, numbers))
        for position, segment in enumerate(self.segments):
            if position == 1 and (self.cuda or held > best.bytes):
                best = Moment(held, 0, len(self.segments[0]))
            for count, change in enumerate(segment, 1):
                held += change.sign * bytes_of(change.block)
                if held > best.bytes and (position > 0 or not self.cuda):
                    best = Moment(held, position, count)
        return best

    def held(self, numbers: Mapping[str, int]) -> int:
        """Return the bytes that are held once the target is built: parameters, buffers, inputs and constants."""
        return sum(change.sign * self.bytes_of(change.block, numbers) for change in self.segments[0])

    def formula(self, moment: Moment) -> str | None:
        """Return the peak as a sum of what is held then; None if a block has no formula."""
        counts: Counter[str] = Counter()
        for change in itertools.chain(*self.segments[: moment.segment], self._changes_of_segment(moment)):
            if change.block.formula is None:
                return None
            counts[change.block.formula.text] += change.sign
        return sum_text(counts)


def timeline(logs: Sequence[MemoryLog], solver: Solver, proxy: Mapping[str, int] | None = None) -> Timeline:
    """Return the formulas of what several runs allocated and freed, as far as they took the same steps.

    The logs are those of the solver's rounds and validation runs, in its order, and of the run at its plan's own sizes,
    which are the proxy sizes.
    """
    count = common_steps(logs)
    behind = all(len(log.steps) == count for log in logs)
    segments = [_segment([log.building for log in logs], solver)]
    segments += [_segment([log.running[step] for log in logs], solver) for step in range(count + behind)]
    same = len({len(log.inputs) for log in logs}) == 1
    inputs = [_block(sizes, solver) for sizes in zip(*(log.inputs for log in logs), strict=True)] if same else []
    return Timeline(tuple(segments), tuple(inputs), proxy)


def common_steps(logs: Sequence[MemoryLog]) -> int:
    """Return how many leading steps are the same in all runs."""
    steps = zip(*(log.steps for log in logs), strict=False)
    same = itertools.takewhile(lambda steps: all(step.key == steps[0].key for step in steps), steps)
    return sum(1 for _ in same)


def _segment(runs: Sequence[tuple[int, ...]], solver: Solver) -> tuple[MemoryChange, ...]:
    """Return one segment's changes; as a whole where a kernel took another number of blocks in another run."""
    if len({tuple(change > 0 for change in run) for run in runs}) == 1:
        changes = list(zip(*runs, strict=True))
        scratch = _scratch(changes)
        return tuple(_change(sizes, solver, place in scratch) for place, sizes in enumerate(changes))
    tops = [max(itertools.accumulate(run, initial=0)) for run in runs]
    top = _change(tops, solver, scratch=True)
    rest = [sum(run) for run in runs]
    kept = MemoryChange(_block([abs(change) for change in rest], solver), _sign(rest[-1] or sum(rest)))
    return replace(top, sign=1), replace(top, sign=-1), kept


def _change(sizes: Sequence[int], solver: Solver, scratch: bool) -> MemoryChange:
    return MemoryChange(_block([abs(size) for size in sizes], solver), _sign(sizes[0]), scratch)


def _sign(change: int) -> int:
    return 1 if change > 0 else -1


def _scratch(changes: Sequence[tuple[int, ...]]) -> set[int]:
    """Return the positions of the blocks that are allocated and freed again: those of equal bytes in every run."""
    scratch: set[int] = set()
    waiting: dict[tuple[int, ...], list[int]] = {}
    for position, sizes in enumerate(changes):
        if sizes[0] > 0:
            waiting.setdefault(sizes, []).append(position)
        elif allocated := waiting.get(tuple(-size for size in sizes)):
            scratch |= {allocated.pop(), position}
    return scratch


def _block(sizes: Sequence[int], solver: Solver) -> Block:
    if len(sizes) < _ENOUGH:
        return Block(None, max(sizes), sizes[-1])
    if len(set(sizes)) == 1:
        return Block(parse_expression(str(sizes[0])), sizes[0], sizes[0])
    *small, actual = sizes
    formula = solver.solve(tuple(small), actual)
    return Block(parse_expression(formula.text) if formula.known == "verified" else None, max(sizes), actual)


def sum_text(counts: Mapping[str, int]) -> str:
    """Write a sum of so many of each formula, equal ones together.

    >>> sum_text({"4*B*L*D": 2, "64": 1, "B*(Lp+L)": 3})
    '8*B*L*D+3*B*(Lp+L)+64'
    """
    total: Counter[str] = Counter()
    constant = 0
    for text, count in counts.items():
        number, star, rest = text.partition("*")
        if text.isdecimal():
            constant += count * int(text)
        elif star and number.isdecimal():
            total[rest] += count * int(number)
        else:
            total[text if text.isidentifier() or "+" not in text or "(" in text else f"({text})"] += count
    terms = [text if count == 1 else f"{count}*{text}" for text, count in total.items() if count]
    return "+".join(terms + [str(constant)] * bool(constant or not terms))


_LARGEST_SMALL_RUN = 2**27
"""The most bytes that a small run may take."""
_LARGEST_KEPT = 64
"""The largest size that a small run keeps."""
_GUESSED_FACTORS = (2, 3, 4)
_MOST_TERMS = 6
"""The most terms that the peak's formula is shown with."""


@dataclass(frozen=True)
class PeakEstimate:
    """The formulas of a run's memory, and how they are known."""

    timeline: Timeline
    steps: tuple[RawStep, ...]
    """The steps that the timeline's segments from 1 on belong to, as they were recorded."""
    run: RawTrace
    """The run at proxy sizes, which takes the place of the user's."""
    certain: bool
    """Whether all runs took the same steps, and every block that outlives its step has a formula."""
    sizes: Sizes
    constraints: tuple[Constraint, ...] = ()
    """Those under which the small runs took the same steps."""
    fixed: tuple[str, ...] = ()
    """The sizes that could not vary, and whose number in the small runs isn't the user's."""
    wrong_at: Mapping[str, int] | None = None
    """Sizes held out at which the formulas give another peak than was measured."""

    @property
    def notes(self) -> tuple[str, ...]:
        """What the reader should know about the peak."""
        if self.wrong_at is None:
            return ()
        sizes = ", ".join(f"{symbol}={size}" for symbol, size in self.wrong_at.items())
        return (f"the formula of the peak memory is wrong at the sizes held out ({sizes}): the peak is an estimate",)

    def on_cuda(self, grad: bool) -> PeakEstimate:
        """Return the estimate for CUDA, from runs on the CPU: results have the same size there, scratch may not."""
        timeline = self.timeline.on_cuda()
        certain = self.certain and not grad and not timeline.is_in_scratch(timeline.peak(self.sizes.numbers))
        return replace(self, timeline=timeline, certain=certain)

    def bytes_at(self, numbers: Mapping[str, int]) -> int:
        """Return the peak at these sizes, in bytes on the device."""
        return self.timeline.peak(numbers).bytes

    @property
    def may_be_measured(self) -> bool:
        """Whether the peak doesn't follow from formulas, and the user's sizes are small, but not those of the run."""
        numbers = self.sizes.numbers
        known = (self.certain and self.timeline.solved) or self.timeline.measured_at == numbers
        return not known and self.run.failure is None and self.bytes_at(numbers) <= _LARGEST_SMALL_RUN

    @property
    def bytes_on_host(self) -> int:
        """The most bytes that are held on the host while the target is built there, to be moved to CUDA."""
        return Timeline(self.timeline.segments[:1], ()).peak(self.sizes.numbers).bytes

    @property
    def step(self) -> RawStep | None:
        """The step at the peak; None while the target is built, or after the last step."""
        segment = self.timeline.peak(self.sizes.numbers).segment
        return self.steps[segment - 1] if 0 < segment <= len(self.steps) else None

    def peak_of(self, actual: RawTrace, folded: RawTrace) -> Peak | UnsetType:
        """Return the peak of a run that took place; nothing if it went on from where the small runs failed.

        `folded` is the run as its steps are numbered, with one iteration of each loop.
        """
        went_on = self.run.failure is not None and len(actual.steps) > len(self.run.steps)
        return UNSET if went_on else self.peak(actual, folded)

    def peak(self, actual: RawTrace | None = None, folded: RawTrace | None = None) -> Peak:
        """Return the peak as the trace saves it: verified only if the run, if there is one, took the same steps."""
        numbers = self.sizes.numbers
        moment = self.timeline.peak(numbers)
        same = actual is None or [step.key for step in actual.steps] == [step.key for step in self.run.steps]
        verified = self.certain and self.timeline.solved and same and (actual is None or actual.failure is None)
        formula = self.timeline.formula(moment) if verified else None
        inputs = sum(self.timeline.bytes_of(block, numbers) for block in self.timeline.inputs)
        held = min(self.timeline.held(numbers), moment.bytes)
        return Peak(
            bytes=moment.bytes,
            known="verified" if verified else "estimate",
            expression=formula if formula and formula.count("+") < _MOST_TERMS else None,
            step=self._index(moment, folded or actual or self.run),
            parameters=max(held - inputs, 0),
            inputs=min(inputs, held),
        )

    def _index(self, moment: Moment, run: RawTrace) -> int | None:
        """Return the index in a run of the step at the peak: the same iteration of the same place."""
        if (step := self.step) is None:
            return None
        iteration = sum(other.key == step.key for other in self.steps[: moment.segment])
        same = [index for index, other in enumerate(run.steps, 1) if other.key == step.key]
        if same:
            return same[min(iteration, len(same)) - 1]
        # of equal layers only the first is left
        place = place_in_layer(step)
        return next((index for index, other in enumerate(run.steps, 1) if place_in_layer(other) == place), None)


def estimate_peak_memory(runs: MeteredRuns, sizes: Sizes, cuda: bool, grad: bool) -> PeakEstimate | None:
    """Return the estimate for a run at these sizes; None if no small run could be metered.

    The run at the user's sizes must not be made yet, so one at proxy sizes takes its place. The other small runs are
    those that the signatures are inferred from afterwards.

    Args:
        runs: Runs the target and meters what it allocates, in bytes.
        sizes: The user's sizes.
        cuda: Whether the user's run is on CUDA; the small runs are on the CPU.
        grad: Whether the run keeps what gradients need.
    """
    best: PeakEstimate | None = None
    budget = WorkBudget()
    for proxy in proxy_sizes(sizes):
        if best is not None and best.bytes_at(proxy.numbers) > _LARGEST_SMALL_RUN:
            break
        run = runs(proxy.numbers)
        if best is None or run.failure is None:
            # a size of 1 decides whether a kernel has to copy: two axes merge without a copy where one of them is 1
            ones = tuple(Fixed(symbol) for symbol in proxy.independent if proxy.records[symbol].size == 1)
            best = _from_proxy(runs, run, proxy, sizes, ones, budget) or best
        if run.failure is None:
            break
    # a loop over heads takes as many steps as there are of them: only their own number shows these
    fixed = best.fixed if best is not None else ()
    few = [symbol for symbol in fixed if sizes.records[symbol].size <= _LARGEST_KEPT]
    nearer = next(proxy_sizes(sizes, few), None) if few else None
    if best is not None and nearer is not None and best.bytes_at(nearer.numbers) <= _LARGEST_SMALL_RUN:
        best = _from_proxy(runs, runs(nearer.numbers), nearer, sizes, best.constraints, budget) or best
    if best is not None and best.may_be_measured:
        best = _measured_here(runs, best)
    return best.on_cuda(grad) if best is not None and cuda else best


def _measured_here(runs: MeteredRuns, estimate: PeakEstimate) -> PeakEstimate:
    """Return an estimate whose peak was measured at the user's sizes, which are small."""
    numbers = estimate.sizes.numbers
    run, own = runs(numbers), runs.log(numbers)
    if own is None or run.failure is not None:
        return estimate
    same = [step.key for step in own.steps] == [step.key for step in estimate.steps]
    known = estimate.timeline if same else Timeline((), ())
    formulas = guess_timeline(replace(known, measured_at=numbers), own, numbers)
    certain = estimate.certain and same
    return replace(estimate, timeline=formulas, steps=own.steps, run=run, certain=certain)


def _from_proxy(
    runs: MeteredRuns,
    run: RawTrace,
    proxy: Sizes,
    sizes: Sizes,
    constraints: tuple[Constraint, ...],
    budget: WorkBudget,
) -> PeakEstimate | None:
    own = runs.log(proxy.numbers)
    if own is None:
        return None
    plan = _affordable(runs, Plan(proxy, constraints), budget)
    # each iteration of a loop allocates and frees its own
    small_runs = SmallRuns(_bounded(runs, plan, own), find_loops=lambda _: None, budget=budget)

    def solve(samples: Samples) -> tuple[tuple[Sequence[MemoryLog], Timeline], bool]:
        logs, solver = _aligned(samples, runs, own)
        formulas = timeline(logs, solver, proxy.numbers)
        return (logs, formulas), formulas.kept_solved or not samples.complete

    samples, (logs, formulas) = sample_and_solve(small_runs, plan, run, solve)
    fixed = tuple(name for name in samples.plan.fixed if proxy.records[name].size != sizes.records[name].size)
    # sizes that are equal in the proxy by coincidence stand for each other in formulas
    apart = bool(fixed) or not all(holds(constraint, sizes.numbers) for constraint in samples.plan.constraints)
    whole = samples.complete and common_steps(logs) == len(own.steps) and not apart
    certain = whole and formulas.kept_solved and run.failure is None and run.broken is None
    wrong_at = None
    if certain and formulas.solved:
        held_out, twin = run_held_out(small_runs, samples, (), runs.sizes_run)
        log = runs.log(held_out.sizes) if twin is not None else None
        if log is not None and formulas.peak(held_out.sizes).bytes != log.peak:
            wrong_at = held_out.sizes
    elif not certain:
        # formulas from runs in which a size was fixed don't have it in them
        formulas = guess_timeline(Timeline((), (), proxy.numbers) if apart else formulas, own, proxy.numbers)
    certain = certain and wrong_at is None
    return PeakEstimate(formulas, own.steps, run, certain, sizes, samples.plan.constraints, fixed, wrong_at)


def _affordable(runs: MeteredRuns, plan: Plan, budget: WorkBudget) -> Plan:
    """Return the plan, with cheaper sizes where a look at the smallest ones shows that its first rounds cost much."""
    cheaper = SmallRuns(runs, budget=budget).with_powers(plan)
    return plan if cheaper.work is None else cheaper


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


def _aligned(samples: Samples, runs: MeteredRuns, own: MemoryLog) -> tuple[Sequence[MemoryLog], Solver]:
    """Return the logs of the small runs, that at proxy sizes last, and the solver for their numbers."""
    rounds = [runs.log(samples.plan.numbers(round_)) for round_ in range(len(samples.runs))]
    measured = [log for log in rounds if log is not None]
    if len(measured) < len(rounds):
        return [own], Solver(samples.plan, 0)
    validation = [(numbers, log) for numbers, _ in samples.validation if (log := runs.log(numbers)) is not None]
    solver = Solver(samples.plan, len(measured), [numbers for numbers, _ in validation])
    return [*measured, *(log for _, log in validation), own], solver


def guess_timeline(known: Timeline, log: MemoryLog, numbers: Mapping[str, int]) -> Timeline:
    """Return a timeline of all of a run's steps: what is known of the leading ones, guesses for the rest.

    `numbers` are the run's sizes. A block as large as some tensor is assumed to grow as its axes do.
    """
    # of shapes of as many bytes, those of parameters and inputs take precedence
    tensors = (output.tensor for step in log.steps for output in step.outputs)
    results = ((tensor.shape, tensor.itemsize) for tensor in tensors if tensor.layout is None)
    texts: dict[int, str] = {}
    for shape, itemsize in (*results, *log.tensors):
        axes = (_axis(size, numbers) for size in shape)
        texts[math.prod(shape) * itemsize] = "*".join([str(itemsize), *axes])
    blocks = {size: Block(parse_expression(text), size, size) for size, text in texts.items()}
    segments = list(known.segments)
    for place, changes in enumerate((log.building, *log.running)):
        own = tuple(MemoryChange(blocks.get(abs(c), Block(None, abs(c), abs(c))), _sign(c)) for c in changes)
        if place >= len(segments):
            segments.append(own)
        elif len(segments[place]) == len(own):
            both = zip(segments[place], own, changes, strict=True)
            segments[place] = tuple(old if old.gives(abs(c), numbers) else new for old, new, c in both)
        elif not all(change.solved for change in segments[place]):
            segments[place] = own
    inputs = known.inputs or tuple(blocks.get(size, Block(None, size, size)) for size in log.inputs)
    return replace(known, segments=tuple(segments), inputs=inputs)


def _axis(size: int, numbers: Mapping[str, int]) -> str:
    """Return the size, multiple of a size or product of two that equals an axis; else the number."""
    free = [(symbol, number) for symbol, number in numbers.items() if number > 1]
    pairs = itertools.combinations(free, 2)
    guesses = itertools.chain(
        free,
        ((f"{one}*{other}", first * second) for (one, first), (other, second) in pairs),
        ((f"{factor}*{symbol}", factor * number) for symbol, number in free for factor in _GUESSED_FACTORS),
    )
    return next((text for text, number in guesses if number == size), str(size))
