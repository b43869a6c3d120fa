"""Sizes that depend on the data don't count as differences; all others do."""

from __future__ import annotations

import re
from typing import Any

import pytest

import attnshape
from attnshape import Trace
from attnshape.comparison.compare import compare
from attnshape.comparison.snapshot import read_snapshot, snapshot_of, write_snapshot


def positive(x: Any) -> Any:
    return x[x > 0] * 2


def rows(x: Any) -> Any:
    return x[x[:, 0] > 0] * 2


def transposed(x: Any) -> Any:
    return x[x[:, 0] > 0].T


def traced(function: Any, seed: int) -> Trace:
    return attnshape.trace(function, inputs={"x": "L D"}, seed=seed, L=40)


@pytest.mark.parametrize("function", [positive, rows, transposed])
def test_another_seed_makes_no_difference(function: Any) -> None:
    old, new = traced(function, 0), traced(function, 1)
    assert old.steps[-1].outputs[0].tensor.shape != new.steps[-1].outputs[0].tensor.shape
    difference = attnshape.diff(old, new)
    assert difference.kinds == ()
    assert not any(change.shown for change in difference.steps)
    assert not compare(read_snapshot(write_snapshot(snapshot_of(old))), snapshot_of(new))


def test_other_axes_are_compared() -> None:
    wider = attnshape.trace(rows, inputs={"x": "L D"}, seed=1, L=40, D=256)
    assert attnshape.diff(traced(rows, 0), wider).kinds == ("size",)
    assert "signature" in attnshape.diff(traced(positive, 0), traced(rows, 0)).kinds


def test_snapshot_shows_an_unknown_size() -> None:
    text = write_snapshot(snapshot_of(traced(rows, 0)))
    last = next(line for line in text.splitlines() if " x[x[:, 0] > 0] * 2 " in line)
    assert re.split(r"  +", last)[4] == "? D"
