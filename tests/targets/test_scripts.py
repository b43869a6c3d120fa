"""Scripts that read a file as they start, or that train: their classes are taken, and a note says where they stop."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tests.cli.running import Attnshape

HEAD = """
import torch
from torch import nn


class Head(nn.Module):
    def __init__(self, head_size):
        super().__init__()
        self.key = nn.Linear(n_embd, head_size, bias=False)
        self.query = nn.Linear(n_embd, head_size, bias=False)
        self.value = nn.Linear(n_embd, head_size, bias=False)

    def forward(self, x):
        q, k, v = self.query(x), self.key(x), self.value(x)
        return (q @ k.mT * k.shape[-1] ** -0.5).softmax(-1) @ v
"""
STOPS = {
    "FileNotFoundError": "text = open('no_such_text.txt').read()\n",
    "SystemExit": "import argparse\nargs = argparse.ArgumentParser().parse_args(['--unknown'])\n",
    "NotInstalledError": "import nowhere_to_be_found\nready = bool(nowhere_to_be_found.run)\n",
}


@pytest.mark.parametrize("kind", STOPS)
def test_classes_below_what_fails_are_taken(folder: Path, attnshape: Attnshape, kind: str):
    Path("stopped.py").write_text(f"{STOPS[kind]}print('ran on')\nn_head = 4\nn_embd = 12 * n_head\n{HEAD}")
    result = attnshape("trace stopped.py --format table")
    assert result.status == 0, result.err
    assert 'found: --init Dk --input "x: B L 48"' in result.out
    assert "stopped.py:" in result.out
    assert f"fails, after which only definitions were taken from the file: {kind}" in " ".join(result.out.split())
    assert "ran on" not in result.out + result.err


def test_what_the_failed_statement_would_define_is_named(folder: Path, attnshape: Attnshape):
    Path("stopped.py").write_text(f"n_embd = len(open('no_such_text.txt').read())\n{HEAD}")
    result = attnshape("trace stopped.py --format table")
    assert result.status == 2
    assert "name 'n_embd' is not defined" in result.err
    assert "its file stopped at stopped.py:1: FileNotFoundError" in result.err


@pytest.mark.parametrize(
    "stop", ["raise OSError('not on this system')", "n_embd = 8 // 0", "import math, nothing_here.at_all"]
)
def test_refusals_and_mistakes_stay_failures(folder: Path, attnshape: Attnshape, stop: str):
    Path("stopped.py").write_text(f"{stop}\n{HEAD}")
    result = attnshape("trace stopped.py --format table")
    assert result.status == 2
    assert "only definitions" not in result.out


TRAINS = {
    "loop": "for step in range(10**9):\n    loss = float(sum(range(step % 100)))\n",
    "call": "def train():\n    import time\n    while True:\n        time.sleep(0.01)\n\n\ntrain()\n",
}


@pytest.mark.parametrize("kind", ["loop", "call"])
def test_statement_that_runs_on_is_stopped(folder: Path, attnshape: Attnshape, kind: str):
    Path("trains.py").write_text(f"n_embd = 48\n{HEAD}\n\n{TRAINS[kind]}print('trained')\n\n\nclass After:\n    pass\n")
    result = attnshape("trace trains.py:Head --format table --time-limit 30")
    assert result.status == 0, result.err
    note = "was stopped, after which only definitions were taken from the file: it took too long"
    assert re.search(rf"trains.py:\d+ {note}", " ".join(result.out.split()))
    assert "trained" not in result.out + result.err


def test_imports_may_take_long(folder: Path, attnshape: Attnshape):
    Path("heavy.py").write_text(
        "import time\nstarted = time.monotonic()\nwhile time.monotonic() < started + 2.5:\n    pass\n"
    )
    Path("light.py").write_text(f"for name in ['heavy']:\n    __import__(name)\nn_embd = 48\n{HEAD}")
    result = attnshape("trace light.py --format table --time-limit 30")
    assert result.status == 0, result.err
    assert "was stopped" not in result.out


def test_class_that_runs_on_is_no_script(folder: Path, attnshape: Attnshape):
    Path("stuck.py").write_text(f"n_embd = 48\nclass Stuck:\n    while True:\n        pass\n{HEAD}")
    result = attnshape("trace stuck.py:Head --format table --time-limit 30")
    assert result.status == 2
    assert "stuck.py doesn't import: TooLong: it took too long, at stuck.py" in result.err
    assert "under if __name__ == '__main__'" in result.err


def test_constants_of_the_main_block_that_classes_read(folder: Path, attnshape: Attnshape):
    main = "    text = open('no_such_text.txt').read()\n    n_head = 4\n    n_embd = 12 * n_head\n"
    Path("run_alone.py").write_text(f"{HEAD}\n\nif __name__ == '__main__':\n{main}")
    result = attnshape("trace run_alone.py --format table")
    assert result.status == 0, result.err
    assert 'found: --init Dk --input "x: B L 48"' in result.out
    assert "taken from `if __name__ == '__main__':`, since the code reads them: n_embd" in result.out
