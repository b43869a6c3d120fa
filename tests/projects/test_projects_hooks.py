"""The pre-commit hooks, run by pre-commit from a local repository."""

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
    """A repository with the hooks installed."""

    folder: Path
    env: dict[str, str]

    def pre_commit(self, *words: str) -> tuple[int, str]:
        """Run pre-commit, and return its exit status and its output."""
        command = [sys.executable, "-m", "pre_commit", *words]
        done = subprocess.run(command, cwd=self.folder, env=self.env, capture_output=True, text=True, check=False)
        return done.returncode, done.stdout + done.stderr


@pytest.fixture
def project(tmp_path: Path) -> Project:
    env = environment(tmp_path, PRE_COMMIT_HOME=str(tmp_path / "home"))
    hook_repository = tmp_path / "attnshape"
    if (ROOT / ".git").exists():
        git(tmp_path, "clone", "--quiet", "--no-tags", str(ROOT), str(hook_repository), env=env)
    revision = committed(hook_repository, {MANIFEST.name: MANIFEST.read_text(encoding="utf-8")}, env)
    config = f"repos:\n- repo: {hook_repository}\n  rev: {revision}\n  hooks:\n  - id: attnshape-check\n"
    folder = tmp_path / "project"
    files = {"model.py": RIGHT, "pyproject.toml": ENTRY + SIZES, "README.md": "", ".pre-commit-config.yaml": config}
    committed(folder, files, env)
    return Project(folder, env)


def hooks() -> list[dict[str, Any]]:
    return list(yaml.safe_load(MANIFEST.read_text(encoding="utf-8")))


def test_manifest_is_valid() -> None:
    command = [sys.executable, "-m", "pre_commit", "validate-manifest", str(MANIFEST)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout + done.stderr) == (0, "")
    assert [hook["id"] for hook in hooks()] == ["attnshape-check", "attnshape-comments"]


@pytest.mark.parametrize("hook", hooks(), ids=lambda hook: hook["id"])
def test_hook_checks_all_targets_in_the_users_environment(hook: dict[str, Any]) -> None:
    assert hook["language"] == "system"
    assert hook.get("pass_filenames", True)
    assert hook["entry"].startswith("attnshape check --all --quiet")
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


def test_hook_blocks_a_commit_until_the_mistake_is_fixed(project: Project) -> None:
    status, output = project.pre_commit("install")
    assert status == 0, output
    (project.folder / "model.py").write_text(WRONG)
    commit = ["git", "commit", "--all", "--message=wrong"]
    blocked = subprocess.run(commit, cwd=project.folder, env=project.env, capture_output=True, text=True, check=False)
    assert blocked.returncode == 1
    line = 1 + WRONG.splitlines().index("        scores = query @ key.transpose(-2, -1) / math.sqrt(D)")
    assert f"model.py:{line}:18: error AS201 scores are scaled by 1/sqrt(D)" in blocked.stderr
    assert "2 results" not in blocked.stderr
    (project.folder / "model.py").write_text(f"{RIGHT}\n# fixed\n")
    committing = subprocess.run(
        commit, cwd=project.folder, env=project.env, capture_output=True, text=True, check=False
    )
    assert committing.returncode == 0, committing.stderr
    assert re.search(r"attnshape check\.+Passed", committing.stderr)


def test_hook_is_skipped_for_other_files(project: Project) -> None:
    (project.folder / "README.md").write_text("more")
    git(project.folder, "add", "--all", env=project.env)
    status, output = project.pre_commit("run")
    assert status == 0
    assert re.search(r"attnshape check\.+\(no files to check\)Skipped", output)


def test_missing_target_fails_the_hook(project: Project) -> None:
    (project.folder / "pyproject.toml").write_text(ENTRY.replace("model.py", "nosuch.py"))
    status, output = project.pre_commit("run", "--all-files")
    assert status == 1
    assert "- exit code: 2" in output
    assert "can't be carried out: there is no file nosuch.py" in output


def test_changed_files_are_checked_without_targets(project: Project) -> None:
    (project.folder / "pyproject.toml").write_text("")
    (project.folder / "model.py").write_text(f"{RIGHT}\n# changed\n")
    git(project.folder, "add", "--all", env=project.env)
    status, output = project.pre_commit("run")
    assert status == 0, output
    (project.folder / "model.py").write_text(WRONG)
    git(project.folder, "add", "--all", env=project.env)
    status, output = project.pre_commit("run")
    assert status == 1
    assert "error AS201" in output


def test_files_without_attention_pass(project: Project) -> None:
    (project.folder / "pyproject.toml").write_text("")
    (project.folder / "plain.py").write_text("def double(x):\n    return 2 * x\n")
    git(project.folder, "add", "--all", env=project.env)
    status, output = project.pre_commit("run", "--files", "plain.py")
    assert status == 0, output
