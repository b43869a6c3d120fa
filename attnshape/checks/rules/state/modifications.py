"""Finds the expressions that modify the tensor of a variable in place, and the other variables that hold it."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from attnshape.checks.attention.perturbation import differs
from attnshape.checks.attention.subject import Subject
from attnshape.checks.attention.variables import Function, Loop, bound_by, rebindings, returned, variables_of
from attnshape.checks.interventions.replay import ReplayedCall
from attnshape.checks.rules.state.writes import written
from attnshape.tracing.source_locations import SourceLocator
from attnshape.tracing.syntax_nodes import enclosing


@dataclass(frozen=True)
class Modification:
    """An expression that modifies a variable's tensor in place, itself or by passing it."""

    level: int
    """Which of the frames of the call the expression is in, 0 being the innermost."""
    name: str
    node: Any
    function: Any

    @property
    def is_statement(self) -> bool:
        """Whether the expression is there to modify the tensor: it is `x += y`, or nothing gets its result."""
        return not isinstance(self.node, ast.Call) or isinstance(self.node.parent, ast.Expr)  # type: ignore[attr-defined]  # executing sets parents

    @property
    def bound(self) -> set[str]:
        """The variables that the statement binds."""
        return bound_by(enclosing(self.node, ast.stmt))

    @property
    def aliases(self) -> set[str]:
        """The other variables that are assigned the same tensor before, with `residual = x` or the other way round."""
        before = (node for node in self.assignments if node.lineno < self.node.lineno)
        return {name for node in before for name in (node.targets[0].id, node.value.id)} - {self.name}

    @property
    def assignments(self) -> list[Any]:
        """The statements that give the tensor another name before, as `residual = x` does, in a loop also below."""
        found: list[Any] = []
        for node in ast.walk(self.function):
            match node:
                case ast.Assign(targets=[ast.Name(id=one)], value=ast.Name(id=other)) if self.name in (one, other):
                    is_before = node.lineno < self.node.lineno and not self._is_rebound(node.lineno, (one, other))
                    if is_before or self._is_carried_from(node):
                        found.append(node)
        return found

    def _is_carried_from(self, assignment: Any) -> bool:
        """Return whether an assignment further down in a loop is what an iteration before leaves in the variable."""
        loop = enclosing(self.node, Loop)
        if loop is None or loop is not enclosing(assignment, Loop) or assignment.targets[0].id != self.name:
            return False
        bound = (store.lineno for store in rebindings(loop, self.name))
        return assignment.lineno > self.node.lineno and all(line == assignment.lineno for line in bound)

    @property
    def is_returned(self) -> bool:
        """Whether the function returns the variable."""
        return next(returned(self.function, self.name), None) is not None

    def _is_rebound(self, line: int, names: tuple[str, str]) -> bool:
        stores = (store.lineno for name in names for store in rebindings(self.function, name))
        return any(line < store < self.node.lineno for store in stores)


def is_modified(subject: Subject, event: ReplayedCall) -> bool:
    """Return whether a call changes the numbers of a tensor that is neither an argument nor a parameter.

    Of those there are findings of their own.
    """
    if not event.in_place or event.operand_values[0].shape != event.values[0].shape:
        return False
    return bool(differs(event.operand_values[0], event.values[0], 0.0).any()) and not written(subject, event)


def modifications(event: ReplayedCall) -> Iterator[Modification]:
    """Yield the expression that modifies a variable's tensor, and those by which callers pass the tensor."""
    locator = SourceLocator()
    position: int | None = None
    for level, frame in enumerate(event.calls):
        _, node = locator.find(frame)
        match node:
            case ast.AugAssign(target=ast.Name(id=target)) if level == 0:
                name: str | None = target
            case ast.Call():
                name = _operand(node, event.short_name) if level == 0 else _argument(node, position)
            case _:
                return
        function = enclosing(node, Function)
        if name is None or function is None:
            return
        one = Modification(level, name, node, function)
        yield one
        positions = (_parameter(function, held) for held in (name, *sorted(one.aliases)))
        position = next((place for place in positions if place is not None), None)


def _operand(call: ast.Call, operation: str) -> str | None:
    """Return the variable that a call modifies: the tensor whose method it is, or the first argument."""
    function = enclosing(call, Function)
    match call.func:
        case ast.Attribute(value=ast.Name(id=name), attr=called) if called == operation and name in variables_of(
            function
        ):
            return name
    given = [*call.args[:1], *(word.value for word in call.keywords if word.arg == "input")]
    return given[0].id if given and isinstance(given[0], ast.Name) else None


def _argument(call: ast.Call, place: int | None) -> str | None:
    """Return the variable that a call passes at a place."""
    given = call.args[place] if place is not None and place < len(call.args) else None
    return given.id if isinstance(given, ast.Name) else None


def _parameter(function: Any, name: str) -> int | None:
    """Return the place of a parameter among the arguments that a caller writes, `self` left out; None if it is none."""
    names = [one.arg for one in (*function.args.posonlyargs, *function.args.args) if one.arg != "self"]
    return names.index(name) if name in names else None
