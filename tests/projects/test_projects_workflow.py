"""The workflow in examples/: its commands, run as GitHub would in a repository with a base and a changed branch."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import typer.main

from attnshape.cli.app import app
from tests.cli.running import ROOT
from tests.projects.models import DOUBLE, ENTRY, RIGHT, SIZES, WRONG
from tests.projects.repository import committed, environment, git

yaml = pytest.importorskip("yaml")
pytestmark = pytest.mark.skipif(shutil.which("git") is None, reason="needs git")

FILE = ROOT / "examples" / "github-workflow.yml"
COMPARES = "diff" in typer.main.get_command(app).commands  # type: ignore[attr-defined]
NAMES = ["attention,B=1,L=1.json", "attention,B=2,L=10.json"]
LONGER = RIGHT.replace("    def forward", "    # a line more\n    def forward")


@dataclass
class Runner:
    """The environment of a job."""

    folder: Path
    env: dict[str, str]
    base: str
    temp: Path
    summary: Path

    def do(self, *names: str) -> tuple[list[int], str]:
        """Run the named steps in order, as GitHub does; return their exit statuses and their output."""
        statuses, printed = [], ""
        for step in steps():
            if step["name"] not in names:
                continue
            if any(statuses) and "cancelled" not in step.get("if", ""):
                continue
            env = {name: self._filled(value) for name, value in step.get("env", {}).items()}
            done = subprocess.run(
                ["bash", "-e", "-c", step["run"]],
                cwd=self.folder,
                env={**self.env, **env},
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                text=True,
                check=False,
            )
            statuses.append(done.returncode)
            printed += done.stdout
        return statuses, printed

    def traces(self, branch: str) -> dict[str, Any]:
        """Return the saved traces of a branch by file name."""
        return {path.name: json.loads(path.read_text()) for path in sorted((self.temp / "traces" / branch).iterdir())}

    def _filled(self, value: str) -> str:
        assert value == "${{ github.event.pull_request.base.sha }}"
        return self.base


def workflow() -> dict[Any, Any]:
    return dict(yaml.safe_load(FILE.read_text(encoding="utf-8")))


def steps() -> list[dict[str, Any]]:
    (job,) = workflow()["jobs"].values()
    return [step for step in job["steps"] if "run" in step]


def runner(place: Path, base: dict[str, str], head: dict[str, str]) -> Runner:
    """Return a runner in a checkout of the changed branch."""
    temp, summary, folder = place / "temp", place / "summary.md", place / "project"
    temp.mkdir()
    env = environment(
        place,
        GITHUB_STEP_SUMMARY=str(summary),
        RUNNER_TEMP=str(temp),
        GITHUB_WORKSPACE=str(folder),
        GITHUB_ACTIONS="true",
    )
    revision = committed(folder, base, env)
    git(folder, "checkout", "--quiet", "-b", "change", env=env)
    for name in base.keys() - head.keys():
        (folder / name).unlink()
    committed(folder, head, env)
    return Runner(folder, env, revision, temp, summary)


def project(code: str, toml: str = ENTRY + SIZES) -> dict[str, str]:
    return {"model.py": code, "pyproject.toml": toml}


def test_workflow_runs_on_pull_requests_with_read_permission() -> None:
    content = workflow()
    assert content[True] == "pull_request"  # YAML 1.1 parses `on` as true
    assert content["permissions"] == {"contents": "read"}
    assert [step["name"] for step in steps()] == ["Install", "Check", "Trace", "Compare"]
    # untrusted text such as a branch's name is never inserted into a script
    assert not any("${{" in step["run"] for step in steps())


def test_scripts_are_valid_shell() -> None:
    for step in steps():
        assert subprocess.run(["bash", "-n", "-c", step["run"]], check=False).returncode == 0


def test_finding_is_annotated_at_its_line_and_fails_the_job(tmp_path: Path) -> None:
    job = runner(tmp_path, project(RIGHT), project(WRONG))
    statuses, printed = job.do("Check")
    assert statuses == [1]
    commands = [line for line in printed.splitlines() if line.startswith("::")]
    assert len(commands) == 1
    found = re.match(r"::error file=(.*?),line=(\d+),col=(\d+),title=AS201::", commands[0])
    assert found is not None
    line = (job.folder / found[1]).read_text().splitlines()[int(found[2]) - 1]
    assert "math.sqrt(D)" in line


def test_code_without_mistakes_passes(tmp_path: Path) -> None:
    statuses, printed = runner(tmp_path, project(RIGHT), project(LONGER)).do("Check")
    assert statuses == [0], printed
    assert "::error" not in printed


@pytest.mark.slow
def test_both_branches_are_traced_with_their_own_code(tmp_path: Path) -> None:
    changed = project(WRONG.replace("scores", "logits"), ENTRY + SIZES + DOUBLE)
    job = runner(tmp_path, project(RIGHT), changed)
    statuses, printed = job.do("Check", "Trace")
    # the finding doesn't prevent the traces
    assert statuses == [1, 0], printed
    assert list(job.traces("base")) == NAMES
    assert list(job.traces("head")) == [*NAMES, "double.json"]
    for branch, name in (("base", "scores"), ("head", "logits")):
        for trace in job.traces(branch).values():
            named = {output["name"] for step in trace["steps"] for output in step["outputs"]}
            if trace["target"] == "model.py:Attention":
                assert named & {"scores", "logits"} == {name}
    assert git(job.folder, "status", "--porcelain", "--", ":(exclude)__pycache__", env=job.env) == ""


@pytest.mark.slow
def test_src_layout_imports_the_branchs_own_code(tmp_path: Path) -> None:
    job = runner(tmp_path, {}, {"README.md": ""})
    (job.folder / "src").mkdir()
    toml = DOUBLE.replace("model.py:double", "package_of_ours:double")
    code = "def double(x):\n    doubled = x * {}\n    return doubled\n"
    job.base = committed(job.folder, {"src/package_of_ours.py": code.format(2), "pyproject.toml": toml}, job.env)
    committed(job.folder, {"src/package_of_ours.py": code.format(3)}, job.env)
    statuses, printed = job.do("Trace")
    assert statuses == [0], printed
    expressions = {name: job.traces(name)["double.json"]["steps"][0]["expression"] for name in ("base", "head")}
    assert expressions == {"base": "x * 2", "head": "x * 3"}


BASES = {
    "no pyproject.toml": {"model.py": RIGHT},
    "no targets": {"model.py": RIGHT, "pyproject.toml": "[project]\nname = 'ours'\n"},
    "no such code yet": {"pyproject.toml": ENTRY + SIZES},
    "a broken file": {"model.py": RIGHT, "pyproject.toml": "[tool"},
}


@pytest.mark.slow
@pytest.mark.parametrize("base", BASES)
def test_base_branch_without_traces_is_fine(base: str, tmp_path: Path) -> None:
    job = runner(tmp_path, BASES[base], project(RIGHT))
    statuses, printed = job.do("Check", "Trace", "Compare")
    assert statuses == [0, 0, 0], printed
    assert list(job.traces("head")) == NAMES
    assert job.traces("base") == {}
    assert "The base branch names no target that can be traced." in job.summary.read_text()


@pytest.mark.skipif(not COMPARES, reason="the verb diff isn't there yet")
@pytest.mark.slow
def test_summary_has_the_difference_of_the_traces(tmp_path: Path) -> None:
    changed = project(RIGHT.replace("scores.softmax", "scores.float().softmax"))
    job = runner(tmp_path, project(RIGHT), changed)
    statuses, printed = job.do("Check", "Trace", "Compare")
    assert statuses == [0, 0, 0], printed
    summary = job.summary.read_text()
    assert summary.startswith("## Traces of this pull request, against its base branch\n")
    assert "float" in summary


@pytest.mark.skipif(not COMPARES, reason="the verb diff isn't there yet")
@pytest.mark.slow
def test_equal_traces_are_no_failure(tmp_path: Path) -> None:
    statuses, printed = runner(tmp_path, project(RIGHT), project(LONGER)).do("Check", "Trace", "Compare")
    assert statuses == [0, 0, 0], printed
