"""Guesses the formulas of one small run's blocks from the shapes of its tensors, where no other runs give them."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator, Mapping
from dataclasses import replace

from attnshape import axis
from attnshape.memory.meter import MemoryLog
from attnshape.memory.timeline import Block, Change, Timeline

_FACTORS = (2, 3, 4)


def guessed(known: Timeline, log: MemoryLog, numbers: Mapping[str, int]) -> Timeline:
    """Return a timeline of all of a run's steps: what is known of the leading ones, guesses for the rest.

    `numbers` are the run's sizes. A block of the bytes of some tensor is taken to grow as that tensor's axes do.
    """
    texts = {math.prod(shape) * itemsize: _product(shape, itemsize, numbers) for shape, itemsize in _shapes(log)}
    blocks = {size: Block(axis.parse(text), size) for size, text in texts.items()}
    segments = list(known.segments)
    for place, changes in enumerate((log.building, *log.running)):
        own = tuple(Change(blocks.get(abs(c), Block(None, abs(c))), c > 0) for c in changes)
        if place >= len(segments):
            segments.append(own)
        elif len(segments[place]) == len(own):
            both = zip(segments[place], own, strict=True)
            segments[place] = tuple(old if old.block.formula is not None else new for old, new in both)
    inputs = known.inputs or tuple(blocks.get(size, Block(None, size)) for size in log.inputs)
    return replace(known, segments=tuple(segments), inputs=inputs)


def _shapes(log: MemoryLog) -> Iterator[tuple[tuple[int, ...], int]]:
    """Yield the shape and the bytes of a number of every result, then of every parameter and input, which win."""
    for step in log.steps:
        yield from ((output.tensor.shape, output.tensor.itemsize) for output in step.outputs)
    yield from log.held


def _product(shape: tuple[int, ...], itemsize: int, numbers: Mapping[str, int]) -> str:
    return "*".join([str(itemsize), *(_axis(size, numbers) for size in shape)])


def _axis(size: int, numbers: Mapping[str, int]) -> str:
    """Return a size, a multiple of one, or a product of two, that is as long as an axis; else the number."""
    free = {letter: number for letter, number in numbers.items() if number > 1}
    for letter, number in free.items():
        if number == size:
            return letter
    for (one, first), (other, second) in itertools.combinations(free.items(), 2):
        if first * second == size:
            return f"{one}*{other}"
    for letter, number in free.items():
        for factor in _FACTORS:
            if number * factor == size:
                return f"{factor}*{letter}"
    return str(size)
