"""Which files may be written: those of the current project, without changes that git hasn't seen."""

from __future__ import annotations

import subprocess
from dataclasses import dataclass
from pathlib import Path

from attnshape.errors import AttnshapeError


@dataclass(frozen=True)
class Project:
    """The current project, by its folder."""

    root: Path

    def holds(self, path: Path) -> bool:
        """Say whether a file is within the project, wherever a link may lead, and not a library installed in it."""
        real = path.resolve()
        inside = real.is_relative_to(self.root)
        return inside and not {"site-packages", "dist-packages"} & set(real.relative_to(self.root).parts)

    def check(self, path: Path) -> None:
        """Raise AttnshapeError where a file isn't the project's."""
        if not self.holds(path):
            raise AttnshapeError(
                f"{path} is outside of the current project, {self.root}",
                "go to the folder that it belongs to, or annotate a copy of it in your project",
            )

    def uncommitted(self, path: Path) -> str | None:
        """Return what git says of a file that it hasn't seen as it is; None where it has, or where there is no git.

        The file's own repository is asked, which may lie beneath the project or within another one.
        """
        if not in_repository(path):
            return None
        status = ["--literal-pathspecs", "status", "--porcelain", "--ignored", "--", str(path)]
        said = _git(status, path.parent)
        if said is None:
            return "git can't say whether it has uncommitted changes"
        if not said.strip():
            return None
        return {"??": "it is untracked", "!!": "git ignores it"}.get(said[:2], "it has uncommitted changes")


def in_repository(path: Path) -> bool:
    """Say whether a file lies in a git repository, also in one that git itself refuses to read."""
    asked = _git(["rev-parse", "--show-toplevel"], path.parent)
    return asked is not None or any((folder / ".git").exists() for folder in path.resolve().parents)


def current_project() -> Project:
    """Return the project of the current folder: git's, else the folder itself."""
    here = Path.cwd()
    top = _git(["rev-parse", "--show-toplevel"], here)
    return Project(Path(top.rstrip("\n")).resolve() if top and top.strip() else here.resolve())


def _git(arguments: list[str], folder: Path) -> str | None:
    """Return what git prints, None where it fails or isn't there."""
    try:
        done = subprocess.run(
            ["git", *arguments],
            cwd=folder,
            capture_output=True,
            text=True,
            check=False,
            timeout=60,
            stdin=subprocess.DEVNULL,
        )
    except (OSError, subprocess.SubprocessError, UnicodeDecodeError):
        return None
    return done.stdout if done.returncode == 0 else None
