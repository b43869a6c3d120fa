"""Each example traces completely: its variables named as in its source, its axes proved, signatures as by hand."""

import json
import shlex
from functools import cache
from pathlib import Path

import pytest

from attnshape.model import Trace
from attnshape.pipeline import trace_request
from attnshape.settings import Settings
from attnshape.sizes import own_letters
from attnshape.target.request import Request

EXPECTED = json.loads((Path(__file__).parent / "expected.json").read_text())
FILES = sorted(path.name for path in (Path(__file__).parents[2] / "examples").glob("*.py"))
PRECONDITIONS = {"examples/rotary.py": ("Dk even",)}


@cache
def traced(name: str) -> Trace:
    argv = EXPECTED[name]["argv"]
    given: dict[str, list[str]] = {}
    for flag, value in zip(argv[1::2], argv[2::2], strict=True):
        given.setdefault(flag, []).append(value)
    init = given.get("--init", [None])[0]
    request = Request(
        argv[0],
        init,
        inputs=tuple(given.get("--input", ())),
        arguments=dict(text.split("=", 1) for text in given.get("--with", ())),
        own=own_letters(given.get("--dim", [])),
    )
    return trace_request(request, Settings(expect=tuple(given.get("--expect", ())), command=shlex.join(argv)))


def test_there_is_an_expectation_for_each_example() -> None:
    assert sorted(Path(name).name for name in EXPECTED) == FILES


@pytest.mark.parametrize("name", EXPECTED)
def test_all_variables_are_named_as_in_the_source(name: str) -> None:
    outputs = [output for step in traced(name).steps for output in step.outputs]
    wanted = EXPECTED[name]["names"]
    assert [output.name for output in outputs if output.name in set(wanted)] == wanted


@pytest.mark.parametrize("name", EXPECTED)
def test_all_axes_that_are_no_constants_are_proved(name: str) -> None:
    made = traced(name)
    tensors = [output.tensor for step in made.steps for output in step.outputs] + [i.tensor for i in made.inputs]
    axes = [axis for tensor in tensors for axis in tensor.axes]
    assert {axis.known for axis in axes if not axis.expression.isdecimal()} == {"proved"}
    assert not any(axis.unexplained for axis in axes)
    assert all(tensor.checked for tensor in tensors)
    assert made.complete
    assert made.failure is None
    assert made.notes == ()
    assert made.preconditions == PRECONDITIONS.get(name, ())
    assert all(expectation.holds for expectation in made.expectations)


@pytest.mark.parametrize("name", EXPECTED)
def test_signatures_are_those_worked_out_by_hand(name: str) -> None:
    made = traced(name)
    found: dict[str, list[str]] = {}
    for step in made.steps:
        for output in step.outputs:
            found.setdefault(output.name or "", []).append(output.tensor.signature)
    first = made.outputs[0].of
    assert first.step is not None
    found.setdefault("output", [made.step(first.step).outputs[first.output].tensor.signature])
    found |= {named.name or "": [named.tensor.signature] for named in made.inputs}
    for variable, signature in EXPECTED[name]["signatures"].items():
        assert signature in found[variable], (variable, found[variable])
