"""What was measured at a place in a function: the shapes that a line made, read, or that a variable held there."""

from __future__ import annotations

import ast
from collections.abc import Iterable, Iterator, Sequence

from attnshape.variables.observe import Run
from attnshape.variables.values import SeenItems, SeenTensor, Value
from attnshape.variables.watch import NO_COLUMN, Binding, Function
from attnshape.written.annotations import Annotation
from attnshape.written.calls import Call, Event, Shape, calls_of
from attnshape.written.statements import fills, lines_of, targets_of

Options = list[Shape]
"""Shapes of which any will do."""
Occurrences = list[list[Options]]
"""In each call, each time that the place was reached."""


class Measured:
    """The calls of one function in several runs."""

    def __init__(self, function: Function, runs: Sequence[Run]) -> None:
        self.function = function
        self.calls = list(calls_of(function, runs))

    def argument(self, name: str) -> Occurrences:
        """Return what an argument was."""
        return [_each([call.invocation.arguments.get(name)]) for call in self.calls]

    @property
    def returned(self) -> int | None:
        """How many values the function returns, None where it isn't a tuple each time of as many."""
        values = [value for call in self.calls for _, value in call.invocation.results]
        counts = {len(value.items) if isinstance(value, SeenItems) else None for value in values}
        return counts.pop() if len(counts) == 1 else None

    def arguments(self) -> Occurrences:
        """Return, as options, what all arguments were."""
        found = []
        for call in self.calls:
            options = [shape for value in call.invocation.arguments.values() for shape in _shapes(value)]
            found.append([list(dict.fromkeys(options))] if options else [])
        return found

    def result(self, place: int | None = None, lines: range | None = None) -> Occurrences:
        """Return what the function returned, or one item of it; of the return statements on certain lines, if any."""

        def values(call: Call) -> Iterator[Value]:
            for line, value in call.invocation.results:
                if lines is None or line in lines:
                    yield _item(value, place)

        return [_each(values(call)) for call in self.calls]

    def made(self, statement: ast.stmt, place: int | None = None, of: int = 1) -> Occurrences:
        """Return what a statement binds, returns or computes; the item at a place where it makes several."""
        if isinstance(statement, ast.Return):
            return self.result(place if of > 1 else None, lines_of(statement))
        targets = targets_of(statement)
        if targets:
            return [_each(_bound(call, statement, targets, place, of)) for call in self.calls]
        if isinstance(statement, (ast.Assign, ast.AugAssign, ast.AnnAssign, ast.Expr)) and not fills(statement):
            return [[[shape] for shape in self._last(call, statement)] for call in self.calls]
        return [[] for _ in self.calls]

    def touched(self, statement: ast.stmt) -> Occurrences:
        """Return, as options, everything that a statement reads, computes and binds."""
        found: Occurrences = []
        for call, made in zip(self.calls, self.made(statement), strict=True):
            if not _ran(call, statement):
                found.append([])
                continue
            options = [shape for occurrence in made for shape in occurrence]
            for event in _within(call, statement):
                options += [*event.outputs, *event.operands]
            options += self._read(call, statement, statement.lineno)
            found.append([list(dict.fromkeys(options))] if options else [])
        return found

    def computed(self, statements: Sequence[ast.stmt]) -> Occurrences:
        """Return, as options, everything that statements compute and bind, but not what they only read."""
        found = []
        by_statement = [self.made(statement) for statement in statements]
        for place, call in enumerate(self.calls):
            options = [shape for made in by_statement for occurrence in made[place] for shape in occurrence]
            for statement in statements:
                options += [shape for event in _within(call, statement) for shape in event.outputs]
            found.append([list(dict.fromkeys(options))] if options else [])
        return found

    def read(self, statements: Sequence[ast.stmt]) -> Occurrences:
        """Return, as options, what statements read and make on the way, but not what the last one makes at last."""
        found = []
        for call in self.calls:
            events = [event for statement in statements for event in _within(call, statement)]
            final = max((event.position for event in events), default=0)
            ran = [one for one in statements if _ran(call, one)]
            options = [shape for one in ran for shape in self._read(call, one, statements[0].lineno)]
            for event in events:
                pairs = zip(event.operands, event.sources, strict=True)
                options += [shape for shape, made in pairs if made != final]
                options += event.outputs if event.position != final else ()
            found.append([list(dict.fromkeys(options))] if options else [])
        return found

    def ended(self, statement: ast.stmt, line: int) -> Occurrences:
        """Return, as options, what the expressions of a statement make that end on a line, and variables read there."""
        found = []
        for call in self.calls:
            events = [event for event in _within(call, statement) if event.last == line]
            longest = max((len(event.text) for event in events), default=0)
            options = [shape for event in events if len(event.text) == longest for shape in event.outputs]
            if not events and _ran(call, statement):
                options += self._read(call, statement, line, on=line)
            found.append([list(dict.fromkeys(options))] if options else [])
        return found

    def products(self, statement: ast.stmt, place: int) -> Occurrences:
        """Return, as options, the first or the second operand of each product of two tensors in a statement."""
        found = []
        for call in self.calls:
            pairs = [event for event in _within(call, statement) if len(event.operands) == 2]
            there = [event for event in pairs if event.operation in _PRODUCTS]
            there = there or [event for event in pairs if event.operation in _ELEMENTWISE]
            found.append([[event.operands[place] for event in there]] if there else [])
        return found

    def variable(self, name: str, line: int, statement: ast.stmt | None) -> Occurrences:
        """Return what a variable held at a line: what the statement binds to it, else what it was bound to last."""
        lines = lines_of(statement) if statement is not None else range(0)
        found = []
        for call in self.calls:
            bound = [one for one in call.invocation.bindings if one.name == name]
            there = [one for one in bound if one.line in lines]
            if not there:
                before = [one for one in bound if one.line <= line]
                latest = max((one.line for one in before), default=0)
                there = [one for one in before if one.line == latest]
            values = [one.value for one in there] or [call.invocation.arguments.get(name)]
            found.append(_each(values))
        return found

    def next_or_last(self, name: str, line: int, statement: ast.stmt | None) -> Occurrences:
        """Return, as options, what a variable held before a line and what the statement behind it binds to it."""
        before = self.variable(name, line, None)
        behind = self.variable(name, line, statement)
        return [
            [list(dict.fromkeys(shape for occurrence in (*first, *then) for shape in occurrence))]
            if first or then
            else []
            for first, then in zip(before, behind, strict=True)
        ]

    def dtypes(self, annotation: Annotation) -> list[str]:
        """Return the types of the tensors that an annotation speaks of."""
        values: list[Value] = []
        for call in self.calls:
            if annotation.parameter is not None:
                values.append(call.invocation.arguments.get(annotation.parameter))
            elif annotation.statement is not None:
                values += _bound(call, annotation.statement, targets_of(annotation.statement), None, 1)
            else:
                values += [_item(value, annotation.item) for _, value in call.invocation.results]
        return list(dict.fromkeys(value.dtype for value in values if isinstance(value, SeenTensor)))

    def _last(self, call: Call, statement: ast.stmt) -> list[Shape]:
        events = _within(call, statement)
        last = max((event.last for event in events), default=0)
        widest = max((len(event.text) for event in events if event.last == last), default=0)
        return [
            shape for event in events if event.last == last and len(event.text) == widest for shape in event.outputs[:1]
        ]

    def _read(self, call: Call, statement: ast.stmt, before: int, on: int | None = None) -> list[Shape]:
        """Return what the variables held that a statement reads, on one line of it or on all."""
        names = {
            node.id
            for node in ast.walk(statement)
            if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Load) and (on is None or node.lineno == on)
        }
        lines = lines_of(statement)
        options: list[Shape] = []
        for name in names:
            bound = [one for one in call.invocation.bindings if one.name == name and one.line not in lines]
            earlier = [one for one in bound if one.line < before]
            latest = max((one.line for one in earlier), default=0)
            values = [one.value for one in earlier if one.line == latest] or [call.invocation.arguments.get(name)]
            options += [shape for value in values for shape in _shapes(value)]
        return options


_PRODUCTS = frozenset(
    f"torch.{owner}{name}"
    for owner in ("", "Tensor.")
    for name in ("matmul", "bmm", "mm", "__matmul__", "__rmatmul__", "einsum", "functional.einsum")
)
_ELEMENTWISE = frozenset(
    f"torch.{owner}{name}"
    for owner in ("", "Tensor.")
    for name in ("mul", "__mul__", "add", "__add__", "sub", "__sub__")
)


def _within(call: Call, statement: ast.stmt) -> list[Event]:
    lines = lines_of(statement)
    return [event for event in call.events if event.line in lines]


def _ran(call: Call, statement: ast.stmt) -> bool:
    """Say whether a call came by a statement: it made a step there, bound a variable, or returned."""
    lines = lines_of(statement)
    bound = any(one.line in lines for one in call.invocation.bindings)
    return bound or bool(_within(call, statement)) or any(line in lines for line, _ in call.invocation.results)


def _bound(call: Call, statement: ast.stmt, targets: Sequence[ast.Name], place: int | None, of: int) -> list[Value]:
    places = {(one.lineno, one.col_offset) for one in targets}
    named = {(one.lineno, one.id) for one in targets}
    bindings = call.invocation.bindings
    there = [
        one
        for one in bindings
        if (one.line, one.column) in places or (one.column == NO_COLUMN and (one.line, one.name) in named)
    ]
    if there and all(isinstance(one.value, int) for one in there):
        return [SeenTensor(shape, "") for shape in _as_shapes(there, targets)]
    if place is not None and of == len(targets):
        wanted = targets[place]
        there = [one for one in there if (one.line, one.name) == (wanted.lineno, wanted.id)]
    elif place is not None and len(targets) == 1:
        return [_item(one.value, place) for one in there]
    elif place is not None:
        return []
    return [one.value for one in there]


def _as_shapes(bindings: Sequence[Binding], targets: Sequence[ast.Name]) -> Iterator[Shape]:
    """Yield the numbers of `B, T, C = x.shape` as the shape that they are, once each time."""
    count = len(targets)
    places: dict[tuple[int, str | int], int] = {(one.lineno, one.id): place for place, one in enumerate(targets)}
    places |= {(one.lineno, one.col_offset): place for place, one in enumerate(targets)}
    for start in range(0, len(bindings) - count + 1, count):
        # `B, T = x.size(0), x.size(1)` binds the last first
        there = sorted(
            bindings[start : start + count],
            key=lambda one: places.get((one.line, one.column), places.get((one.line, one.name), 0)),
        )
        yield tuple(one.value for one in there if isinstance(one.value, int))


def _item(value: Value, place: int | None) -> Value:
    if place is None:
        return value
    return value.items[place] if isinstance(value, SeenItems) and place < len(value.items) else None


def _each(values: Iterable[Value]) -> list[Options]:
    return [shapes for value in values if (shapes := _shapes(value))]


def _shapes(value: Value) -> list[Shape]:
    """Return a tensor's shape, or those of the tensors in a tuple."""
    if isinstance(value, SeenTensor):
        return [value.shape]
    if isinstance(value, SeenItems):
        return list(dict.fromkeys(shape for item in value.items for shape in _shapes(item)))
    return []
