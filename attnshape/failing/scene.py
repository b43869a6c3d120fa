"""The call that failed, as the explanations read it."""

from __future__ import annotations

import ast
import io
import math
import re
import tokenize
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from attnshape.inference.failed import Alike
from attnshape.model import NamedTensor, Step, TensorRecord
from attnshape.tracing.raw import RawCall, RawFailure, RawOperand, Slot

_LONGEST_NAME = 60
RESULT_OF = "the result of step"
"""How an operand is named that the source doesn't name, and that no expression of its own stands for."""


@dataclass(frozen=True)
class Party:
    """One operand of the call that failed."""

    place: int
    """Its position among the operands."""
    name: str
    text: str | None
    """How the failing expression itself writes it; None where it isn't written there."""
    record: TensorRecord
    extremes: tuple[float, float] | None = None

    @property
    def shape(self) -> tuple[int, ...]:
        """Its sizes."""
        return self.record.shape

    @property
    def rank(self) -> int:
        """The number of its axes."""
        return len(self.record.shape)


@dataclass(frozen=True)
class Scene:
    """A failure with all that is known of it."""

    failure: RawFailure
    parties: tuple[Party, ...]
    steps: tuple[Step, ...]
    alike: Alike
    device: str
    """The kind of device that the run is on."""
    dtype: str
    """The floating-point type that the run has by default."""

    @property
    def message(self) -> str:
        """The error in the library's words."""
        return str(self.failure.error)

    @cached_property
    def operation(self) -> str:
        """The operation's short name: `matmul`, `masked_fill` for `masked_fill_` too."""
        name = (self.failure.operation or "").rpartition(".")[2]
        return name.strip("_") or name

    @property
    def call(self) -> RawCall | None:
        """The call itself, where one failed."""
        return self.failure.call

    @cached_property
    def expression(self) -> str:
        """The failing expression on one line; empty where it can't be written so."""
        place = self.failure.place
        return _one_line(place.expression) if place is not None else ""

    def argument(self, position: int, *keywords: str) -> Any:
        """Return an argument by its position or by one of its keywords; None where it wasn't given."""
        if self.call is None:
            return None
        if position < len(self.call.args):
            return self.call.args[position]
        return next((self.call.keywords[word] for word in keywords if word in self.call.keywords), None)

    def operand(self, position: int, *keywords: str) -> Party | None:
        """Return the operand that stands at a position or under a keyword."""
        value = self.argument(position, *keywords)
        return self.parties[value.operand] if isinstance(value, Slot) else None

    def operands(self, position: int, *keywords: str) -> list[Party]:
        """Return the operands in a list that stands there."""
        value = self.argument(position, *keywords)
        items = value if isinstance(value, (tuple, list)) else ()
        return [self.parties[item.operand] for item in items if isinstance(item, Slot)]

    def formula(self, read: Callable[[RawCall], int], actual: int) -> str:
        """Return one of the call's numbers in the size symbols, as far as the small runs tell."""
        calls = [failure.call for failure in self.alike.failures]
        try:
            values = [read(call) for call in calls if call is not None]
        except (IndexError, KeyError, TypeError, AttributeError):
            values = []
        if len(values) != len(calls) or not values:
            return str(actual)
        return self.alike.formula(values, actual).text if actual > 0 else str(actual)


def scene_of(alike: Alike, inputs: Sequence[NamedTensor], steps: Sequence[Step], device: str, dtype: str) -> Scene:
    """Return the scene of a failure."""
    failure = alike.actual
    expression = _one_line(failure.place.expression) if failure.place is not None else ""
    parties = []
    for place, (operand, record) in enumerate(zip(failure.operands, alike.operands(inputs, steps), strict=True)):
        name = _name(operand, record, failure, steps, expression) or f"operand {place + 1}"
        of = operand.tensor.of
        # inside a library only an input is sure to be what the traced code's own line calls so
        known = failure.own or (of is not None and of.input == name) or name == _passed(operand, expression)
        text = _written(name, expression) if known else None
        parties.append(Party(place, name, text, record, operand.extremes))
    return Scene(failure, tuple(parties), tuple(steps), alike, device, dtype)


def _name(
    operand: RawOperand, record: TensorRecord, failure: RawFailure, steps: Sequence[Step], expression: str
) -> str | None:
    passed = _passed(operand, expression) if not failure.own else None
    if passed is not None or operand.name is not None:
        return passed or operand.name
    of = operand.tensor.of
    if of is not None and of.step is not None:
        step = steps[of.step - 1]
        text = _one_line(step.expression)
        itself = step.outputs[of.output].tensor is record and len(step.outputs) == 1
        if itself and text and text != expression and len(text) <= _LONGEST_NAME and _occurs(text, expression):
            return text
    if operand.parameter is not None:
        return _passed(operand, expression) or operand.parameter
    if of is not None and of.step is not None and steps[of.step - 1].outputs[of.output].tensor is record:
        return f"{RESULT_OF} {of.step}"
    return None


def _passed(operand: RawOperand, expression: str) -> str | None:
    """Return the plain variable that the expression gives for the keyword that an operand was passed as."""
    tree = parsed(expression) if operand.parameter is not None else None
    words = tree.keywords if isinstance(tree, ast.Call) else []
    found = (word.value.id for word in words if word.arg == operand.parameter and isinstance(word.value, ast.Name))
    return next(found, None)


def _written(name: str, expression: str) -> str | None:
    """Return how an operand of that name is written in an expression, None where it isn't or is there twice."""
    return next((text for text in (name, f"self.{name}") if _occurs(text, expression)), None)


def _occurs(text: str, expression: str) -> bool:
    return len(re.findall(rf"(?<![\w.]){re.escape(text)}(?![\w(])", expression)) == 1


def _one_line(expression: str) -> str:
    """Return an expression without comments and line breaks; empty where it can't be read."""
    lines = expression.split("\n")
    try:
        # in brackets line breaks and indentation are no tokens that count
        for token in tokenize.generate_tokens(io.StringIO(f"(\n{expression}\n)").readline):
            if token.type == tokenize.COMMENT:
                row, column = token.start
                lines[row - 2] = lines[row - 2][:column]
    except (tokenize.TokenError, SyntaxError):
        return ""
    if len(lines) == 1:
        return lines[0].strip()
    return re.sub(r"(?<=[(\[]) | (?=[)\]])", "", " ".join(" ".join(lines).split()).replace(", )", ")"))


def parsed(expression: str) -> ast.expr | None:
    """Return an expression's syntax tree, None where it is none; columns in it count characters."""
    if not expression.isascii():
        return None
    try:
        return ast.parse(expression, mode="eval").body
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return None


def numel(shape: Sequence[int]) -> int:
    """Return the number of elements."""
    return math.prod(shape)


def integers(values: object) -> Iterator[int]:
    """Yield the numbers in `(2, 3)`, `[2, 3]` and `((2, 3),)`; a TypeError where something else is there."""
    items = values if isinstance(values, (tuple, list)) else (values,)
    for item in items:
        if isinstance(item, (tuple, list)):
            yield from integers(item)
        elif type(item) is int:
            yield item
        else:
            raise TypeError(item)
