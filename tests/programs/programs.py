"""Runs programs by themselves and under `attnshape run`, in processes of their own."""

from __future__ import annotations

import os
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parents[2]
SOURCES = Path(__file__).parent / "sources"
ENVIRONMENT = {**os.environ, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"}
RUN = [sys.executable, "-P", "-m", "attnshape", "run"]


@dataclass(frozen=True)
class Ended:
    """How a program ended."""

    status: int
    output: str
    errors: str


def ended(command: list[str], folder: Path, stdin: str = "", **environment: str) -> Ended:
    """Run a command to its end."""
    done = subprocess.run(
        command,
        cwd=folder,
        env={**ENVIRONMENT, **environment},
        input=stdin,
        capture_output=True,
        text=True,
        timeout=170,
    )
    return Ended(done.returncode, done.stdout, done.stderr)


def plain(words: list[str], folder: Path, **kwargs: str) -> Ended:
    """Run a program by itself."""
    return ended([sys.executable, *words], folder, **kwargs)


def watched(words: list[str], folder: Path, *, options: tuple[str, ...] = (), **kwargs: str) -> Ended:
    """Run a program under `attnshape run`."""
    return ended([*RUN, *options, *words], folder, **kwargs)
