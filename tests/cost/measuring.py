"""Requests by command line, and commands in a separate process, whose memory is measured."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from attnshape.cost.estimate import PeakEstimate, estimate_peak_memory
from attnshape.cost.meter import MemoryLog, Meter, MeteredRuns
from attnshape.dims.sizes import Sizes
from attnshape.options.spec import RunOptions
from attnshape.pipelines.target_runs import small_run
from attnshape.runtime.time_limit import TimeLimit
from attnshape.targets.find import find_target
from attnshape.targets.target import Target
from tests.specs import spec_of

ROOT = Path(__file__).parents[2]
CHILD = """
import resource, subprocess, sys
done = subprocess.run([sys.executable, "-m", "attnshape", *sys.argv[1:]], capture_output=True, text=True)
print(done.returncode, resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss)
print(done.stdout + done.stderr)
"""


@dataclass(frozen=True)
class Subject:
    """A target at its sizes, ready for an estimate and for a run."""

    target: Target
    sizes: Sizes
    options: RunOptions

    def estimate(self, cuda: bool = False) -> PeakEstimate:
        runs = MeteredRuns(lambda numbers, meter: small_run(self.target, numbers, self.options, TimeLimit(), meter))
        estimate_ = estimate_peak_memory(runs, self.sizes, cuda, self.options.grad)
        assert estimate_ is not None
        return estimate_

    def log(self) -> MemoryLog:
        """Return the allocations of a run at the given sizes."""
        with Meter() as meter:
            raw = small_run(self.target, self.sizes.numbers, self.options, TimeLimit(), meter)
        assert raw.failure is None, raw.failure
        log = meter.log(raw.steps)
        assert log is not None
        return log


def subject_of(argv: list[str]) -> Subject:
    spec, options = spec_of(*argv)
    target = find_target(spec)
    return Subject(target, target.sizes, options)


@dataclass(frozen=True)
class Measured:
    """A command in a separate process: its status, its output, and its peak resident bytes."""

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
def source_file(folder: Path, text: str) -> Iterator[str]:
    """Yield the path of a file with this text, and drop its module afterwards."""
    path = folder / "subject.py"
    path.write_text(text)
    try:
        yield str(path)
    finally:
        sys.modules.pop("subject", None)
        if str(folder) in sys.path:
            sys.path.remove(str(folder))
