"""docs/comparing.md: its commands, examples, snapshot and failure are real output."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from attnshape.comparison.snapshot import COLUMNS
from attnshape.model.difference import KINDS
from tests.docs.pages import DOCS, assert_example_output, assert_page_part, calls
from tests.readme.test_readme import BLOCK

PAGE = DOCS / "comparing.md"
ROOT = DOCS.parent
CONSOLE = list(BLOCK.finditer(PAGE.read_text()))
MODEL = """\
def attention(query, key, value):
    query = query.transpose(1, 2)
    key = key.transpose(1, 2)
    value = value.transpose(1, 2)
    scores = query @ key.mT / key.shape[-1] ** 0.5
    weights = scores.softmax(dim=-1)
    context = weights @ value
    return context.transpose(1, 2).flatten(2)
"""
TEST = """\
from model import attention


def test_shapes(shape_snapshot):
    heads = {name: "B L H Dk" for name in ("query", "key", "value")}
    shape_snapshot(attention, inputs=heads)
"""


@pytest.fixture(scope="module")
def project(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A project with one test, whose snapshot is written."""
    folder = tmp_path_factory.mktemp("project")
    (folder / "model.py").write_text(MODEL)
    (folder / "test_model.py").write_text(TEST)
    assert "1 snapshot written" in run_pytest(folder, "--shapes-update")
    assert "1 passed" in run_pytest(folder)
    return folder


def run_pytest(folder: Path, *words: str) -> str:
    plain = ["-q", "-p", "attnshape.testing.plugin", "-p", "no:cacheprovider", "--rootdir", str(folder)]
    environment = {**os.environ, "PYTHONPATH": f"{ROOT}:{folder}", "COLUMNS": "100", "PYTHONDONTWRITEBYTECODE": "1"}
    command = [sys.executable, "-m", "pytest", *plain, *words]
    return subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True, check=False).stdout


def fenced(kind: str, text: str) -> str:
    return f"```{kind}\n{text.rstrip()}\n```\n"


def test_example_output_matches_the_page(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "100")
    assert_example_output(PAGE)


def test_page_has_examples_of_each_use() -> None:
    assert {"diff", "assert_shapes"} <= calls(PAGE)
    assert len(CONSOLE) >= 1
    assert "Traceback" not in PAGE.read_text()


def test_test_on_the_page_is_this_one() -> None:
    assert_page_part(PAGE, "test", fenced("python", TEST))


@pytest.mark.slow
@pytest.mark.xdist_group("a project with a snapshot")
def test_snapshot_on_the_page_is_that_of_the_test(project: Path) -> None:
    snapshot = (project / "snapshots" / "test_model" / "test_shapes.txt").read_text()
    assert_page_part(PAGE, "snapshot", fenced("text", snapshot))


@pytest.mark.slow
@pytest.mark.xdist_group("a project with a snapshot")
def test_failure_on_the_page_is_that_of_a_changed_model(project: Path) -> None:
    (project / "model.py").write_text(
        MODEL.replace("transpose(1, 2)\n    value", "transpose(1, 2).contiguous()\n    value")
    )
    output = run_pytest(project)
    assert "1 failed" in output
    failure = output.partition("test_shapes ___")[2].partition("\n")[2].partition("=====")[0]
    assert_page_part(PAGE, "failure", fenced("text", failure))


def test_every_kind_and_column_is_in_the_tables() -> None:
    text = PAGE.read_text()
    kinds = re.findall(r"^\| `(\w+)` \|", text.partition("| `--fail-on` |")[2].partition("\n\n")[0], re.MULTILINE)
    assert kinds == [*KINDS, "any"]
    columns = text.partition("| column | contents |")[2].partition("\n\n")[0]
    assert set(COLUMNS) - {"signature", "shape", "stride"} <= set(re.findall(r"`([\w#]+)`", columns))


@pytest.mark.slow
def test_pull_request_recipe_runs(tmp_path: Path) -> None:
    (recipe,) = re.findall(r"```sh\n(.*?)```", PAGE.read_text(), re.DOTALL)
    programs = tmp_path / "bin"
    programs.mkdir()
    (programs / "attnshape").write_text(f'#!/bin/sh\nexec "{sys.executable}" -m attnshape "$@"\n')
    (programs / "attnshape").chmod(0o755)
    environment = {**os.environ, "PATH": f"{programs}:{os.environ['PATH']}", "PYTHONPATH": str(ROOT)}
    project = tmp_path / "project"
    project.mkdir()

    def shell(script: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            ["sh", "-c", script], cwd=project, env=environment, capture_output=True, text=True, check=False
        )

    who = "git -c user.name=a -c user.email=a@b.c"
    code = "def attention(q, k, v):\n    return (q @ k.mT{}).softmax(-1) @ v\n"
    (project / "model.py").write_text(code.format(""))
    committed = shell(f"git init -q -b main && git add . && {who} commit -qm one && git checkout -qb change")
    assert committed.returncode == 0, committed.stderr
    (project / "model.py").write_text(code.format(" / 8"))
    done = shell(recipe)
    assert (done.returncode, done.stderr) == (1, 2 * "found in model.py: attention\n")
    document = (project / "traces" / "diff.md").read_text()
    assert "**main:model.py:attention → model.py:attention**" in document
    assert "1 step added" in document
