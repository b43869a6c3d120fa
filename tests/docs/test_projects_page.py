"""docs/projects.md: its examples, and its tables of keys, hooks and formats."""

from __future__ import annotations

import re
import tomllib

import pytest

from attnshape.dims.symbols import SYMBOLS
from attnshape.options.pyproject import KEYS, decode_target
from attnshape.reporters.registry import formats_for
from tests.cli.running import ROOT
from tests.docs.pages import DOCS, assert_page_part
from tests.readme.test_readme import BLOCK

PAGE = DOCS / "projects.md"
CONSOLE = list(BLOCK.finditer(PAGE.read_text()))


def rows(heading: str) -> list[list[str]]:
    """Return the rows of the table whose header begins with this heading, each as a list of cells."""
    table = PAGE.read_text().partition(f"| {heading} |")[2].partition("\n\n")[0]
    return [[cell.strip() for cell in line.strip("|").split(" | ")] for line in table.splitlines()[2:]]


def test_page_has_examples_of_each_use() -> None:
    assert len(CONSOLE) >= 3
    assert "Traceback" not in PAGE.read_text()


def test_targets_match_the_example() -> None:
    toml = (ROOT / "examples" / "project" / "pyproject.toml").read_text()
    assert_page_part(PAGE, "pyproject", f"```toml\n{toml}```\n")


def test_hooks_match_the_manifest() -> None:
    yaml = pytest.importorskip("yaml")
    hooks = yaml.safe_load((ROOT / ".pre-commit-hooks.yaml").read_text())
    lines = ["| hook | runs | finds |", "| --- | --- | --- |"]
    lines += [f"| `{hook['id']}` | `{hook['entry']}` | {hook['description']} |" for hook in hooks]
    assert_page_part(PAGE, "hooks", "\n".join(lines) + "\n")


def test_every_key_is_documented() -> None:
    described = {name.strip("`") for name, *_ in rows("key")}
    remaining = PAGE.read_text().partition("The remaining keys")[2].partition("Errors in an entry")[0]
    rest = set(re.findall(r"`([\w-]+)`", remaining))
    sizes = {symbol.flag.removeprefix("--") for symbol in SYMBOLS}
    assert {"batch", "heads"} <= rest
    assert described | rest | sizes == {*KEYS, "true"}


def test_examples_of_keys_are_valid() -> None:
    for name, _, examples in rows("key"):
        key = name.strip("`")
        for example in re.findall(r"`([^`]+)`", examples):
            value = tomllib.loads(f"value = {example}")["value"]
            entry = decode_target("x", {"dim": {"T": 4}, "target": "model.py:A", key: value})
            assert len(entry.sets()) == (2 if key == "sizes" else 0)


def test_every_format_is_in_the_table() -> None:
    named = [name.strip("` ") for cells in rows("format") for name in cells[0].split(",")]
    assert sorted(named) == sorted({*formats_for("traces"), *formats_for("reports")})
