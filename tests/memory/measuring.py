"""Requests by command line, and commands in a process of their own, whose memory is measured."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from attnshape.cli.request import Flags, combine
from attnshape.memory.forecast import Forecast, foretell
from attnshape.memory.meter import MemoryLog, Meter
from attnshape.memory.runs import MeteredRuns
from attnshape.pipeline import small_run
from attnshape.settings import Settings
from attnshape.sizes import Sizes, resolve
from attnshape.target.find import find_target
from attnshape.target.request import Placement, Request, Target
from attnshape.tracing.patience import Patience

ROOT = Path(__file__).parents[2]
SWITCHES = ("causal", "padding", "no-bias", "train", "grad")
SIZES = ("batch", "heads", "kv-heads", "group", "past", "length", "queries", "keys", "d-model", "d-head", "d-value")
FLAGS = (
    *("init", "input", "with", "dim", "expect", *SIZES, "window"),
    *("mask-value", "dropout", "device", "dtype", "seed"),
)
CHILD = """
import resource, subprocess, sys
done = subprocess.run([sys.executable, "-m", "attnshape", *sys.argv[1:]], capture_output=True, text=True)
print(done.returncode, resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss)
print(done.stdout + done.stderr)
"""


def request_of(argv: list[str]) -> tuple[Request, Settings]:
    """Return what a command line asks for."""
    values: dict[str, list[str]] = {flag: [] for flag in (*FLAGS, *SWITCHES)}
    words = iter(argv[1:])
    for word in words:
        flag = word.removeprefix("--")
        values[flag].append("true" if flag in SWITCHES else next(words))
    return combine(argv[0], Flags(values), "")


@dataclass(frozen=True)
class Asked:
    """A target at its sizes, ready to be foretold and to be run."""

    target: Target
    sizes: Sizes
    placement: Placement

    def forecast(self, cuda: bool = False) -> Forecast:
        runs = MeteredRuns(lambda numbers, meter: small_run(self.target, numbers, self.placement, Patience(), meter))
        made = foretell(runs, self.sizes, cuda, self.placement.grad)
        assert made is not None
        return made

    def log(self) -> MemoryLog:
        """Return what a run at the sizes themselves allocates."""
        with Meter() as meter:
            raw = small_run(self.target, self.sizes.numbers, self.placement, Patience(), meter)
        assert raw.failure is None, raw.failure
        log = meter.log(raw.steps)
        assert log is not None
        return log


def asked(argv: list[str]) -> Asked:
    request, settings = request_of(argv)
    target = find_target(request)
    placement = Placement(
        torch.device(settings.device), getattr(torch, settings.dtype), settings.seed, settings.train, settings.grad
    )
    return Asked(target, resolve(target.used, target.given, request.own), placement)


def highest(log: MemoryLog) -> int:
    """Return the most bytes that were held at one time."""
    held = most = 0
    for segment in (log.building, *log.running):
        for change in segment:
            held += change
            most = max(most, held)
    return most


@dataclass(frozen=True)
class Measured:
    """A command in a process of its own: its status, its output, and the most bytes that were resident."""

    status: int
    output: str
    resident: int

    @property
    def trace(self) -> dict[str, Any]:
        return dict(json.loads(self.output))


def measured(*argv: str) -> Measured:
    done = subprocess.run([sys.executable, "-c", CHILD, *argv], capture_output=True, text=True, cwd=ROOT, check=True)
    first, _, output = done.stdout.partition("\n")
    status, resident = first.split()
    return Measured(int(status), output, int(resident) * 1024)


@contextmanager
def written(folder: Path, text: str) -> Iterator[str]:
    """Yield the path of a file with this text, whose module is forgotten afterwards."""
    path = folder / "subject.py"
    path.write_text(text)
    try:
        yield str(path)
    finally:
        sys.modules.pop("subject", None)
        if str(folder) in sys.path:
            sys.path.remove(str(folder))
