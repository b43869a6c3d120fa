"""Whatever the traced code does to its process, the command ends in time, with the right status and whole output."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from attnshape.runtime import supervisor
from tests.fuzz.harness import Command, Harness, Outcome

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="the harness needs Linux")

CODE = """
import atexit, builtins, ctypes, os, signal, subprocess, sys, threading, time
import torch

class NoText(Exception):
    def __str__(self):
        raise ValueError

def fine(x):
    y = x * 2
    return y

{body}
"""
DEATHS = {
    "os._exit(0)": "the process ended with status 0",
    "os._exit(7)": "the process ended with status 7",
    "ctypes.string_at(0)": r"SIGSEGV \(a segmentation fault\) ended the process, at code.py:\d+",
    "os.abort()": r"SIGABRT ended the process, at code.py:\d+",
    "os.kill(os.getpid(), signal.SIGKILL)": r"SIGKILL \(perhaps for lack of memory\) ended the process",
    "os.kill(0, signal.SIGKILL)": "SIGKILL",
    "os.execv('/bin/true', ['true'])": "the process ended with status 0",
    "threading.Thread(target=os._exit, args=(0,)).start(); time.sleep(60)": "the process ended with status 0",
    "os.closerange(3, 256)": "the process ended with status 2",
    "builtins.len = None": "the process ended with status 2",
    "torch.randn = None": r"the code has replaced torch.randn, which attnshape needs in .*, line \d+: TypeError",
    "torch.Tensor.shape = None": "the code has replaced torch.Tensor.shape",
    "time.monotonic = lambda: 1 / 0": "the code has replaced time.monotonic",
}
HARMLESS = (
    "for number in range(3): os.close(number)", "sys.stdout = sys.stderr = None", "atexit.register(os._exit, 0)",
    "atexit.register(time.sleep, 60)", "threading.Thread(target=time.sleep, args=(60,)).start()",
    "subprocess.Popen(['sleep', '60'], start_new_session=True)", "os._exit = None",
)  # fmt: skip


@pytest.fixture
def attnshape(harness: Harness) -> Iterator[object]:
    with harness.case_folder({}) as folder:

        def call(body: str, *words: str, **unusual: object) -> Outcome:
            (folder / "code.py").write_text(CODE.format(body=body))
            return harness.run(Command(words=words, **unusual), folder)  # type: ignore[arg-type]

        call.folder = folder  # type: ignore[attr-defined]
        yield call


def target(statement: str) -> str:
    return f"def f(x):\n    y = x * 2\n    {statement}\n    return y\n"


INPUT = ("--input", "x: B L", "--batch", "4")


@pytest.mark.parametrize("statement", DEATHS)
def test_death_is_an_error(attnshape, statement: str) -> None:
    done = attnshape(target(statement), "trace", "code.py:f", *INPUT, "--output", "out.md")
    assert (done.status, done.out, done.left) == (2, "", ())
    error, hint, end = done.err.split("\n")
    assert re.search(f"^error: .*{DEATHS[statement]}", error)
    assert hint.startswith("hint: ")
    assert end == ""
    assert [path.name for path in attnshape.folder.iterdir() if path.suffix == ".md"] == []


@pytest.mark.parametrize("statement", HARMLESS)
def test_what_does_not_concern_the_result_does_not_change_it(attnshape, statement: str) -> None:
    done = attnshape(target(statement), "trace", "code.py:f", *INPUT, "--format", "json")
    assert (done.status, done.left) == (0, ()), done.err
    assert json.loads(done.out)["steps"][0]["expression"] == "x * 2"
    assert done.seconds < 10


@pytest.mark.parametrize(
    ("in_child", "status"),
    [("pass", 0), ("sys.exit(3)", 3), ("raise ValueError('in the child')", 1), ("os._exit(5)", 5)],
)
@pytest.mark.parametrize("moment", ["call", "import", "constructor"])
def test_forked_child_ends_where_the_code_ends(attnshape, in_child: str, status: int, moment: str) -> None:
    fork = f"""
def forks():
    pid = os.fork()
    if not pid:
        {in_child}
        return
    with open("statuses", "a") as file:
        print(os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]), file=file)

class Target(torch.nn.Module):
    def __init__(self):
        super().__init__()
        {"forks()" if moment == "constructor" else ""}
    def forward(self, x):
        {"forks()" if moment == "call" else ""}
        return x * 2

{"forks()" if moment == "import" else ""}
"""
    done = attnshape(fork, "trace", "code.py:Target", *INPUT, "--format", "json")
    assert (done.status, done.left) == (0, ()), done.err
    assert len(json.loads(done.out)["steps"]) == 1
    statuses = (attnshape.folder / "statuses").read_text().split()
    assert set(statuses) == {str(status)}
    assert ("ValueError: in the child" in done.err) == ("ValueError" in in_child)


@pytest.mark.parametrize("verb", ["trace", "check", "annotate"])
@pytest.mark.parametrize("statement", ["while True: pass", "ctypes.CDLL(None).sleep(600)"])
def test_time_limit_ends_what_never_returns(attnshape, verb: str, statement: str) -> None:
    done = attnshape(target(statement), verb, "code.py:f", *INPUT, "--time-limit", "2", seconds=60.0)
    assert (done.status, done.out) == (2, "")
    assert re.match(r"error: there is no result: the time limit of 2 s was reached, at code.py:\d+ ", done.err)
    assert 2 <= done.seconds < 4.5


def test_memory_limit(attnshape) -> None:
    body = target("torch.ones(2**30)")
    done = attnshape(body, "check", "code.py:f", *INPUT, "--memory-limit", "1GB")
    assert done.status == 2
    assert "can't allocate memory" in done.err
    done = attnshape(body, "trace", "code.py:fine", *INPUT, "--memory-limit", "1GB", "--format", "json")
    assert done.status == 0
    done = attnshape(body, "trace", "code.py:fine", "--memory-limit", "much")
    assert (done.status, done.err) == (
        2,
        "error: --memory-limit is 'much', expected an amount of memory above 0\nhint: for example --memory-limit 4GB\n",
    )


PROJECT = (
    "".join(
        f'[tool.attnshape.targets.{name}]\ntarget = "code.py:{name}"\ninputs = ["x: B L"]\n'
        for name in ("fine", "exits", "crashes", "hangs")
    )
    + '[tool.attnshape.targets.last]\ntarget = "code.py:fine"\ninputs = ["x: B L D"]\n'
)
BATCH = """
def exits(x):
    os._exit(0)
def crashes(x):
    ctypes.string_at(0)
def hangs(x):
    while True: pass
"""


@pytest.mark.parametrize("verb", ["trace", "check"])
def test_death_of_one_target_is_not_the_end_of_all(attnshape, verb: str) -> None:
    (attnshape.folder / "pyproject.toml").write_text(PROJECT)
    done = attnshape(BATCH, verb, "--all", "--time-limit", "4", "--format", "json", seconds=60.0)
    assert (done.status, done.left) == (2, ())
    results = json.loads(done.out)["results"]
    errors = [result["error"]["message"] if result.get("error") else None for result in results]
    assert [error is None for error in errors] == [True, False, False, False, True]
    for error, expected in zip(errors[1:4], ("status 0", "SIGSEGV", "time limit of 4 s"), strict=True):
        assert expected in error
    done = attnshape(BATCH, verb, "--all", "--time-limit", "4", "--format", "markdown", seconds=60.0)
    assert re.findall("^## (.*)", done.out, re.MULTILINE)[:5] == ["fine", "exits", "crashes", "hangs", "last"]


def test_folder_in_the_place_of_an_output_file_is_an_error_of_one_target(attnshape) -> None:
    (attnshape.folder / "pyproject.toml").write_text(PROJECT.replace("exits", "fine").replace("crashes", "fine"))
    names = ("fine", "last")
    (attnshape.folder / "pyproject.toml").write_text(
        "".join(f'[tool.attnshape.targets.{n}]\ntarget = "code.py:fine"\ninputs = ["x: B"]\n' for n in names)
    )
    (attnshape.folder / "out" / "fine.json").mkdir(parents=True)
    done = attnshape("", "trace", "--all", "--format", "json", "--output", "out/")
    assert done.status == 2
    assert "Is a directory" in done.out
    assert json.loads((attnshape.folder / "out" / "last.json").read_text())["complete"]


@pytest.mark.parametrize("line", ["trace code.py:fine --input x:B", "--help", "glossary", "show saved.json"])
@pytest.mark.parametrize(
    ("streams", "status"),
    [(("closed", "closed", ""), 0), (("", "", "closed"), 0), (("closed",) * 3, 0), (("", "/dev/full", ""), 2)],
)
def test_streams_that_are_closed_or_full(attnshape, line: str, streams: tuple[str, str, str], status: int) -> None:
    assert (
        attnshape("", *["trace", "code.py:fine", "--input", "x:B", "--format", "json", "--output", "saved.json"]).status
        == 0
    )
    done = attnshape("", *line.split(), streams=(streams[0] or "/dev/null", *streams[1:]))
    assert done.status == status
    if status:
        assert done.err.startswith("error: standard output can't be written: No space left on device\nhint: ")
    assert "Traceback" not in done.err


def test_hostile_exceptions(attnshape) -> None:
    done = attnshape(target("raise NoText"), "trace", "code.py:f", *INPUT)
    assert done.status == 1
    assert "NoText: its message can't be read" in done.out
    body = "class Target:\n    def __init__(self):\n        raise NoText\n"
    done = attnshape(body, "trace", "code.py:Target", *INPUT)
    assert (done.status, done.out) == (2, "")
    assert "NoText: its message can't be read" in done.err


@pytest.mark.parametrize("output", ["code.py", "./code.py", "link.md", "hard.md", "pyproject.toml", "data.json"])
def test_output_never_replaces_source_or_what_was_read(attnshape, output: str) -> None:
    folder = attnshape.folder
    (folder / "pyproject.toml").write_text("[project]\nname = 'x'\n")
    (folder / "data.json").write_text("[2]")
    body = "import json\nFACTOR, = json.load(open('data.json'))\n"
    attnshape(body, "glossary")
    (folder / "link.md").symlink_to("code.py")
    os.link(folder / "code.py", folder / "hard.md")
    before = (folder / output).read_bytes()
    done = attnshape(body, "trace", "code.py:fine", *INPUT, "--output", output)
    assert (done.status, done.out) == (2, "")
    assert "would be overwritten\nhint: choose another path\n" in done.err
    assert (folder / output).read_bytes() == before


def test_output_does_not_replace_a_saved_trace_that_is_shown(attnshape) -> None:
    saved = attnshape.folder / "saved.json"
    attnshape("", "trace", "code.py:fine", *INPUT, "--format", "json", "--output", "saved.json")
    before = saved.read_bytes()
    for line in ("show saved.json", "diff saved.json saved.json"):
        done = attnshape("", *line.split(), "--output", "saved.json")
        assert (done.status, saved.read_bytes()) == (2, before)


def test_files_of_one_run_are_no_inputs_of_the_next(attnshape) -> None:
    for _ in range(2):
        assert attnshape("", "trace", "code.py:fine", *INPUT, "--output", "out.md").status == 0


def test_interrupt_while_nobody_reads_the_output(tmp_path: Path) -> None:
    (tmp_path / "code.py").write_text(
        CODE.format(body="def f(x):\n    for i in range(2000):\n        x = x * (i + 2)\n")
    )
    command = [sys.executable, "-m", "attnshape", "trace", "code.py:f", *INPUT, "--format", "json"]
    root = Path(__file__).parents[2]
    process = subprocess.Popen(
        command, cwd=tmp_path, env={**os.environ, "PYTHONPATH": str(root)}, stdout=subprocess.PIPE
    )
    assert process.stdout is not None
    process.stdout.read(1)  # it has begun to write more than a pipe holds
    started = time.monotonic()
    process.send_signal(signal.SIGINT)
    assert process.wait(10) == 130
    assert time.monotonic() - started < 2.5
    process.stdout.close()


def test_worker_ends_with_its_supervisor(tmp_path: Path) -> None:
    (tmp_path / "code.py").write_text(
        CODE.format(body=target("open('pid', 'w').write(str(os.getpid())); time.sleep(60)"))
    )
    command = [sys.executable, "-m", "attnshape", "trace", "code.py:f", *INPUT]
    root = Path(__file__).parents[2]
    process = subprocess.Popen(command, cwd=tmp_path, env={**os.environ, "PYTHONPATH": str(root)})
    file = tmp_path / "pid"
    deadline = time.monotonic() + 60
    while not (file.exists() and file.read_text()):
        assert time.monotonic() < deadline
        time.sleep(0.05)
    pid = int(file.read_text())
    assert pid != process.pid
    process.send_signal(signal.SIGKILL)
    process.wait()
    while Path(f"/proc/{pid}").exists() and "Z" not in Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2][:3]:
        assert time.monotonic() < deadline
        time.sleep(0.05)


def test_supervisor_that_can_start_no_worker_says_so(attnshape) -> None:
    done = attnshape("", "glossary", program=(sys.executable, "-m", "attnshape", "glossary"), limits={"NOFILE": 6})
    assert done.status == 2
    assert done.err.startswith("error: no process can be started for the work: Too many open files\nhint: ")


def test_signal_that_also_ended_the_worker_is_an_interruption() -> None:
    # a group gets a signal one process after another, and the worker's end may be heard of first
    watched = object.__new__(supervisor._Watched)
    watched._events, watched._interrupted, watched._died = supervisor.Events(), 0, -signal.SIGINT
    threading.Timer(0.02, watched._events.put, [(supervisor._SIGNAL, signal.SIGINT)]).start()
    watched._take_late_signal()
    assert watched._interrupted == signal.SIGINT
