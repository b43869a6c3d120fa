"""What the traced code prints is shown once: from the run at the user's sizes, of all the runs that a verb makes."""

import os
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

from tests.cli.running import ROOT, Attnshape

MODEL = """
import ctypes
import logging
import os
import sys
import warnings

import torch
from torch import nn

kept = sys.stderr
libc = ctypes.CDLL(None)
print("imported")


class Attention(nn.Module):
    def __init__(self, width):
        super().__init__()
        print(f"built with {width}")
        self.qkv = nn.Linear(width, 3 * width)

    def forward(self, x):
        length = x.shape[1]
        print(f"print {length}")
        print(f"to stderr {length}", file=sys.stderr)
        kept.write(f"kept stream {length}\\n")
        os.write(1, f"os.write {length}\\n".encode())
        os.system(f"echo process {length}")
        libc.puts(f"puts {length}".encode())
        logging.getLogger("model").warning("logged %s", length)
        warnings.warn("warned")
        q, k, v = self.qkv(x).chunk(3, dim=-1)
        weights = (q @ k.mT * q.shape[-1] ** -0.5).softmax(-1)
        return weights @ v


def asks(x):
    answer = input("continue? ")
    return x * 2


def imports(x):
    print("called")
    import colorsys
    return x * 2
"""
SOURCES = ("print", "to stderr", "kept stream", "os.write", "process", "puts", "logged")
TARGET = 'printing.py:Attention --init D --input "x: B L D" --length 10 --d-model 64'


def attnshape_process(folder: Path, command: str, answers: str = "") -> tuple[str, list[str]]:
    """Return standard output and the lines of standard error of a process, where pytest captures no warnings."""
    (folder / "printing.py").write_text(MODEL)
    words = [sys.executable, "-m", "attnshape", *shlex.split(command)]
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    done = subprocess.run(
        words, cwd=folder, env=environment, capture_output=True, text=True, input=answers, timeout=100, check=True
    )
    return done.stdout, done.stderr.splitlines()


@pytest.mark.parametrize("verb", ["trace", "check", "check --select AS0", "annotate"])
def test_output_is_that_of_the_run_at_the_users_sizes(verb: str, folder: Path) -> None:
    verb, _, options = verb.partition(" ")
    out, lines = attnshape_process(folder, f"{verb} {TARGET} {options}")
    assert [line for line in lines if line.startswith("imported")] == ["imported"]
    assert [line for line in lines if line.startswith("built")] == ["built with 64"]
    for source in SOURCES:
        assert [line for line in lines if line.startswith(f"{source} 1")] == [f"{source} 10"]
    assert sum("UserWarning: warned" in line for line in lines) == 1
    assert not any(f"{source} 10" in out for source in SOURCES)


def test_failure_at_the_users_sizes_is_printed(attnshape: Attnshape, folder: Path) -> None:
    (folder / "printing.py").write_text("def f(x):\n    print('at', x.shape[0])\n    return x @ x\n")
    result = attnshape("trace printing.py:f --input 'x: B L' --batch 4")
    assert result.status == 1
    assert result.err == "at 4\n"


def test_code_that_reads_input_is_asked_once(folder: Path) -> None:
    out, lines = attnshape_process(folder, "trace printing.py:asks --input 'x: B L'", "yes\n")
    assert "".join(lines).count("continue?") == 1
    assert "x * 2" in out


def test_call_that_is_repeated_because_it_imports_prints_once(attnshape: Attnshape, folder: Path) -> None:
    (folder / "printing.py").write_text(MODEL)
    result = attnshape("trace printing.py:imports --input 'x: B L'")
    assert result.err.count("called") == 1
