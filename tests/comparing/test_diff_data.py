"""Sizes that depend on the data are no difference between seeds; all others are."""

from __future__ import annotations

from typing import Any

import pytest

import attnshape
from attnshape import Trace
from attnshape.comparing.compare import compare
from attnshape.comparing.snapshot import snapshot_of, write_snapshot
from attnshape.comparing.snapshot_read import read_snapshot


def positive(x: Any) -> Any:
    return x[x > 0] * 2


def rows(x: Any) -> Any:
    return x[x[:, 0] > 0] * 2


def turned(x: Any) -> Any:
    return x[x[:, 0] > 0].T


def traced(function: Any, seed: int) -> Trace:
    return attnshape.trace(function, inputs={"x": "L D"}, seed=seed, L=40)


@pytest.mark.parametrize("function", [positive, rows, turned])
def test_another_seed_is_no_difference(function: Any) -> None:
    old, new = traced(function, 0), traced(function, 1)
    assert old.steps[-1].outputs[0].tensor.shape != new.steps[-1].outputs[0].tensor.shape
    difference = attnshape.diff(old, new)
    assert difference.kinds == ()
    assert not any(one.shown for one in difference.steps)
    assert not compare(read_snapshot(write_snapshot(snapshot_of(old))), snapshot_of(new))


def test_the_other_axes_count() -> None:
    wider = attnshape.trace(rows, inputs={"x": "L D"}, seed=1, L=40, D=256)
    assert attnshape.diff(traced(rows, 0), wider).kinds == ("size",)
    assert "signature" in attnshape.diff(traced(positive, 0), traced(rows, 0)).kinds


def test_a_snapshot_says_that_a_size_is_unknown() -> None:
    text = write_snapshot(snapshot_of(traced(rows, 0)))
    last = next(line for line in text.splitlines() if " x[x[:, 0] > 0] * 2 " in line)
    assert [cell.strip() for cell in last.split("|")][6] == "? D"
