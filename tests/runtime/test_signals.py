"""Processes that get Ctrl-C or SIGTERM at any moment end at once and silently, without a partial file."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from tests.sampling import sampled

pytestmark = pytest.mark.skipif(os.name != "posix", reason="needs signals")

MOMENTS = 10
# `python -m attnshape`, with a message on a pipe once it has started
START = """
import os, sys
from attnshape.__main__ import main
from attnshape.runtime import signals
obey = signals.obey_signals
def begun():
    obey()
    os.write(int(os.environ["BEGUN"]), b".")
signals.obey_signals = begun
{extra}
main()
"""
BUSY = """
import time
import attnshape.cli.app
def busy(arguments):
    time.sleep(60)
attnshape.cli.app.run = busy
"""
CODE = """
import atexit, ctypes, os, sys, threading, time
import torch

def begun():
    os.write(int(os.environ["INSIDE"]), b".")

def sleeps(x):
    begun()
    time.sleep(60)

def cleans_up(x):
    try:
        begun()
        time.sleep(60)
    finally:
        open("cleaned", "w").close()

def catches(x):
    begun()
    while True:
        try:
            time.sleep(60)
        except BaseException:
            pass

def catches_and_returns(x):
    begun()
    try:
        time.sleep(60)
    except BaseException:
        pass
    return x * 2

def computes(x):
    begun()
    while True:
        x = x * 1

def stuck_in_c(x):
    begun()
    lib = ctypes.CDLL(None)
    while True:
        lib.sleep(60)

def joins(x):
    thread = threading.Thread(target=time.sleep, args=(60,))
    thread.start()
    begun()
    thread.join()

class Deletes:
    def __del__(self):
        begun()
        time.sleep(60)

def deletes(x):
    Deletes()
    return x * 2

def small_only(x):
    if x.shape[0] != 4:
        begun()
        time.sleep(60)
    return x * 2

def builds(B):
    begun()
    time.sleep(60)

def at_exit(x):
    def last():
        begun()
        time.sleep(60)
    if x.shape[0] == 4:
        atexit.register(last)
    return x * 2

def replaces(x):
    import signal
    signal.signal(signal.SIGINT, lambda *_: None)
    begun()
    while True:
        time.sleep(60)
"""
TARGETS = (
    "sleeps", "cleans_up", "catches", "catches_and_returns", "computes", "stuck_in_c", "joins", "deletes", "small_only",
    "at_exit", "replaces",
)  # fmt: skip


class Running:
    """A process with two synchronisation points: when the tool has started, and when the traced code runs."""

    def __init__(self, *words: str, extra: str = "", ignore: bool = False) -> None:
        self.begun, begun = os.pipe()
        self.inside, inside = os.pipe()
        self.process = subprocess.Popen(
            [sys.executable, "-c", START.format(extra=extra), *words],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            env={**os.environ, "BEGUN": str(begun), "INSIDE": str(inside), "COLUMNS": "100"},
            pass_fds=(begun, inside),
            preexec_fn=(lambda: signal.signal(signal.SIGINT, signal.SIG_IGN)) if ignore else None,
        )
        os.close(begun)
        os.close(inside)
        assert os.read(self.begun, 1) == b".", self.process.communicate()

    def wait_inside(self) -> None:
        """Wait until the traced code runs."""
        assert os.read(self.inside, 1) == b".", self.process.communicate()

    def end(self, *numbers: signal.Signals) -> tuple[int, bytes, bytes, float]:
        """Send the signals; return the exit status, stdout, stderr and the seconds until the end."""
        started = time.monotonic()
        for number in numbers:
            self.process.send_signal(number)
        out, err = self.process.communicate(timeout=60)
        os.close(self.begun)
        os.close(self.inside)
        return self.process.returncode, out, err, time.monotonic() - started


@pytest.fixture
def code(here: Path) -> Path:
    (here / "code_.py").write_text(CODE)
    return here


def assert_whole_or_absent(folder: Path) -> None:
    assert {path.name for path in folder.iterdir() if path.suffix != ".py"} <= {"out.json", "__pycache__"}
    if (folder / "out.json").exists():
        json.loads((folder / "out.json").read_text())


@pytest.mark.slow
def test_interrupt_at_any_moment(here: Path):
    words = ("trace", "--output", "out.json", "--format", "json")
    started = time.monotonic()
    assert Running(*words).end()[:3] == (0, b"", b"")
    lasts = time.monotonic() - started
    (here / "out.json").unlink()

    def interrupt(moment: int) -> tuple[int, bytes, bytes]:
        running = Running(*words)
        time.sleep(lasts * moment / MOMENTS)
        return running.end(signal.SIGINT)[:3]

    with ThreadPoolExecutor(2) as two:
        ends = list(two.map(interrupt, range(MOMENTS)))
    assert {(out, err) for _, out, err in ends} == {(b"", b"")}
    # the last signals may arrive after the end
    assert {status for status, _, _ in ends} <= {130, 0}
    assert [status for status, _, _ in ends[: MOMENTS // 2]] == [130] * (MOMENTS // 2)
    assert_whole_or_absent(here)


@pytest.mark.parametrize("target", sampled(TARGETS, ["cleans_up", "catches", "stuck_in_c"]))
def test_interrupt_in_the_traced_code(target: str, code: Path):
    running = Running("trace", f"code_.py:{target}", "--input", "x: B L", "--batch", "4", "--output", "out.json")
    running.wait_inside()
    if target == "at_exit":
        time.sleep(1)  # the work is done; the supervisor has to hear of it before the signal
    status, out, err, seconds = running.end(signal.SIGINT)
    assert (status, out, err) == (0 if target == "at_exit" else 130, b"", b"")
    assert seconds < 10
    assert (code / "cleaned").exists() == (target == "cleans_up")
    (code / "cleaned").unlink(missing_ok=True)
    assert (code / "out.json").exists() == (target == "at_exit")


@pytest.mark.slow
def test_interrupt_while_the_target_is_imported_or_built(code: Path):
    (code / "slow.py").write_text(f"{CODE}\nbegun()\ntime.sleep(60)\n")
    for line in (["slow.py:f"], ["code_.py:builds"]):
        running = Running("trace", *line)
        running.wait_inside()
        assert running.end(signal.SIGINT)[:3] == (130, b"", b"")


def test_second_interrupt_is_harmless(code: Path):
    running = Running("trace", "code_.py:catches", "--input", "x: B L")
    running.wait_inside()
    status, out, err, seconds = running.end(signal.SIGINT, signal.SIGINT)
    assert (status, out, err) == (130, b"", b"")
    assert seconds < 10


def test_sigterm(code: Path):
    for target in ("sleeps", "catches"):
        running = Running("trace", f"code_.py:{target}", "--input", "x: B L")
        running.wait_inside()
        assert running.end(signal.SIGTERM)[:3] == (143, b"", b"")
    assert Running("glossary", extra=BUSY).end(signal.SIGTERM)[:3] == (143, b"", b"")


def test_interrupt_during_a_write_keeps_the_old_file(here: Path):
    slow = (
        "import os, pathlib, time; real = pathlib.Path.replace\n"
        "def replace(self, to):\n    os.write(int(os.environ['INSIDE']), b'.')\n    time.sleep(60)\n"
        "pathlib.Path.replace = replace"
    )
    (here / "out.json").write_text("{}")
    running = Running("trace", "average", "--output", "out.json", extra=slow)
    running.wait_inside()
    assert len(list(here.iterdir())) == 2
    assert running.end(signal.SIGINT)[:3] == (130, b"", b"")
    assert [path.name for path in here.iterdir()] == ["out.json"]
    assert (here / "out.json").read_text() == "{}"


@pytest.mark.parametrize(
    "line", sampled(["glossary", "catalog", "catalog multi-head", "show x.json", "--help"], ["show x.json"])
)
def test_interrupt_in_commands_without_torch(line: str, here: Path):
    assert Running(*line.split(), extra=BUSY).end(signal.SIGINT)[:3] == (130, b"", b"")


def test_ignored_sigint_stays_ignored(here: Path):
    status, out, err, _ = Running("glossary", ignore=True).end(signal.SIGINT)
    assert (status, err) == (0, b"")
    assert b"Lq" in out


def test_closed_pipe_is_not_an_error(code: Path):
    line = f"{sys.executable} -m attnshape trace multi-head --format json | head -1; echo ${{PIPESTATUS[0]}}"
    done = subprocess.run(["bash", "-c", line], capture_output=True, text=True, timeout=60, check=False)
    assert (done.stdout, done.stderr) == ("{\n0\n", "")


def test_process_does_not_wait_for_endless_threads(here: Path):
    (here / "threads.py").write_text(
        "import threading, time\n"
        "def f(x):\n"
        "    threading.Thread(target=time.sleep, args=(60,)).start()\n"
        "    return x * 2\n"
    )
    started = time.monotonic()
    status, out, err, _ = Running("trace", "threads.py:f", "--input", "x: B L", "--format", "json").end()
    assert (status, err) == (0, b"")
    assert len(json.loads(out)["steps"]) == 1
    assert time.monotonic() - started < 30


def test_printed_text_never_mixes_with_the_data(here: Path):
    (here / "prints.py").write_text(
        "import atexit, ctypes, os, threading, time\n"
        "def noise():\n"
        "    while True:\n"
        "        print('noise')\n"
        "        os.write(1, b'raw')\n"
        "def f(x):\n"
        "    threading.Thread(target=noise, daemon=True).start()\n"
        "    atexit.register(print, 'bye')\n"
        "    atexit.register(os.write, 1, b'raw')\n"
        "    ctypes.CDLL(None).puts(b'from C')\n"
        "    import sys\n"
        "    sys.stdout.close()\n"
        "    sys.stderr.close()\n"
        "    return x * 2\n"
    )
    status, out, err, _ = Running("trace", "prints.py:f", "--input", "x: B L", "--format", "json").end()
    assert status == 0
    assert len(json.loads(out)["steps"]) == 1
    for text in (b"noise", b"raw", b"bye", b"from C"):
        assert text in err
