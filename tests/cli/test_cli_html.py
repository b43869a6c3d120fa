"""`trace --format html` on the command line: the behaviour is measured unless the user says otherwise."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.cli.running import Attnshape

TARGET = "trace scaled-dot-product"
PANEL = "<h2>Behaviour</h2>"


@pytest.mark.parametrize(
    ("flags", "has_it"),
    [
        ("--format html", True),
        ("--format html --behaviour", True),
        ("--format html --no-behaviour", False),
        ("--format html --time-limit 200", True),
    ],
)
def test_a_page_has_the_behaviour(flags: str, has_it: bool, attnshape: Attnshape) -> None:
    result = attnshape(f"{TARGET} {flags}")
    assert result.status == 0
    assert (PANEL in result.out) == has_it
    assert ("every query sees every key" in result.out) == has_it


@pytest.mark.parametrize(("flags", "has_it"), [("", False), ("--behaviour", True), ("--no-behaviour", False)])
def test_a_saved_trace_has_it_on_request(flags: str, has_it: bool, attnshape: Attnshape) -> None:
    assert ("behaviour" in attnshape(f"{TARGET} --format json {flags}").trace) == has_it


def test_code_that_fails_is_not_measured(attnshape: Attnshape, folder: Path) -> None:
    (folder / "failing.py").write_text("def double(x):\n    return x @ x\n")
    result = attnshape("trace failing.py:double --input 'x: B L' --format html")
    assert result.status == 1
    assert PANEL not in result.out


def test_a_page_is_written_when_the_time_is_over(attnshape: Attnshape, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("attnshape.cli.trace.UNASKED_SECONDS", 0.0)
    result = attnshape(f"{TARGET} --format html")
    assert result.status == 0
    assert PANEL in result.out
    assert "the time limit was reached" in result.out
