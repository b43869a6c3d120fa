"""Atomic writes: complete content, kept permissions, no temporary files."""

from __future__ import annotations

import os
import stat
import subprocess
import sys
from pathlib import Path

import pytest

from attnshape.runtime.files import staged, write_atomically


def names_in(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


def test_new_file_has_the_permissions_of_the_umask(tmp_path: Path) -> None:
    old = os.umask(0o027)
    try:
        write_atomically(tmp_path / "new.txt", b"content")
    finally:
        os.umask(old)
    assert (tmp_path / "new.txt").read_bytes() == b"content"
    assert stat.S_IMODE((tmp_path / "new.txt").stat().st_mode) == 0o640
    assert names_in(tmp_path) == ["new.txt"]


def test_existing_file_keeps_its_permissions(tmp_path: Path) -> None:
    path = tmp_path / "script.py"
    path.write_bytes(b"old")
    path.chmod(0o750)
    write_atomically(path, b"new")
    assert path.read_bytes() == b"new"
    assert stat.S_IMODE(path.stat().st_mode) == 0o750


def test_symbolic_link_is_followed(tmp_path: Path) -> None:
    (tmp_path / "folder").mkdir()
    path, link = tmp_path / "folder" / "file", tmp_path / "link"
    path.write_bytes(b"old")
    link.symlink_to(path)
    write_atomically(link, b"new")
    assert link.is_symlink()
    assert path.read_bytes() == b"new"


def test_failure_leaves_only_the_old_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "file"
    path.write_bytes(b"old")

    def full(descriptor: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(OSError, match="No space left"):
        write_atomically(path, b"new")
    assert path.read_bytes() == b"old"
    assert names_in(tmp_path) == ["file"]


def test_staged_files_that_are_not_moved_are_removed(tmp_path: Path) -> None:
    first, second = tmp_path / "first", tmp_path / "second"
    with pytest.raises(KeyboardInterrupt), staged([(first, b"1"), (second, b"2")]) as pairs:
        assert [temporary.read_bytes() for temporary, _ in pairs] == [b"1", b"2"]
        pairs[0][0].replace(pairs[0][1])
        raise KeyboardInterrupt
    assert names_in(tmp_path) == ["first"]


def test_leftover_temporary_file_is_replaced(tmp_path: Path) -> None:
    other = tmp_path / "other"
    other.write_bytes(b"untouched")
    (tmp_path / f".file.{os.getpid()}.tmp").symlink_to(other)
    write_atomically(tmp_path / "file", b"new")
    assert other.read_bytes() == b"untouched"
    assert names_in(tmp_path) == ["file", "other"]


def test_signal_removes_temporary_files(tmp_path: Path) -> None:
    script = (
        "import os, signal, sys\n"
        "from pathlib import Path\n"
        "from attnshape.runtime.signals import obey_signals\n"
        "from attnshape.runtime.files import staged\n"
        "signal.signal(signal.SIGINT, signal.default_int_handler)\n"
        "obey_signals()\n"
        f"with staged([(Path({str(tmp_path)!r}) / 'file', b'new')]):\n"
        f"    assert os.listdir({str(tmp_path)!r})\n"
        "    os.kill(os.getpid(), signal.SIGINT)\n"
    )
    done = subprocess.run([sys.executable, "-c", script], check=False)
    assert done.returncode == 130
    assert names_in(tmp_path) == []
