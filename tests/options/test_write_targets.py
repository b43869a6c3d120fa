"""Targets that are written into a pyproject.toml, of which everything else stays as it is."""

from __future__ import annotations

import tomllib
from pathlib import Path

import pytest

from attnshape.errors import AttnshapeError
from attnshape.options.pyproject import decode_target
from attnshape.options.write_targets import write_targets

NEW = {"attention": {"target": "m.py:Attention"}}
RICH = {
    "target": "m.py:Attention",
    "init": "D, H",
    "inputs": ["x: B L D"],
    "with": {"mask": 'torch.ones("L")', "n": 2},
    "sizes": [{"B": 2, "L": "2*W", "W": 3}, {"B": 1}],
    "mask-value": -1e4,
    "train": True,
}


@pytest.mark.parametrize(
    "text",
    [
        "",
        "# only a comment",
        '[project]\nname = "x"  # ours\n\n\n[tool.ruff]\nline-length = 120\n',
        "[tool.ruff]\nx = 1\n[project]\nname = 'a'\n[tool.black]\ny = 1\n",
        "[tool]\nruff.x = 1\n",
        "tool.attnshape.targets.a.target = 'x'\n",
        "[tool.attnshape.targets.a]\ntarget = 'x'\n[tool.b]\n[tool.attnshape.targets.c]\ntarget = 'y'\n[project]\n",
        "[tool.attnshape.targets]\na.target = 'x'\n[project]\nname = 'ü'\n\n\n",
        "[tool.ruff]\r\nx = 1\r\n",
    ],
)
def test_what_was_there_stays(tmp_path: Path, text: str) -> None:
    path = tmp_path / "pyproject.toml"
    path.write_bytes(text.encode())
    assert write_targets(path, NEW) == ["attention"]
    after = path.read_bytes().decode()
    assert after.startswith(text.rstrip())
    assert after.count("\r\n") in (0, after.count("\n"))
    contents = tomllib.loads(after)
    assert contents["tool"]["attnshape"]["targets"].pop("attention") == NEW["attention"]
    before = tomllib.loads(text)
    assert before.get("tool", {}).items() <= contents["tool"].items() or "attnshape" in before["tool"]
    assert before.get("project") == contents.get("project")


def test_a_file_is_created_and_read_back(tmp_path: Path) -> None:
    path = tmp_path / "pyproject.toml"
    assert write_targets(path, {"a b": RICH}) == ["a b"]
    table = tomllib.loads(path.read_text())["tool"]["attnshape"]["targets"]["a b"]
    assert table == RICH
    assert len(decode_target("a b", table).sets()) == 2


def test_no_name_is_overwritten(tmp_path: Path) -> None:
    path = tmp_path / "pyproject.toml"
    path.write_text("[tool.attnshape.targets.attention]\ntarget = 'other.py:A'  # mine\n")
    before = path.read_text()
    assert write_targets(path, NEW) == []
    assert path.read_text() == before
    assert write_targets(path, {**NEW, "second": RICH}) == ["second"]
    assert path.read_text().startswith(before.rstrip())


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("[tool.attnshape]\ntargets = { a = { target = 'x' } }\n", "without changing something else"),
        ("[tool]\nattnshape = 3\n", "tool.attnshape isn't a table"),
        ("[tool.attnshape]\ntargets = [1]\n", "tool.attnshape.targets isn't a table"),
        ("[tool", "can't be read"),
    ],
)
def test_a_file_that_cannot_be_edited_stays(tmp_path: Path, text: str, message: str) -> None:
    path = tmp_path / "pyproject.toml"
    path.write_text(text)
    with pytest.raises(AttnshapeError, match=message) as caught:
        write_targets(path, NEW)
    assert caught.value.hint
    assert path.read_text() == text


def test_a_file_that_is_no_text(tmp_path: Path) -> None:
    path = tmp_path / "pyproject.toml"
    path.write_bytes(b"\xff\xfe")
    with pytest.raises(AttnshapeError, match="can't be read"):
        write_targets(path, NEW)
