"""Atomic writes: complete content, kept permissions, no temporary files."""

from __future__ import annotations

import os
import stat
from pathlib import Path

import pytest

from attnshape.runtime.files import display_path, source_lines, staged, write_atomically


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


def test_temporary_file_has_a_name_that_nobody_can_foresee(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    opened: list[tuple[str, int]] = []
    real = os.open

    def spy(path: str, flags: int, mode: int = 0o777) -> int:
        opened.append((Path(path).name, flags))
        return real(path, flags, mode)

    monkeypatch.setattr(os, "open", spy)
    for _ in range(2):
        write_atomically(tmp_path / "file", b"new")
    (first, flags), (second, _) = opened
    assert first != second
    assert flags & os.O_EXCL
    assert flags & os.O_NOFOLLOW


def test_link_in_the_place_of_the_temporary_file_is_not_followed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    other = tmp_path / "other"
    other.write_bytes(b"untouched")
    monkeypatch.setattr(os, "urandom", lambda count: bytes(count))
    (tmp_path / f".attnshape-{'00' * 8}.tmp").symlink_to(other)
    with pytest.raises(FileExistsError):
        write_atomically(tmp_path / "file", b"new")
    assert other.read_bytes() == b"untouched"
    assert not (tmp_path / "file").exists()


@pytest.mark.skipif(not hasattr(os, "geteuid") or os.geteuid() != 0, reason="needs root, who can give files away")
def test_existing_file_keeps_its_owner_and_special_permissions(tmp_path: Path) -> None:
    path = tmp_path / "file"
    path.write_bytes(b"old")
    os.chown(path, 12345, 23456)
    path.chmod(0o4600)
    write_atomically(path, b"new")
    status = path.stat()
    assert (status.st_uid, status.st_gid, stat.S_IMODE(status.st_mode)) == (12345, 23456, 0o4600)


def test_name_of_the_greatest_length(tmp_path: Path) -> None:
    path = tmp_path / ("n" * 255)
    write_atomically(path, b"new")
    assert path.read_bytes() == b"new"


def test_lines_of_a_file_whose_folder_is_imported_from_no_longer(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "displayed_without_its_folder.py"
    file.write_text("y = x\n")
    with monkeypatch.context() as during:
        during.syspath_prepend(str(tmp_path))
        name = display_path(str(file))
    assert name == file.name
    assert source_lines(name) == ["y = x\n"]
