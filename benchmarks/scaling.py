"""How time and memory grow with the number of terms, lines, comments, steps and rows that are given."""

import os
import resource
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

from attnshape import Trace
from attnshape.comparison.snapshot import snapshot_of, write_snapshot
from benchmarks.measure import ENVIRONMENT, ROOT, TIME_LIMIT, NotMeasuredError, Options
from benchmarks.ratio import Budget, Row, Table, factor

COUNTS = (1000, 5000, 20000)
SMALLEST = f"{COUNTS[0]:,}"
TOLERANCE = 1.5
"""How many times the time may grow as much as the count does."""
MOST_MEMORY = 8 << 30
INPUT = ("--input", "x: L D")
HEADER = "import torch\n\n\n"

Command = tuple[str, ...]


class Sample(NamedTuple):
    """What one process took."""

    seconds: float
    memory: int
    """In bytes, at the peak."""


def run(options: Options) -> list[Table]:
    """Measure each kind at each count, in a process of its own with a limit on its time and memory."""
    rows: list[Row] = []
    missing: dict[str, str] = {}
    with tempfile.TemporaryDirectory() as folder:
        for kind, command_of in KINDS.items():
            first: Sample | None = None
            for count in COUNTS[: 2 if options.quick else None]:
                label = f"{kind}, {count:,}"
                print(label, file=sys.stderr)
                try:
                    sample = _sample(command_of(options.attnshape, Path(folder), count), Path(folder))
                except NotMeasuredError as error:
                    missing[label] = str(error)
                    break
                first = first or sample
                limit = Budget(TOLERANCE * count / COUNTS[0], SMALLEST) if count > COUNTS[0] else None
                baselines = {SMALLEST: [first.seconds]}
                memory = f"{sample.memory >> 20:,} MiB, × {factor(sample.memory / first.memory)}"
                rows.append(Row(f"{label}: {memory}", [sample.seconds], baselines, limit))
    return [Table("scaling: whole processes, with the peak of their memory, 1 round", rows, missing)]


def _sample(command: Command, folder: Path, output: Path | None = None) -> Sample:
    def limit_memory() -> None:
        resource.setrlimit(resource.RLIMIT_AS, (MOST_MEMORY, MOST_MEMORY))

    environment = {**ENVIRONMENT, "PYTHONPATH": str(ROOT)}
    with (output or Path(os.devnull)).open("wb") as file, tempfile.TemporaryFile() as errors:
        start = time.perf_counter()
        process = subprocess.Popen(
            command, cwd=folder, env=environment, stdout=file, stderr=errors, preexec_fn=limit_memory
        )
        usage = None
        while usage is None:
            if time.perf_counter() - start > TIME_LIMIT:
                process.kill()
            pid, status, used = os.wait4(process.pid, os.WNOHANG)
            usage = used if pid else time.sleep(0.01)
        process.returncode = os.waitstatus_to_exitcode(status)
        seconds = time.perf_counter() - start
        errors.seek(0)
        lines = errors.read().decode(errors="replace").strip().splitlines()
    # 1 says that a difference, or something wrong, was found
    if process.returncode not in (0, 1) or any(line.startswith("Traceback") for line in lines):
        reason = next((line for line in lines if line.startswith("error:")), f"exit status {process.returncode}")
        raise NotMeasuredError(f"took more than {TIME_LIMIT} s" if seconds > TIME_LIMIT else reason)
    return Sample(seconds, usage.ru_maxrss * 1024)


def _written(folder: Path, name: str, text: str) -> str:
    (folder / name).write_text(text, encoding="utf-8")
    return str(folder / name)


def _function(body: str) -> str:
    return f"{HEADER}def f(x):\n{body}    return x\n"


def _sum(count: int) -> str:
    return _function(f"    x = {' + '.join(['x'] * count)}\n")


def _sum_in_brackets(count: int) -> str:
    part = f"({' + '.join(['x'] * 50)})"
    parts = f"({' + '.join([part] * 20)})"
    return _function(f"    x = {' + '.join([parts] * (count // 1000))}\n")


def _chain(count: int) -> str:
    return _function(f"    x = x{'.relu()' * count}\n")


def _calls_in_a_list(count: int) -> str:
    return _function(f"    x = torch.stack([{', '.join(['x.relu()'] * count)}])\n")


def _list(count: int) -> str:
    return _function(f"    x = torch.stack([{', '.join(['x'] * count)}])\n")


def _lines(count: int, comment: str = "") -> str:
    return _function("    x0 = x\n" + "".join(f"    x{n} = x{n - 1} + 1{comment}\n" for n in range(1, count)))


def _commented(count: int) -> str:
    return _lines(count, "  # (L, D)")


def _word(count: int) -> str:
    return _function(f"    x = x.relu()  # ({'a' * count}, D)\n")


def _loop(count: int) -> str:
    return _function(f"    for _ in range({count}):\n        x = x + 1\n")


def _verb(source: Callable[[int], str], *verb: str) -> Callable[[Command, Path, int], Command]:
    def command(attnshape: Command, folder: Path, count: int) -> Command:
        return (*attnshape, verb[0], f"{_written(folder, 'target.py', source(count))}:f", *INPUT, *verb[1:])

    return command


def _record(attnshape: Command, folder: Path, count: int) -> Command:
    recording = (
        "import attnshape\nwith attnshape.record(sizes=dict(L=10, D=8)) as recording:\n    f(torch.ones(10, 8))\n"
    )
    return (sys.executable, _written(folder, "recorded.py", f"{_lines(count)}\n\n{recording}"))


def _snapshots(attnshape: Command, folder: Path, count: int) -> Command:
    """Return the comparison of two snapshots in which a variable's name has that many characters."""
    snapshots = []
    for letter in "ab":
        name = letter * count
        source = _written(folder, f"{letter}.py", _function(f"    {name} = x.relu()\n    x = {name} + 1\n"))
        saved = folder / f"{letter}.json"
        _sample((*attnshape, "trace", f"{source}:f", *INPUT, "--format", "json"), folder, saved)
        snapshot = snapshot_of(Trace.from_json(saved.read_bytes()))
        snapshots.append(_written(folder, f"{letter}.txt", write_snapshot(snapshot)))
    return (*attnshape, "diff", *snapshots)


def _of_saved(*verb: str) -> Callable[[Command, Path, int], Command]:
    """Return a verb of a saved trace of that many steps; `SAVED` stands for its file."""

    def command(attnshape: Command, folder: Path, count: int) -> Command:
        saved = folder / f"{count}.json"
        if not saved.exists():
            _sample((*_verb(_loop, "trace", "--format", "json")(attnshape, folder, count),), folder, saved)
        return (*attnshape, *(str(saved) if word == "SAVED" else word for word in verb))

    return command


KINDS: dict[str, Callable[[Command, Path, int], Command]] = {
    "terms of a sum": _verb(_sum, "trace"),
    "terms of a sum in brackets": _verb(_sum_in_brackets, "trace"),
    "methods in a chain": _verb(_chain, "trace"),
    "calls in a list": _verb(_calls_in_a_list, "trace"),
    "tensors in a list": _verb(_list, "trace"),
    "lines, trace": _verb(_lines, "trace"),
    "lines, check": _verb(_lines, "check"),
    "lines, annotate": _verb(_lines, "annotate"),
    "lines, record": _record,
    "lines with shape comments, check": _verb(_commented, "check", "--select", "AS0"),
    "characters of a comment, check": _verb(_word, "check", "--select", "AS0"),
    "steps of a loop, trace": _verb(_loop, "trace"),
    **{f"rows, show as {name}": _of_saved("show", "SAVED", "--format", name) for name in ("table", "markdown", "html")},
    "rows, show as JSON": _of_saved("show", "SAVED", "--format", "json"),
    "rows, diff": _of_saved("diff", "SAVED", "SAVED"),
    "rows, diff with few": _of_saved("diff", "SAVED", "scaled-dot-product"),
    "characters of a word in a snapshot, diff": _snapshots,
}
