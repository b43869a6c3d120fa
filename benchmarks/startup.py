"""Time of whole processes: the default trace against a plain script, and commands that don't need torch."""

import sys
import tempfile
from functools import partial
from pathlib import Path

from benchmarks.measure import NotMeasuredError, Options, interleaved, output_of, wall_time
from benchmarks.ratio import Budget, Row, Table

TORCH = "import torch"
PLAIN = "plain script"
TRACE = "attnshape trace"
EMPTY_APP = "empty app --help"
DEFAULT_TRACE = ("trace", "--batch", "2", "--heads", "8", "--d-model", "512")
WITH_TORCH_ROUNDS = 20
WITHOUT_TORCH_ROUNDS = 20


def run(options: Options) -> list[Table]:
    """Measure both groups in separate rounds."""
    return [_with_torch(options), _without_torch(options)]


def _with_torch(options: Options) -> Table:
    commands = {
        TORCH: (sys.executable, "-c", "import torch"),
        PLAIN: (sys.executable, "benchmarks/plain_multihead.py"),
        TRACE: (*options.attnshape, *DEFAULT_TRACE),
    }
    rounds = options.rounds(WITH_TORCH_ROUNDS)
    measured = interleaved({label: partial(wall_time, command) for label, command in commands.items()}, rounds)
    baselines = {label: measured.samples[label] for label in (PLAIN, TORCH) if label in measured.samples}
    budgets = {TRACE: Budget(1.10, PLAIN)}
    rows = [Row(label, seconds, baselines, budgets.get(label)) for label, seconds in measured.samples.items()]
    return Table(f"startup: the default trace, whole process, {rounds} rounds", rows, measured.missing)


def _without_torch(options: Options) -> Table:
    rounds = options.rounds(WITHOUT_TORCH_ROUNDS)
    with tempfile.TemporaryDirectory() as folder:
        saved = str(Path(folder) / "trace.json")
        commands = {
            "bare python": (sys.executable, "-c", "pass"),
            EMPTY_APP: (sys.executable, "benchmarks/empty_app.py", "--help"),
            "attnshape --help": (*options.attnshape, "--help"),
            "attnshape glossary": (*options.attnshape, "glossary"),
            "attnshape show FILE": (*options.attnshape, "show", saved),
            "attnshape diff FILE FILE": (*options.attnshape, "diff", saved, saved),
        }
        unsaved = {}
        try:
            output_of((*options.attnshape, *DEFAULT_TRACE, "--format", "json", "--output", saved))
        except NotMeasuredError as error:
            for label in [label for label in commands if "FILE" in label]:
                del commands[label]
                unsaved[label] = f"no saved trace: {error}"
        measured = interleaved({label: partial(wall_time, command) for label, command in commands.items()}, rounds)
    baselines = {EMPTY_APP: measured.samples[EMPTY_APP]} if EMPTY_APP in measured.samples else {}
    rows = [
        Row(label, seconds, baselines, Budget(1.6, EMPTY_APP) if label.startswith("attnshape") else None)
        for label, seconds in measured.samples.items()
    ]
    return Table(f"startup: without torch, whole process, {rounds} rounds", rows, {**measured.missing, **unsaved})
