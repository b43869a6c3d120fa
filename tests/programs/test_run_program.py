"""A program under `attnshape run` does what it does by itself, and its attention is reported at the end."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from tests.programs.programs import ENVIRONMENT, RUN, SOURCES, plain, watched


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Return a folder with a model and programs that use it."""
    for file in SOURCES.glob("*.py"):
        shutil.copy(file, tmp_path)
    return tmp_path


def test_training_is_the_same_bit_by_bit_and_its_attention_is_reported(folder: Path) -> None:
    words = ["train.py", "--epochs", "3", "-m", "--check", "--", "x"]
    alone, run = plain(words, folder, stdin="yes"), watched(words, folder, stdin="yes")
    assert (run.status, run.output) == (alone.status, alone.output)
    assert alone.status == 7
    assert alone.errors == ""
    note, *report = run.errors.splitlines()
    assert note == "note: --check is the program's, since it comes after train.py; ours come before it"
    assert report[:3] == [
        "attnshape: 1 attention in 12 calls",
        "model.py:20 CausalSelfAttention · 12 calls of 2 modules · B=6  H=4  L=32  D=32  Dk=8 · scores 96 KiB",
        "  attnshape trace model.py:CausalSelfAttention \\",
    ]
    assert "--init 'GPTConfig(block_size=32, n_head=H, n_embd=D, dropout=0.1)' --input 'x: B L D'" in run.errors
    assert "verified: a clean process runs it at" in run.errors


def test_the_printed_command_opens_the_trace(folder: Path) -> None:
    errors = watched(["train.py"], folder).errors
    command = "".join(
        line for line in errors.splitlines(keepends=True)[2:] if line.startswith("  ") and "verified" not in line
    )
    done = subprocess.run(
        command.replace("attnshape", f"{sys.executable} -P -m attnshape", 1),
        shell=True,
        cwd=folder,
        env=ENVIRONMENT,
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr
    assert "B H L L" in done.stdout


FAILS_INSIDE = """
import torch
from torch import nn

class Attention(nn.Module):
    def __init__(self, width, heads):
        super().__init__()
        self.heads, self.qkv = heads, nn.Linear(width, 3 * width)

    def forward(self, x):
        q, k, v = (t.unflatten(-1, (self.heads, -1)).transpose(1, 2) for t in self.qkv(x).chunk(3, -1))
        return ((q @ k.mT).softmax(-1) @ v).transpose(1, 2).view(x.shape)

if __name__ == "__main__":
    Attention(32, 4)(torch.randn(2, 7, 32))
"""


def test_the_command_of_an_attention_that_fails_shows_where(folder: Path) -> None:
    (folder / "fails.py").write_text(FAILS_INSIDE)
    run = watched(["fails.py"], folder)
    assert run.status == 1
    report = run.errors.partition("attnshape: 1 attention in 1 call")[2]
    assert "  attnshape trace fails.py:Attention --init" in report
    assert "not verified: run alone, as the command above does, it fails: RuntimeError: view size" in report


CRASH = """
import torch
from model import GPT, GPTConfig

model = GPT(GPTConfig(block_size=8, vocab_size=11, n_layer=1, n_head=2, n_embd=8))
model(torch.zeros(2, 8, dtype=torch.int64))
model.h[0].attn(torch.zeros(2, 9, 9))
"""


def test_a_traceback_has_no_frame_of_attnshape(folder: Path) -> None:
    (folder / "crash.py").write_text(CRASH)
    alone, run = plain(["crash.py"], folder), watched(["crash.py"], folder)
    assert run.status == alone.status == 1
    assert "RuntimeError" in alone.errors
    assert run.errors.startswith(alone.errors)
    assert "attnshape: 1 attention" in run.errors[len(alone.errors) :]


@pytest.mark.parametrize(
    "source",
    [
        "import sys; sys.exit('no such data')",
        "raise KeyboardInterrupt",
        "def f(:",
        "import os; os._exit(9)",
        "import os, signal; os.kill(os.getpid(), signal.SIGKILL)",
        "import sys\nsys.excepthook = lambda kind, error, traceback: print('hook', error, traceback.tb_lineno)\n1 / 0",
        "import atexit; atexit.register(print, 'at the end'); import torch; print(torch.__version__)",
        "import threading, time; threading.Thread(target=lambda: (time.sleep(0.2), print('thread'))).start()",
        "try:\n    1 / 0\nexcept ZeroDivisionError:\n    raise ValueError('then')",
    ],
)
def test_a_program_ends_as_it_does_by_itself(folder: Path, source: str) -> None:
    (folder / "program.py").write_text(source)
    alone, run = plain(["program.py"], folder), watched(["program.py"], folder)
    assert (run.status, run.output) == (alone.status, alone.output)
    assert run.errors.startswith(alone.errors)
    assert "attnshape: no call" in run.errors[len(alone.errors) :]


def test_a_module_runs_as_python_runs_it(folder: Path) -> None:
    package = folder / "package"
    package.mkdir()
    (package / "__init__.py").write_text("")
    (package / "__main__.py").write_text(
        "import sys\nprint(sys.argv, sys.orig_argv[1:], __package__, sys.path[0])\nraise ValueError\n"
    )
    words = ["-m", "package", "--flag", "-m", "x"]
    alone, run = plain(words, folder), watched(words, folder)
    assert (run.status, run.output) == (alone.status, alone.output)
    assert run.errors.startswith(alone.errors)


WAITING = """
import time
import torch
from model import GPT, GPTConfig

model = GPT(GPTConfig(block_size=8, vocab_size=11, n_layer=1, n_head=2, n_embd=8))
model(torch.zeros(2, 8, dtype=torch.int64))
print("ready", flush=True)
time.sleep(60)
"""


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_ends_the_program_and_the_attention_is_reported(folder: Path, number: signal.Signals) -> None:
    (folder / "waiting.py").write_text(WAITING)
    process = subprocess.Popen(
        [*RUN, "waiting.py"], cwd=folder, env=ENVIRONMENT, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    assert process.stdout is not None
    assert process.stdout.readline() == "ready\n"
    started = time.monotonic()
    process.send_signal(number)
    _, errors = process.communicate(timeout=100)
    assert process.returncode == -number
    assert ("KeyboardInterrupt" in errors) == (number == signal.SIGINT)
    assert "attnshape: 1 attention in 1 call" in errors
    assert time.monotonic() - started < 60


def test_pytest_runs_by_its_name(folder: Path) -> None:
    (folder / "test_model.py").write_text(
        "import torch\nfrom model import GPT, GPTConfig\n\n"
        "def test_logits():\n"
        "    model = GPT(GPTConfig(block_size=8, vocab_size=11, n_layer=1, n_head=2, n_embd=8))\n"
        "    assert model(torch.zeros(2, 8, dtype=torch.int64)).shape == (2, 8, 11)\n\n"
        "def test_wrong():\n    assert False\n"
    )
    path = os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]])
    run = watched(["pytest", "-q", "-p", "no:cacheprovider"], folder, options=("--",), PATH=path)
    assert run.status == 1
    assert "1 failed, 1 passed" in run.output
    assert "attnshape: 1 attention in 1 call" in run.errors


def test_nothing_is_left_behind(folder: Path) -> None:
    temporary = folder / "temporary"
    temporary.mkdir()
    (folder / "killed.py").write_text("import os, torch; os._exit(0)")
    watched(["killed.py"], folder, TMPDIR=str(temporary))
    assert list(temporary.iterdir()) == []


def test_a_missing_program_is_an_error(folder: Path) -> None:
    for words in ([], ["no_such.py"], ["/bin/sh"]):
        run = watched(words, folder)
        assert run.status == 2
        assert run.errors.startswith("error: ")
        assert "hint: " in run.errors


SELF_CONTAINED = """
import torch
from torch import nn

class Attention(nn.Module):
    def __init__(self, dim, heads):
        super().__init__()
        self.heads = heads
        self.qkv = nn.Linear(dim, 3 * dim)

    def forward(self, x):
        B, L, D = x.shape
        q, k, v = (one.view(B, L, self.heads, D // self.heads).transpose(1, 2) for one in self.qkv(x).chunk(3, -1))
        return ((q @ k.mT).softmax(-1) @ v).transpose(1, 2).reshape(B, L, D)

"""
TRAINING = 'open("runs", "a").write("x")\nAttention(12, 3)(torch.rand(2, 5, 12))\n'


def test_a_script_that_trains_when_it_is_imported_does_not_run_again(folder: Path) -> None:
    (folder / "all_in_one.py").write_text(SELF_CONTAINED + TRAINING)
    run = watched(["all_in_one.py"], folder)
    assert run.status == 0
    assert "Attention · 1 call of 1 module · D=12  H=3  B=2  L=5" in run.errors
    assert "not verified: to import all_in_one.py would run the program again" in run.errors
    assert (folder / "runs").read_text() == "x"


def test_a_script_with_a_guard_is_verified(folder: Path) -> None:
    guarded = "".join(f"    {line}\n" for line in TRAINING.splitlines())
    (folder / "guarded.py").write_text(f'{SELF_CONTAINED}if __name__ == "__main__":\n{guarded}')
    run = watched(["guarded.py"], folder)
    assert "attnshape trace guarded.py:Attention --init 'D, H' --input 'x: B L D'" in run.errors
    assert "verified: a clean process" in run.errors
    assert (folder / "runs").read_text() == "x"


def test_attention_that_is_never_called_is_named(folder: Path) -> None:
    (folder / "constructs.py").write_text("from model import GPT, GPTConfig\nGPT(GPTConfig(8, 11, 1, 2, 8))\n")
    run = watched(["constructs.py"], folder)
    assert "model.py:20 CausalSelfAttention: 1 module constructed, no call seen" in run.errors
