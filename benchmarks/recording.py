"""The overhead of recording a call: per step, for a whole model, and with a growing number of steps."""

import importlib.util
import json
import sys
from collections.abc import Callable, Sequence
from functools import partial
from statistics import median
from typing import TypedDict

from benchmarks.measure import NotMeasuredError, Options, interleaved, output_of
from benchmarks.ratio import Budget, Row, Table

PLAIN = "plain call"
SHORTEST = "1,000 steps"
ROUNDS = 8
A_STEP = 60e-6
A_MODEL = 1.1
STEPS = (1000, 3000, 10000)
PEERS = ("torchlens", "torch.export")


class Sample(TypedDict):
    """The output of `benchmarks.recorded`."""

    plain: float
    watched: float
    steps: int
    memory: int


def run(options: Options) -> list[Table]:
    """Measure the recorder and the installed peers."""
    rounds = options.rounds(ROUNDS)
    absent = {name: "not installed" for name in PEERS if importlib.util.find_spec(name.partition(".")[0]) is None}
    tasks: dict[str, Callable[[], Sample]] = {
        "encoder of width 64": partial(_sample, "encoder", 64),
        **{f"{steps:,} steps": partial(_sample, "attention", steps) for steps in STEPS},
        "encoder of width 1024": partial(_sample, "encoder", 1024),
        **{name: partial(_sample, "attention", STEPS[0], name) for name in PEERS if name not in absent},
    }
    measured = interleaved(tasks, rounds)
    samples, missing = measured.samples, {**measured.missing, **absent}
    each = {label: [(s["watched"] - s["plain"]) / s["steps"] for s in of_label] for label, of_label in samples.items()
            if label not in PEERS}  # fmt: skip
    shortest = {SHORTEST: each[SHORTEST]} if SHORTEST in each else {}
    return [
        Table(
            f"recording: overhead per step, {rounds} rounds, each the fastest of several calls",
            [
                Row(f"{label}{_memory(label, samples[label])}", seconds, shortest, Budget(A_STEP))
                for label, seconds in each.items()
                if label != "encoder of width 1024"
            ],
            {label: reason for label, reason in missing.items() if label not in PEERS},
        ),
        Table(
            f"recording: a whole model, 24 layers of nn.TransformerEncoder, 4 × 128 × 1024, {rounds} rounds",
            [_against_plain("watched", samples[name], Budget(A_MODEL, PLAIN))]
            if (name := "encoder of width 1024") in samples
            else [],
        ),
        Table(
            f"recording: attention of {SHORTEST}, {rounds} rounds",
            [
                _against_plain(name, samples[label])
                for name, label in (("attnshape", SHORTEST), *zip(PEERS, PEERS, strict=True))
                if label in samples
            ],
            {label: reason for label, reason in missing.items() if label in PEERS},
        ),
    ]


def _against_plain(label: str, samples: Sequence[Sample], budget: Budget | None = None) -> Row:
    return Row(
        label, [sample["watched"] for sample in samples], {PLAIN: [sample["plain"] for sample in samples]}, budget
    )


def _memory(label: str, samples: Sequence[Sample]) -> str:
    if "encoder" in label:  # too few steps: the memory of the library's parsed source would dominate
        return ""
    return f", {median(sample['memory'] / sample['steps'] for sample in samples) / 1024:.1f} KiB a step"


def _sample(subject: str, size: int, tool: str = "attnshape") -> Sample:
    printed = output_of((sys.executable, "-m", "benchmarks.recorded", subject, str(size), tool))
    try:
        sample: Sample = json.loads(printed.splitlines()[-1])
        return sample
    except (IndexError, ValueError) as error:
        raise NotMeasuredError(f"printed no timings: {error}") from error
