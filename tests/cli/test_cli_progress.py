"""The progress line on a terminal during a long trace."""

import os
import pty
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from tests.terminal import read_all

ROOT = Path(__file__).parents[2]
SLOW = """
import os, time
def slow(x):
    if not os.path.exists("again"):
        open("again", "w").close()
        time.sleep(3.2)
    if x.shape[1] == 10:
        print("one")
        time.sleep(0.7)
        print("two")
        time.sleep(0.7)
        print("three", end="", flush=True)
        time.sleep(0.7)
        print(" four")
        time.sleep(0.7)
    return x + 1
"""
COMMAND = [sys.executable, "-m", "attnshape", "trace", "slow.py:slow", "--input", "x: B L"]
ENVIRONMENT = {**os.environ, "PYTHONPATH": str(ROOT), "TERM": "xterm"}


def screen(written: str) -> list[str]:
    """Return the lines that a terminal finally shows."""
    lines, column = [""], 0
    for piece in re.findall(r"\x1b\[[0-9;?]*[A-Za-z]|.|\n", written, re.DOTALL):
        if piece == "\n":
            lines.append("")
            column = 0
        elif piece == "\r":
            column = 0
        elif piece == "\x1b[2K":
            lines[-1] = ""
        elif not piece.startswith("\x1b"):
            lines[-1] = lines[-1].ljust(column)[:column] + piece + lines[-1][column + 1 :]
            column += 1
    return lines


def start(folder: Path, command: list[str], stdout: int = subprocess.DEVNULL) -> tuple["subprocess.Popen[bytes]", int]:
    (folder / "slow.py").write_text(SLOW)
    leader, follower = pty.openpty()
    process = subprocess.Popen(command, cwd=folder, env=ENVIRONMENT, stdout=stdout, stderr=follower)
    os.close(follower)
    return process, leader


def test_progress_is_shown_between_whole_lines_and_erased(tmp_path: Path):
    process, leader = start(tmp_path, COMMAND, subprocess.PIPE)
    written = read_all(leader)
    assert process.stdout is not None
    out = process.stdout.read().decode()
    assert process.wait() == 0
    assert "attnshape: run 1 at small sizes, " in written
    assert screen(written) == ["one", "two", "three four", ""]
    # the progress line doesn't break up "three four", which is one line
    assert "three four" in written
    assert "attnshape: run" not in out
    assert "\x1b" not in out
    assert "slow.py:slow" in out


@pytest.mark.slow
def test_no_progress_if_stderr_is_not_a_terminal(tmp_path: Path):
    (tmp_path / "slow.py").write_text(SLOW)
    done = subprocess.run(COMMAND, cwd=tmp_path, env=ENVIRONMENT, capture_output=True, text=True, check=True)
    assert done.stderr == "one\ntwo\nthree four\n"


def test_no_progress_for_short_work(tmp_path: Path):
    script = (
        "import sys, time\nfrom attnshape.cli.progress import Progress\n"
        "with Progress() as progress:\n    progress('nothing long')\n    time.sleep(1)\n"
        "print('rich' in sys.modules)"
    )
    process, leader = start(tmp_path, [sys.executable, "-c", script], subprocess.PIPE)
    assert read_all(leader) == ""
    assert process.stdout is not None
    assert process.stdout.read() == b"False\n"
    assert process.wait() == 0


@pytest.mark.slow
def test_interrupt_erases_the_progress_line(tmp_path: Path):
    process, leader = start(tmp_path, COMMAND)
    written = ""
    until = time.monotonic() + 60
    while "attnshape: run 1" not in written and time.monotonic() < until:
        written += os.read(leader, 65536).decode().replace("\r\n", "\n")
    process.send_signal(signal.SIGINT)
    written += read_all(leader)
    assert process.wait() == 130
    assert screen(written) == [""]
