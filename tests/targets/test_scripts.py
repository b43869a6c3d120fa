"""Scripts that read a file or an argument as they start: their classes are taken, and the note says where they stop."""

from __future__ import annotations

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
