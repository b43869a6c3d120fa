"""The exact output of commands at fixed widths.

`pytest --update-goldens tests/cli/test_cli_goldens.py` rewrites the goldens: read each before you commit it.
"""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from attnshape.reporters.columns import COLUMNS
from tests.cli.running import ROOT, Attnshape
from tests.goldens import assert_golden

GOLDENS = Path(__file__).parent / "goldens"
EXAMPLES = sorted((ROOT / "examples").glob("*.py"))
OPTIONS = "--causal --padding --mask-value -1e9 --dropout .1 --train --no-bias"
CROSS = "trace --batch 2 --heads 8 --d-model 512 --queries 30 --keys 50"

LINES: dict[str, tuple[int, str]] = {
    "default_table_80": (80, "trace --format table"),
    "default_table_100": (100, "trace --format table"),
    "default_table_160": (160, "trace --format table"),
    "default_markdown": (100, "trace --format markdown"),
    "cross_table_100": (100, f"{CROSS} --format table"),
    "cross_markdown_explained": (100, f"{CROSS} --explain"),
    "options_table_100": (
        100,
        f"trace {OPTIONS} --format table",
    ),
    "costs_table_80": (80, "trace multi-head --cost --format table"),
    "costs_table_160": (160, "trace multi-head --causal --cost --format table"),
    "costs_markdown": (100, "trace multi-head --cost --format markdown --match scores,softmax"),
    "every_column_markdown": (
        100,
        f"{CROSS} --match scores,scale,softmax --columns {','.join(COLUMNS)}",
    ),
    "demo_scaled_dot_product": (
        100,
        "trace scaled-dot-product --batch 3 --queries 30 --keys 50 --d-head 128 --d-value 256 --format table",
    ),
    "demo_multi_head": (100, "trace multi-head --batch 128 --length 32 --d-model 200 --heads 5 --format table"),
    "catalog": (100, "catalog"),
}


def command_of(example: Path) -> str:
    """Return the command line in the example's own docstring."""
    text = example.read_text(encoding="utf-8").replace("\\\n", " ")
    line = re.search(r"^ +attnshape (trace .*)$", text, re.MULTILINE)
    assert line, example
    return line[1]


LINES |= {f"example_{path.stem}": (100, f"{command_of(path)} --format table") for path in EXAMPLES}


@pytest.mark.parametrize("name", LINES)
def test_golden(name: str, attnshape: Attnshape, root: Path, monkeypatch: pytest.MonkeyPatch):
    columns, line = LINES[name]
    monkeypatch.setenv("COLUMNS", str(columns))
    result = attnshape(line)
    assert (result.status, result.err) == (0, "")
    golden = GOLDENS / f"{name}.txt"
    assert_golden(golden, result.out)


def test_every_golden_is_used():
    assert {path.stem for path in GOLDENS.glob("*.txt")} == set(LINES)


@pytest.mark.parametrize("columns", [80, 100, 160])
def test_default_table_fits(columns: int, attnshape: Attnshape, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("COLUMNS", str(columns))
    out = attnshape("trace --format table").out
    assert max(map(len, out.splitlines())) <= columns
    if columns >= 100:
        assert "key.transpose(-2, -1)" in out
        assert "weights = " in out


def test_wide_terminal_truncates_nothing(attnshape: Attnshape, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("COLUMNS", "400")
    out = attnshape("trace --causal --format table").out
    trace = attnshape("trace --causal --format json").trace
    for step in trace["steps"]:
        assert step["expression"].rpartition(".")[2] in out
