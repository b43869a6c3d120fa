"""The small project in which command lines run: targets, saved traces, snapshots, and a pyproject.toml."""

from __future__ import annotations

import json
from collections.abc import Mapping

from attnshape.comparison.snapshot import snapshot_of, write_snapshot
from attnshape.model.trace import Trace
from tests.fuzz.harness import Command, Harness

CODE = b"""\
import math

import torch
from torch import Tensor, nn


class Attention(nn.Module):
    def __init__(self, D, H=1):
        super().__init__()
        self.H = H
        self.Wqkv = nn.Linear(D, 3 * D)
        self.Wo = nn.Linear(D, D)

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = self.Wqkv(x).unflatten(-1, (3, self.H, -1)).permute(2, 0, 3, 1, 4)
        scores = q @ k.mT / math.sqrt(q.shape[-1])
        weights = scores.softmax(dim=-1)
        context = weights @ v
        return self.Wo(context.transpose(1, 2).flatten(2))


class Wrong(nn.Module):
    def __init__(self, D, H=1):
        super().__init__()
        self.H = H
        self.Wqkv = nn.Linear(D, 3 * D)
        self.Wo = nn.Linear(D, D)

    def forward(self, x):
        q, k, v = self.Wqkv(x).unflatten(-1, (3, self.H, -1)).permute(2, 0, 3, 1, 4)
        scores = q @ k.mT / math.sqrt(x.shape[-1])
        return self.Wo((scores.softmax(dim=-1) @ v).transpose(1, 2).flatten(2))


def attend(query, key, value, scale=1.0):
    scores = query @ key.mT * scale
    weights = scores.softmax(-1)
    return weights @ value


def double(x, y=2):
    doubled = x * y
    return doubled


def fails(x):
    y = x * 2
    return y @ x[..., :1, :1].expand(7, 7)


def case(B, L):
    return double, (torch.ones(B, L),)
"""
PYPROJECT = b"""\
[project]
name = "small"

[tool.attnshape.targets.own]
target = "code.py:Attention"
init = "D, H"
inputs = ["x: B L D"]
batch = 1
heads = 2
d-model = 4
length = 3

[tool.attnshape.targets.several]
target = "average"
d-model = 4
sizes = [{ B = 1, L = 2 }, { B = 2, L = 3 }]
"""
SIZES = ("--batch", "1", "--length", "3", "--d-model", "4")
_SAVED = {
    "average.json": ("average", *SIZES),
    "masked.json": ("average", *SIZES, "--causal"),
    "heads.json": ("multi-head", *SIZES, "--heads", "2", "--causal", "--expect", "scores: B H L L"),
    "attention.json": ("code.py:Attention", "--init", "D, H", "--input", "x: B L D", *SIZES, "--heads", "2"),
    "fails.json": ("code.py:fails", "--input", "x: B L D", *SIZES),
    "batch.json": ("several",),
}
COPIES = {
    "old/average.json": "average.json",
    "new/average.json": "masked.json",
    "old/heads.json": "heads.json",
    "new/heads.json": "heads.json",
    "same/average.json": "average.json",
    "same/heads.json": "heads.json",
}
SNAPSHOTS = {"average.txt": "average.json", "heads.txt": "heads.json"}
_made: dict[int, dict[str, bytes]] = {}


def project_files(harness: Harness) -> Mapping[str, bytes]:
    """Return the files by name. The saved traces are made with the first call for a harness."""
    if id(harness) not in _made:
        files = {"code.py": CODE, "pyproject.toml": PYPROJECT}
        with harness.case_folder(files) as folder:
            for name, words in _SAVED.items():
                line = ("trace", *words, "--format", "json", "--output", name)
                done = harness.run(Command(words=line), folder)
                assert done.status == (name == "fails.json"), (line, done)
                files[name] = (folder / name).read_bytes()
        files |= {copy: files[original] for copy, original in COPIES.items()}
        for name, original in SNAPSHOTS.items():
            files[name] = write_snapshot(snapshot_of(Trace.from_json(files[original]))).encode()
        files["other.json"] = json.dumps({"schema": "something else"}).encode()
        _made.clear()
        _made[id(harness)] = files
    return _made[id(harness)]
