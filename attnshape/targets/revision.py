"""The files of a git revision, for a target that is run as it was."""

from __future__ import annotations

import shutil
import subprocess
import tarfile
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from attnshape.errors import AttnshapeError


@contextmanager
def checked_out(revision: str) -> Iterator[Path]:
    """Yield the folder that stands for the current one at a revision of its git repository, and remove it on exit.

    All files of the revision are in it, since a target may import any of them; the repository isn't changed. Raises
    AttnshapeError if there is no git, no repository or no such revision.
    """
    commit = _git("rev-parse", "--verify", "--quiet", "--end-of-options", f"{revision}^{{commit}}", revision=revision)
    inside = _git("rev-parse", "--show-prefix", revision=revision)
    top = _git("rev-parse", "--show-toplevel", revision=revision)
    with tempfile.TemporaryDirectory(prefix="attnshape-") as folder:
        archive = ["git", "-C", top, "archive", "--format=tar", commit]
        with subprocess.Popen(archive, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL) as process:
            assert process.stdout is not None
            with tarfile.open(fileobj=process.stdout, mode="r|") as files:
                files.extractall(folder, filter=_inside)
        place = Path(folder).resolve() / inside
        if not place.is_dir():
            raise AttnshapeError(
                f"{revision} has no folder {inside}",
                "name another revision: git log --oneline -- . lists those that do",
            )
        yield place


def _inside(member: tarfile.TarInfo, folder: str) -> tarfile.TarInfo | None:
    """Return a member to extract; None for what would lie outside of the folder, such as what a link leads to."""
    try:
        return tarfile.data_filter(member, folder)
    except tarfile.FilterError:
        return None


def _git(*words: str, revision: str) -> str:
    """Return what a git command prints. Raises AttnshapeError if it fails."""
    if shutil.which("git") is None:
        raise AttnshapeError(f"{revision} is a git revision, and git isn't installed", "install git, or name files")
    done = subprocess.run(["git", *words], capture_output=True, text=True, check=False)
    if done.returncode == 0:
        return done.stdout.strip()
    if "not a git repository" in done.stderr:
        raise AttnshapeError(
            f"{revision} is a git revision, and this folder is in no git repository",
            "name files, or go to a repository",
        )
    problem = done.stderr.strip().splitlines()[-1:] or [f"git knows no commit {revision!r}"]
    raise AttnshapeError(problem[0], "git log --oneline lists the commits, and git branch --all the branches")
