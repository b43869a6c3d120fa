"""The hooks for pre-commit: run by pre-commit itself, from a local repository that offers them."""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from tests.cli.running import ROOT
from tests.projects.models import ENTRY, RIGHT, SIZES, WRONG
from tests.projects.repository import committed, environment, git

yaml = pytest.importorskip("yaml")
pytest.importorskip("pre_commit")
pytestmark = pytest.mark.skipif(shutil.which("git") is None, reason="needs git")

MANIFEST = ROOT / ".pre-commit-hooks.yaml"


@dataclass(frozen=True)
class Project:
    """A repository in which the hooks are set up."""

    folder: Path
    env: dict[str, str]

    def pre_commit(self, *words: str) -> tuple[int, str]:
        """Return the status of pre-commit and what it prints."""
        command = [sys.executable, "-m", "pre_commit", *words]
        done = subprocess.run(command, cwd=self.folder, env=self.env, capture_output=True, text=True, check=False)
        return done.returncode, done.stdout + done.stderr


@pytest.fixture
def project(tmp_path: Path) -> Project:
    env = environment(tmp_path, PRE_COMMIT_HOME=str(tmp_path / "home"))
    offers = tmp_path / "attnshape"
    if (ROOT / ".git").exists():
        git(tmp_path, "clone", "--quiet", "--no-tags", str(ROOT), str(offers), env=env)
    revision = committed(offers, {MANIFEST.name: MANIFEST.read_text(encoding="utf-8")}, env)
    config = f"repos:\n- repo: {offers}\n  rev: {revision}\n  hooks:\n  - id: attnshape-check\n"
    folder = tmp_path / "project"
    files = {"model.py": RIGHT, "pyproject.toml": ENTRY + SIZES, "README.md": "", ".pre-commit-config.yaml": config}
    committed(folder, files, env)
    return Project(folder, env)


def hooks() -> list[dict[str, Any]]:
    return list(yaml.safe_load(MANIFEST.read_text(encoding="utf-8")))


def test_the_manifest_is_one_that_pre_commit_reads() -> None:
    command = [sys.executable, "-m", "pre_commit", "validate-manifest", str(MANIFEST)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout + done.stderr) == (0, "")
    assert [hook["id"] for hook in hooks()] == ["attnshape-check", "attnshape-comments"]


@pytest.mark.parametrize("hook", hooks(), ids=lambda hook: hook["id"])
def test_a_hook_runs_every_target_in_the_user_s_own_environment(hook: dict[str, Any]) -> None:
    assert hook["language"] == "system"
    assert hook["pass_filenames"] is False
    assert hook["entry"].startswith("attnshape check --all")
    changed = [
        "model.py",
        "a/b.py",
        "pyproject.toml",
        "sub/pyproject.toml",
        "README.md",
        "py",
        "a.pyc",
        "pyproject.tom",
    ]
    assert [name for name in changed if re.search(hook["files"], name)] == changed[:4]


def test_a_mistake_keeps_the_commit_from_being_made_until_it_is_mended(project: Project) -> None:
    status, said = project.pre_commit("install")
    assert status == 0, said
    (project.folder / "model.py").write_text(WRONG)
    commit = ["git", "commit", "--all", "--message=wrong"]
    refused = subprocess.run(commit, cwd=project.folder, env=project.env, capture_output=True, text=True, check=False)
    assert refused.returncode == 1
    line = 1 + WRONG.splitlines().index("        scores = query @ key.transpose(-2, -1) / math.sqrt(D)")
    assert f"model.py:{line}:18: AS201 scores are scaled by 1/sqrt(D)" in refused.stderr
    assert "2 results: 2 with problems" in refused.stderr
    (project.folder / "model.py").write_text(f"{RIGHT}\n# mended\n")
    made = subprocess.run(commit, cwd=project.folder, env=project.env, capture_output=True, text=True, check=False)
    assert made.returncode == 0, made.stderr
    assert re.search(r"attnshape check\.+Passed", made.stderr)


def test_what_is_no_code_starts_nothing(project: Project) -> None:
    (project.folder / "README.md").write_text("more")
    git(project.folder, "add", "--all", env=project.env)
    status, said = project.pre_commit("run")
    assert status == 0
    assert re.search(r"attnshape check\.+\(no files to check\)Skipped", said)


def test_a_target_that_is_not_there_fails_and_says_so(project: Project) -> None:
    (project.folder / "pyproject.toml").write_text(ENTRY.replace("model.py", "nosuch.py"))
    status, said = project.pre_commit("run", "--all-files")
    assert status == 1
    assert "- exit code: 2" in said
    assert "can't be carried out: there is no file nosuch.py" in said


def test_a_project_without_targets_is_told_what_to_write(project: Project) -> None:
    (project.folder / "pyproject.toml").write_text("")
    status, said = project.pre_commit("run", "--all-files")
    assert status == 1
    assert "pyproject.toml names no target" in said
    assert "[tool.attnshape.targets.attention]" in said
