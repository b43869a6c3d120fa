"""`--write` writes all files or none, only in the project, and only files that git can restore."""

from __future__ import annotations

import os
import signal
import stat
import subprocess
import sys
import time
from pathlib import Path

import pytest

from attnshape.annotate import saving
from attnshape.annotate.saving import current_project, unified_diff
from attnshape.annotate.source import PythonSource, decode_source
from attnshape.errors import AttnshapeError
from attnshape.runtime import files


def git(folder: Path, *arguments: str) -> None:
    author = {
        "GIT_AUTHOR_NAME": "a",
        "GIT_AUTHOR_EMAIL": "a@b",
        "GIT_COMMITTER_NAME": "a",
        "GIT_COMMITTER_EMAIL": "a@b",
    }
    subprocess.run(["git", *arguments], cwd=folder, check=True, capture_output=True, env={**os.environ, **author})


@pytest.fixture
def repository(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A repository with one committed file, as the current folder."""
    git(tmp_path, "init", "-q")
    (tmp_path / "m.py").write_bytes(b"x = 1\r\n")
    git(tmp_path, "-c", "core.autocrlf=false", "add", "m.py")
    git(tmp_path, "commit", "-qm", "one")
    monkeypatch.chdir(tmp_path)
    return tmp_path.resolve()


def read(path: Path) -> PythonSource:
    return decode_source(path, path.read_bytes())


def test_replaced_file_keeps_its_permissions(repository: Path) -> None:
    path = repository / "m.py"
    path.chmod(0o754)
    saving.save([(read(path), b"x = 2\r\n")])
    assert path.read_bytes() == b"x = 2\r\n"
    assert stat.S_IMODE(path.stat().st_mode) == 0o754
    assert [path.name for path in repository.iterdir() if path.name != ".git"] == ["m.py"]


@pytest.mark.parametrize("change", ["modified", "staged", "untracked", "ignored"])
def test_uncommitted_changes_are_refused(repository: Path, change: str) -> None:
    path = repository / ("m.py" if change in ("modified", "staged") else "n.py")
    path.write_text("x = 3\n")
    if change == "staged":
        git(repository, "add", "m.py")
    if change == "ignored":
        (repository / ".gitignore").write_text("n.py\n")
    project = current_project()
    with pytest.raises(AttnshapeError, match="isn't written") as raised:
        saving.check_writable([path], project, force=False)
    assert "--force" in str(raised.value.hint)
    saving.check_writable([path], project, force=True)


def test_committed_file_is_allowed(repository: Path) -> None:
    saving.check_writable([repository / "m.py"], current_project(), force=False)
    (repository / "other.py").write_text("")
    saving.check_writable([repository / "m.py"], current_project(), force=False)


@pytest.mark.parametrize("force", [False, True])
@pytest.mark.parametrize("way", ["beside", "link", "linked folder", "site-packages"])
def test_file_outside_the_project_is_refused_even_with_force(
    repository: Path, tmp_path_factory: pytest.TempPathFactory, way: str, force: bool
) -> None:
    outside = tmp_path_factory.mktemp("outside").resolve()
    (outside / "m.py").write_text("x = 1\n")
    path = outside / "m.py"
    if way == "link":
        path = repository / "link.py"
        path.symlink_to(outside / "m.py")
    elif way == "linked folder":
        (repository / "linked").symlink_to(outside)
        path = repository / "linked" / "m.py"
    elif way == "site-packages":
        path = repository / "venv" / "site-packages" / "m.py"
        path.parent.mkdir(parents=True)
        path.write_text("x = 1\n")
    with pytest.raises(AttnshapeError, match="outside of the current project"):
        saving.check_writable([path], current_project(), force)


def test_subfolder_uses_the_whole_repository_as_project(repository: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (repository / "inner").mkdir()
    monkeypatch.chdir(repository / "inner")
    saving.check_writable([repository / "m.py"], current_project(), force=False)


def test_current_folder_is_the_project_without_git(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "")
    monkeypatch.chdir(tmp_path)
    (tmp_path / "m.py").write_text("x = 1\n")
    project = current_project()
    assert project.root == tmp_path.resolve()
    saving.check_writable([tmp_path / "m.py"], project, force=False)
    with pytest.raises(AttnshapeError, match="outside"):
        saving.check_writable([tmp_path.parent / "m.py"], project, force=True)


@pytest.mark.parametrize("here", ["above", "another repository"])
def test_nested_repository_of_the_file_is_used(repository: Path, monkeypatch: pytest.MonkeyPatch, here: str) -> None:
    inner = repository / "inner"
    if here == "above":
        outer = repository.rename(repository.with_name(f"{repository.name}-outer"))
        repository.mkdir()
        outer.rename(inner)
        monkeypatch.chdir(repository)
    else:
        inner.mkdir()
        git(inner, "init", "-q")
        (inner / "m.py").write_text("x = 1\n")
        git(inner, "add", "m.py")
        git(inner, "commit", "-qm", "one")
    saving.check_writable([inner / "m.py"], current_project(), force=False)
    (inner / "m.py").write_text("x = 'lost'\n")
    with pytest.raises(AttnshapeError, match="uncommitted changes"):
        saving.check_writable([inner / "m.py"], current_project(), force=False)


def test_file_is_refused_if_git_fails(repository: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "")
    with pytest.raises(AttnshapeError, match="git can't say"):
        saving.check_writable([repository / "m.py"], current_project(), force=False)


def test_read_only_file_is_refused(repository: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "access", lambda path, mode: False)
    with pytest.raises(AttnshapeError, match="permission denied"):
        saving.check_writable([repository / "m.py"], current_project(), force=False)


def test_file_changed_meanwhile_is_not_overwritten(repository: Path) -> None:
    path = repository / "m.py"
    source = read(path)
    path.write_bytes(b"x = 4\n")
    with pytest.raises(AttnshapeError, match="has changed since"):
        saving.save([(source, b"x = 2\n")])
    assert path.read_bytes() == b"x = 4\n"
    assert len(list(repository.iterdir())) == 2


@pytest.mark.parametrize("when", ["write", "replace"])
def test_failure_writes_no_file_at_all(repository: Path, monkeypatch: pytest.MonkeyPatch, when: str) -> None:
    paths = [repository / "m.py", repository / "n.py"]
    paths[1].write_bytes(b"y = 1\n")
    changed = [(read(path), b"new = 1\n") for path in paths]
    calls: list[Path] = []
    original = Path.replace if when == "replace" else files._write

    def failing(*arguments: object) -> object:
        calls.append(arguments[0])  # type: ignore[arg-type]
        if len(calls) == 2:
            raise OSError(28, "No space left on device")
        return original(*arguments)  # type: ignore[operator]

    monkeypatch.setattr(*((Path, "replace") if when == "replace" else (files, "_write")), failing)
    with pytest.raises(AttnshapeError, match="No space left"):
        saving.save(changed)
    assert [path.read_bytes() for path in paths] == [b"x = 1\r\n", b"y = 1\n"]
    assert sorted(path.name for path in repository.iterdir()) == [".git", "m.py", "n.py"]


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM])
def test_killed_process_leaves_the_old_or_the_new_file(tmp_path: Path, number: signal.Signals) -> None:
    path = tmp_path / "m.py"
    old, new = b"old = 1\n" * 100_000, b"new = 1\n" * 100_000
    path.write_bytes(old)
    script = (
        "from pathlib import Path\n"
        "from attnshape.annotate.source import decode_source\n"
        "from attnshape.annotate.saving import save\n"
        f"path = Path({str(path)!r}); old, new = {b'old = 1'!r} + b'\\n', {b'new = 1'!r} + b'\\n'\n"
        "print('ready', flush=True)\n"
        "while True:\n"
        "    for data in (new * 100_000, old * 100_000): save([(decode_source(path, path.read_bytes()), data)])\n"
    )
    for wait in (0.0, 0.003, 0.011):
        process = subprocess.Popen([sys.executable, "-c", script], stdout=subprocess.PIPE)
        assert process.stdout is not None
        process.stdout.readline()
        time.sleep(wait)
        process.send_signal(number)
        process.wait()
        process.stdout.close()
        assert path.read_bytes() in (old, new)


@pytest.mark.parametrize(
    "name", ["m.py", "with space.py", 'quo"te.py', "ü\n.py", "tab\t.py", "-rf.py", "back\\slash.py", "\x1b[31m.py"]
)
@pytest.mark.parametrize("old", [b"a = 1\r\nb = 2\nc = 3", b"", b"a\n", "é = '\u2028'\n".encode()])
def test_git_applies_the_diff(tmp_path: Path, name: str, old: bytes) -> None:
    git(tmp_path, "init", "-q")
    path = tmp_path.resolve() / "inner" / name
    path.parent.mkdir()
    path.write_bytes(old)
    new = b"import x\r\n" + old.replace(b"b = 2", b"b: int = 2") + b"# end"
    diff = unified_diff([(decode_source(path, old), new)], tmp_path.resolve())
    subprocess.run(["git", "apply", "-"], input=diff, cwd=tmp_path, check=True)
    assert path.read_bytes() == new
