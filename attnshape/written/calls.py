"""The calls of one function in several runs, each with the steps that its own lines made."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property

from attnshape.model import Reference
from attnshape.variables.observe import Run
from attnshape.variables.values import SeenTensor
from attnshape.variables.watch import Function, Invocation

Shape = tuple[int, ...]

_MOST_CALLS = 12
"""Of one function in one run: a loop over many layers says no more than its first turns."""


@dataclass(frozen=True)
class Event:
    """One step of a function's own source."""

    line: int
    last: int
    text: str
    operation: str
    order: int
    outputs: tuple[Shape, ...]
    operands: tuple[Shape, ...]
    position: int
    """Which of the run's steps it is, from 1."""
    sources: tuple[int | None, ...]
    """For each operand the step that made it; None for inputs and parameters."""


@dataclass(frozen=True)
class Call:
    """One call of a function, with the steps of its own lines."""

    run: int
    numbers: Mapping[str, int]
    """The sizes of the run."""
    invocation: Invocation
    events: tuple[Event, ...]

    @cached_property
    def integers(self) -> dict[str, int]:
        """The whole numbers that the function knows by name, and that stay the same in the call.

        What is 0 until a size is known, `P = 0` and then `P = cache.shape[2]`, is this size.
        """
        found = dict(self.invocation.numbers)
        changing = set()
        bound = [(name, value) for name, value in self.invocation.arguments.items()]
        bound += [(one.name, one.value) for one in self.invocation.bindings]
        own: dict[str, int] = {}
        for name, value in bound:
            if isinstance(value, int):
                if own.get(name) == 0 and value > 1:
                    own[name] = value
                elif own.setdefault(name, value) != value:
                    changing.add(name)
            else:
                found.pop(name, None)
        return {name: value for name, value in (found | own).items() if name not in changing}

    @cached_property
    def tensors(self) -> set[str]:
        """The variables that are tensors."""
        bound = [*self.invocation.arguments.items(), *((one.name, one.value) for one in self.invocation.bindings)]
        return {name for name, value in bound if isinstance(value, SeenTensor)}


def calls_of(function: Function, runs: Sequence[Run]) -> Iterator[Call]:
    """Yield the calls of a function, the runs one after another."""
    for place, run in enumerate(runs):
        there = [one for one in run.invocations if one.function == function]
        events = list(_events(run, function)) if there else []
        for invocation in there[:_MOST_CALLS]:
            last = invocation.ended if invocation.ended is not None else len(run.raw.steps)
            own = tuple(event for event in events if invocation.began < event.order <= last)
            yield Call(place, run.numbers, invocation, own)


def _events(run: Run, function: Function) -> Iterator[Event]:
    order = 0
    for position, step in enumerate(run.raw.steps, 1):
        order = step.order if step.order is not None else order
        place = step.place
        if place is None or step.library or place.file != function.file or place.function != function.name:
            continue
        known = [(reference, _shape(run, reference)) for reference in step.operands]
        operands = [(reference.step, shape) for reference, shape in known if shape is not None]
        yield Event(
            line=place.line,
            last=place.line + place.expression.count("\n"),
            text=place.expression,
            operation=step.operation,
            order=step.order if step.order is not None else order + 1,
            outputs=tuple(output.tensor.shape for output in step.outputs),
            operands=tuple(shape for _, shape in operands),
            position=position,
            sources=tuple(made for made, _ in operands),
        )


def _shape(run: Run, reference: Reference) -> Shape | None:
    raw = run.raw
    if reference.parameter is not None:
        return run.parameters.get(reference.parameter)
    if reference.step is not None and reference.step <= len(raw.steps):
        outputs = raw.steps[reference.step - 1].outputs
        return outputs[reference.output].tensor.shape if reference.output < len(outputs) else None
    return next((tensor.shape for name, tensor in raw.inputs if name == reference.input), None)
