"""The shapes observed at a place in a function: what a line makes or reads, and what a variable holds there."""

from __future__ import annotations

import ast
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property

from attnshape.comments.annotations import JaxtypingAnnotation
from attnshape.comments.functions import lines_of, targets_of, writes_into_part
from attnshape.model.trace import Reference
from attnshape.observation.forms import FunctionId
from attnshape.observation.watch import NO_COLUMN, Binding, Invocation, ItemsValue, ObservedRun, TensorValue, Value
from attnshape.tracing.operations import ADDITIONS, MATRIX_PRODUCTS, MULTIPLICATIONS, SUBTRACTIONS, base_name

Shape = tuple[int, ...]
Options = list[Shape]
"""Shapes of which one must match."""
Occurrences = list[list[Options]]
"""In each call, one list of options for each time that the place was reached."""

_MOST_CALLS = 12
"""Of one function in one run: later calls in a loop over layers add nothing."""


@dataclass(frozen=True)
class StepEvent:
    """One recorded step of a function's own source."""

    line: int
    last: int
    text: str
    operation: str
    order: int
    outputs: tuple[Shape, ...]
    operands: tuple[Shape, ...]
    position: int
    """The step's number in the run, from 1."""
    sources: tuple[int | None, ...]
    """For each operand the step that made it; None for inputs and parameters."""


@dataclass(frozen=True)
class FunctionCall:
    """One call of a function, with the steps of its own lines."""

    run: int
    numbers: Mapping[str, int]
    """The sizes of the run."""
    invocation: Invocation
    events: tuple[StepEvent, ...]

    @cached_property
    def bound(self) -> list[tuple[str, Value]]:
        """The arguments and every store to a variable, in order."""
        own = ((one.name, one.value) for one in self.invocation.bindings)
        return [*self.invocation.arguments.items(), *own]

    @cached_property
    def integers(self) -> dict[str, int]:
        """The integers that the function has by name and that don't change during the call.

        A variable that is 0 until its size is known, `P = 0` and then `P = cache.shape[2]`, has that size.
        """
        found = dict(self.invocation.numbers)
        changing = set()
        own: dict[str, int] = {}
        for name, value in self.bound:
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
        return {name for name, value in self.bound if isinstance(value, TensorValue)}

    def events_of(self, statement: ast.stmt) -> list[StepEvent]:
        """Return the steps on a statement's lines."""
        lines = lines_of(statement)
        return [event for event in self.events if event.line in lines]

    def reached(self, statement: ast.stmt) -> bool:
        """Return whether the call reached a statement: it ran a step there, bound a variable, or returned."""
        lines = lines_of(statement)
        bound = any(one.line in lines for one in self.invocation.bindings)
        return bound or bool(self.events_of(statement)) or any(line in lines for line, _ in self.invocation.results)

    def shapes_bound_by(self, name: str, line: int, exclude: range = range(0)) -> list[Value]:
        """Return what a variable held before a line: its latest stores above, else the argument."""
        above = [b for b in self.invocation.bindings if b.name == name and b.line <= line and b.line not in exclude]
        latest = max((one.line for one in above), default=0)
        return [one.value for one in above if one.line == latest] or [self.invocation.arguments.get(name)]


def find_calls(function: FunctionId, runs: Sequence[ObservedRun]) -> Iterator[FunctionCall]:
    """Yield the calls of a function, run by run."""
    for place, run in enumerate(runs):
        invocations = [one for one in run.invocations if one.function == function]
        events = list(_events(run, function)) if invocations else []
        for invocation in invocations[:_MOST_CALLS]:
            last = invocation.ended if invocation.ended is not None else len(run.raw.steps)
            own = tuple(event for event in events if invocation.began < event.order <= last)
            yield FunctionCall(place, run.numbers, invocation, own)


def _events(run: ObservedRun, function: FunctionId) -> Iterator[StepEvent]:
    order = 0
    for position, step in enumerate(run.raw.steps, 1):
        order = step.order if step.order is not None else order
        place = step.location
        if place is None or step.library or place.file != function.file or place.function != function.name:
            continue
        known = [(reference, _shape(run, reference)) for reference in step.operands]
        operands = [(reference.step, shape) for reference, shape in known if shape is not None]
        yield StepEvent(
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


def _shape(run: ObservedRun, reference: Reference) -> Shape | None:
    raw = run.raw
    if reference.parameter is not None:
        return run.parameters.get(reference.parameter)
    if reference.step is not None and reference.step <= len(raw.steps):
        outputs = raw.steps[reference.step - 1].outputs
        return outputs[reference.output].tensor.shape if reference.output < len(outputs) else None
    return next((tensor.shape for name, tensor in raw.inputs if name == reference.input), None)


class ObservedShapes:
    """The shapes in the calls of one function in several runs."""

    def __init__(self, function: FunctionId, runs: Sequence[ObservedRun]) -> None:
        self.function = function
        self.calls = list(find_calls(function, runs))

    def argument(self, name: str) -> Occurrences:
        """Return the shapes of an argument."""
        return [_each([call.invocation.arguments.get(name)]) for call in self.calls]

    @property
    def returned(self) -> int | None:
        """The length of the returned tuple, None if the function doesn't always return one of that length."""
        values = [value for call in self.calls for _, value in call.invocation.results]
        counts = {len(value.items) if isinstance(value, ItemsValue) else None for value in values}
        return counts.pop() if len(counts) == 1 else None

    def arguments(self) -> Occurrences:
        """Return the shapes of all arguments as options."""
        return [
            _any_of(shape for value in call.invocation.arguments.values() for shape in _shapes(value))
            for call in self.calls
        ]

    def result(self, place: int | None = None, lines: range | None = None) -> Occurrences:
        """Return the shapes of the results, or of one item of each, of the return statements on certain lines."""
        return [
            _each(_item(value, place) for line, value in call.invocation.results if lines is None or line in lines)
            for call in self.calls
        ]

    def made(self, statement: ast.stmt, place: int | None = None, of: int = 1) -> Occurrences:
        """Return what a statement binds, returns or computes; the item at `place` where it makes `of` of them."""
        if isinstance(statement, ast.Return):
            return self.result(place if of > 1 else None, lines_of(statement))
        targets = targets_of(statement)
        if targets:
            return [_each(_bound_values(call, statement, targets, place, of)) for call in self.calls]
        computes = isinstance(statement, (ast.Assign, ast.AugAssign, ast.AnnAssign, ast.Expr))
        if computes and not writes_into_part(statement):
            return [[[shape] for shape in _computed_last(call, statement)] for call in self.calls]
        return [[] for _ in self.calls]

    def touched(self, statement: ast.stmt) -> Occurrences:
        """Return everything that a statement reads, computes and binds, as options."""
        found: Occurrences = []
        for call, made in zip(self.calls, self.made(statement), strict=True):
            options: Options = []
            if call.reached(statement):
                options = [shape for occurrence in made for shape in occurrence]
                for event in call.events_of(statement):
                    options += [*event.outputs, *event.operands]
                options += _read(call, statement, statement.lineno)
            found.append(_any_of(options))
        return found

    def computed(self, statements: Sequence[ast.stmt]) -> Occurrences:
        """Return everything that statements compute and bind, without what they only read, as options."""
        found = []
        by_statement = [self.made(statement) for statement in statements]
        for place, call in enumerate(self.calls):
            options = [shape for made in by_statement for occurrence in made[place] for shape in occurrence]
            for statement in statements:
                options += [shape for event in call.events_of(statement) for shape in event.outputs]
            found.append(_any_of(options))
        return found

    def read(self, statements: Sequence[ast.stmt]) -> Occurrences:
        """Return what statements read and compute before their last step, as options."""
        found = []
        for call in self.calls:
            events = [event for statement in statements for event in call.events_of(statement)]
            final = max((event.position for event in events), default=0)
            reached = [one for one in statements if call.reached(one)]
            options = [shape for one in reached for shape in _read(call, one, statements[0].lineno)]
            for event in events:
                pairs = zip(event.operands, event.sources, strict=True)
                options += [shape for shape, made in pairs if made != final]
                options += event.outputs if event.position != final else ()
            found.append(_any_of(options))
        return found

    def ended(self, statement: ast.stmt, line: int) -> Occurrences:
        """Return, as options, the values of a statement's expressions that end on a line, else the variables there."""
        found = []
        for call in self.calls:
            events = [event for event in call.events_of(statement) if event.last == line]
            options = _outputs_of_longest(events)
            if not events and call.reached(statement):
                options += _read(call, statement, line, on=line)
            found.append(_any_of(options))
        return found

    def products(self, statement: ast.stmt, place: int) -> Occurrences:
        """Return the first or second operand of each product of two tensors in a statement, as options."""
        found = []
        for call in self.calls:
            pairs = [event for event in call.events_of(statement) if len(event.operands) == 2]
            products = [event for event in pairs if base_name(event.operation) in MATRIX_PRODUCTS]
            products = products or [event for event in pairs if base_name(event.operation) in _ARITHMETIC]
            found.append([[event.operands[place] for event in products]] if products else [])
        return found

    def variable(self, name: str, line: int, statement: ast.stmt | None) -> Occurrences:
        """Return what a variable held at a line: what the statement binds to it, else its last value before."""
        lines = lines_of(statement) if statement is not None else range(0)
        found = []
        for call in self.calls:
            values = [one.value for one in call.invocation.bindings if one.name == name and one.line in lines]
            found.append(_each(values or call.shapes_bound_by(name, line)))
        return found

    def around(self, name: str, line: int, statement: ast.stmt | None) -> Occurrences:
        """Return what a variable held before a line and what the statement after it binds to it, as options."""
        before, behind = self.variable(name, line, None), self.variable(name, line, statement)
        return combine(before, behind)

    def dtypes(self, annotation: JaxtypingAnnotation) -> list[str]:
        """Return the dtypes of the annotated tensors."""
        values: list[Value] = []
        for call in self.calls:
            if annotation.parameter is not None:
                values.append(call.invocation.arguments.get(annotation.parameter))
            elif annotation.statement is not None:
                values += _bound_values(call, annotation.statement, targets_of(annotation.statement), None, 1)
            else:
                values += [_item(value, annotation.item) for _, value in call.invocation.results]
        return list(dict.fromkeys(value.dtype for value in values if isinstance(value, TensorValue)))


def combine(*several: Occurrences) -> Occurrences:
    """Return in each call, as options of one occurrence, all shapes of several occurrences."""
    return [
        _any_of(shape for occurrences in calls for options in occurrences for shape in options)
        for calls in zip(*several, strict=True)
    ]


def _any_of(shapes: Iterable[Shape]) -> list[Options]:
    options = list(dict.fromkeys(shapes))
    return [options] if options else []


_ARITHMETIC = ADDITIONS | SUBTRACTIONS | MULTIPLICATIONS


def _outputs_of_longest(events: Sequence[StepEvent]) -> Options:
    longest = max((len(event.text) for event in events), default=0)
    return [shape for event in events if len(event.text) == longest for shape in event.outputs]


def _computed_last(call: FunctionCall, statement: ast.stmt) -> Options:
    events = call.events_of(statement)
    last = max((event.last for event in events), default=0)
    final = [event for event in events if event.last == last]
    longest = max((len(event.text) for event in final), default=0)
    return [shape for event in final if len(event.text) == longest for shape in event.outputs[:1]]


def _read(call: FunctionCall, statement: ast.stmt, before: int, on: int | None = None) -> Options:
    """Return the shapes of the variables that a statement reads, on one of its lines or on all."""
    names = {
        node.id
        for node in ast.walk(statement)
        if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Load) and (on is None or node.lineno == on)
    }
    lines = lines_of(statement)
    values = [value for name in names for value in call.shapes_bound_by(name, before - 1, exclude=lines)]
    return [shape for value in values for shape in _shapes(value)]


def _bound_values(
    call: FunctionCall, statement: ast.stmt, targets: Sequence[ast.Name], place: int | None, of: int
) -> list[Value]:
    places = {(one.lineno, one.col_offset) for one in targets}
    named = {(one.lineno, one.id) for one in targets}
    bound = [
        one
        for one in call.invocation.bindings
        if (one.line, one.column) in places or (one.column == NO_COLUMN and (one.line, one.name) in named)
    ]
    if bound and all(isinstance(one.value, int) for one in bound):
        return [TensorValue(shape, "") for shape in _unpacked_shapes(bound, targets)]
    if place is not None and of == len(targets):
        wanted = targets[place]
        bound = [one for one in bound if (one.line, one.name) == (wanted.lineno, wanted.id)]
    elif place is not None and len(targets) == 1:
        return [_item(one.value, place) for one in bound]
    elif place is not None:
        return []
    return [one.value for one in bound]


def _unpacked_shapes(bindings: Sequence[Binding], targets: Sequence[ast.Name]) -> Iterator[Shape]:
    """Yield the integers of `B, T, C = x.shape` as one shape, each time that the line ran."""
    count = len(targets)
    places: dict[tuple[int, str | int], int] = {(one.lineno, one.id): place for place, one in enumerate(targets)}
    places |= {(one.lineno, one.col_offset): place for place, one in enumerate(targets)}
    for start in range(0, len(bindings) - count + 1, count):
        # `B, T = x.size(0), x.size(1)` binds the last first
        ordered = sorted(
            bindings[start : start + count],
            key=lambda one: places.get((one.line, one.column), places.get((one.line, one.name), 0)),
        )
        yield tuple(one.value for one in ordered if isinstance(one.value, int))


def _item(value: Value, place: int | None) -> Value:
    if place is None:
        return value
    return value.items[place] if isinstance(value, ItemsValue) and place < len(value.items) else None


def _each(values: Iterable[Value]) -> list[Options]:
    return [shapes for value in values if (shapes := _shapes(value))]


def _shapes(value: Value) -> list[Shape]:
    """Return a tensor's shape, or those of the tensors in a tuple."""
    if isinstance(value, TensorValue):
        return [value.shape]
    if isinstance(value, ItemsValue):
        return list(dict.fromkeys(shape for item in value.items for shape in _shapes(item)))
    return []
