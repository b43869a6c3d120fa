"""What a run takes and gives back, in order, as formulas of its sizes; and from these the peak at any sizes."""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache

from attnshape import axis
from attnshape.axis import AxisExpression
from attnshape.inference.solve import Solver
from attnshape.memory.meter import MemoryLog

_parse = lru_cache(maxsize=4096)(axis.parse)
_ENOUGH = 3
"""The fewest runs from which a number that never moves is taken to be a constant."""


@dataclass(frozen=True)
class Block:
    """The bytes of one block: a formula, or the most that a small run had where there is none."""

    formula: AxisExpression | None
    seen: int

    def at(self, numbers: Mapping[str, int], unit: int) -> int:
        """Return its bytes at these sizes, rounded up to the allocator's unit."""
        size = self.formula.evaluate(numbers) if self.formula is not None else self.seen
        return -(-size // unit) * unit


@dataclass(frozen=True)
class Change:
    """A block that is taken, or given back."""

    block: Block
    taken: bool
    scratch: bool = False
    """Whether a step both takes it and gives it back: a copy that a kernel makes, or its working memory."""


@dataclass(frozen=True)
class Moment:
    """The most that is held at one time: how much, during which segment, and after how many of its changes."""

    bytes: int
    segment: int
    changes: int


@dataclass(frozen=True)
class Timeline:
    """The changes while the target is built, segment 0, during each step, and behind the last."""

    segments: tuple[tuple[Change, ...], ...]
    inputs: tuple[Block, ...]

    @property
    def kept_solved(self) -> bool:
        """Whether every block that outlives its step has a formula."""
        return all(change.block.formula is not None or change.scratch for change in self._changes())

    @property
    def solved(self) -> bool:
        """Whether every block has a formula."""
        return all(change.block.formula is not None for change in self._changes())

    def without_working_memory(self) -> Timeline:
        """Return the timeline without scratch of no formula, which kernels size by their processor alone."""
        segments = (
            tuple(change for change in segment if change.block.formula is not None or not change.scratch)
            for segment in self.segments
        )
        return replace(self, segments=tuple(segments))

    def in_scratch(self, moment: Moment) -> bool:
        """Whether some scratch is held at a moment."""
        held = self.segments[moment.segment][: moment.changes]
        return sum(1 if change.taken else -1 for change in held if change.scratch) > 0

    def _changes(self) -> Iterator[Change]:
        return itertools.chain.from_iterable(self.segments)

    def peak(self, numbers: Mapping[str, int], unit: int = 1, building: bool = True) -> Moment:
        """Return the peak at these sizes; without `building`, of what is held from the first step on."""
        held = 0
        best = Moment(0, 0, 0)
        known: dict[Block, int] = {}
        for position, segment in enumerate(self.segments):
            if position == 1 and (not building or held > best.bytes):
                best = Moment(held, 0, len(self.segments[0]))
            for count, change in enumerate(segment, 1):
                size = known.get(change.block)
                if size is None:
                    size = known[change.block] = change.block.at(numbers, unit)
                held += size if change.taken else -size
                if held > best.bytes and (building or position > 0):
                    best = Moment(held, position, count)
        return best

    def held(self, numbers: Mapping[str, int], unit: int = 1) -> int:
        """Return the bytes that are held once the target is built: parameters, buffers, inputs and constants."""
        sizes = ((change.block.at(numbers, unit), change.taken) for change in self.segments[0])
        return sum(size if taken else -size for size, taken in sizes)

    def formula(self, moment: Moment) -> str | None:
        """Return the peak as a sum of what is held then; None where a block has no formula."""
        counts: Counter[str] = Counter()
        for position, segment in enumerate(self.segments[: moment.segment + 1]):
            for change in segment[: moment.changes] if position == moment.segment else segment:
                if change.block.formula is None:
                    return None
                counts[change.block.formula.text] += 1 if change.taken else -1
        return _sum(counts)


def timeline(logs: Sequence[MemoryLog], solver: Solver) -> Timeline:
    """Return the formulas of what several runs took and gave back, as far as they took the same steps.

    The logs are those of the solver's rounds and witnesses, in its order, and of the run at its plan's own sizes.
    """
    count = common_steps(logs)
    behind = all(len(log.steps) == count for log in logs)
    segments = [_segment([log.building for log in logs], solver)]
    segments += [_segment([log.running[step] for log in logs], solver) for step in range(count + behind)]
    same = len({len(log.inputs) for log in logs}) == 1
    inputs = [_block(sizes, solver) for sizes in zip(*(log.inputs for log in logs), strict=True)] if same else []
    return Timeline(tuple(segments), tuple(inputs))


def common_steps(logs: Sequence[MemoryLog]) -> int:
    """Return how many leading steps are the same in all runs."""
    count = 0
    for steps in zip(*(log.steps for log in logs), strict=False):
        if any(step.key != steps[0].key for step in steps):
            break
        count += 1
    return count


def _segment(runs: Sequence[tuple[int, ...]], solver: Solver) -> tuple[Change, ...]:
    """Return one segment's changes; as a whole where a kernel took another number of blocks in another run."""
    shapes = {tuple(change > 0 for change in run) for run in runs}
    if len(shapes) == 1:
        changes = list(zip(*runs, strict=True))
        scratch = _scratch(changes)
        return tuple(
            Change(_block([abs(change) for change in sizes], solver), sizes[0] > 0, position in scratch)
            for position, sizes in enumerate(changes)
        )
    tops = _block([_top(run) for run in runs], solver)
    rest = [sum(run) for run in runs]
    kept = _block([abs(change) for change in rest], solver)
    return Change(tops, True, scratch=True), Change(tops, False, scratch=True), Change(kept, sum(rest) > 0)


def _scratch(changes: Sequence[tuple[int, ...]]) -> set[int]:
    """Return the positions of the blocks that are taken and given back again: those of equal bytes in every run."""
    found: set[int] = set()
    waiting: dict[tuple[int, ...], list[int]] = {}
    for position, sizes in enumerate(changes):
        if sizes[0] > 0:
            waiting.setdefault(sizes, []).append(position)
        elif taken := waiting.get(tuple(-size for size in sizes)):
            found |= {taken.pop(), position}
    return found


def _top(changes: Sequence[int]) -> int:
    held = most = 0
    for change in changes:
        held += change
        most = max(most, held)
    return most


def _block(sizes: Sequence[int], solver: Solver) -> Block:
    if len(sizes) < _ENOUGH:
        return Block(None, max(sizes))
    if len(set(sizes)) == 1:
        return Block(_parse(str(sizes[0])), sizes[0])
    *small, actual = sizes
    formula = solver.solve(tuple(small), actual)
    return Block(_parse(formula.text) if formula.known == "proved" else None, max(sizes))


def _sum(counts: Mapping[str, int]) -> str:
    """Write a sum of so many of each formula, equal ones together.

    >>> _sum({"4*B*L*D": 2, "64": 1, "B*(Lp+L)": 3})
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
