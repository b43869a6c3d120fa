"""Returned tensors are compared, displayed and saved in snapshots."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import pytest

import attnshape
from attnshape import AttnshapeError
from attnshape.comparison.compare import compare
from attnshape.comparison.outline import outline
from attnshape.comparison.snapshot import read_snapshot, snapshot_of, write_snapshot

SQUARE = dict.fromkeys("qkv", "B L D")
MESSAGES = {
    "weights": "returns step 4 (o) → step 3 (w)",
    "both": "output is now output[0]: step 4 (o)\nadded output[1]: step 3 (w)",
    "swapped": "output is now output[1]: step 4 (o)\nadded output[0]: step 3 (w)",
    "none": "removed output: step 4 (o)",
    "given": "returns step 4 (o) → input v",
    "more": "returns step 4 (o) → step 5",
}


def returning(choose: Callable[[Any, Any, Any], Any]) -> attnshape.Trace:
    def attention(q: Any, k: Any, v: Any) -> Any:
        s = q @ k.mT
        w = s.softmax(-1)
        o = w @ v
        return choose(w, o, v)

    return attnshape.trace(attention, inputs=SQUARE)


OLD = returning(lambda w, o, v: o)
NEW = {
    "weights": returning(lambda w, o, v: w),
    "both": returning(lambda w, o, v: (o, w)),
    "swapped": returning(lambda w, o, v: (w, o)),
    "none": returning(lambda w, o, v: None),
    "given": returning(lambda w, o, v: v),
    "more": returning(lambda w, o, v: o * 2),
}


@pytest.mark.parametrize("name", NEW)
def test_another_returned_tensor_is_a_difference(name: str) -> None:
    difference = attnshape.diff(OLD, NEW[name])
    assert difference.kinds == ("steps",)
    assert MESSAGES[name] in str(difference)
    assert attnshape.diff(NEW[name], OLD).kinds == ("steps",)
    results = json.loads(difference.to_json())["results"]
    assert len(results) == len(MESSAGES[name].splitlines())


def test_json_names_both_sides() -> None:
    saved = json.loads(attnshape.diff(OLD, NEW["weights"]).to_json())
    assert saved["results"] == [
        {"old": {"name": "output", "of": {"step": 4}}, "new": {"name": "output", "of": {"step": 3}}}
    ]


@pytest.mark.parametrize("name", NEW)
def test_same_results_are_no_difference(name: str) -> None:
    assert not attnshape.diff(NEW[name], NEW[name]).results


def test_results_are_matched_by_new_step_numbers_and_names() -> None:
    def longer(query: Any, k: Any, v: Any) -> Any:
        scores = query.clone() @ k.mT
        return scores.softmax(-1) @ v, query

    def shorter(q: Any, k: Any, v: Any) -> Any:
        scores = q @ k.mT
        return scores.softmax(-1) @ v, q

    old = attnshape.trace(shorter, inputs=SQUARE)
    new = attnshape.trace(longer, inputs={"query": "B L D", "k": "B L D", "v": "B L D"})
    assert attnshape.diff(old, new).results == ()


def test_only_the_failure_of_failing_code_is_reported() -> None:
    def failing(q: Any, k: Any, v: Any) -> Any:
        s = q @ k.mT
        w = s.softmax(-1)
        o = w @ v
        return o @ v

    difference = attnshape.diff(OLD, attnshape.trace(failing, inputs=SQUARE))
    assert difference.kinds == ("steps",)
    assert difference.results == ()


@pytest.mark.parametrize("name", NEW)
def test_snapshot_keeps_the_results(name: str) -> None:
    text = write_snapshot(snapshot_of(NEW[name]))
    assert compare(read_snapshot(write_snapshot(snapshot_of(OLD))), snapshot_of(NEW[name])).kinds == ("steps",)
    assert not compare(read_snapshot(text), snapshot_of(NEW[name]))
    assert read_snapshot(text).results == outline(NEW[name]).results


@pytest.mark.parametrize(
    ("name", "lines"),
    [
        ("weights", ["returns output: 3"]),
        ("both", ["returns output[0]: 4", "returns output[1]: 3"]),
        ("none", ["returns nothing"]),
        ("given", ["returns output: v"]),
    ],
)
def test_snapshot_has_a_line_for_each_result(name: str, lines: list[str]) -> None:
    text = write_snapshot(snapshot_of(NEW[name]))
    assert [line for line in text.splitlines() if line.startswith("returns")] == lines


def test_returned_parameter_round_trip() -> None:
    from torch import nn

    class Tied(nn.Module):
        def __init__(self, width: int) -> None:
            super().__init__()
            self.weight = nn.Linear(width, width).weight

        def forward(self, x: Any) -> Any:
            return x @ self.weight, self.weight

    snapshot = snapshot_of(attnshape.trace(Tied, init="D", inputs={"x": "B L D"}))
    assert "returns output[1]: parameter weight" in write_snapshot(snapshot)
    assert read_snapshot(write_snapshot(snapshot)) == snapshot


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("returns output: 4\n", ""),
        ("returns output: 4\n", "returns output: 3\n"),
        ("returns output: 4\n", "returns output: 4\nreturns output: 4\n"),
        ("returns output: 4\n", "returns nothing\n"),
        ("returns output: 4\n", "fails at x\nreturns output: 4\n"),
        ('{"returns": {"name": "output", "of": {"step": 4}}}\n', ""),
        ('{"returns": {"name": "output", "of": {"step": 4}}}\n', '{"returns": {"name": "output"}}\n'),
        ('{"returns": {"name": "output", "of": {"step": 4}}}\n', '{"returns": {"name": "o", "of": {"step": 9}}}\n'),
    ],
)
def test_snapshot_with_inconsistent_results_is_refused(old: str, new: str) -> None:
    text = write_snapshot(snapshot_of(OLD))
    assert old in text
    with pytest.raises(AttnshapeError, match=r"file\.txt:[0-9]+: this isn't a valid snapshot"):
        read_snapshot(text.replace(old, new), "file.txt")
