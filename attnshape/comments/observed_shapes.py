"""The shapes observed at a place in a function: what a line makes or reads, and what a variable holds there."""

from __future__ import annotations

import ast
import bisect
import itertools
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from operator import itemgetter
from typing import Protocol, TypeVar

from attnshape.comments.annotations import JaxtypingAnnotation
from attnshape.comments.functions import lines_of, targets_of, writes_into_part
from attnshape.model.trace import Reference
from attnshape.observation.forms import FunctionId
from attnshape.observation.watch import NO_COLUMN, Binding, Invocation, ItemsValue, ObservedRun, TensorValue, Value
from attnshape.tracing.operations import (
    ADDITIONS,
    FUSED_ATTENTION,
    MATRIX_PRODUCTS,
    MULTIPLICATIONS,
    SAME_VALUES,
    SELECTIONS,
    SUBTRACTIONS,
    UNIT_AXES,
    base_name,
)

Shape = tuple[int, ...]
Options = list[Shape]
"""Shapes of which one must match."""
Occurrences = list[list[Options]]
"""In each call, one list of options for each time that the place was reached."""

_MOST_CALLS = 12
"""Of one function in one run: later calls in a loop over layers add nothing."""
_COMPREHENSION = re.compile(r"(\.<(genexpr|(list|set|dict)comp)>)+$")
"""The end of the name of code that is part of a function's own statements."""


@dataclass(frozen=True)
class StepEvent:
    """One recorded step of a function's own source."""

    line: int
    last: int
    text: str
    operation: str
    order: int
    outputs: tuple[Shape, ...]
    operands: tuple[tuple[Shape, int | None], ...]
    """Each with the step that made it; None for inputs and parameters."""
    position: int
    """The step's number in the run, from 1."""


@dataclass(frozen=True)
class FunctionCall:
    """One call of a function, with the steps of its own lines."""

    numbers: Mapping[str, int]
    """The sizes of the run."""
    invocation: Invocation
    events: tuple[StepEvent, ...]

    @cached_property
    def integers(self) -> dict[str, int]:
        """The integers that the function has by name and that don't change during the call.

        A variable that is 0 until its size is known, `P = 0` and then `P = cache.shape[2]`, has that size.
        """
        outer = dict(self.invocation.numbers)
        changing = set()
        own: dict[str, int] = {}
        for name, value in self.invocation.bound:
            if not isinstance(value, int):
                outer.pop(name, None)
            elif own.get(name) == 0 and value > 1:
                own[name] = value
            elif own.setdefault(name, value) != value:
                changing.add(name)
        return {name: value for name, value in (outer | own).items() if name not in changing}

    @cached_property
    def outer(self) -> set[str]:
        """The names of integers that the function only reads: of attributes, configurations and modules."""
        own = {*self.invocation.arguments, *(name for name, _ in self.invocation.bound)}
        return self.invocation.numbers.keys() - own

    @cached_property
    def tensors(self) -> set[str]:
        """The variables that are tensors."""
        return {name for name, value in self.invocation.bound if isinstance(value, TensorValue)}

    def events_of(self, statement: ast.stmt) -> list[StepEvent]:
        """Return the steps on a statement's lines."""
        return _on_lines(lines_of(statement), self._events_by_line)

    def reached(self, statement: ast.stmt) -> bool:
        """Return whether the call reached a statement: it ran a step there, bound a variable, or returned."""
        return any(line in self._lines_reached for line in lines_of(statement))

    def bindings_on(self, lines: Iterable[int]) -> list[Binding]:
        """Return the stores to variables on some lines."""
        return _on_lines(lines, self._bindings_by_line)

    def shapes_bound_by(self, name: str, line: int, exclude: range = range(0)) -> list[Value]:
        """Return what a variable held before a line: its latest stores above, else the argument."""
        stores = self._bindings_of.get(name, {})
        lines = self._lines_binding.get(name, [])
        place = bisect.bisect_right(lines, line)
        if place and lines[place - 1] in exclude:
            place = bisect.bisect_left(lines, exclude.start)
        latest = stores[lines[place - 1]] if place else []
        return [store.value for store in latest] or [self.invocation.arguments.get(name)]

    @cached_property
    def _events_by_line(self) -> dict[int, list[tuple[int, StepEvent]]]:
        return _by_line(self.events)

    @cached_property
    def _bindings_by_line(self) -> dict[int, list[tuple[int, Binding]]]:
        return _by_line(self.invocation.bindings)

    @cached_property
    def _lines_reached(self) -> set[int]:
        returns = [line for line, _ in self.invocation.results]
        return {*self._events_by_line, *self._bindings_by_line, *returns}

    @cached_property
    def _bindings_of(self) -> dict[str, dict[int, list[Binding]]]:
        """The stores to each variable, by line."""
        bindings: dict[str, dict[int, list[Binding]]] = {}
        for store in self.invocation.bindings:
            bindings.setdefault(store.name, {}).setdefault(store.line, []).append(store)
        return bindings

    @cached_property
    def _lines_binding(self) -> dict[str, list[int]]:
        return {name: sorted(by_line) for name, by_line in self._bindings_of.items()}


class _OnLine(Protocol):
    @property
    def line(self) -> int: ...


_Placed = TypeVar("_Placed", bound=_OnLine)


def _by_line(items: Iterable[_Placed]) -> dict[int, list[tuple[int, _Placed]]]:
    by_line: dict[int, list[tuple[int, _Placed]]] = {}
    for number, item in enumerate(items):
        by_line.setdefault(item.line, []).append((number, item))
    return by_line


def _on_lines(lines: Iterable[int], by_line: Mapping[int, list[tuple[int, _Placed]]]) -> list[_Placed]:
    """Return what is on any of these lines, in the order in which it happened."""
    found = [numbered for line in dict.fromkeys(lines) for numbered in by_line.get(line, ())]
    return [item for _, item in sorted(found, key=itemgetter(0))]


def _events(run: ObservedRun, function: FunctionId) -> Iterator[StepEvent]:
    order = 0
    for position, step in enumerate(run.raw.steps, 1):
        order = step.order if step.order is not None else order
        place = step.location
        if place is None or step.library or place.file != function.file:
            continue
        if _COMPREHENSION.sub("", place.function) != function.name:
            continue
        if any(output.tensor.symbols for output in step.outputs):
            continue  # a comment can't be compared with a tensor that has no single shape
        operands = [(_shape(run, operand), operand.step) for operand in step.operands]
        yield StepEvent(
            line=place.line,
            last=place.line + place.expression.count("\n"),
            text=place.expression,
            operation=step.operation,
            order=step.order if step.order is not None else order + 1,
            outputs=tuple(output.tensor.shape for output in step.outputs),
            operands=tuple((shape, source) for shape, source in operands if shape is not None),
            position=position,
        )


def _shape(run: ObservedRun, reference: Reference) -> Shape | None:
    raw = run.raw
    if reference.parameter is not None:
        return run.parameters.get(reference.parameter)
    if reference.step is not None and reference.step <= len(raw.steps):
        outputs = [output.tensor for output in raw.steps[reference.step - 1].outputs][reference.output :]
    else:
        outputs = [tensor for name, tensor in raw.inputs if name == reference.input]
    return outputs[0].shape if outputs and not outputs[0].symbols else None


class ObservedShapes:
    """The shapes in the calls of one function in several runs."""

    def __init__(self, function: FunctionId, runs: Sequence[ObservedRun]) -> None:
        self.function = function
        self.calls: list[FunctionCall] = []
        for run in runs:
            invocations = [call for call in run.invocations if call.function == function]
            events = list(_events(run, function)) if invocations else []
            for call in invocations[:_MOST_CALLS]:
                last = call.ended if call.ended is not None else len(run.raw.steps)
                own = tuple(event for event in events if call.began < event.order <= last)
                self.calls.append(FunctionCall(run.numbers, call, own))

    def argument(self, name: str) -> Occurrences:
        """Return the shapes of an argument. An empty tensor, with no element on any axis, stands for an absent one."""
        occurrences = [_each([call.invocation.arguments.get(name)]) for call in self.calls]
        return [[options for options in each if any(map(any, options))] for each in occurrences]

    @property
    def returned(self) -> int | None:
        """The length of the returned tuple, None if the function doesn't always return one of that length."""
        values = [value for call in self.calls for _, value in call.invocation.results]
        counts = {len(value.items) if isinstance(value, ItemsValue) else None for value in values}
        return counts.pop() if len(counts) == 1 else None

    def _options(self, shapes_of: Callable[[FunctionCall], Iterable[Shape]]) -> Occurrences:
        """Return in each call, as options of one occurrence, the shapes that a function gives."""
        return [_any_of(shapes_of(call)) for call in self.calls]

    def arguments(self) -> Occurrences:
        """Return the shapes of all arguments as options."""
        return self._options(
            lambda call: (shape for value in call.invocation.arguments.values() for shape in _shapes(value))
        )

    def result(self, place: int | None = None) -> Occurrences:
        """Return the shapes of the results, or of one item of each."""
        return [_each(_item(value, place) for _, value in call.invocation.results) for call in self.calls]

    def made(self, statement: ast.stmt, place: int | None = None, of: int = 1) -> Occurrences:
        """Return what a statement binds, returns or computes; the item at `place` where it makes `of` of them."""
        return [_made(call, statement, place, of) for call in self.calls]

    def touched(self, statement: ast.stmt) -> Occurrences:
        """Return everything that a statement reads, computes and binds, as options."""

        def shapes(call: FunctionCall) -> Iterator[Shape]:
            if call.reached(statement):
                yield from itertools.chain(*_made(call, statement))
                for event in call.events_of(statement):
                    yield from (*event.outputs, *(shape for shape, _ in event.operands))
                yield from _read(call, statement, statement.lineno)

        return self._options(shapes)

    def computed(self, statements: Sequence[ast.stmt]) -> Occurrences:
        """Return everything that statements compute and bind, without what they only read, as options."""

        def shapes(call: FunctionCall) -> Iterator[Shape]:
            for statement in statements:
                yield from itertools.chain(*_made(call, statement))
            for statement in statements:
                yield from (shape for event in call.events_of(statement) for shape in event.outputs)

        return self._options(shapes)

    def read(self, statements: Sequence[ast.stmt]) -> Occurrences:
        """Return what statements read and compute before their last step, as options."""

        def shapes(call: FunctionCall) -> Iterator[Shape]:
            events = [event for statement in statements for event in call.events_of(statement)]
            final = max((event.position for event in events), default=0)
            for statement in filter(call.reached, statements):
                yield from _read(call, statement, statements[0].lineno)
            for event in events:
                yield from (shape for shape, source in event.operands if source != final)
                yield from event.outputs if event.position != final else ()

        return self._options(shapes)

    def ended(self, statement: ast.stmt, line: int) -> Occurrences:
        """Return, as options, the values of a statement's expressions that end on a line, else the variables there.

        What another function returns isn't known, and is none of the variables that it gets.
        """
        calls = any(isinstance(node, ast.Call) and node.end_lineno == line for node in ast.walk(statement))

        def shapes(call: FunctionCall) -> Iterator[Shape]:
            events = [event for event in call.events_of(statement) if event.last == line]
            yield from (shape for event in _longest(events) for shape in event.outputs)
            if not events and not calls and call.reached(statement):
                yield from _read(call, statement, line, on=line)

        return self._options(shapes)

    def steps_shown(self, statements: Sequence[ast.stmt]) -> int:
        """Return how many expressions of some statements were recorded, 0 if one of them is fused attention.

        What another function or fused attention computes between its operands and its result isn't observed here.
        """
        events = [event for call in self.calls for statement in statements for event in call.events_of(statement)]
        fused = any(base_name(event.operation) in FUSED_ATTENTION for event in events)
        return 0 if fused else len({event.text for event in events})

    def products(self, statement: ast.stmt, place: int) -> Occurrences:
        """Return the first or second operand of each product of two tensors in a statement, as options.

        An operand that the statement itself transposes, expands or casts is an option as it was before, too.
        """
        occurrences = []
        for call in self.calls:
            steps = call.events_of(statement)
            made_by = {event.position: event for event in steps}
            pairs = [event for event in steps if len(event.operands) == 2]
            products = [event for event in pairs if base_name(event.operation) in MATRIX_PRODUCTS]
            products = products or [event for event in pairs if base_name(event.operation) in _ARITHMETIC]
            options = [shape for event in products for shape in _before_layout(*event.operands[place], made_by)]
            occurrences.append(_any_of(options))
        return occurrences

    def variable(self, name: str, line: int, statement: ast.stmt | None) -> Occurrences:
        """Return what a variable held at a line: what the statement binds to it, else its last value before."""
        lines = lines_of(statement) if statement is not None else range(0)

        def values(call: FunctionCall) -> list[Value]:
            stores = [store for store in call.bindings_on(lines) if store.name == name]
            return [store.value for store in stores] or call.shapes_bound_by(name, line)

        return [_each(values(call)) for call in self.calls]

    def bound(self, lines: range, name: str | None = None) -> Occurrences:
        """Return what was bound on some lines, to one variable or to any, as options."""

        def shapes(call: FunctionCall) -> Iterator[Shape]:
            stores = (store for store in call.bindings_on(lines) if name is None or store.name == name)
            yield from (shape for store in stores for shape in _shapes(store.value))

        return self._options(shapes)

    def dtypes(self, annotation: JaxtypingAnnotation) -> list[str]:
        """Return the dtypes of the annotated tensors."""
        values: list[Value] = []
        for call in self.calls:
            if annotation.parameter is not None:
                values.append(call.invocation.arguments.get(annotation.parameter))
            elif annotation.statement is not None:
                values += _bound_values(call, targets_of(annotation.statement), None, 1)
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


_SAME_RANK = SAME_VALUES - UNIT_AXES - SELECTIONS
"""Layout operations that people leave out where they write down what a product multiplies."""
_ARITHMETIC = ADDITIONS | SUBTRACTIONS | MULTIPLICATIONS


def _before_layout(shape: Shape, source: int | None, made_by: Mapping[int, StepEvent]) -> Iterator[Shape]:
    """Yield an operand's shape, and its shape before each of the layout steps that led to it."""
    yield shape
    while source is not None and (event := made_by.get(source)) is not None and event.operands:
        if base_name(event.operation) not in _SAME_RANK:
            return
        shape, source = event.operands[0]
        yield shape


def _longest(events: Sequence[StepEvent]) -> list[StepEvent]:
    """Return the steps of the longest expression."""
    longest = max((len(event.text) for event in events), default=0)
    return [event for event in events if len(event.text) == longest]


def _made(call: FunctionCall, statement: ast.stmt, place: int | None = None, of: int = 1) -> list[Options]:
    if isinstance(statement, ast.Return):
        values = [value for line, value in call.invocation.results if line in lines_of(statement)]
        return _each(_item(value, place if of > 1 else None) for value in values)
    if targets := targets_of(statement):
        return _each(_bound_values(call, targets, place, of))
    computes = isinstance(statement, (ast.Assign, ast.AugAssign, ast.AnnAssign, ast.Expr))
    if not computes or writes_into_part(statement):
        return []
    events = call.events_of(statement)
    last = max((event.last for event in events), default=0)
    return [[shape] for event in _longest([e for e in events if e.last == last]) for shape in event.outputs[:1]]


def _read(call: FunctionCall, statement: ast.stmt, before: int, on: int | None = None) -> Options:
    """Return the shapes of the variables that a statement reads, on one of its lines or on all."""
    names = [node for node in ast.walk(statement) if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Load)]
    ids = dict.fromkeys(node.id for node in names if on is None or node.lineno == on)
    values = [value for name in ids for value in call.shapes_bound_by(name, before - 1, exclude=lines_of(statement))]
    return [shape for value in values for shape in _shapes(value)]


def _bound_values(call: FunctionCall, targets: Sequence[ast.Name], place: int | None, of: int) -> list[Value]:
    places = {(target.lineno, target.col_offset) for target in targets}
    named = {(target.lineno, target.id) for target in targets}
    stores = [
        store
        for store in call.bindings_on(target.lineno for target in targets)
        if (store.line, store.column) in places or (store.column == NO_COLUMN and (store.line, store.name) in named)
    ]
    if stores and all(isinstance(store.value, int) for store in stores):
        if len(targets) == 1:
            return []  # of `T = x.size(1)  # (B, T, C)` the comment describes x
        return [TensorValue(shape, "") for shape in _unpacked_shapes(stores, targets)]
    if place is not None and of == len(targets):
        wanted = (targets[place].lineno, targets[place].id)
        return [store.value for store in stores if (store.line, store.name) == wanted]
    if place is not None and len(targets) > 1:
        return []
    values = [_item(store.value, place) for store in stores]
    if len({len(shape) for value in values for shape in _shapes(value)}) > 1:
        return [ItemsValue("tuple", tuple(values))]  # `context, weights = attend(x)  # (B, L, D)` is about one of them
    return values


def _unpacked_shapes(bindings: Sequence[Binding], targets: Sequence[ast.Name]) -> Iterator[Shape]:
    """Yield the integers of `B, T, C = x.shape` as one shape, each time that the line ran."""
    count = len(targets)
    places: dict[tuple[int, str | int], int] = {}
    for place, target in enumerate(targets):
        places |= {(target.lineno, target.id): place, (target.lineno, target.col_offset): place}
    for start in range(0, len(bindings) - count + 1, count):
        # `B, T = x.size(0), x.size(1)` binds the last first
        ordered = sorted(
            bindings[start : start + count],
            key=lambda store: places.get((store.line, store.column), places.get((store.line, store.name), 0)),
        )
        yield tuple(store.value for store in ordered if isinstance(store.value, int))


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
