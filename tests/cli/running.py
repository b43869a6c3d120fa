"""Runs the command line in the test's own process, which saves the second that importing torch takes."""

from __future__ import annotations

import json
import shlex
import sys
import sysconfig
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from attnshape.cli.app import run
from attnshape.runtime.files import display_path

ROOT = Path(__file__).parents[2]


@dataclass(frozen=True)
class Result:
    """The exit status and the output of a command."""

    status: int
    out: str
    err: str

    @property
    def trace(self) -> dict[str, Any]:
        """The trace on standard output."""
        assert self.status in (0, 1), self.err
        return dict(json.loads(self.out))

    @property
    def tensors(self) -> dict[str, dict[str, Any]]:
        """Every named tensor, including inputs; of several with one name, the last."""
        trace = self.trace
        named = [*trace["inputs"], *(output for step in trace["steps"] for output in step["outputs"])]
        return {tensor["name"]: tensor["tensor"] for tensor in named if tensor["name"]}


Attnshape = Callable[..., Result]


@pytest.fixture
def attnshape(monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]) -> Iterator[Attnshape]:
    """Run `attnshape` with arguments, or with one command line that is split as a shell would."""
    modules, path = dict(sys.modules), list(sys.path)

    def call(*arguments: str) -> Result:
        words = shlex.split(arguments[0]) if len(arguments) == 1 else list(arguments)
        monkeypatch.setattr(sys, "argv", ["attnshape", *words])
        display_path.cache_clear()  # a process has one current folder, a test run has many
        capfd.readouterr()
        status = run(words)
        out, err = capfd.readouterr()
        return Result(status, out, err)

    yield call
    sys.path[:] = path
    for name in sys.modules.keys() - modules.keys():
        file = getattr(sys.modules[name], "__file__", None)
        kept = (sysconfig.get_path("stdlib"), str(ROOT / "attnshape"))
        if file is not None and "site-packages" not in file and not file.startswith(kept):
            del sys.modules[name]
    display_path.cache_clear()


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty current folder."""
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.fixture
def root(monkeypatch: pytest.MonkeyPatch) -> Path:
    """The project's own folder as the current one."""
    monkeypatch.chdir(ROOT)
    return ROOT
