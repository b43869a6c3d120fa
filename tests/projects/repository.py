"""A small git repository, and an environment with this checkout's `attnshape` on the path."""

from __future__ import annotations

import os
import shlex
import subprocess
import sys
from pathlib import Path

from tests.cli.running import ROOT

WHO = {
    f"GIT_{role}_{key}": value
    for role in ("AUTHOR", "COMMITTER")
    for key, value in (("NAME", "someone"), ("EMAIL", "someone@example.org"))
}


def environment(place: Path, **others: str) -> dict[str, str]:
    """Return an environment in which `attnshape` is this checkout's, and git ignores the user's settings."""
    programs = place / "programs"
    programs.mkdir(exist_ok=True)
    script = programs / "attnshape"
    python = shlex.quote(sys.executable)
    script.write_text(
        f'#!/bin/sh\nPYTHONPATH={shlex.quote(str(ROOT))}:$PYTHONPATH exec {python} -m attnshape "$@"\n',
        encoding="utf-8",
    )
    script.chmod(0o755)
    added = {"GIT_CONFIG_GLOBAL": os.devnull, "GIT_CONFIG_SYSTEM": os.devnull, **WHO, **others}
    inherited = {
        name: value for name, value in os.environ.items() if not name.startswith(("GIT_", "GITHUB_", "PRE_COMMIT"))
    }
    return {**inherited, **added, "PATH": f"{programs}{os.pathsep}{os.environ['PATH']}"}


def git(folder: Path, *words: str, env: dict[str, str]) -> str:
    """Return what git prints in a folder."""
    done = subprocess.run(["git", *words], cwd=folder, env=env, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


def committed(folder: Path, files: dict[str, str], env: dict[str, str]) -> str:
    """Commit files to a repository, which is created if necessary, and return the commit's hash."""
    if not (folder / ".git").exists():
        folder.mkdir(parents=True, exist_ok=True)
        git(folder, "init", "--quiet", "--initial-branch=main", env=env)
    for name, text in files.items():
        (folder / name).write_text(text, encoding="utf-8")
    git(folder, "add", "--all", env=env)
    git(folder, "commit", "--quiet", "--allow-empty", "--message=changes", env=env)
    return git(folder, "rev-parse", "HEAD", env=env)
