"""Time of whole processes: `check` against `trace` of the same module, and the number of additional runs."""

import importlib.util
import json
from collections.abc import Callable
from functools import partial

from benchmarks.measure import NotMeasuredError, Options, interleaved, output_of, wall_time
from benchmarks.ratio import Budget, Row, Table

TRACE = "attnshape trace"
CHECK = "attnshape check"
ROUNDS = 8
TIMES_THE_TRACE = 3.0
SUBJECTS = {
    "nn.MultiheadAttention": ("torch", "tests/libraries/cases/torch_cases.py:mha_self"),
    "Llama's attention": ("transformers", "tests/libraries/cases/transformers_text_cases.py:llama"),
}
"""The checked modules: the required package and the case."""


def run(options: Options) -> list[Table]:
    """Measure each subject in separate rounds."""
    return [_of(options, name, *subject) for name, subject in SUBJECTS.items()]


def _of(options: Options, name: str, package: str, case: str) -> Table:
    rounds = options.rounds(ROUNDS)
    title = f"checking: {name}, whole process, {rounds} rounds"
    if importlib.util.find_spec(package) is None:
        return Table(title, [], {name: f"{package} is not installed"})
    tasks: dict[str, Callable[[], float]] = {
        TRACE: partial(wall_time, (*options.attnshape, "trace", case)),
        CHECK: partial(wall_time, (*options.attnshape, "check", case)),
    }
    measured = interleaved(tasks, rounds)
    baselines = {TRACE: measured.samples[TRACE]} if TRACE in measured.samples else {}
    rows = [
        Row(f"{label}{_runs(options, case)}", seconds, baselines, Budget(TIMES_THE_TRACE, TRACE))
        if label == CHECK
        else Row(label, seconds, baselines)
        for label, seconds in measured.samples.items()
    ]
    return Table(title, rows, measured.missing)


def _runs(options: Options, case: str) -> str:
    """Return the number of additional runs of a check, as text."""
    try:
        report = json.loads(output_of((*options.attnshape, "check", case, "--format", "json")))
        return f", {report['runs']} extra runs"
    except (NotMeasuredError, ValueError, KeyError):
        return ""
