"""Attention modules of published libraries: complete traces, verified axes, and signatures derived by hand."""

from collections.abc import Iterator, Mapping

import pytest

from attnshape.model.trace import Axis, Step, TensorRecord, Trace
from tests.libraries.tracing_cases import FILES, HAND_WORKED, RUNS, each_run, traced

pytestmark = pytest.mark.libraries
VERIFIED = 0.99
"""The fraction of non-constant axes that must be verified in each file of cases."""
VERIFIED_IN_ONE = 0.95
"""The same for one case at one of its sizes."""


def numbers(trace: Trace) -> dict[str, int]:
    return {symbol: size.size for symbol, size in trace.sizes.items()}


def value(expression: str, sizes: Mapping[str, int]) -> int:
    """Evaluate an axis in Python, so that equivalent formulas such as `D` and `H*Dk` are equal."""
    return int(eval(expression, {"__builtins__": {}, "min": min, "max": max}, dict(sizes)))


def shape_at(signature: str, sizes: Mapping[str, int]) -> tuple[int, ...]:
    return tuple(value(expression, sizes) for expression in signature.split())


def tensors(trace: Trace) -> Iterator[TensorRecord]:
    yield from (named.tensor for named in trace.inputs)
    yield from (output.tensor for step in trace.steps for output in step.outputs)


def returned(trace: Trace) -> list[str]:
    """Return the signatures of the tensors that the target returned."""
    inputs = {named.name: named.tensor for named in trace.inputs}
    return [
        inputs[output.of.input].signature
        if output.of.step is None
        else trace.step(output.of.step).outputs[output.of.output].tensor.signature
        for output in trace.outputs
    ]


def scores_by_role(trace: Trace) -> list[str]:
    return [step.outputs[0].tensor.signature for step in trace.steps if step.role == "scores"]


def scores_by_name(trace: Trace, name: str) -> list[str]:
    """Return the distinct signatures of a variable, in order."""
    named = (output for step in trace.steps for output in step.outputs if output.name == name)
    return list(dict.fromkeys(output.tensor.signature for output in named))


def avoided(trace: Trace) -> list[str]:
    return [step.avoided.signature for step in trace.steps if step.avoided]


def assert_same(found: list[str], worked: tuple[str, ...], case: str) -> None:
    """Assert that signatures agree at all of the case's sizes."""
    everywhere = [numbers(traced(case, which)) for which in range(len(HAND_WORKED[case].sizes))]
    for sizes in everywhere:
        assert [shape_at(signature, sizes) for signature in found] == [
            shape_at(signature, sizes) for signature in worked
        ], (found, worked)


def is_constant(axis: Axis) -> bool:
    return axis.expression.isdecimal() and not axis.unexplained


def is_verified(axis: Axis) -> bool:
    return axis.known == "verified" and not axis.unexplained


def non_constant_axes(case: str, which: int) -> list[Axis]:
    return [axis for tensor in tensors(traced(case, which)) for axis in tensor.axes if not is_constant(axis)]


@each_run
def test_library_module_is_traced_completely(case: str, which: int) -> None:
    trace = traced(case, which)
    assert trace.complete
    assert trace.failure is None
    assert trace.steps
    assert all(tensor.checked for tensor in tensors(trace))


@each_run
def test_axes_of_library_module_are_verified(case: str, which: int) -> None:
    axes = non_constant_axes(case, which)
    verified = sum(map(is_verified, axes))
    unverified = sorted({axis.expression for axis in axes if not is_verified(axis)})
    assert verified >= VERIFIED_IN_ONE * len(axes), f"{verified} of {len(axes)}; not verified: {unverified}"


def aligned(trace: Trace, other: Trace) -> Iterator[tuple[TensorRecord, TensorRecord]]:
    """Yield each tensor with its counterpart at other sizes; results of steps only if the steps are the same."""
    yield from ((mine.tensor, its.tensor) for mine, its in zip(trace.inputs, other.inputs, strict=True))
    if [shape_of(step) for step in trace.steps] == [shape_of(step) for step in other.steps]:
        for step, twin in zip(trace.steps, other.steps, strict=True):
            yield from ((mine.tensor, its.tensor) for mine, its in zip(step.outputs, twin.outputs, strict=True))


def shape_of(step: Step) -> tuple[str, int | None, list[int]]:
    return step.operation, step.parent, [len(output.tensor.shape) for output in step.outputs]


@each_run
def test_formulas_and_constants_hold_at_the_other_sizes(case: str, which: int) -> None:
    other = traced(case, 1 - which)
    sizes = numbers(other)
    wrong = [
        (mine.signature, axis.expression, its.shape)
        for mine, its in aligned(traced(case, which), other)
        for axis, size in zip(mine.axes, its.shape, strict=True)
        if (is_verified(axis) or is_constant(axis))
        and (axis.where is None or value(axis.where, sizes))
        and value(axis.expression, sizes) != size
    ]
    assert not wrong


@each_run
def test_output_matches_the_signature_derived_by_hand(case: str, which: int) -> None:
    assert_same(returned(traced(case, which)), HAND_WORKED[case].outputs, case)


@each_run
def test_scores_match_the_signature_derived_by_hand(case: str, which: int) -> None:
    trace, worked = traced(case, which), HAND_WORKED[case]
    found = scores_by_name(trace, worked.named) if worked.named else scores_by_role(trace)
    assert_same(found, worked.scores, case)
    assert_same(avoided(trace), worked.avoided, case)


@pytest.mark.slow
@pytest.mark.parametrize("file", [pytest.param(file, marks=pytest.mark.xdist_group(file)) for file in FILES])
def test_nearly_all_axes_of_a_file_of_cases_are_verified(file: str) -> None:
    axes = [axis for case, which in RUNS if case.startswith(f"{file}:") for axis in non_constant_axes(case, which)]
    assert sum(map(is_verified, axes)) >= VERIFIED * len(axes)
