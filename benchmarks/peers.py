"""The same module traced by each comparable tool: a whole process, and a traced call against a plain one."""

import importlib.util
import json
import sys
from collections.abc import Callable
from functools import partial

from benchmarks.measure import NotMeasuredError, Options, interleaved, output_of, wall_time
from benchmarks.ratio import Row, Table

TORCH = "import torch"
PLAIN = "plain call"
NAMES = ("attnshape", "torchinfo", "torchview", "torchlens", "torch.export")
ONE_SHOT_ROUNDS = 12
WARM_ROUNDS = 8
WARM_CALLS = 20

SUBJECT = (
    *("trace", "benchmarks/subject.py:CrossAttention", "--init", "D, H"),
    *("--input", "q: B Lq D", "--input", "kv: B Lk D", "--input", "visible: bool B Lk"),
    *("--batch", "2", "--heads", "8", "--queries", "10", "--keys", "16", "--d-model", "512"),
)


def run(options: Options) -> list[Table]:
    """Measure the installed tools, and list the missing ones."""
    absent = {name: "not installed" for name in NAMES if importlib.util.find_spec(name.partition(".")[0]) is None}
    present = [name for name in NAMES if name not in absent]
    return [_one_shot(options, present, absent), _warm(options, present, absent)]


def _one_shot(options: Options, present: list[str], absent: dict[str, str]) -> Table:
    commands: dict[str, tuple[str, ...]] = {TORCH: (sys.executable, "-c", "import torch")}
    for name in present:
        own = name == "attnshape"
        commands[name] = (
            (*options.attnshape, *SUBJECT) if own else (sys.executable, "-m", "benchmarks.peer", "once", name)
        )
    rounds = options.rounds(ONE_SHOT_ROUNDS)
    measured = interleaved({label: partial(wall_time, command) for label, command in commands.items()}, rounds)
    baselines = {TORCH: measured.samples[TORCH]} if TORCH in measured.samples else {}
    rows = [Row(label, seconds, baselines) for label, seconds in measured.samples.items()]
    return Table(f"peers: one shot, whole process, {rounds} rounds", rows, {**measured.missing, **absent})


def _pair(name: str, calls: int) -> tuple[float, float]:
    printed = output_of((sys.executable, "-m", "benchmarks.peer", "warm", name, str(calls)))
    try:
        seconds = json.loads(printed.splitlines()[-1])
        return seconds["plain"], seconds["traced"]
    except (IndexError, ValueError, KeyError, TypeError) as error:
        raise NotMeasuredError(f"printed no timings: {error}") from error


def _warm(options: Options, present: list[str], absent: dict[str, str]) -> Table:
    rounds, calls = options.rounds(WARM_ROUNDS), options.rounds(WARM_CALLS)
    tasks: dict[str, Callable[[], tuple[float, float]]] = {name: partial(_pair, name, calls) for name in present}
    measured = interleaved(tasks, rounds)
    rows = [
        Row(name, [traced for _, traced in pairs], {PLAIN: [plain for plain, _ in pairs]})
        for name, pairs in measured.samples.items()
    ]
    title = f"peers: warm, median of {calls} traced calls against as many plain ones, {rounds} rounds"
    return Table(title, rows, {**measured.missing, **absent})
