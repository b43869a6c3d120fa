"""SIGINT and SIGTERM at any moment of a real process, also typed as Ctrl-C on a terminal."""

from __future__ import annotations

import json
import shlex
import signal
import sys
from dataclasses import dataclass
from pathlib import Path

from hypothesis import strategies as st
from hypothesis.strategies import DrawFn, SearchStrategy

from tests.fuzz.cases import Family, Verdict, checked, run_in
from tests.fuzz.harness import Command, Harness, Outcome
from tests.robust.output_parsers import assert_drawn

_LATEST = 2.5
"""Seconds until the end after the last signal."""
CODE = b"""\
import os, sys, termios, threading, time
import torch

def double(x):
    return x * 2

def slow(x):
    for _ in range(20):
        time.sleep(0.1)
    return x * 2

def catches(x):
    for _ in range(40):
        try:
            time.sleep(0.1)
        except BaseException:
            pass
    return x * 2

def busy(x):
    for _ in range(100_000):
        x = x * 1
    return x * 2

def threads(x):
    threading.Thread(target=time.sleep, args=(3,)).start()
    time.sleep(1)
    return x * 2

def no_echo(x):
    if os.isatty(0):
        modes = termios.tcgetattr(0)
        modes[3] &= ~termios.ECHO
        termios.tcsetattr(0, termios.TCSANOW, modes)
    time.sleep(2)
    return x * 2

def child(x):
    import subprocess
    subprocess.run(["sleep", "2"])
    return x * 2
"""
_TARGETS = ("double", "slow", "catches", "busy", "threads", "child")
_INPUT = ("--input", "x: B L", "--batch", "4")
_COMMANDS = (
    ("trace", "--format", "json", "--output", "out.json"),
    ("trace", "--format", "json"),
    ("check", "average", "--length", "3", "--d-model", "4", "--format", "json", "--output", "out.json"),
    ("annotate", "code.py:double", *_INPUT, "--output", "out.diff"),
    ("annotate", "code.py:double", *_INPUT, "--write"),
    ("catalog",),
    ("diff", "average", "single-head", "--output", "out.md"),
    ("trace", "--all", "--format", "json", "--output", "folder/"),
)
PYPROJECT = b"""\
[tool.attnshape.targets.one]
target = "average"
[tool.attnshape.targets.two]
target = "code.py:slow"
inputs = ["x: B L"]
"""
_OUTPUTS = ("out.json", "out.diff", "out.md", "folder/one.json", "folder/two.json")


@dataclass(frozen=True)
class Interrupted:
    """A command, and the signals that it gets."""

    words: tuple[str, ...]
    moments: tuple[float, ...]
    number: int
    to: str
    terminal: bool


@st.composite
def _interrupted(draw: DrawFn) -> Interrupted:
    terminal = draw(st.integers(0, 4)) == 0
    targets = (*_TARGETS, "no_echo", "no_echo", "no_echo") if terminal else _TARGETS
    words = draw(st.sampled_from(_COMMANDS))
    if draw(st.booleans()):
        target = draw(st.sampled_from(targets))
        words = ("trace", f"code.py:{target}", *_INPUT, "--format", "json", "--output", "out.json")
    # after attnshape has begun; its imports and a trace take about a second on an idle machine
    first = draw(st.integers(0, 3000).map(lambda milliseconds: milliseconds / 1000))
    twice = draw(st.integers(0, 3)) == 0
    moments = (first, round(first + draw(st.sampled_from((0.0, 0.01, 0.3, 0.9))), 3)) if twice else (first,)
    number = draw(st.sampled_from((signal.SIGINT, signal.SIGINT, signal.SIGTERM)))
    to = draw(st.sampled_from(("process", "group")))
    if terminal and number == signal.SIGINT and draw(st.booleans()):
        to = "typed"
    return Interrupted(words, moments, int(number), to, terminal)


def interrupted(harness: Harness) -> SearchStrategy[Interrupted]:
    """Return a strategy for commands with signals."""
    return _interrupted()


def attempt(case: Interrupted, harness: Harness) -> Verdict:
    """Run the command, and look at what it leaves."""
    verdict = Verdict(valid=True)
    streams = ("terminal", "", "terminal") if case.terminal else ("/dev/null", "", "")
    command = Command(
        program=(sys.executable, "-m", "attnshape", *case.words),
        streams=streams,
        terminal=case.terminal,
        signals=tuple((moment, case.number, case.to) for moment in case.moments),
        environment={"COLUMNS": None} if case.terminal else {},
        seconds=40,
    )
    files = {"code.py": CODE, "pyproject.toml": PYPROJECT}
    written = [*_OUTPUTS, *(["code.py"] if "--write" in case.words else [])]

    def look(outcome: Outcome, folder: Path) -> None:
        for name in _OUTPUTS:
            if (folder / name).exists():
                text = (folder / name).read_bytes().decode(errors="replace")
                checked(verdict, name, lambda name=name, text=text: _assert_whole(case, name, text))
        if "--write" in case.words:
            code = (folder / "code.py").read_bytes()
            if code != CODE and b"Float[" not in code.split(b"def slow")[0]:
                verdict.problems.append("code.py is neither the old one nor the new one")

    status = 128 + case.number
    # a signal may come after the end; two different traces end with 1
    own = 1 if case.words[0] == "diff" else 0
    outcome = run_in(harness, files, command, verdict, written, (status, own), look)
    if outcome.after_signal is None or outcome.status == own:
        verdict.valid = outcome.status == own
    elif outcome.after_signal > _LATEST:
        verdict.problems.append(f"ended {outcome.after_signal:.1f} s after the signal")
    visible = outcome.terminal_output if case.terminal else outcome.err
    if outcome.status == status and not case.terminal and visible.strip():
        verdict.problems.append(f"standard error: {visible[:400]!r}")
    if "Traceback" in visible or "Exception ignored" in visible:
        verdict.problems.append(f"the terminal shows {visible[-400:]!r}")
    if case.terminal and not outcome.terminal_restored and "code.py:no_echo" not in case.words:
        verdict.problems.append("the terminal's modes have changed")
    elif case.terminal and not outcome.terminal_restored:
        verdict.problems.append("the terminal's modes, which the target changed, are not restored")
    if outcome.status == status and outcome.out and "json" in case.words and "--output" not in case.words:
        checked(verdict, "standard output", lambda: json.loads(outcome.out))
    return verdict


def _assert_whole(case: Interrupted, name: str, text: str) -> None:
    assert text, "it is empty"
    if name.endswith(".json") and case.words[0] == "trace":
        assert_drawn("json", text, 100)
    elif name.endswith(".json"):
        json.loads(text)
    else:
        assert text.endswith("\n")


def describe(case: Interrupted) -> str:
    """Return the command, the moments in seconds, and what is sent to whom."""
    sent = "^C typed" if case.to == "typed" else f"{signal.Signals(case.number).name} to the {case.to}"
    where = " on a terminal" if case.terminal else ""
    return f"{shlex.join(('attnshape', *case.words))}   # {sent} after {case.moments} s{where}"


FAMILY = Family("signals", interrupted, attempt, describe, fixed_cases=5, long_cases=500)
