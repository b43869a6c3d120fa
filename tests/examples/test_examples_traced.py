"""Each example is traced completely: variable names from its source, verified axes, and expected signatures."""

import shlex
from functools import cache
from pathlib import Path

import pytest
from msgspec.structs import replace

from attnshape.model.trace import Trace
from attnshape.options.spec import RunOptions, parse_expect
from attnshape.pipelines.trace import trace_request
from tests.examples.expectations import EXPECTED, example_spec, flags

FILES = sorted(path.name for path in (Path(__file__).parents[2] / "examples").glob("*.py"))
PRECONDITIONS = {"examples/rotary.py": ("Dk even",)}


@cache
def traced(name: str) -> Trace:
    expect = tuple(flags(name).get("--expect", ()))
    return trace_request(
        replace(example_spec(name), expect=parse_expect(expect)),
        RunOptions(command=shlex.join(EXPECTED[name]["argv"])),
    )


def test_every_example_has_expectations() -> None:
    assert sorted(Path(name).name for name in EXPECTED) == FILES


@pytest.mark.parametrize("name", EXPECTED)
def test_variables_are_named_as_in_the_source(name: str) -> None:
    outputs = [output for step in traced(name).steps for output in step.outputs]
    expected = EXPECTED[name]["names"]
    assert [output.name for output in outputs if output.name in set(expected)] == expected


@pytest.mark.parametrize("name", EXPECTED)
def test_all_axes_but_constants_are_verified(name: str) -> None:
    trace = traced(name)
    tensors = [output.tensor for step in trace.steps for output in step.outputs] + [i.tensor for i in trace.inputs]
    axes = [axis for tensor in tensors for axis in tensor.axes]
    assert {axis.known for axis in axes if not axis.expression.isdecimal()} == {"verified"}
    assert not any(axis.unexplained for axis in axes)
    assert all(tensor.checked for tensor in tensors)
    assert trace.complete
    assert trace.failure is None
    assert trace.notes == ()
    assert trace.preconditions == PRECONDITIONS.get(name, ())
    assert all(expectation.holds for expectation in trace.expectations)


@pytest.mark.parametrize("name", EXPECTED)
def test_signatures_match_those_derived_by_hand(name: str) -> None:
    trace = traced(name)
    found: dict[str, list[str]] = {}
    for step in trace.steps:
        for output in step.outputs:
            found.setdefault(output.name or "", []).append(output.tensor.signature)
    first = trace.outputs[0].of
    assert first.step is not None
    found.setdefault("output", [trace.step(first.step).outputs[first.output].tensor.signature])
    found |= {named.name or "": [named.tensor.signature] for named in trace.inputs}
    for variable, signature in EXPECTED[name]["signatures"].items():
        assert signature in found[variable], (variable, found[variable])
