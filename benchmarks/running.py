"""What `attnshape run` adds to the steps of a training loop: to the first, and to those after it."""

import json
import sys
from collections.abc import Callable
from functools import partial
from typing import TypedDict

from benchmarks.measure import NotMeasuredError, Options, interleaved, output_of
from benchmarks.ratio import Budget, Row, Table

PLAIN = "by itself"
ROUNDS = 8
FIRST = 3.0
LATER = 1.05


class Sample(TypedDict):
    """The output of `benchmarks.watched`: seconds."""

    first_plain: float
    first_watched: float
    later_plain: float
    later_watched: float


def run(options: Options) -> list[Table]:
    """Measure the steps of a small model, and of a larger one."""
    rounds = options.rounds(ROUNDS)
    tasks: dict[str, Callable[[], Sample]] = {f"width {width}": partial(_sample, width) for width in (32, 256)}
    measured = interleaved(tasks, rounds)
    return [
        Table(
            f"running: {title} of a training loop, 4 layers, {rounds} rounds",
            [
                Row(
                    label,
                    [sample[f"{part}_watched"] for sample in samples],  # type: ignore[literal-required]
                    {PLAIN: [sample[f"{part}_plain"] for sample in samples]},  # type: ignore[literal-required]
                    Budget(ratio, PLAIN),
                )
                for label, samples in measured.samples.items()
            ],
            measured.missing,
        )
        for title, part, ratio in (
            ("the first step", "first", FIRST),
            ("the median of 50 further steps", "later", LATER),
        )
    ]


def _sample(width: int) -> Sample:
    printed = output_of((sys.executable, "-m", "benchmarks.watched", str(width)))
    try:
        sample: Sample = json.loads(printed.splitlines()[-1])
        return sample
    except (IndexError, ValueError) as error:
        raise NotMeasuredError(f"printed no timings: {error}") from error
