"""What the code returns is compared, shown and kept in snapshots."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import pytest

import attnshape
from attnshape import AttnshapeError
from attnshape.comparing.compare import compare
from attnshape.comparing.outline import outline
from attnshape.comparing.snapshot import snapshot_of, write_snapshot
from attnshape.comparing.snapshot_read import read_snapshot

SQUARE = dict.fromkeys("qkv", "B L D")
SAID = {
    "weights": "returns step 4 (o) → step 3 (w)",
    "both": "output is output[0] now: step 4 (o)\noutput[1] came: step 3 (w)",
    "swapped": "output is output[1] now: step 4 (o)\noutput[0] came: step 3 (w)",
    "none": "output went: step 4 (o)",
    "given": "returns step 4 (o) → input v",
    "more": "returns step 4 (o) → step 5",
}


def returning(give: Callable[[Any, Any, Any], Any]) -> attnshape.Trace:
    def attention(q: Any, k: Any, v: Any) -> Any:
        s = q @ k.mT
        w = s.softmax(-1)
        o = w @ v
        return give(w, o, v)

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
def test_another_tensor_returned_is_a_difference(name: str) -> None:
    difference = attnshape.diff(OLD, NEW[name])
    assert difference.kinds == ("steps",)
    assert SAID[name] in str(difference)
    assert attnshape.diff(NEW[name], OLD).kinds == ("steps",)
    made = json.loads(difference.to_json())["results"]
    assert len(made) == len(SAID[name].splitlines())


def test_json_names_both_sides() -> None:
    made = json.loads(attnshape.diff(OLD, NEW["weights"]).to_json())
    assert made["results"] == [
        {"old": {"name": "output", "of": {"step": 4}}, "new": {"name": "output", "of": {"step": 3}}}
    ]


@pytest.mark.parametrize("name", NEW)
def test_the_same_returned_is_none(name: str) -> None:
    assert not attnshape.diff(NEW[name], NEW[name]).results


def test_what_is_returned_is_followed_to_its_new_number_and_name() -> None:
    def longer(query: Any, k: Any, v: Any) -> Any:
        scores = query.clone() @ k.mT
        return scores.softmax(-1) @ v, query

    def shorter(q: Any, k: Any, v: Any) -> Any:
        scores = q @ k.mT
        return scores.softmax(-1) @ v, q

    old = attnshape.trace(shorter, inputs=SQUARE)
    new = attnshape.trace(longer, inputs={"query": "B L D", "k": "B L D", "v": "B L D"})
    assert attnshape.diff(old, new).results == ()


def test_code_that_fails_returns_nothing_and_only_the_failure_is_told() -> None:
    def failing(q: Any, k: Any, v: Any) -> Any:
        s = q @ k.mT
        w = s.softmax(-1)
        o = w @ v
        return o @ v

    difference = attnshape.diff(OLD, attnshape.trace(failing, inputs=SQUARE))
    assert difference.kinds == ("steps",)
    assert difference.results == ()


@pytest.mark.parametrize("name", NEW)
def test_a_snapshot_says_what_is_returned(name: str) -> None:
    text = write_snapshot(snapshot_of(NEW[name]))
    assert compare(read_snapshot(write_snapshot(snapshot_of(OLD))), snapshot_of(NEW[name])).kinds == ("steps",)
    assert not compare(read_snapshot(text), snapshot_of(NEW[name]))
    assert read_snapshot(text).results == outline(NEW[name]).results


@pytest.mark.parametrize(
    ("name", "lines"),
    [
        ("weights", ["returns: output | 3"]),
        ("both", ["returns: output[0] | 4", "returns: output[1] | 3"]),
        ("none", ["returns: nothing"]),
        ("given", ["returns: output | v"]),
    ],
)
def test_a_snapshot_has_a_line_for_each(name: str, lines: list[str]) -> None:
    assert write_snapshot(snapshot_of(NEW[name])).partition("\n\nreturns")[2] == "\n".join(lines)[7:] + "\n"


def test_a_parameter_that_is_returned_is_read_back() -> None:
    from torch import nn

    class Tied(nn.Module):
        def __init__(self, width: int) -> None:
            super().__init__()
            self.weight = nn.Linear(width, width).weight

        def forward(self, x: Any) -> Any:
            return x @ self.weight, self.weight

    made = snapshot_of(attnshape.trace(Tied, init="D", inputs={"x": "B L D"}))
    assert "returns: output[1] | parameter weight" in write_snapshot(made)
    assert read_snapshot(write_snapshot(made)) == made


@pytest.mark.parametrize(
    ("new", "said"),
    [
        ("", "it doesn't say what is returned: expected 'returns:'"),
        ("returns: output", "expected a name and a reference, found 'output'"),
        ("returns: output | 3 | 4", "expected a name and a reference"),
        ("returns: output | 9", "it refers to step 9, which isn't there"),
        ("returns: output | 3[1]", "it refers to step 3, which isn't there"),
        ("returns: output | two words", "expected a step's number or a name"),
        ("returns: output | 3\nreturns: output | 3", "'output' is returned twice"),
        ("returns: nothing\nreturns: output | 3", "expected nothing more"),
        ("fails at: x\nreturns: output | 3", "expected nothing more"),
        ("gives: output | 3", "expected 'returns:' or 'fails at:'"),
    ],
)
def test_what_says_it_otherwise_is_refused(new: str, said: str) -> None:
    text = write_snapshot(snapshot_of(OLD))
    with pytest.raises(AttnshapeError) as refused:
        read_snapshot(text.replace("returns: output | 4", new), "file.txt")
    assert said in refused.value.message
